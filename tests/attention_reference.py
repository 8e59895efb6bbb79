"""Attention row by row in float64, each query over the keys that it sees alone, and inputs with infinity and NaN."""

import dataclasses

import numpy as np

from netcl.core.tensor import Tensor
from netcl.ops.attend.op import attention, attention_draw, attention_grad
from netcl.ops.create.random import Generator, philox

INF, NAN = np.inf, np.nan
# What is put where before a call: (array, index, value). Arrays are q, k, v, g of shape (1, 2, 70, D).
SPECIALS = {
    "infinite values": [("v", (0, 0, 5, 3), INF), ("v", (0, 1, 9, 0), -INF), ("v", (0, 1, 69, 7), INF)],
    "both infinities": [("v", (0, 0, 5, 3), INF), ("v", (0, 0, 60, 3), -INF)],
    "values not a number": [("v", (0, 0, 33, 2), NAN), ("v", (0, 1, 0, 15), NAN)],
    "infinite keys": [("k", (0, 0, 5, 3), INF), ("k", (0, 1, 66, 1), -INF)],
    "infinite queries": [("q", (0, 0, 5, 3), INF), ("q", (0, 1, 64, 1), -INF)],
    "queries not a number": [("q", (0, 0, 17, 3), NAN)],
    "keys of no weight": [("q", (..., 0), 1.0), ("k", (0, slice(None), slice(20, 30), 0), -INF)],
    "infinite gradients": [("g", (0, 0, 5, 3), INF), ("g", (0, 1, 69, 0), -INF)],
    "gradients not a number": [("g", (0, 1, 40, 3), NAN)],
    "largest values": [("g", (...,), 0.01), ("v", (0, 0, 5, 3), "largest"), ("v", (0, 1, 9, 0), "-largest")],
}
MASKS = {
    "all": {}, "causal": {"causal": True}, "window": {"causal": True, "window": 9}, "padded": {"padded": True},
    "hidden": {"hidden": True},
}  # fmt: skip


def inputs(edits, dtype, size=16, queries=70):
    """q, k, v and g with the edits made, the last `queries` of q and g, and which keys are padding."""
    rng = np.random.default_rng(8)
    arrays = {name: rng.standard_normal((1, 2, 70, size)).astype(dtype) for name in "qkvg"}
    largest = {"bfloat16": 3e38, "float16": 6e4, "float32": 3.4028e38, "float64": 1e300}[dtype]
    for name, index, value in edits:
        number = {"largest": largest, "-largest": -largest}.get(value, value)
        arrays[name][index] = number
    mask = np.zeros((1, 70), bool)
    mask[0, [0, 5, 9, 33, 66, 69]] = True
    few = {name: np.ascontiguousarray(arrays[name][:, :, -queries:]) for name in "qg"}
    return [(arrays | few)[name] for name in "qkvg"], mask


def row_by_row(q, k, v, g, causal=False, window=None, mask=None, hidden=None):
    """o, lse, dq, dk, dv by their definitions: what is not seen is never touched."""
    q, k, v, g = (a.astype(np.float64) for a in (q, k, v, g))
    scale, keys, off = q.shape[-1] ** -0.5, np.arange(k.shape[2]), k.shape[2] - q.shape[2]
    o, lse, dq, dk, dv = (
        np.zeros_like(q),
        np.full(q.shape[:3], -np.inf),
        np.zeros_like(q),
        np.zeros_like(k),
        np.zeros_like(k),
    )
    for b, h, i in np.ndindex(*q.shape[:3]):
        seen = (keys <= i + off) | (not causal)
        seen = seen & (np.abs(keys - i - off) < (window or len(keys)))
        seen = seen if mask is None else seen & ~mask[b]
        seen = seen if hidden is None else seen & ~hidden[i]
        if not seen.any():
            continue
        kr, vr, qi, gi = k[b, h, seen], v[b, h, seen], q[b, h, i], g[b, h, i]
        s = (kr * qi).sum(-1) * scale
        top = s.max() if s.max() != -np.inf else 0.0
        p = np.exp(s - top)
        total = p.sum()
        o[b, h, i] = (p[:, None] * vr).sum(0) / (1 if total == 0 else total)
        lse[b, h, i] = top + np.log(total)
        p = np.exp(s - (np.inf if total == 0 else lse[b, h, i]))
        ds = np.where(p == 0, 0, p * ((vr * gi).sum(-1) - (gi * o[b, h, i]).sum()))[:, None]
        dq[b, h, i] = (ds * kr).sum(0) * scale
        dk[b, h, seen] += ds * qi * scale
        dv[b, h, seen] += p[:, None] * gi
    return o, lse, dq, dk, dv


