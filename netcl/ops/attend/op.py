"""Streaming attention: softmax(q k^T) v and its gradients without ever holding a map of all queries by all keys.

Kernels: attend_cpu.cl and attend_grad_cpu.cl for CPU devices (launched by cpu.py), attention_gpu.cl for
everything else (gpu.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netcl.core.backend import cpu
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import as_dtype, common_dtype, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import as_int
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import route
from netcl.ops.attend import cpu as attention_cpu
from netcl.ops.attend import gpu as attention_gpu
from netcl.ops.attend import marks as extras
from netcl.ops.attend.host import numpy_attention, numpy_attention_grad
from netcl.ops.attend.marks import Given
from netcl.ops.attend.problem import (
    ALIGNMENTS,
    ATTENTION,
    ATTENTION_GRAD,
    LOWER_RIGHT,
    BiasGrad,
    Call,
    Geometry,
    Marks,
    Settings,
)
from netcl.ops.create.random import Draw, Generator, check_probability, draw_of
from netcl.ops.product.op import promote
from netcl.ops.record import FLOATS, HALF, Facts, Op, register

LARGEST = 512  # head size that the kernels hold in local memory and registers
Needs = Sequence[bool]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    window: int | None = None,
    align: str = "lower_right",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    dropout: float = 0.0,
    draw: Draw | None = None,
    query_lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o = softmax(s) v per head over the keys that a query sees, and the log of the softmax's denominators.

    o_i = sum_j exp(s_ij - lse_i) v_j,  lse_i = log sum_j exp(s_ij). Scores are s_ij = scale * q_i . k_j, which softcap
    makes softcap * tanh(s_ij / softcap), minus slope_h * |j - (i + off)|, plus mask_ij.
    causal: query i sees keys j <= i + off. off is Tk - Tq with align "lower_right", so that the last query sees all
    keys, as with a cache; it is 0 with "upper_left", which is PyTorch's is_causal. window w: keys less than w places
    from its own, i + off (behind it only, with causal).
    mask: broadcasts to (B, H, Tq, Tk), by strides. Bools: true where a key is seen, as in PyTorch's
    scaled_dot_product_attention. Floats are added to scores; -infinity hides a key as false does.
    key_padding_mask (B, Tk): the other way round, true where a key is padding, whose weight is exactly 0.
    sinks (H,): a score per head that counts in the denominators and has no value.
    alibi_slopes (H,) or (B, H): what a score loses per place between key and query.
    dropout: the probability that a weight becomes 0; the others are divided by 1 - dropout, denominators stay. The
    numbers are those of `draw` (see `attention_draw`), which `attention_grad` takes as well, or new ones.
    query_lengths, key_lengths (B,): of padded samples; Tq and Tk above are those of the sample. Queries and keys behind
    them are as if they were not there: results 0. They are read on the device, so one beyond its axis counts as all of
    it, and one below 0 as 0.
    cu_seqlens_q, cu_seqlens_k (S + 1,): where S sequences that lie one behind the other in the one sample of q, k and v
    begin, and the last ends, from 0 on; each sees itself alone. Without those of k they are those of q.
    A query that sees no key gets 0, and as lse its sink or -infinity, where `softmax` of -inf alone gives NaN.
    Infinity and NaN reach what they reach in plain arithmetic; what a query does not see never reaches it.
    Shapes: q (B, H, Tq, D), k (B, H_kv, Tk, D), v (B, H_kv, Tk, Dv) with H_kv dividing H (query head h uses head
    h // (H / H_kv)); returns o (B, H, Tq, Dv) and lse (B, H, Tq) in the compute dtype. Any strides. scale: 1 / sqrt(D)
    when None.
    Memory: o, lse, and on CPU devices a packed copy of k; no map of scores.
    Dtypes of q, k and v promote as in NumPy; the other tensors are read in the compute dtype.
    Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    Source: Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018, arXiv:1805.02867; Press et al. 2022,
    arXiv:2108.12409 (slopes); Xiao et al. 2024, arXiv:2309.17453 (sinks).
    """
    lengths = (query_lengths, key_lengths, cu_seqlens_q, cu_seqlens_k)
    s = Settings(causal, scale, key_padding_mask, window, align, softcap, dropout, *lengths)
    return _attend(q, k, v, Given(mask, sinks, alibi_slopes), s, draw)[:2]


