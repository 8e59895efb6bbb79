"""Pure forward kernels: tensors in, new tensors out, no history."""

from netcl.core.tensor import OPERATIONS
from netcl.ops import elementwise, reduction
from netcl.ops.matmul import gemm, linear, matmul

OPERATIONS.update({name: getattr(elementwise, name) for name in (
    "add", "sub", "mul", "div", "pow", "remainder", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or",
    "logical_not", "neg", "abs", "exp", "log", "sqrt", "contiguous", "copy", "cast", "assign",
)})  # fmt: skip
OPERATIONS["matmul"] = matmul
OPERATIONS.update({name: getattr(reduction, name) for name in (
    "sum", "mean", "prod", "max", "min", "var", "std", "argmax", "argmin", "any", "all",
)})  # fmt: skip

__all__ = ["gemm", "linear", "matmul"]
