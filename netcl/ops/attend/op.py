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
from netcl.core.dtypes import BOOL, UINT8, as_dtype, common_dtype, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import as_int
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import route
from netcl.ops.attend import cpu as attention_cpu
from netcl.ops.attend import gpu as attention_gpu
from netcl.ops.attend.host import numpy_attention, numpy_attention_grad
from netcl.ops.attend.problem import ATTENTION, ATTENTION_GRAD, Call, Geometry
from netcl.ops.product.op import promote
from netcl.ops.record import FLOATS, HALF, Facts, Op, register

LARGEST = 512  # head size that the kernels hold in local memory and registers
Needs = Sequence[bool]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """o = softmax(scale * q k^T) v per head, and the log of the softmax's denominators.

    o_i = sum_j exp(s_ij - lse_i) v_j,  lse_i = log sum_j exp(s_ij),  s_ij = scale * q_i . k_j for the keys j i sees.
    causal: query i sees keys j <= i + Tk - Tq (aligned bottom right). window w: keys less than w places from its own
    (behind it only, with causal). key_padding_mask (B, Tk): true where a key is padding, whose weight is exactly 0.
    A query that sees no key gets 0 and lse = -infinity, where `softmax` of -inf alone gives NaN. scale: 1 / sqrt(D)
    when None. Infinity and NaN reach what they reach in plain arithmetic; what a query does not see never reaches it.
    Shapes: q (B, H, Tq, D), k and v (B, H_kv, Tk, D) with H_kv dividing H (query head h uses head h // (H / H_kv));
    returns o (B, H, Tq, D) and lse (B, H, Tq) in the compute dtype. Any strides.
    Memory: o, lse, and on CPU devices a packed copy of k; no map of scores.
    Dtypes promote as in NumPy. Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    Source: Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018, arXiv:1805.02867.
    """
    q, k, v = _alike("attention", q, k, v)
    geometry = check("attention", q, k, v, causal, scale, key_padding_mask, window)
    tensors = [q, k, v] if key_padding_mask is None else [q, k, v, key_padding_mask]
    queue = same_queue("attention", *tensors)
    if q.backend == "cpu":
        if route.special:
            route.sole(ATTENTION)
        o, lse = cpu.compute(numpy_attention, *tensors, geometry=geometry)
        return o, lse
    if q.size == 0 or geometry.keys == 0:
        o, lse = allocate(queue, q.shape, q.dtype), allocate(queue, q.shape[:3], compute_dtype(q.dtype))
        return o.fill_(0), lse.fill_(-math.inf)
    mask = None if key_padding_mask is None else _rows(key_padding_mask)
    q, k, v = (_rows(t) for t in (q, k, v))
    o, lse = _kernels(queue).forward(Call(geometry, q, k, v, mask))
    return o, lse