def check_specials(queue, special, masks, dtype, tolerance, size=16, queries=70):
    """Results and gradients on `queue` are infinite and NaN where those row by row are, and close to them elsewhere."""
    arrays, mask = inputs(SPECIALS[special], dtype, size, queries)
    options = {name: value for name, value in MASKS[masks].items() if name not in ("padded", "hidden")}
    hidden = np.random.default_rng(9).random((70, 70))[-queries:] < 0.3 if masks == "hidden" else None
    with np.errstate(all="ignore"):
        wanted = row_by_row(*arrays, **options, mask=mask if masks == "padded" else None, hidden=hidden)
        if dtype in ("bfloat16", "float16"):
            limit = {"bfloat16": 3.39e38, "float16": 65520}[dtype]
            wanted = [np.where(np.abs(a) >= limit, np.sign(a) * np.inf, a) if a.ndim == 4 else a for a in wanted]
    if masks == "padded":
        options["key_padding_mask"] = Tensor.from_host(queue, mask)
    if masks == "hidden":
        options["mask"] = Tensor.from_host(queue, np.where(hidden, -np.inf, 0).astype("float32"))
    q, k, v, g = (Tensor.from_host(queue, a) for a in arrays)
    o, lse = attention(q, k, v, **options)
    found = (o, lse, *attention_grad(g, q, k, v, o, lse, **options))
    for name, t, e in zip(("o", "lse", "dq", "dk", "dv"), found, wanted, strict=True):
        a = t.to_host().astype(np.float64)
        finite = np.isfinite(e)
        np.testing.assert_array_equal(np.where(np.isfinite(a), 0, a), np.where(finite, 0, e), err_msg=name)
        a, e = np.where(finite, a, 0), np.where(finite, e, 0)
        worst = (np.abs(a - e) / np.maximum(1, np.abs(e).max(-1, keepdims=True))).max()
        assert worst < tolerance, (name, worst)


SEED = 5


