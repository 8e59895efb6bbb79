"""Linear: the affine map of the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

import netcl.autograd as ag
from netcl.core.errors import ShapeError
from netcl.core.layout import size_of
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
        self, queue: Any, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = "float32"
    ) -> None:
        queue = queue_of("Linear", queue)
        if not isinstance(bias, (bool, np.bool_)):
            raise TypeError(f"Linear: expected bias True or False, got {bias!r}.")
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.kaiming_uniform(queue, (out_features, in_features), a=5**0.5, dtype=dtype))
        self.bias = Parameter(init.zeros(queue, (out_features,), dtype=dtype)) if bias else None

    def _inputs(self, x: Any) -> tuple[Any, ...]:
        """What the op takes, checked."""
        x = input_of("Linear", x, self.weight.value.dtype)
        if not x.shape or x.shape[-1] != self.in_features:
            wanted = f"last axis {self.in_features}"
            raise ShapeError(f"Linear: expected input with {wanted}, got shape {x.shape}; {self._advice(x.shape)}.")
        return (x, self.weight) if self.bias is None else (x, self.weight, self.bias)

    def _advice(self, shape: tuple[int, ...]) -> str:
        """What to do about an input of `shape`, which does not fit."""
        if len(shape) > 2 and size_of(shape[1:]) == self.in_features:
            return f"flatten it first, e.g. x.reshape({shape[0]}, -1) or nn.Flatten()"
        if not shape:
            return "give it at least one axis, e.g. x.reshape(1, -1)"
        if len(shape) == 2 and shape[0] == self.in_features:
            return "transpose it with x.T"
        return f"make the layer with in_features={shape[-1]}, or give it {self.in_features} features"

    def forward(self, x: Any) -> Any:
        """(..., in) -> (..., out)."""
        return ag.linear(*self._inputs(x))

    def forward_with(self, x: Any, activation: str) -> Any:
        """activation(forward(x)) as one kernel, for "relu", "gelu" and "silu"."""
        return getattr(ag, f"linear_{activation}")(*self._inputs(x))

    def extra_repr(self) -> str:
        """Sizes and bias."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
