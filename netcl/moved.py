"""Where modules of earlier versions are now: one table, so that imports by the old paths go on working.

An old path stands in sys.modules as a module that imports the new one when something is asked of it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

MOVED = {  # below netcl
    "core.rebind": "core.live",
    "core.pocl": "core.device.pocl",
    "core.profile": "core.device.profile",
    "ops.sources": "kernels.sources",
    "ops.plans": "kernels.plans",
    "ops.tuning": "kernels.tuning",
    "ops.chain": "fusion.map",
    "ops.broadcast": "fusion.walk",
    "ops.render": "fusion.render",
    "ops.fold": "fusion.fold",
    "ops.rows": "fusion.rows",
    "ops.multi": "fusion.many",
    "ops.matmul": "ops.product.op",
    "ops.linear_grad": "ops.product.linear_grad",
    "ops.conv": "ops.convolution.op",
    "ops.winograd": "ops.convolution.winograd",
    "ops.pool": "ops.pooling.op",
    "ops.norm": "ops.normalization.norm",
    "ops.batch_norm": "ops.normalization.batch_norm",
    "ops.group_norm": "ops.normalization.group_norm",
    "ops.softmax": "ops.normalization.softmax",
    "ops.attention": "ops.attend.op",
    "ops.indexing": "ops.index.pick",
    "ops.scatter": "ops.index.scatter",
    "ops.sort": "ops.index.sort",
    "ops.scan": "ops.index.scan",
    "ops.loss": "ops.losses.loss",
    "ops.cross_entropy": "ops.losses.cross_entropy",
    "ops.fill": "ops.create.fill",
    "ops.random": "ops.create.random",
    "ops.matrix_units.precision": "ops.nvidia.precision",
    "autograd.trace": "autograd.jit.trace",
    "autograd.program": "autograd.jit.program",
    "autograd.report": "autograd.jit.report",
    "autograd.step": "autograd.jit.step",
    "autograd.shapes": "autograd.jit.shapes",
    "autograd.primitive": "autograd.jit.primitive",
    "ops.matrix_units": "ops.nvidia",
    # paths of older pages, which never held code here; several homes are searched in order
    "core.capabilities": "core.device.profile",
    "core.kernel_selector": "kernels.tuning",
    "autograd.engine": "autograd.tape autograd.node autograd.op autograd.state autograd.debug",
    "autograd.graph": "autograd.jit.step",
    "autograd.debug_tape": "autograd.debug",
    "nn.layers": "nn",
    "nn.resnet": "nn.models.resnet",
    "optim.schedule": "optim.lr_scheduler",
    "profiling.timing": "profiling.timer profiling.profile",
    "profiling.autotuner": "profiling.tune",
    "runtime.perf": "profiling.timer profiling.profile",
    "utils.data": "data",
}


class Moved(ModuleType):
    """A module by its old path."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"netcl.{old}", f"netcl.{new} by its old path.")
        self.__dict__["_new"] = [f"netcl.{home}" for home in new.split()]

    def _homes(self) -> list[ModuleType]:
        return [importlib.import_module(home) for home in self.__dict__["_new"]]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for home in self._homes():
                if hasattr(home, name):
                    return getattr(home, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            homes = self._homes()
            setattr(next((home for home in homes if hasattr(home, name)), homes[0]), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(next((home for home in self._homes() if hasattr(home, name)), self._homes()[0]), name)

    def __dir__(self) -> list[str]:
        return sorted({name for home in self._homes() for name in dir(home)})


def install() -> None:
    """Make the old paths importable."""
    for old, new in MOVED.items():
        sys.modules.setdefault(f"netcl.{old}", Moved(old, new))


def module(path: str) -> ModuleType:
    """The module of an old path, for a package's `__getattr__`. Raises AttributeError for other names."""
    if path.removeprefix("netcl.") not in MOVED:
        package, _, name = path.rpartition(".")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return sys.modules[path]
