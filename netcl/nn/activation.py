"""Activations as modules; each is an op of the primitive table and takes no queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import netcl.autograd as ag
from netcl.core.errors import ShapeError
from netcl.core.keywords import axis_of
from netcl.nn.inputs import input_of
from netcl.nn.module import Module


class _Activation(Module):
    """An elementwise op without settings."""

    op: Callable[[Any], Any]

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return self.op(x)


class ReLU(_Activation):
    """max(x, 0); NaN stays NaN."""

    op = staticmethod(ag.relu)


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    op = staticmethod(ag.sigmoid)


class LogSigmoid(_Activation):
    """log(sigmoid(x)), without overflow."""

    op = staticmethod(ag.log_sigmoid)


class Tanh(_Activation):
    """Hyperbolic tangent."""

    op = staticmethod(ag.tanh)


class SiLU(_Activation):
    """x * sigmoid(x), also called swish. arXiv:1710.05941."""

    op = staticmethod(ag.silu)


Swish = SiLU


class GELU(Module):
    """x * Phi(x) with the normal distribution's Phi, exact or (approximate="tanh") by tanh. arXiv:1606.08415."""

    _shown = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.gelu(x, self.approximate)


class LeakyReLU(Module):
    """x where x >= 0, else negative_slope * x."""

    _shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1). arXiv:1511.07289."""

    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.elu(x, self.alpha)


class SELU(_Activation):
    """ELU scaled so that activations keep mean 0 and variance 1. arXiv:1706.02515."""

    op = staticmethod(ag.selu)


class Softplus(_Activation):
    """log(1 + exp(x)), without overflow."""

    op = staticmethod(ag.softplus)


class Softsign(_Activation):
    """x / (1 + |x|)."""

    op = staticmethod(ag.softsign)


class Mish(_Activation):
    """x * tanh(softplus(x)). arXiv:1908.08681."""

    op = staticmethod(ag.mish)


class Hardsigmoid(_Activation):
    """x / 6 + 1/2, limited to [0, 1]."""

    op = staticmethod(ag.hard_sigmoid)


class Hardswish(_Activation):
    """x * hard_sigmoid(x). arXiv:1905.02244."""

    op = staticmethod(ag.hard_swish)


class Hardtanh(_Activation):
    """x limited to [-1, 1]."""

    op = staticmethod(ag.hard_tanh)


class SwiGLU(Module):
    """silu(a) * b with a and b the halves of the last axis: (..., 2 n) -> (..., n). arXiv:2002.05202."""

    def forward(self, x: Any) -> Any:
        """(..., 2 n) -> (..., n)."""
        x = input_of("SwiGLU", x, None)
        n = x.shape[-1] // 2 if x.shape else 0
        if not x.shape or x.shape[-1] % 2:
            raise ShapeError(f"SwiGLU: expected an even last axis, got shape {x.shape}.")
        return ag.swiglu(ag.getitem(x, (..., slice(0, n))), ag.getitem(x, (..., slice(n, None))))


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `axis`."""

    _shown = ("axis",)

    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None:
        self.axis = axis_of(type(self).__name__, axis, -1, dim)

    def forward(self, x: Any) -> Any:
        """Same shape."""
        return ag.softmax(x, axis=self.axis)


class LogSoftmax(Softmax):
    """log(softmax(x)) along `axis`, without overflow."""

    def forward(self, x: Any) -> Any:
        """Same shape."""
        return ag.log_softmax(x, axis=self.axis)


class Identity(Module):
    """x itself."""

    def forward(self, x: Any) -> Any:
        """Nothing happens."""
        return x
