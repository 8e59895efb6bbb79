"""Matrix products with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core.backend import cpu
from netcl.core.dtypes import compute_dtype
from netcl.core.kernels import dialect
from netcl.core.tensor import Tensor
from netcl.ops.product.problem import Call


def numpy_gemm(call: Call) -> Tensor:
    """The call's product with NumPy."""
    operands = (call.a, call.b) if call.bias is None else (call.a, call.b, call.bias)
    if call.out is None:
        return cpu.compute(numpy_product, *operands, activation=call.activation, alpha=call.alpha)
    update = _add_product if call.accumulate else _set_product
    cpu.update(update, (call.out,), *operands, activation=call.activation, alpha=call.alpha)
    return call.out


def _set_product(c: np.ndarray, a: np.ndarray, b: np.ndarray, *bias: Any, **attrs: Any) -> np.ndarray:
    return numpy_product(a.astype(c.dtype, copy=False), b.astype(c.dtype, copy=False), *bias, **attrs)


def _add_product(c: np.ndarray, *operands: Any, **attrs: Any) -> np.ndarray:
    total: np.ndarray = c + numpy_product(*operands, **attrs)
    return total


def numpy_product(
    a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None, activation: str | None = None, alpha: float = 1.0
) -> np.ndarray:
    """activation(alpha a b + bias) with NumPy; half is computed in float."""
    compute = compute_dtype(a.dtype)
    y = np.matmul(a.astype(compute, copy=False), b.astype(compute, copy=False))
    if alpha != 1.0:
        y = y * y.dtype.type(alpha)
    if bias is not None:
        y = y + bias.astype(compute, copy=False)
    if activation is not None:
        y = dialect.NUMPY[activation.upper()](y)
    return np.asarray(y).astype(a.dtype, copy=False)
