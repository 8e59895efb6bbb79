"""Patterns of training code with a fused plan: a matcher says whether a call fits, a planner builds what runs instead.

`TrainingGraphCompiler()` is the process-wide registry; a call asks the patterns of its own kind, in order. Shipped: the
detection loss (weighted cross-entropy plus smooth L1), softmax cross-entropy with label smoothing, normalisation plus
activation, and the optimizer step of many tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from netcl.autograd import functional as ag
from netcl.autograd.compiler import CompiledFunction, jit_compile
from netcl.autograd.node import Node
from netcl.autograd.op import apply_op, register_op
from netcl.core import layout
from netcl.core.dtypes import FLOAT32
from netcl.core.errors import DTypeError, NetclError, ShapeError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels.plans import remember
from netcl.ops.losses.detection import FusedDetectionLossPlan
from netcl.ops.update import Updater

__all__ = [
    "FusedCrossEntropyPlan",
    "FusedDetectionLossPlan",
    "FusedNormActivationPlan",
    "FusedUpdatePlan",
    "TrainingGraphCompiler",
    "TrainingPattern",
    "fused_norm_activation",
    "fused_softmax_cross_entropy",
    "fused_weighted_bce_smooth_l1_loss",
]

SHIPPED = ("weighted_bce_smooth_l1_loss", "softmax_cross_entropy", "norm_activation", "optimizer_step")


@dataclass(frozen=True)
class TrainingPattern:
    """`matcher(*call)` says whether a call fits, `planner(*call)` returns the plan for it.

    `kind` is the operation that the plan is for, the first argument of the calls that ask for it: by default the name.
    """

    name: str
    matcher: Callable[..., bool]
    planner: Callable[..., object]
    kind: str = ""


class TrainingGraphCompiler:
    """The registry of training patterns; every call of the class gives the same one."""

    _instance: TrainingGraphCompiler | None = None
    _patterns: list[TrainingPattern]

    def __new__(cls) -> TrainingGraphCompiler:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._patterns = []
        return cls._instance

    def register(self, pattern: TrainingPattern) -> None:
        """Add a pattern; one of the same name is replaced, in its place. Raises NetclError for anything else."""
        if not isinstance(pattern, TrainingPattern):
            raise NetclError(f"register: expected a TrainingPattern, got {type(pattern).__name__}.")
        if all(p.name != pattern.name for p in self._patterns):
            self._patterns = [*self._patterns, pattern]
        self._patterns = [pattern if p.name == pattern.name else p for p in self._patterns]

    @property
    def patterns(self) -> tuple[TrainingPattern, ...]:
        """The patterns, in the order of registration."""
        return tuple(self._patterns)

    def match(self, *call: Any, **attrs: Any) -> TrainingPattern | None:
        """The pattern that fits a call, asked in the order of registration; None when none does.

        Asked are those of the call's kind, which its first argument names, and where there are none of it all those
        that are of no shipped kind.
        """
        known = {p.kind or p.name for p in self._patterns}
        if call and call[0] in known:
            asked = [p for p in self._patterns if (p.kind or p.name) == call[0]]
        else:
            asked = [p for p in self._patterns if (p.kind or p.name) not in SHIPPED]
        return next((p for p in asked if _fits(p.matcher, call, attrs)), None)

    def plan(self, *call: Any, **attrs: Any) -> Any:
        """The plan for a call. Raises NetclError when no pattern fits it."""
        pattern = self.match(*call, **attrs)
        if pattern is None:
            known = ", ".join(p.name for p in self._patterns) or "none"
            raise NetclError(f"plan: expected a call that a pattern fits, got {call[:1]}; registered are {known}.")
        return pattern.planner(*call, **attrs)


@lru_cache(maxsize=256)
def _signature(matcher: Callable[..., bool]) -> inspect.Signature:
    return inspect.signature(matcher)


def _fits(matcher: Callable[..., bool], call: Sequence[Any], attrs: dict[str, Any]) -> bool:
    """Whether the matcher takes a call of this form and says yes."""
    try:
        _signature(matcher).bind(*call, **attrs)
    except TypeError:
        return False
    return bool(matcher(*call, **attrs))


# -- the detection loss ------------------------------------------------------------------------------------------------


def _detection_call(op: str, pred: Any, target: Any, heat_weight: Any, reg_weight: Any) -> bool:
    return op == "weighted_bce_smooth_l1_loss"


def _plan_detection(op: str, pred: Tensor, *_: Tensor) -> FusedDetectionLossPlan:
    """The plan for this queue and shape, saved with the queue."""
    return remember(pred.queue, ("detection", pred.shape), lambda: FusedDetectionLossPlan(pred.queue, pred.shape))


def _scale(shape: Shape, reduction: str) -> float:
    return 1.0 / max(layout.size_of(shape), 1) if reduction == "mean" else 1.0


def _detection_forward(*tensors: Tensor, reduction: str) -> Tensor:
    plan = TrainingGraphCompiler().plan("weighted_bce_smooth_l1_loss", *tensors)
    loss: Tensor = plan.forward(tensors, _scale(tensors[0].shape, reduction))
    return loss


def _detection_backward(
    g: Tensor, y: Any, *tensors: Tensor, needs: Sequence[bool], reduction: str
) -> list[Tensor | None]:
    plan = TrainingGraphCompiler().plan("weighted_bce_smooth_l1_loss", *tensors)
    grads: list[Tensor | None] = plan.backward(g, tensors, needs, _scale(tensors[0].shape, reduction))
    return grads


register_op(
    "weighted_bce_smooth_l1_loss",
    _detection_forward,
    _detection_backward,
    saves=(0, 1, 2, 3),
    shape=lambda *_, **__: ((1,), FLOAT32),
)


def fused_weighted_bce_smooth_l1_loss(
    pred: Any, target: Any, heat_weight: Any, reg_weight: Any, reduction: str = "sum"
) -> Node:
    """Weighted cross-entropy plus weighted smooth L1 of one prediction, in one pass forward and one launch backward.

    loss = sum_i heat_weight_i * bce(pred_i, target_i) + reg_weight_i * smooth_l1(pred_i - target_i)

    bce takes `pred` as a logit: max(p, 0) - p t + log(1 + exp(-|p|)). smooth_l1(d) is d^2 / 2 below |d| = 1, else
    |d| - 1/2. The weights normalise and mask: where one is 0, its part counts nothing, NaN included. "mean" divides by
    the number of elements. All four inputs may need gradients.

    Shapes: four float32 tensors of one shape; returns (1,). Raises: ShapeError, DTypeError, ValueError.
    Source: Girshick 2015, arXiv:1504.08083 (smooth L1).
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f"fused_weighted_bce_smooth_l1_loss: expected reduction 'sum' or 'mean', got {reduction!r}.")
    names = ("pred", "target", "heat_weight", "reg_weight")
    values = [x.value if isinstance(x, Node) else x for x in (pred, target, heat_weight, reg_weight)]
    for name, v in zip(names, values, strict=True):
        if not hasattr(v, "dtype") or v.dtype != FLOAT32:
            found = getattr(v, "dtype", type(v).__name__)
            raise DTypeError(f"fused_weighted_bce_smooth_l1_loss: expected {name} in float32, got {found}; use astype.")
        if v.shape != values[0].shape:
            found = ", ".join(f"{n} {x.shape}" for n, x in zip(names, values, strict=True))
            raise ShapeError(f"fused_weighted_bce_smooth_l1_loss: expected four tensors of one shape, got {found}.")
    if all(isinstance(v, Tensor) for v in values):
        same_queue("fused_weighted_bce_smooth_l1_loss", *values)
    loss: Node = apply_op("weighted_bce_smooth_l1_loss", pred, target, heat_weight, reg_weight, reduction=reduction)
    return loss


