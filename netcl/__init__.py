"""netcl: deep learning on any OpenCL device.

    import netcl as nc

    model = nc.nn.Linear(4, 2)
    print(model(nc.randn(8, 4)).sum())

Packages load when they are first used: nn, optim, ag (autograd), ops, data, io, profiling.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from netcl import moved
from netcl.core import debug, driver, settings

moved.install()
settings.check()
driver.prepare()  # before anything imports pyopencl: its loader reads the list of drivers once

import netcl.ops  # fills the table of operators that Tensor looks up
from netcl.core.deterministic import use_deterministic
from netcl.core.device.discovery import device
from netcl.core.tensor import Tensor
from netcl.front import (
    arange,
    default_queue,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randn,
    randn_like,
    tensor,
    zeros,
    zeros_like,
)
from netcl.ops.create.random import Generator, seed
from netcl.ops.nvidia.precision import set_matmul_precision

if TYPE_CHECKING:
    import netcl.autograd as ag
    from netcl import autograd, data, io, nn, optim, profiling
    from netcl.autograd import enable_grad, inference_mode, no_grad
    from netcl.io.save import load, save

debug.from_environment()

LAZY = {  # name -> where it comes from; a package of netcl, or package:attribute
    "ag": "netcl.autograd",
    **{name: f"netcl.{name}" for name in ("autograd", "cli", "data", "io", "nn", "optim", "profiling", "runtime")},
    **{name: f"netcl.autograd:{name}" for name in ("enable_grad", "inference_mode", "no_grad")},
    **{name: f"netcl.io.save:{name}" for name in ("load", "save")},
}
__version__ = "0.1.0"
__all__ = [
    "Generator",
    "Tensor",
    "__version__",
    "ag",
    "arange",
    "autograd",
    "data",
    "default_queue",
    "device",
    "empty",
    "empty_like",
    "enable_grad",
    "eye",
    "full",
    "full_like",
    "inference_mode",
    "io",
    "linspace",
    "load",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "ops",
    "optim",
    "profiling",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "save",
    "seed",
    "set_matmul_precision",
    "tensor",
    "use_deterministic",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> Any:
    """Packages and names that load on first use, and those of earlier versions (netcl.moved)."""
    if name not in LAZY:
        return moved.attribute("netcl", name)
    path, _, attribute = LAZY[name].partition(":")
    found = import_module(path)
    value = globals()[name] = getattr(found, attribute) if attribute else found
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
