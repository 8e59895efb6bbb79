"""What an attention is to the kernels: sizes and masks, the tensors of a call, and the fields of their record."""

from __future__ import annotations

from typing import Any, NamedTuple

from netcl.core.dtypes import BOOL, C_NAME, DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.kernels.route import declare
from netcl.ops.create.random import Draw, share_of

OPTIONS = ("-cl-mad-enable",)
ATTENTION = declare("attention", "wgmma", "mma", "direct", "tiled")
ATTENTION_GRAD = declare("attention_grad", "wgmma", "mma", "tiled")
LOWER_RIGHT, UPPER_LEFT = ALIGNMENTS = ("lower_right", "upper_left")


class Settings(NamedTuple):
    """What `attention` takes beside tensors with gradients, as it says there."""

    causal: bool = False
    scale: float | None = None
    key_padding_mask: Tensor | None = None
    window: int | None = None
    align: str = LOWER_RIGHT
    softcap: float | None = None
    dropout: float = 0.0
    query_lengths: Tensor | None = None
    key_lengths: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None


class Geometry(NamedTuple):
    """What a call computes: lengths, heads per head of k (group), and the mask's form."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    size: int
    width: int  # head size of v
    causal: bool
    lower: bool  # places are counted from the last query and key, not from the first ones
    window: int  # 0 for none
    scale: float
    softcap: float  # 0 for none
    dropout: float  # probability that a weight becomes 0

    @property
    def offset(self) -> int:
        """How many places behind a query's own the key of its place is."""
        return self.keys - self.queries if self.lower else 0


class Marks(NamedTuple):
    """Tensors that change scores: padding (B, Tk), mask (B, H, Tq, Tk), sinks (H,), slopes (B, H), bounds.

    An axis of the mask, and that of samples of the slopes, may have one element in the place of all.
    """

    padding: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    bounds: Tensor | None = None


class Call(NamedTuple):
    """A call: its geometry and tensors whose rows are contiguous. Gradients also have g, o and lse."""

    x: Geometry
    q: Tensor
    k: Tensor
    v: Tensor
    marks: Marks
    draw: Draw | None = None  # the random numbers of dropout
    g: Tensor | None = None
    o: Tensor | None = None
    lse: Tensor | None = None


class BiasGrad(NamedTuple):
    """Sums of ds: (B or 1, H or 1, Tq, Tk), or (B, H, 1, Tk), or (B, H, Tq, 1); `away`: times -|j - (i + off)|."""

    shape: Shape
    away: bool

    @property
    def defines(self) -> dict[str, int]:
        """What is defined for the kernel."""
        return {"USE_BIAS_GRAD": 1, **({"AWAY": 1} if self.away else {})}

    @property
    def steps(self) -> dict[str, int]:
        """Strides of rows and columns, 0 along an axis that is added up."""
        *_, queries, keys = self.shape
        return {"row_step": keys if queries > 1 or keys == 1 else 0, "column_step": 1 if keys > 1 else 0}

    def grid(self, queries: int, keys: int) -> tuple[int, int, int, int]:
        """Samples, heads, and blocks of so many queries and keys."""
        samples, heads, down, across = self.shape
        return samples, heads, -(-down // queries), -(-across // keys)


def rows(c: Call) -> list[Tensor]:
    """The tensors of a call whose rows have the size of a head."""
    return [t for t in (c.q, c.k, c.v, c.g, c.o) if t is not None]


def results(c: Call) -> dict[str, tuple[Shape, DType]]:
    """Shape and dtype of what the forward pass makes."""
    shape = c.q.shape[:3]
    return {"o": ((*shape, c.x.width), c.q.dtype), "lse": (shape, compute_dtype(c.q.dtype))}


def flags(c: Call) -> tuple[tuple[str, int | str], ...]:
    """What is defined for the parts of scores that a call has; also a part of its plan's key."""
    m, found = c.marks, list[tuple[str, int | str]]()
    if m.mask is not None:
        found.append(("BIAS", "uchar" if m.mask.dtype == BOOL else C_NAME[m.mask.dtype]))
        found += [("BIAS_BOOL", 1)] if m.mask.dtype == BOOL else [("BIAS_ROWS", 1)] if m.mask.dtype == c.q.dtype else []
    given = {
        "BOUNDS": m.bounds,
        "MASK": m.padding,
        "SINKS": m.sinks,
        "SLOPES": m.slopes,
        "SOFTCAP": c.x.softcap or None,
    }
    given["DROPOUT"] = c.x.dropout or None
    return (*found, *[(name, 1) for name, value in given.items() if value is not None])


def arguments(c: Call) -> dict[str, Any]:
    """What kernels take beside their record."""
    m, x = c.marks, c.x
    found = {"q": c.q, "k": c.k, "v": c.v, "scale": x.scale, "mask": m.padding, "bias": m.mask, "sinks": m.sinks}
    found["bounds"] = m.bounds
    found |= {"slopes": m.slopes, "cap": x.softcap or None, "g": c.g, "lse": None if c.g is None else c.lse}
    if x.dropout and c.draw is not None:
        first, low, high = c.draw
        found |= {"drawn": first, "key0": low, "key1": high, "dropped": share_of(x.dropout), "kept": kept(x)}
    return {name: value for name, value in found.items() if value is not None}


def kept(x: Geometry) -> float:
    """The factor of a weight that dropout leaves."""
    return 0.0 if x.dropout == 1 else 1 / (1 - x.dropout)


def dims(c: Call, splits: int = 1, rows: int = 0) -> dict[str, int]:
    """The fields of Dims in attention_rows.cl; `splits` and `rows` are those of the gradient on CPU devices."""
    x, m = c.x, c.marks
    (qb, qh, qt), (kb, kh, kt), (vb, vh, vt) = c.q.strides[:3], c.k.strides[:3], c.v.strides[:3]
    gb, gh, gt = (0, 0, 0) if c.g is None else c.g.strides[:3]
    mask = (0,) * 4 if m.mask is None else [0 if n == 1 else s for n, s in zip(m.mask.shape, m.mask.strides)]
    bias_b, bias_h, bias_q, bias_k = mask
    return {
        "B": x.batch, "H": x.heads, "G": x.group, "Tq": x.queries, "Tk": x.keys, "D": x.size, "Dv": x.width,
        "causal": x.causal, "off": x.offset, "window": x.window,
        "mask_b": 0 if m.padding is None else m.padding.strides[0], "bias_b": bias_b, "bias_h": bias_h,
        "bias_q": bias_q, "bias_k": bias_k, "slope_b": 0 if m.slopes is None or m.slopes.shape[0] == 1 else x.heads,
        "bounds_b": x.queries * 4, "qb": qb, "qh": qh, "qt": qt, "kb": kb, "kh": kh, "kt": kt,
        "vb": vb, "vh": vh, "vt": vt, "gb": gb, "gh": gh, "gt": gt, "splits": splits, "rows": rows,
    }  # fmt: skip