# -- softmax cross-entropy with label smoothing ------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedCrossEntropyPlan:
    """Softmax, log, label smoothing and selection in one row kernel; the probabilities are never stored."""

    label_smoothing: float = 0.0

    def __call__(self, logits: Any, labels: Any) -> Node:
        """The mean loss, shape (1,)."""
        return ag.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)


def fused_softmax_cross_entropy(logits: Any, labels: Any, label_smoothing: float = 0.0) -> Node:
    """Mean of -sum_k q_k log softmax(logits)_k with q = (1 - e) onehot(label) + e / K. Source: arXiv:1512.00567."""
    plan: FusedCrossEntropyPlan = TrainingGraphCompiler().plan("softmax_cross_entropy", label_smoothing=label_smoothing)
    return plan(logits, labels)


# -- normalisation plus activation -------------------------------------------------------------------------------------

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")


class FusedNormActivationPlan:
    """A norm over the last axis, its weight and bias, and an activation: one row kernel each way."""

    def __init__(self, norm: str, activation: str) -> None:
        self.norm, self.activation = norm, activation
        self.compiled: CompiledFunction = jit_compile(_layer_norm if norm == "layer_norm" else _rms_norm)
        self.function = getattr(ag, activation)

    def __call__(self, x: Any, weight: Any, bias: Any, eps: float) -> Node:
        """activation(norm(x) * weight + bias)."""
        y: Node = self.compiled(x, weight, bias, eps, self.function)
        return y


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float, activation: Callable[[Node], Node]) -> Node:
    d = x - ag.mean(x, -1, keepdims=True)
    y = d * ag.rsqrt(ag.mean(ag.square(d), -1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return activation(y if bias is None else y + bias)


def _rms_norm(x: Any, weight: Any, bias: Any, eps: float, activation: Callable[[Node], Node]) -> Node:
    y = x * ag.rsqrt(ag.mean(ag.square(x), -1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return activation(y if bias is None else y + bias)


def fused_norm_activation(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    norm: str = "layer_norm",
    activation: str = "relu",
    eps: float = 1e-5,
) -> Node:
    """activation(norm(x) * weight + bias) over the last axis, in one launch forward; sums in float32 or better.

    `norm` is "layer_norm" or "rms_norm"; `activation` one of relu, gelu, silu, tanh, sigmoid. Shapes: x (.., E), weight
    and bias (E,), either may be None. Source: arXiv:1607.06450, arXiv:1910.07467.
    """
    plan: FusedNormActivationPlan = TrainingGraphCompiler().plan("norm_activation", norm, activation)
    return plan(x, weight, bias, eps)


@lru_cache(maxsize=16)
def _plan_norm(op: str, norm: str, activation: str) -> FusedNormActivationPlan:
    return FusedNormActivationPlan(norm, activation)


def _norm_call(op: str, norm: str, activation: str) -> bool:
    return op == "norm_activation" and norm in ("layer_norm", "rms_norm") and activation in ACTIVATIONS


# -- the optimizer step ------------------------------------------------------------------------------------------------


class FusedUpdatePlan:
    """The step of one update row ("sgd", "adamw", ...) over many tensors in one launch per 48 of them."""

    def __init__(self, row: str, tensors: Sequence[Tensor]) -> None:
        self.updater = Updater(row, tensors)

    def __call__(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None], **scalars: float) -> None:
        """Update `tensors` in place; those without a gradient stay as they are."""
        self.updater.run(tensors, grads, lambda: scalars)


for _pattern in (
    TrainingPattern("weighted_bce_smooth_l1_loss", _detection_call, _plan_detection),
    TrainingPattern(
        "softmax_cross_entropy",
        lambda op, label_smoothing=0.0: op == "softmax_cross_entropy",
        lambda op, label_smoothing=0.0: FusedCrossEntropyPlan(label_smoothing),
    ),
    TrainingPattern("norm_activation", _norm_call, _plan_norm),
    TrainingPattern(
        "optimizer_step",
        lambda op, row, tensors: op == "optimizer_step",
        lambda op, row, tensors: FusedUpdatePlan(row, tensors),
    ),
):
    TrainingGraphCompiler().register(_pattern)
