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

import numpy as np

from netcl.autograd.compiler import CompiledFunction, jit_compile
from netcl.autograd.functional import cross_entropy, mean
from netcl.autograd.functional import elementwise as ag
from netcl.autograd.jit import shapes
from netcl.autograd.node import Node
from netcl.autograd.op import apply_op, register_op
from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import FLOAT32, INT64
from netcl.core.errors import DTypeError, NetclError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.layout import Shape
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.chain import OPTIONS, Chain, plan_of, run
from netcl.kernels import sources
from netcl.ops.elementwise import contiguous
from netcl.ops.update import Updater
from netcl.runtime.cache import get_kernel

__all__ = [
    "FusedCrossEntropyPlan", "FusedDetectionLossPlan", "FusedNormActivationPlan", "FusedUpdatePlan",
    "TrainingGraphCompiler", "TrainingPattern", "fused_norm_activation", "fused_softmax_cross_entropy",
    "fused_weighted_bce_smooth_l1_loss",
]  # fmt: skip


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

_BCE = "where(a > 0, a, 0) - a * b + log1p(exp(-abs(a)))"  # of the logit a, without overflow
_SMOOTH = "where(abs(a - b) < 1, 0.5 * (a - b) * (a - b), abs(a - b) - 0.5)"
_CLAMPED = "where(a - b < -1, -1, where(a - b > 1, 1, a - b))"
_GRADIENTS = (
    f"where(h == 0, 0, g * h * (1 / (1 + exp(-a)) - b)) + where(r == 0, 0, g * r * ({_CLAMPED}))",
    f"where(h == 0, 0, -g * h * a) - where(r == 0, 0, g * r * ({_CLAMPED}))",
    f"g * ({_BCE})",
    f"g * ({_SMOOTH})",
)
_NAMES = ("a", "b", "h", "r")
dialect.define_function("DETECTION", _NAMES, f"where(h == 0, 0, h * ({_BCE})) + where(r == 0, 0, r * ({_SMOOTH}))")
for _i, _formula in enumerate(_GRADIENTS):
    dialect.define_function(f"DETECTION_D{_i}", ("g", *_NAMES), _formula)
CHUNK = {True: 8192, False: 4096}  # elements per stretch on CPU devices, on others


@lru_cache(maxsize=16)
def _backward_chain(wanted: tuple[int, ...]) -> Chain:
    """The gradients `wanted` of DETECTION, for the upstream gradient g times the scale."""
    lines = [("up", "MUL", ("g", "s0")), *((f"d{i}", f"DETECTION_D{i}", ("up", *_NAMES)) for i in wanted)]
    return Chain("detection_backward", ("g", *_NAMES), ("s0",), tuple(lines), tuple(f"d{i}" for i in wanted))


