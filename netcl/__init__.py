"""netcl: deep learning on any OpenCL device. Start with `netcl.core.device.manager` and `netcl.autograd`."""

from typing import TYPE_CHECKING, Any

from netcl.core import driver

driver.register()  # before anything imports pyopencl: its loader reads the list of drivers once

if TYPE_CHECKING:
    from netcl.core.tensor import Tensor

__version__ = "0.1.0"
__all__ = ["Tensor", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Tensor":
        import netcl.ops  # noqa: F401  fills the table of operators that Tensor looks up
        from netcl.core.tensor import Tensor

        return Tensor
    raise AttributeError(f"module 'netcl' has no attribute {name!r}")
