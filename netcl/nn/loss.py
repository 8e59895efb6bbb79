"""Losses as modules. `reduction` is "mean" (the default), "sum" or "none"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import netcl.autograd as ag
from netcl.core.tensor import Tensor
from netcl.nn.module import Module


class _Loss(Module):
    """A loss whose settings are all keyword arguments of its op."""

    op: Callable[..., Any]

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return self.op(x, target, reduction=self.reduction)

    def extra_repr(self) -> str:
        """The settings."""
        plain = {k: v for k, v in self.__dict__.items() if not isinstance(v, Tensor) and not k.startswith("_")}
        return ", ".join(f"{k}={v!r}" for k, v in plain.items() if v is not None)


class CrossEntropyLoss(_Loss):
    """Mean of -log softmax(logits)[label], for labels (N, ...) or probabilities shaped like the logits (N, C, ...)."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.cross_entropy(logits, target, self.weight, self.ignore_index, self.label_smoothing, self.reduction)


class NLLLoss(_Loss):
    """Mean of -x[label] for log-probabilities x (N, C, ...)."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, x: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.nll_loss(x, target, self.weight, self.ignore_index, self.reduction)


class MSELoss(_Loss):
    """Mean of (x - target)^2."""

    op = staticmethod(ag.mse_loss)


class L1Loss(_Loss):
    """Mean of |x - target|."""

    op = staticmethod(ag.l1_loss)


class SmoothL1Loss(_Loss):
    """Mean of d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2."""

    def __init__(self, beta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.smooth_l1_loss(x, target, beta=self.beta, reduction=self.reduction)


class HuberLoss(_Loss):
    """Mean of d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2)."""

    def __init__(self, delta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.huber_loss(x, target, delta=self.delta, reduction=self.reduction)


class BCELoss(_Loss):
    """Mean of -(t log p + (1 - t) log(1 - p)) for probabilities p; prefer BCEWithLogitsLoss."""

    def forward(self, p: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.binary_cross_entropy(p, target, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(x), without overflow; `pos_weight` multiplies the part of positive targets."""

    pos_weight: Tensor | None

    def __init__(self, pos_weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.binary_cross_entropy_with_logits(x, target, pos_weight=self.pos_weight, reduction=self.reduction)


class KLDivLoss(_Loss):
    """Mean of t (log t - x) for log-probabilities x; reduction "batchmean" divides the sum by the batch size."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, x: Any, target: Any) -> Any:
        """Shape (1,) unless reduction is "none"."""
        return ag.kl_div(x, target, log_target=self.log_target, reduction=self.reduction)


class HingeLoss(_Loss):
    """Mean of max(0, 1 - t x) for targets -1 and 1."""

    op = staticmethod(ag.hinge_loss)