class FusedDetectionLossPlan:
    """Three kernels for inputs of one shape: `partial_kernel` sums stretches of the loss, `reduce_kernel` sums those,
    `backward_kernel` gives the gradient of the prediction. On NumPy the three are None.
    """

    def __init__(self, queue: Any, shape: Shape) -> None:
        self.queue, self.shape, self.size = queue, shape, layout.size_of(shape)
        self.partial_kernel: Kernel | None = None
        self.reduce_kernel: Kernel | None = None
        self.backward_kernel: Kernel | None = None
        if isinstance(queue, CPUQueue) or not self.size:
            return
        profile = profile_of(queue)
        plain = profile.kind == "cpu"
        self.group = 1 if plain else profile.group(256)
        width = profile.vector if plain else 4
        preamble = dialect.preamble(frozenset({"DETECTION"}), "float", width, plain)
        defines = {"PLAIN": 1} if plain else {"WG": self.group}
        source = sources.load("detection.cl", preamble=preamble, W=width, **defines)
        types = (None,) * 5 + (INT64,) * 6
        self.partial_kernel = get_kernel(queue, source, "detection_partial", types, OPTIONS)
        self.reduce_kernel = get_kernel(queue, source, "detection_reduce", (None, None, INT64, FLOAT32), OPTIONS)
        like = Tensor(None, shape, layout.contiguous_strides(shape), 0, FLOAT32, queue)
        one = Tensor(None, (1,), (1,), 0, FLOAT32, queue)
        self.backward_kernel = plan_of(queue, _backward_chain((0,)), FLOAT32, (FLOAT32,), (one, *(like,) * 4)).kernel
        chunk = CHUNK[plain]
        self.chunk = max(chunk, -(-self.size // (64 * profile.compute_units * (1 if plain else 8))))
        self.parts = -(-self.size // self.chunk)

    def forward(self, tensors: Sequence[Tensor], scale: float) -> Tensor:
        """scale * the sum of the loss: shape (1,)."""
        if isinstance(self.queue, CPUQueue):
            return cpu.compute(_sum_on_numpy, *tensors, scale=scale)  # type: ignore[no-any-return]
        loss = allocate(self.queue, (1,), FLOAT32)
        if self.partial_kernel is None or self.reduce_kernel is None:
            return loss.fill_(0)
        tensors = [contiguous(t) for t in tensors]
        part = allocate(self.queue, (self.parts,), FLOAT32)
        launch(
            self.partial_kernel, self.queue, (self.parts * self.group,), (self.group,), *[t.buffer for t in tensors],
            part.buffer, *[t.offset for t in tensors], self.size, self.chunk,
        )  # fmt: skip
        local = (self.group,)
        launch(self.reduce_kernel, self.queue, local, local, part.buffer, loss.buffer, self.parts, scale)
        return loss

    def backward(
        self, g: Tensor, tensors: Sequence[Tensor], needs: Sequence[bool], scale: float
    ) -> list[Tensor | None]:
        """The gradients that are wanted, in one launch."""
        wanted = tuple(i for i, need in enumerate(needs) if need)
        found = run(_backward_chain(wanted), FLOAT32, (FLOAT32,) * len(wanted), (g, *tensors), (scale,))
        result: list[Tensor | None] = [None] * len(tensors)
        for i, d in zip(wanted, found, strict=True):
            result[i] = d
        return result


def _sum_on_numpy(*arrays: np.ndarray, scale: float) -> np.ndarray:
    total = dialect.NUMPY["DETECTION"](*arrays).astype(np.float64).sum()
    return np.array([total * scale], np.float32)


def _detection_call(op: str, pred: Any, target: Any, heat_weight: Any, reg_weight: Any) -> bool:
    return op == "weighted_bce_smooth_l1_loss"


def _plan_detection(op: str, pred: Tensor, *_: Tensor) -> FusedDetectionLossPlan:
    """The plan for this queue and shape, kept with the queue."""
    plans = pred.queue.netcl_state.plans
    key = (_plan_detection, pred.shape)
    if key not in plans:
        plans[key] = FusedDetectionLossPlan(pred.queue, pred.shape)
    return plans[key]  # type: ignore[no-any-return]


def _scale(shape: Shape, reduction: str) -> float:
    return 1.0 / max(layout.size_of(shape), 1) if reduction == "mean" else 1.0


def _detection_forward(*tensors: Tensor, reduction: str) -> Tensor:
    plan = TrainingGraphCompiler().plan("weighted_bce_smooth_l1_loss", *tensors)
    return plan.forward(tensors, _scale(tensors[0].shape, reduction))  # type: ignore[no-any-return]


def _detection_backward(
    g: Tensor, y: Any, *tensors: Tensor, needs: Sequence[bool], reduction: str
) -> list[Tensor | None]:
    plan = TrainingGraphCompiler().plan("weighted_bce_smooth_l1_loss", *tensors)
    return plan.backward(g, tensors, needs, _scale(tensors[0].shape, reduction))  # type: ignore[no-any-return]


register_op("weighted_bce_smooth_l1_loss", _detection_forward, _detection_backward, saves=(0, 1, 2, 3))
shapes.rule("weighted_bce_smooth_l1_loss")(lambda *_, **__: ((1,), FLOAT32))


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
            raise ShapeError(
                "fused_weighted_bce_smooth_l1_loss: expected four tensors of one shape, got "
                + ", ".join(f"{n} {x.shape}" for n, x in zip(names, values, strict=True)) + "."
            )  # fmt: skip
    if all(isinstance(v, Tensor) for v in values):
        same_queue("fused_weighted_bce_smooth_l1_loss", *values)
    return apply_op(  # type: ignore[no-any-return]
        "weighted_bce_smooth_l1_loss", pred, target, heat_weight, reg_weight, reduction=reduction
    )


# -- softmax cross-entropy with label smoothing ------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedCrossEntropyPlan:
    """Softmax, log, label smoothing and selection in one row kernel; the probabilities are never stored."""

    label_smoothing: float = 0.0

    def __call__(self, logits: Any, labels: Any) -> Node:
        """The mean loss, shape (1,)."""
        return cross_entropy(logits, labels, label_smoothing=self.label_smoothing)


def fused_softmax_cross_entropy(logits: Any, labels: Any, label_smoothing: float = 0.0) -> Node:
    """Mean of -sum_k q_k log softmax(logits)_k with q = (1 - e) onehot(label) + e / K. Source: arXiv:1512.00567."""
    plan = TrainingGraphCompiler().plan("softmax_cross_entropy", label_smoothing=label_smoothing)
    return plan(logits, labels)  # type: ignore[no-any-return]


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
        return self.compiled(x, weight, bias, eps, self.function)  # type: ignore[no-any-return]


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float, activation: Callable[[Node], Node]) -> Node:
    d = x - mean(x, -1, keepdims=True)
    y = d * ag.rsqrt(mean(ag.square(d), -1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return activation(y if bias is None else y + bias)


def _rms_norm(x: Any, weight: Any, bias: Any, eps: float, activation: Callable[[Node], Node]) -> Node:
    y = x * ag.rsqrt(mean(ag.square(x), -1, keepdims=True) + eps)
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
    return TrainingGraphCompiler().plan("norm_activation", norm, activation)(x, weight, bias, eps)  # type: ignore[no-any-return]


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
