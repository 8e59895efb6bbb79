"""What an attention is to the kernels: sizes and masks, the tensors of a call, and the fields of their record."""

from __future__ import annotations

from typing import Any, NamedTuple

from netcl.core.dtypes import DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.kernels.route import declare

OPTIONS = ("-cl-mad-enable",)
ATTENTION = declare("attention", "wgmma", "mma", "direct", "tiled")
ATTENTION_GRAD = declare("attention_grad", "wgmma", "mma", "tiled")


class Geometry(NamedTuple):
    """What a call computes: lengths, heads per head of k (group), and the mask's form."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    size: int
    causal: bool
    window: int  # 0 for none
    scale: float


class Call(NamedTuple):
    """A call: its geometry and tensors whose rows are contiguous. Gradients also have g, o and lse."""

    x: Geometry
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    g: Tensor | None = None
    o: Tensor | None = None
    lse: Tensor | None = None


def rows(c: Call) -> list[Tensor]:
    """The tensors of a call whose rows have the head size."""
    return [t for t in (c.q, c.k, c.v, c.g, c.o) if t is not None]


def results(c: Call) -> dict[str, tuple[Shape, DType]]:
    """Shape and dtype of what the forward pass makes."""
    return {"o": (c.q.shape, c.q.dtype), "lse": (c.q.shape[:3], compute_dtype(c.q.dtype))}


def arguments(c: Call) -> dict[str, Any]:
    """What kernels take beside their record. q stands in for a mask that is not read."""
    shared = {"q": c.q, "k": c.k, "v": c.v, "mask": c.q if c.mask is None else c.mask, "scale": c.x.scale}
    return shared if c.g is None else {**shared, "g": c.g, "lse": c.lse}


def dims(c: Call, splits: int = 1, rows: int = 0) -> dict[str, int]:
    """The fields of Dims in attention_rows.cl; `splits` and `rows` are those of the gradient on CPU devices."""
    x = c.x
    (qb, qh, qt), (kb, kh, kt), (vb, vh, vt) = c.q.strides[:3], c.k.strides[:3], c.v.strides[:3]
    gb, gh, gt = (0, 0, 0) if c.g is None else c.g.strides[:3]
    return {
        "B": x.batch, "H": x.heads, "G": x.group, "Tq": x.queries, "Tk": x.keys, "D": x.size, "causal": x.causal,
        "window": x.window, "mask_b": 0 if c.mask is None else c.mask.strides[0], "qb": qb, "qh": qh, "qt": qt,
        "kb": kb, "kh": kh, "kt": kt, "vb": vb, "vh": vh, "vt": vt, "gb": gb, "gh": gh, "gt": gt,
        "splits": splits, "rows": rows,
    }  # fmt: skip