def attention_grad(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    window: int | None = None,
    needs: Needs = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dq, dk, dv) of `attention`, None where `needs` says so; o and lse are those of the forward pass.

    With p = exp(s - lse), delta_i = g_i . o_i: ds = p (g v^T - delta), dq = scale ds k, dk = scale ds^T q, dv = p^T g.
    Scores are computed again, block by block; no atomics, so results repeat exactly.
    All three have the dtype that q, k and v promote to.
    """
    q, k, v = _alike("attention_grad", q, k, v)
    geometry = check("attention_grad", q, k, v, causal, scale, key_padding_mask, window)
    for name, t, shape in (("g", g, q.shape), ("o", o, q.shape), ("lse", lse, q.shape[:3])):
        if t.shape != shape:
            raise ShapeError(f"attention_grad: expected {name} of shape {shape}, got {t.shape}.")
    tensors = [g.astype(q.dtype), q, k, v, o, lse] + ([] if key_padding_mask is None else [key_padding_mask])
    queue = same_queue("attention_grad", *tensors)
    if not any(needs):
        return None, None, None
    if q.backend == "cpu":
        if route.special:
            route.sole(ATTENTION_GRAD)
        found = cpu.compute(numpy_attention_grad, *tensors, geometry=geometry)
    elif q.size == 0 or k.size == 0:
        found = tuple(Tensor.zeros(queue, t.shape, t.dtype) for t in (q, k, v))
    else:
        g, q, k, v = (_rows(t) for t in tensors[:4])
        mask = None if key_padding_mask is None else _rows(key_padding_mask)
        found = _kernels(queue).backward(Call(geometry, q, k, v, mask, g, o.contiguous(), lse.contiguous()))
    return tuple(t if need else None for t, need in zip(found, needs))  # type: ignore[return-value]  # three in a row


# -- checks ------------------------------------------------------------------------------------------------------------


def _alike(where: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """q, k and v in their common dtype."""
    if q.dtype is k.dtype is v.dtype:
        return q, k, v
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not is_float(t.dtype):
            raise DTypeError(f"{where}: expected a floating {name}, got {t.dtype}; convert it with astype.")
    return promote(q, k, v)


def check(
    where: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    mask: Tensor | None,
    window: int | None,
) -> Geometry:
    """The geometry of a call. Raises ShapeError and DTypeError as `attention` says."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.ndim != 4:
            raise ShapeError(f"{where}: expected {name} of shape (B, H, T, D), got {t.shape}.")
    if not is_float(q.dtype):
        raise DTypeError(f"{where}: expected floating q, k and v, got {q.dtype}; convert them with astype.")
    batch, heads, queries, size = q.shape
    groups, keys = k.shape[1:3]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != size:
        wanted = f"({batch}, H, T, {size})"
        raise ShapeError(f"{where}: expected k and v of one shape {wanted}, got {k.shape} and {v.shape}.")
    if (groups == 0 and heads) or (groups and heads % groups):
        raise ShapeError(f"{where}: expected heads of k and v to divide the {heads} of q, got {groups}.")
    if mask is not None and mask.shape != (batch, keys):
        raise ShapeError(f"{where}: expected key_padding_mask of shape ({batch}, {keys}), got {mask.shape}.")
    if mask is not None and mask.dtype not in (BOOL, UINT8):
        raise DTypeError(f"{where}: expected a bool key_padding_mask, got {mask.dtype}; compare it with 0 first.")
    if q.backend == "cl" and size > LARGEST:
        raise ShapeError(f"{where}: expected a head size of at most {LARGEST} on OpenCL devices, got {size}.")
    if window is not None and as_int(where, window, "window") < 1:
        raise ShapeError(f"{where}: expected a window of at least 1 key, got {window}.")
    scale = 1 / math.sqrt(max(size, 1)) if scale is None else float(scale)
    reach = min(window or 0, queries + keys)  # kernels keep it in an int
    return Geometry(batch, heads, heads // max(groups, 1), queries, keys, size, bool(causal), reach, scale)


def _rows(t: Tensor) -> Tensor:
    """`t` itself when the elements of its last axis are neighbours, else a contiguous copy."""
    return t if t.shape[-1] == 1 or t.strides[-1] == 1 else t.contiguous()


# -- kernels -----------------------------------------------------------------------------------------------------------


def _kernels(queue: Queue) -> Any:
    """The module with `forward` and `backward` for the kind of device."""
    return attention_cpu if profile_of(queue).kind == "cpu" else attention_gpu


# -- record ------------------------------------------------------------------------------------------------------------


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v per head, without a map of scores: q (B, H, Tq, D), k and v (B, H_kv, Tk, D).

    causal: query i sees keys j <= i + Tk - Tq. window w: keys less than w places away. key_padding_mask (B, Tk): true
    where a key is padding, whose weight is exactly 0. scale: 1 / sqrt(D) when None. H_kv divides H. A query that sees
    no key gets 0, where `softmax` of -inf alone gives NaN.
    Dtypes promote as in NumPy. Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    Source: Dao et al. 2022, arXiv:2205.14135.
    """
    return attention(q, k, v, causal, scale, key_padding_mask, window)[0]


def _gradients(
    g: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor, *, needs: Needs, aux: Tensor, **settings: Any
) -> Sequence[Tensor | None]:
    return attention_grad(g, q, k, v, y, aux, needs=tuple(needs), **settings)


def _facts(q: Any, k: Any, v: Any, **_: Any) -> Facts:
    return q.shape, as_dtype(common_dtype(q.dtype, k.dtype, v.dtype))


register(
    Op(
        "attention",
        attention,
        _gradients,
        ("y", 0, 1, 2),
        True,
        shape=_facts,
        constants=("key_padding_mask",),
        function=_attended,
        dtypes=FLOATS,
        cast=HALF,
    )
)
