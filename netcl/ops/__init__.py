"""Pure forward kernels: tensors in, new tensors out, no history."""

from netcl.core.tensor import OPERATIONS
from netcl.ops import elementwise, reduction
from netcl.ops.create import arange, eye, linspace, meshgrid, tril, triu
from netcl.ops.indexing import embedding, gather, index_select, isin, masked_select, one_hot, take
from netcl.ops.matmul import gemm, linear, matmul
from netcl.ops.scan import cumsum
from netcl.ops.scatter import scatter_add
from netcl.ops.sort import argsort, sort, topk

OPERATIONS.update({name: getattr(elementwise, name) for name in (
    "add", "sub", "mul", "div", "pow", "remainder", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or",
    "logical_not", "neg", "abs", "exp", "log", "sqrt", "contiguous", "copy", "cast", "assign",
)})  # fmt: skip
OPERATIONS["matmul"], OPERATIONS["cumsum"] = matmul, cumsum
OPERATIONS.update({name: getattr(reduction, name) for name in (
    "sum", "mean", "prod", "max", "min", "var", "std", "argmax", "argmin", "any", "all",
)})  # fmt: skip

__all__ = [
    "arange", "argsort", "cumsum", "embedding", "eye", "gather", "gemm", "index_select", "isin", "linear", "linspace",
    "masked_select", "matmul", "meshgrid", "one_hot", "scatter_add", "sort", "take", "topk", "tril", "triu",
]  # fmt: skip
