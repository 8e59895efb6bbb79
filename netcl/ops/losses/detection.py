"""The detection loss: weighted cross-entropy of logits plus weighted smooth L1, in one pass forward.

The gradients of prediction, target and weights that are wanted take one launch.
Source: Girshick 2015, arXiv:1504.08083 (smooth L1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import FLOAT32
from netcl.core.kernels import dialect
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate
from netcl.fusion.chain import Chain
from netcl.fusion.map import kernel_of, run
from netcl.fusion.render import OPTIONS
from netcl.kernels import sources
from netcl.kernels.program import program
from netcl.ops.elementwise import contiguous

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
STRETCH_ON_CPU, STRETCH_ON_GPU = 8192, 4096  # elements that are summed into one part, at least


@lru_cache(maxsize=16)
def _backward_chain(wanted: tuple[int, ...]) -> Chain:
    """The gradients `wanted` of DETECTION, for the upstream gradient g times the scale."""
    lines = [("up", "MUL", ("g", "s0")), *((f"d{i}", f"DETECTION_D{i}", ("up", *_NAMES)) for i in wanted)]
    return Chain("detection_backward", ("g", *_NAMES), ("s0",), tuple(lines), tuple(f"d{i}" for i in wanted))


class FusedDetectionLossPlan:
    """Three kernels for inputs of one shape: `partial_kernel` sums stretches of the loss, `reduce_kernel` sums those,
    `backward_kernel` gives the gradient of the prediction. On NumPy the three are None.
    """

    def __init__(self, queue: Queue, shape: Shape) -> None:
        self.queue, self.shape, self.size = queue, shape, layout.size_of(shape)
        self.partial_kernel: Kernel | None = None
        self.reduce_kernel: Kernel | None = None
        self.backward_kernel: Kernel | None = None
        if isinstance(queue, CPUQueue) or not self.size:
            return
        profile = profile_of(queue)
        on_cpu = profile.kind == "cpu"
        group, width = (1, profile.vector) if on_cpu else (profile.group(256), 4)
        preamble = dialect.preamble(frozenset({"DETECTION"}), "float", width, on_cpu)
        defines = {"PLAIN": 1} if on_cpu else {"WG": group}
        source = sources.load("detection.cl", preamble=preamble, W=width, **defines)
        least, groups = (STRETCH_ON_CPU, 1) if on_cpu else (STRETCH_ON_GPU, 8)
        chunk = max(least, -(-self.size // (64 * profile.compute_units * groups)))
        parts = -(-self.size // chunk)
        partial = program(queue, source, "detection_partial", OPTIONS)
        reduce = program(queue, source, "detection_reduce", OPTIONS)
        self._partial = partial.bind(
            (parts * group,), (group,), {"part": ((parts,), FLOAT32)}, n=self.size, chunk=chunk
        )
        self._reduce = reduce.bind((group,), (group,), {"loss": ((1,), FLOAT32)}, parts=parts)
        like = Tensor(None, shape, layout.contiguous_strides(shape), 0, FLOAT32, queue)
        one = Tensor(None, (1,), (1,), 0, FLOAT32, queue)
        self.partial_kernel, self.reduce_kernel = partial.kernel, reduce.kernel
        self.backward_kernel = kernel_of(queue, _backward_chain((0,)), FLOAT32, (FLOAT32,), (one, *(like,) * 4))

    def forward(self, tensors: Sequence[Tensor], scale: float) -> Tensor:
        """scale * the sum of the loss: shape (1,)."""
        if isinstance(self.queue, CPUQueue):
            return cpu.compute(_sum_on_numpy, *tensors, scale=scale)
        if not self.size:
            return allocate(self.queue, (1,), FLOAT32).fill_(0)
        pred, target, heat, reg = [contiguous(t) for t in tensors]
        part = self._partial(pred=pred, target=target, heat=heat, reg=reg)
        loss: Tensor = self._reduce(part=part.buffer, scale=scale)
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
