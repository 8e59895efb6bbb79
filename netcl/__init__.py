"""netcl: deep learning on any OpenCL device. Start with `netcl.core.device.manager` and `netcl.autograd`."""

from netcl.core import debug, driver

driver.prepare()  # before anything imports pyopencl: its loader reads the list of drivers once

import netcl.ops  # fills the table of operators that Tensor looks up
from netcl.core.tensor import Tensor
from netcl.ops.matrix_units.precision import set_matmul_precision
from netcl.ops.random import seed

debug.from_environment()

__version__ = "0.1.0"
__all__ = ["Tensor", "__version__", "seed", "set_matmul_precision"]
