"""What layers take: a tensor, whose floats are cast to the dtype of the layer's parameters."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.autograd.jit.trace import TraceNode
from netcl.autograd.node import Node
from netcl.autograd.state import state
from netcl.core.dtypes import DType, is_float
from netcl.core.errors import DTypeError
from netcl.core.tensor import Tensor


def input_of(where: str, x: Any, dtype: DType | None) -> Any:
    """`x` for the layer `where`: a floating input in `dtype` (unless that is None or whole), anything else as it is.

    Under autocast nothing is cast here, since autocast chooses the dtype of each op. Raises DTypeError for what is no
    Node or Tensor.
    """
    if type(x) is Node and x.value.dtype is dtype:
        return x
    if not isinstance(x, (Node, Tensor, TraceNode)):
        raise DTypeError(
            f"{where}: expected a Node or a Tensor as input, got {type(x).__name__}; "
            "make one with Tensor.from_host(queue, array)."
        )
    given: Any = x  # a symbol while tracing
    found = given.dtype
    if dtype is None or found == dtype or not (is_float(found) and is_float(dtype)) or state.autocast is not None:
        return x
    return ag.astype(given, dtype)
