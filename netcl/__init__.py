"""netcl: deep learning on any OpenCL device. Start with `netcl.core.device.manager` and `netcl.autograd`."""

from netcl import moved
from netcl.core import debug, driver, settings

moved.install()
settings.check()
driver.prepare()  # before anything imports pyopencl: its loader reads the list of drivers once

import netcl.ops  # fills the table of operators that Tensor looks up
from netcl.core.tensor import Tensor
from netcl.ops.create.random import seed
from netcl.ops.nvidia.precision import set_matmul_precision

debug.from_environment()

__version__ = "0.1.0"
__all__ = ["Tensor", "__version__", "seed", "set_matmul_precision"]
