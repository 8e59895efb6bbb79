"""Activations as modules; each is an op of the primitive table and takes no queue."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.core.errors import ShapeError
from netcl.nn.inputs import input_of
from netcl.nn.module import Module


class ReLU(Module):
    """max(x, 0); NaN stays NaN."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.relu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.sigmoid(x)


class LogSigmoid(Module):
    """log(sigmoid(x)), without overflow."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.log_sigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.tanh(x)


class SiLU(Module):
    """x * sigmoid(x), also called swish. arXiv:1710.05941."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.silu(x)


Swish = SiLU


class GELU(Module):
    """x * Phi(x) with the normal distribution's Phi, exact or (approximate="tanh") by tanh. arXiv:1606.08415."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The approximation."""
        return f"approximate={self.approximate!r}"


class LeakyReLU(Module):
    """x where x >= 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """The slope."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1). arXiv:1511.07289."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """The scale of the negative side."""
        return f"alpha={self.alpha}"


class SELU(Module):
    """ELU scaled so that activations keep mean 0 and variance 1. arXiv:1706.02515."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.selu(x)


class Softplus(Module):
    """log(1 + exp(x)), without overflow."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.softplus(x)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.softsign(x)


class Mish(Module):
    """x * tanh(softplus(x)). arXiv:1908.08681."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.mish(x)


class Hardsigmoid(Module):
    """x / 6 + 1/2, limited to [0, 1]."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.hard_sigmoid(x)


class Hardswish(Module):
    """x * hard_sigmoid(x). arXiv:1905.02244."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.hard_swish(x)


class Hardtanh(Module):
    """x limited to [-1, 1]."""

    def forward(self, x: Any) -> Any:
        """Elementwise."""
        return ag.hard_tanh(x)


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

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        """Same shape."""
        return ag.softmax(x, axis=self.axis)

    def extra_repr(self) -> str:
        """The axis."""
        return f"axis={self.axis}"


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
