"""Normalisation layers. A floating input is cast to the dtype of the weight, where a layer has one."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.core.dtypes import DType, as_dtype, compute_dtype
from netcl.core.errors import ShapeError
from netcl.core.tensor import Tensor
from netcl.nn import init
from netcl.nn.inputs import input_of
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter, queue_of


class _BatchNorm(Module):
    """What BatchNorm1d and BatchNorm2d share; subclasses say which ranks they take."""

    ranks: tuple[int, ...] = ()
    layout = ""
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self,
        queue: Any,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        queue = queue_of(type(self).__name__, queue)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape, stored = (num_features,), compute_dtype(as_dtype(dtype))
        self.weight = Parameter(init.ones(queue, shape, dtype=dtype)) if affine else None
        self.bias = Parameter(init.zeros(queue, shape, dtype=dtype)) if affine else None
        self.register_buffer("running_mean", init.zeros(queue, shape, dtype=stored) if track_running_stats else None)
        self.register_buffer("running_var", init.ones(queue, shape, dtype=stored) if track_running_stats else None)

    def forward(self, x: Any, activation: str | None = None) -> Any:
        """Same shape."""
        x = input_of(type(self).__name__, x, self._dtype(x))
        if len(x.shape) not in self.ranks or x.shape[1] != self.num_features:
            wanted = self.layout.format(c=self.num_features)
            raise ShapeError(f"{type(self).__name__}: expected input of shape {wanted}, got {x.shape}.")
        training = self.training or not self.track_running_stats
        statistics = (self.running_mean, self.running_var, training, self.momentum)
        return ag.batch_norm(x, self.weight, self.bias, *statistics, self.eps, activation)

    def _dtype(self, x: Any) -> DType | None:
        """What a floating input is cast to: the weight's dtype, else that of the running statistics if they differ."""
        if self.weight is not None:
            return self.weight.value.dtype
        stored = None if self.running_mean is None else self.running_mean.dtype
        return None if stored is None or compute_dtype(getattr(x, "dtype", stored)) == stored else stored

    def forward_with(self, x: Any, activation: str) -> Any:
        """activation(forward(x)) as one kernel, for "relu"."""
        return self.forward(x, activation)

    def extra_repr(self) -> str:
        """Channels and settings."""
        text = f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
        text += "" if self.affine else ", affine=False"
        return text + ("" if self.track_running_stats else ", track_running_stats=False")


class BatchNorm2d(_BatchNorm):
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of (N, C, H, W).

    Training: mean and biased variance of the batch; running = (1 - momentum) * running + momentum * batch, with the
    unbiased variance. Evaluation: the running statistics. One value per channel in training is refused.
    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    ranks, layout = (4,), "(N, {c}, H, W)"


class BatchNorm1d(_BatchNorm):
    """BatchNorm2d for (N, C) or (N, C, L)."""

    ranks, layout = (2, 3), "(N, {c}) or (N, {c}, L)"


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) * weight + bias over the trailing axes `normalized_shape`; sums in float32 or
    better.

    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(
        self,
        queue: Any,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        queue = queue_of("LayerNorm", queue)
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = Parameter(init.ones(queue, shape, dtype=dtype)) if elementwise_affine else None
        self.bias = Parameter(init.zeros(queue, shape, dtype=dtype)) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Any:
        """Same shape."""
        x = input_of(type(self).__name__, x, None if self.weight is None else self.weight.value.dtype)
        axes = trailing(type(self).__name__, x, self.normalized_shape)
        return ag.layer_norm(x, self.weight, self.bias, axes, self.eps)

    def extra_repr(self) -> str:
        """Shape and settings."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight over the trailing axes `normalized_shape`; sums in float32 or better.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(
        self,
        queue: Any,
        normalized_shape: Any,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        queue = queue_of("RMSNorm", queue)
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = Parameter(init.ones(queue, shape, dtype=dtype)) if elementwise_affine else None

    def forward(self, x: Any) -> Any:
        """Same shape."""
        x = input_of(type(self).__name__, x, None if self.weight is None else self.weight.value.dtype)
        return ag.rms_norm(x, self.weight, trailing(type(self).__name__, x, self.normalized_shape), self.eps)

    def extra_repr(self) -> str:
        """Shape and settings."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Normalise each sample of (N, C, ...) over `num_groups` groups of channels.

    Source: Wu and He 2018, arXiv:1803.08494.
    """

    def __init__(
        self,
        queue: Any,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        queue = queue_of("GroupNorm", queue)
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(f"GroupNorm: expected num_groups to divide {num_channels} channels, got {num_groups}.")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.weight = Parameter(init.ones(queue, (num_channels,), dtype=dtype)) if affine else None
        self.bias = Parameter(init.zeros(queue, (num_channels,), dtype=dtype)) if affine else None

    def forward(self, x: Any) -> Any:
        """Same shape."""
        x = input_of("GroupNorm", x, None if self.weight is None else self.weight.value.dtype)
        if len(x.shape) < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(f"GroupNorm: expected input of shape (N, {self.num_channels}, ...), got {x.shape}.")
        return ag.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Groups, channels and settings."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


def trailing(where: str, x: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last axes of x, which must have `shape`."""
    if tuple(x.shape[len(x.shape) - len(shape) :]) != shape:
        raise ShapeError(f"{where}: expected input with last axes {shape}, got shape {x.shape}.")
    return tuple(range(-len(shape), 0))