def attention_draw(q: Tensor, k: Tensor, generator: Generator | None = None) -> Draw:
    """Random numbers for the dropout of `attention` on q and k: a block of four for four keys of a query."""
    return draw_of(generator, q.shape[0] * q.shape[1] * q.shape[2] * -(-k.shape[2] // 4) * 4)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, given: Given, s: Settings, draw: Draw | Generator | None
) -> tuple[Tensor, Tensor, Draw | None]:
    """o, lse, and the numbers of dropout: those of a draw, or new ones of a generator."""
    q, k, v = _alike("attention", q, k, v)
    x = check("attention", q, k, v, s)
    queue = same_queue("attention", q, k, v, *_tensors(given, s))
    marks = extras.marks_of("attention", queue, x, q.dtype, given, s)
    drawn = draw if isinstance(draw, Draw) else attention_draw(q, k, draw) if x.dropout else None
    if q.backend == "cpu":
        if route.special:
            route.sole(ATTENTION)
        named = _named(marks)
        tensors = (q, k, v, *named.values())
        o, lse = cpu.compute(numpy_attention, *tensors, names=(*named,), geometry=x, draw=_numbers(drawn))
        return o, lse, drawn
    if q.size == 0 or x.keys == 0:
        return *_unseeing(queue, q, x, marks), drawn
    q, k, v = (_rows(t) for t in (q, k, v))
    return *_kernels(queue).forward(Call(x, q, k, v, marks, drawn)), drawn


def _unseeing(queue: Queue, q: Tensor, x: Geometry, marks: Marks) -> tuple[Tensor, Tensor]:
    """o and lse of queries that see no key."""
    o, lse = allocate(queue, (*q.shape[:3], x.width), q.dtype), allocate(queue, q.shape[:3], compute_dtype(q.dtype))
    o.fill_(0)
    if marks.sinks is None:
        return o, lse.fill_(-math.inf)
    return o, marks.sinks.reshape(1, x.heads, 1).expand(*lse.shape).contiguous()


def attention_grad(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    *,
    needs: Needs = (True, True, True),
    draw: Draw | None = None,
    **settings: Any,
) -> tuple[Tensor | None, ...]:
    """(dq, dk, dv), and as far as `needs` goes those of mask, sinks and slopes; None where it is false.

    o, lse and, with dropout, draw are those of the forward pass, the settings those of `attention`.
    With p = exp(s - lse), delta_i = g_i . o_i: ds = p (g v^T - delta), dq = scale ds k, dk = scale ds^T q, dv = p^T g.
    The gradient of an additive mask is ds added up over the axes along which it was broadcast, that of a sink the sum
    of -exp(sink - lse) delta. Scores are computed again, block by block; no atomics, so results repeat exactly.
    dq, dk and dv have the dtype that q, k and v promote to, the others that of their tensor.
    """
    s, given, where = Settings(**settings), Given(mask, sinks, alibi_slopes), "attention_grad"
    q, k, v = _alike(where, q, k, v)
    x = check(where, q, k, v, s)
    if x.dropout and draw is None:
        raise ValueError(f"{where}: expected the draw of the forward pass with dropout, got None; see attention_draw.")
    whole = (*q.shape[:3], x.width)
    for name, t, shape in (("g", g, whole), ("o", o, whole), ("lse", lse, q.shape[:3])):
        if t.shape != shape:
            raise ShapeError(f"{where}: expected {name} of shape {shape}, got {t.shape}.")
    # lse has the sinks in it
    queue = same_queue(where, g, q, k, v, o, lse, *_tensors(given, s))
    marks = extras.marks_of(where, queue, x, q.dtype, given, s)._replace(sinks=None)
    if not any(needs):
        return (None,) * len(needs)
    wanted = (*needs, *(False,) * 6)[:6]
    sums = extras.sums_of(x, marks, wanted[3:])
    *found, delta, totals = _gradients_of(Call(x, q, k, v, marks, draw, g.astype(q.dtype), o, lse), sums)
    found += extras.gradients(given, totals, lse, delta, wanted[3:])
    return tuple([t if need else None for t, need in zip(found, needs)])


def _gradients_of(c: Call, sums: dict[str, BiasGrad]) -> tuple[Any, ...]:
    """dq, dk, dv, the dots of g and o, and the sums by their names."""
    x, queue = c.x, c.q.queue
    assert c.g is not None and c.o is not None and c.lse is not None
    if c.q.backend == "cpu":
        if route.special:
            route.sole(ATTENTION_GRAD)
        named, tensors = _named(c.marks), (c.g, c.q, c.k, c.v, c.o, c.lse)
        shapes = tuple((wanted.shape, wanted.away) for wanted in sums.values())
        (*found,) = cpu.compute(
            numpy_attention_grad,
            *tensors,
            *named.values(),
            names=(*named,),
            geometry=x,
            draw=_numbers(c.draw),
            sums=shapes,
        )
        return *found[:4], dict(zip(sums, found[4:]))
    if c.q.size == 0 or c.k.size == 0:
        delta = Tensor.zeros(queue, c.q.shape[:3], compute_dtype(c.q.dtype))
        zeros = {name: Tensor.zeros(queue, wanted.shape, delta.dtype) for name, wanted in sums.items()}
        return *(Tensor.zeros(queue, t.shape, t.dtype) for t in (c.q, c.k, c.v)), delta, zeros
    g, q, k, v = (_rows(t) for t in (c.g, c.q, c.k, c.v))
    c = Call(x, q, k, v, c.marks, c.draw, g, c.o.contiguous(), c.lse.contiguous())
    kernels = _kernels(queue)
    *found, delta = kernels.backward(c)
    return *found, delta, {name: kernels.bias_grad(c, delta, wanted) for name, wanted in sums.items()}


def _numbers(draw: Draw | None) -> tuple[Any, ...]:
    """The draw for NumPy."""
    return (0, 0, 0) if draw is None else tuple(draw)


def _tensors(given: Given, s: Settings) -> list[Tensor]:
    """The tensors among what was given beside q, k and v."""
    return [t for t in (*given, *s) if isinstance(t, Tensor)]


def _named(marks: Marks) -> dict[str, Tensor]:
    """The tensors that there are, by name."""
    return {name: t for name, t in marks._asdict().items() if t is not None}


# -- checks ------------------------------------------------------------------------------------------------------------


def _alike(where: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """q, k and v in their common dtype."""
    if q.dtype is k.dtype is v.dtype:
        return q, k, v
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not is_float(t.dtype):
            raise DTypeError(f"{where}: expected a floating {name}, got {t.dtype}; convert it with astype.")
    return promote(q, k, v)


def check(where: str, q: Tensor, k: Tensor, v: Tensor, s: Settings) -> Geometry:
    """The geometry of a call. Raises ShapeError and DTypeError as `attention` says."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.ndim != 4:
            raise ShapeError(f"{where}: expected {name} of shape (B, H, T, D), got {t.shape}.")
    if not is_float(q.dtype):
        raise DTypeError(f"{where}: expected floating q, k and v, got {q.dtype}; convert them with astype.")
    batch, heads, queries, size = q.shape
    groups, keys, width = *k.shape[1:3], v.shape[3]
    if k.shape[:3] != v.shape[:3] or k.shape[0] != batch or k.shape[3] != size or (size == 0) != (width == 0):
        wanted = f"k ({batch}, H, T, {size}) and v ({batch}, H, T, Dv)"
        raise ShapeError(f"{where}: expected {wanted} of one H and T, got {k.shape} and {v.shape}.")
    if (groups == 0 and heads) or (groups and heads % groups):
        raise ShapeError(f"{where}: expected heads of k and v to divide the {heads} of q, got {groups}.")
    if q.backend == "cl" and max(size, width) > LARGEST:
        raise ShapeError(
            f"{where}: expected a head size of at most {LARGEST} on OpenCL devices, got {max(size, width)}."
        )
    if s.window is not None and as_int(where, s.window, "window") < 1:
        raise ShapeError(f"{where}: expected a window of at least 1 key, got {s.window}.")
    if s.align not in ALIGNMENTS:
        raise ValueError(f"{where}: expected align {' or '.join(map(repr, ALIGNMENTS))}, got {s.align!r}.")
    if s.softcap is not None and not 0 < s.softcap < math.inf:
        raise ValueError(f"{where}: expected a softcap above 0, got {s.softcap}; None for none.")
    check_probability(where, s.dropout)
    scale = 1 / math.sqrt(max(size, 1)) if s.scale is None else float(s.scale)
    reach = min(s.window or 0, queries + keys)  # kernels keep it in an int
    return Geometry(
        batch, heads, heads // max(groups, 1), queries, keys, size, width, bool(s.causal), s.align == LOWER_RIGHT,
        reach, scale, float(s.softcap or 0), float(s.dropout),
    )  # fmt: skip


def _rows(t: Tensor) -> Tensor:
    """`t` itself when the elements of its last axis are neighbours, else a contiguous copy."""
    return t if t.shape[-1] == 1 or t.strides[-1] == 1 else t.contiguous()


def _kernels(queue: Queue) -> Any:
    """The module with `forward` and `backward` for the kind of device."""
    return attention_cpu if profile_of(queue).kind == "cpu" else attention_gpu


# -- record ------------------------------------------------------------------------------------------------------------


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    window: int | None = None,
    align: str = "lower_right",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    dropout: float = 0.0,
    generator: Generator | None = None,
    query_lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """softmax(s) v per head, without a map of scores: q (B, H, Tq, D), k (B, H_kv, Tk, D), v (B, H_kv, Tk, Dv).

    s = scale * q k^T, then softcap * tanh(s / softcap), - slope * |j - (i + off)|, + mask. scale: 1 / sqrt(D) when
    None. H_kv divides H.
    causal: query i sees keys j <= i + off; off = Tk - Tq with align "lower_right", 0 with "upper_left" (PyTorch's
    is_causal). window w: keys less than w places from i + off.
    mask: broadcasts to (B, H, Tq, Tk). Bools: true where a key is seen, as in PyTorch's scaled_dot_product_attention;
    floats are added, -infinity hides. key_padding_mask (B, Tk): true where a key is padding.
    sinks (H,): a score per head in the softmax's denominators. alibi_slopes (H,) or (B, H): what a score loses per
    place between key and query.
    dropout: the probability that a weight becomes 0, in evaluation too; the others are divided by 1 - dropout.
    query_lengths, key_lengths (B,): of padded samples; one beyond its axis counts as all of it.
    cu_seqlens_q, cu_seqlens_k (S + 1,): where sequences packed in one sample begin, and the last ends; each sees itself
    alone. Causal and window go by the lengths of each.
    A query that sees no key gets 0, where `softmax` of -inf alone gives NaN.
    Dtypes promote as in NumPy. Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    Source: Dao et al. 2022, arXiv:2205.14135.
    """
    lengths = (query_lengths, key_lengths, cu_seqlens_q, cu_seqlens_k)
    s = Settings(causal, scale, key_padding_mask, window, align, softcap, dropout, *lengths)
    return _attend(q, k, v, Given(mask, sinks, alibi_slopes), s, generator)[0]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    generator: Generator | None = None,
    **settings: Any,
) -> tuple[Tensor, tuple[Tensor, Draw | None]]:
    o, lse, draw = _attend(q, k, v, Given(mask, sinks, slopes), Settings(**settings), generator)
    return o, (lse, draw)


def _gradients(
    g: Tensor,
    y: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *given: Tensor | None,
    needs: Needs,
    aux: tuple[Tensor, Draw | None],
    generator: Generator | None = None,
    **settings: Any,
) -> Sequence[Tensor | None]:
    lse, draw = aux
    return attention_grad(g, q, k, v, y, lse, *given, needs=tuple(needs), draw=draw, **settings)


def _facts(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Facts:
    return (*q.shape[:3], v.shape[3]), as_dtype(common_dtype(q.dtype, k.dtype, v.dtype))


register(
    Op(
        "attention",
        _forward,
        _gradients,
        ("y", 0, 1, 2, 3, 4, 5),
        True,
        shape=_facts,
        constants=("key_padding_mask", "query_lengths", "key_lengths", "cu_seqlens_q", "cu_seqlens_k"),
        function=_attended,
        dtypes=FLOATS,
        cast=HALF,
    )
)
