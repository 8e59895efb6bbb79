"""Linear: the affine map of the last axis."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.core.errors import ShapeError
from netcl.nn import init
from netcl.nn.inputs import input_of
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter, queue_of


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features).

    weight (out_features, in_features) is uniform in +-1 / sqrt(in_features) (Kaiming uniform with a = sqrt(5)), bias
    zero. A floating input is cast to the weight's dtype. Source: He et al. 2015, arXiv:1502.01852.
    """

    def __init__(
        self, queue: Any, in_features: int, out_features: int, *, bias: bool = True, dtype: Any = "float32"
    ) -> None:
        queue = queue_of("Linear", queue)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.kaiming_uniform(queue, (out_features, in_features), a=5**0.5, dtype=dtype))
        self.bias = Parameter(init.zeros(queue, (out_features,), dtype=dtype)) if bias else None

    def _inputs(self, x: Any) -> tuple[Any, ...]:
        """What the op takes, checked."""
        x = input_of("Linear", x, self.weight.value.dtype)
        if not x.shape or x.shape[-1] != self.in_features:
            rest = f"({x.shape[0]}, -1)" if x.shape else "(1, -1)"
            raise ShapeError(
                f"Linear: expected input with last axis {self.in_features}, got shape {x.shape}; "
                f"flatten it first, e.g. x.reshape{rest} or nn.Flatten()."
            )
        return (x, self.weight) if self.bias is None else (x, self.weight, self.bias)

    def forward(self, x: Any) -> Any:
        """(..., in) -> (..., out)."""
        return ag.linear(*self._inputs(x))

    def forward_with(self, x: Any, activation: str) -> Any:
        """activation(forward(x)) as one kernel, for "relu", "gelu" and "silu"."""
        return getattr(ag, f"linear_{activation}")(*self._inputs(x))

    def extra_repr(self) -> str:
        """Sizes and bias."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