def factors(rows, keys, dropout):
    """What dropout multiplies weights by: each row of scores begins with a block of four Philox numbers of its own."""
    blocks = -(-keys // 4)
    words = philox(0, rows * blocks * 4, SEED, 0).reshape(rows, -1)[:, :keys]
    return np.where((words >> 8) * 2.0**-24 < dropout, 0.0, 1 / (1 - dropout))


def whole_map(q, k, v, g, *, mask=None, causal=False, align="lower_right", window=None, scale=None, softcap=None,
              padding=None, sinks=None, slopes=None, dropout=0.0):  # fmt: skip
    """o, lse and the gradients of q, k, v, mask, sinks and slopes by the whole map, in float64."""
    q, k, v, g = (np.asarray(a, np.float64) for a in (q, k, v, g))
    (batch, heads, tq, size), tk, share = q.shape, k.shape[2], q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, share, 1) for a in (k, v))
    scale = size**-0.5 if scale is None else scale
    off = tk - tq if align == "lower_right" else 0
    away = np.arange(tq)[:, None] + off - np.arange(tk)
    seen = np.ones((batch, heads, tq, tk), bool)
    seen &= (away >= 0) | (not causal)
    seen &= np.abs(away) < (window or tq + tk)
    seen &= True if padding is None else ~padding[:, None, None, :]
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    bend = 1.0
    if softcap:
        s = softcap * np.tanh(s / softcap)
        bend = 1 - (s / softcap) ** 2
    if slopes is not None:
        s = s - np.broadcast_to(np.asarray(slopes, np.float64), (batch, heads))[..., None, None] * np.abs(away)
    if mask is not None and mask.dtype == bool:
        seen = seen & mask
    elif mask is not None:
        s = s + np.asarray(mask, np.float64)
        seen = seen & (np.broadcast_to(mask, s.shape) != -np.inf)
    s = np.where(seen, s, -np.inf)
    every = s
    if sinks is not None:
        every = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (batch, heads, tq, 1))], -1)
    top = np.maximum(every.max(-1, keepdims=True, initial=-np.inf), -1e300)
    total = np.exp(every - top).sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    p = np.exp(s - top) / np.where(total == 0, 1, total)
    z = factors(batch * heads * tq, tk, dropout).reshape(p.shape) if dropout else 1.0
    o = (p * z) @ v
    dot = (g * o).sum(-1, keepdims=True)
    ds = p * (z * (g @ v.swapaxes(2, 3)) - dot)
    fold = lambda a: a.reshape(batch, heads // share, share, *a.shape[2:]).sum(2)  # noqa: E731
    dv = fold((p * z).swapaxes(2, 3) @ g)
    found = [o, lse, scale * (ds * bend) @ k, fold(scale * (ds * bend).swapaxes(2, 3) @ q), dv]
    shrunk = lambda a, shape: a.sum(tuple(  # noqa: E731
        i for i, n in enumerate((1,) * (4 - len(shape)) + shape) if n == 1), keepdims=True).reshape(shape)  # fmt: skip
    found.append(None if mask is None or mask.dtype == bool else shrunk(ds, mask.shape))
    weight = None if sinks is None else np.exp(np.where(np.isfinite(lse), sinks[:, None] - lse, -np.inf))
    found.append(None if sinks is None else -(weight * dot[..., 0]).sum((0, 2)))
    by_head = None if slopes is None else (-np.abs(away) * ds).sum((2, 3))
    found.append(by_head if by_head is None or np.ndim(slopes) == 2 else by_head.sum(0))
    return found


# -- cases of scores ---------------------------------------------------------------------------------------------------

TOLERANCE = {"bfloat16": 0.03, "float16": 4e-3, "float32": 2e-5, "float64": 1e-11}
NAMES = ("o", "lse", "dq", "dk", "dv", "dmask", "dsinks", "dslopes")


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes (B, H, H_kv, Tq, Tk, D, Dv), what `attention` is given, and the shapes of its further tensors."""

    name: str
    sizes: tuple = (2, 4, 2, 37, 70, 16, 16)
    mask: tuple | None = None
    kind: str = "add"  # of the mask: add, bool, hide (-infinity among floats), lowest, float32
    options: dict = dataclasses.field(default_factory=dict)
    sinks: bool = False
    slopes: tuple | None = None
    padding: bool = False
    dtype: str = "float32"

    def __str__(self):
        return self.name

    def arrays(self):
        b, h, hk, tq, tk, d, dv = self.sizes
        rng = np.random.default_rng(tq * 1000 + tk)
        draw = lambda *shape: rng.standard_normal(shape).astype(self.dtype)  # noqa: E731
        q, k, v, g = draw(b, h, tq, d), draw(b, hk, tk, d), draw(b, hk, tk, dv), draw(b, h, tq, dv)
        mask = None if self.mask is None else draw(*self.mask)
        if mask is not None and self.kind == "bool":
            mask = rng.random(self.mask) < 0.7
        elif self.kind in ("hide", "lowest"):
            low = -np.inf if self.kind == "hide" else np.finfo("float32").min
            mask = np.where(rng.random(self.mask) < 0.3, low, mask).astype("float32")
        elif self.kind == "float32":
            mask = mask.astype("float32")
        sinks = draw(h) if self.sinks else None
        slopes = None if self.slopes is None else np.abs(draw(*self.slopes)) / 8
        padding = rng.random((b, tk)) < 0.3 if self.padding else None
        return (q, k, v, g), mask, sinks, slopes, padding


def upload(queue, *arrays):
    return [None if a is None else Tensor.from_host(queue, a) for a in arrays]


def compare(found, wanted, tolerance):
    for name, a, e in zip(NAMES, found, wanted, strict=True):
        if e is None:
            assert a is None, name
            continue
        a = a.to_host().astype(np.float64)
        assert a.shape == e.shape, name
        finite = np.isfinite(e)
        assert (np.isfinite(a) == finite).all() and (a[~finite] == e[~finite]).all(), name
        worst = np.abs(a[finite] - e[finite]).max(initial=0) / max(1.0, np.abs(e[finite]).max(initial=0))
        assert worst < tolerance, (name, worst)


def check_scores(queue, case, tolerance=None, through=lambda t: t):
    """Results and gradients of the case, whose tensors are given `through` a view."""
    arrays, mask, sinks, slopes, padding = case.arrays()
    wanted = whole_map(*arrays, mask=mask, sinks=sinks, slopes=slopes, padding=padding, **case.options)
    q, k, v, g = map(through, upload(queue, *arrays))
    extras = upload(queue, mask, sinks, slopes)
    extras[0] = None if mask is None else through(extras[0])
    options = {**case.options, "key_padding_mask": upload(queue, padding)[0]}
    draw = attention_draw(q, k, Generator(SEED)) if "dropout" in case.options else None
    o, lse = attention(q, k, v, extras[0], sinks=extras[1], alibi_slopes=extras[2], draw=draw, **options)
    assert o.dtype == case.dtype and lse.dtype == ("float64" if case.dtype == "float64" else "float32")
    needs = (True,) * 3 + tuple(t is not None for t in extras)
    grads = attention_grad(g, q, k, v, o, lse, *extras, needs=needs, draw=draw, **options)
    compare((o, lse, *grads), wanted, tolerance or TOLERANCE[case.dtype])
    for t, d in zip(extras, grads[3:], strict=True):
        assert d is None or d.dtype == t.dtype
