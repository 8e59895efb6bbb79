"""Which keys each query sees where sequences have lengths of their own: padded, or packed one behind the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from netcl.core.backend import cpu
from netcl.core.dtypes import INT32, INT64
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.attend.problem import Geometry, Settings

Lengths = tuple[Tensor | None, Tensor | None]


def bounds_of(where: str, queue: Queue, x: Geometry, s: Settings) -> Tensor | None:
    """(B, Tq, 4) as attention_bounds.cl says; None where all sequences are whole. Raises ShapeError and DTypeError."""
    packed = s.cu_seqlens_q is not None or s.cu_seqlens_k is not None
    queries, keys = _packed(where, x, s) if packed else _padded(where, x, s)
    given = {name: t for name, t in (("queries", queries), ("keys", keys)) if t is not None}
    if not given:
        return None
    shape = (x.batch, x.queries, 4)
    if 0 in shape:
        return Tensor.zeros(queue, shape, INT32)
    facts = {"causal": int(x.causal), "lower": int(x.lower), "window": x.window}
    tensors = [*given.values()]
    if tensors[0].backend == "cpu":
        sizes = (x.batch, x.queries, x.keys)
        found: Tensor = cpu.compute(
            _numpy, *tensors, names=(*given,), sizes=sizes, packed=packed, facts=(*facts.values(),)
        )
        return found
    defines = {name.upper(): 1 for name in given} | ({"PACKED": 1} if packed else {})
    ends = tensors[0].shape[0] - 1 if packed else 0
    key = ("bounds", shape, x.keys, ends, (*defines,), *facts.values())

    def make() -> Callable[..., Tensor]:
        made = program(queue, sources.load("attention_bounds.cl", **defines), "bounds")
        return made.bind(shape[1::-1], None, {"out": (shape, INT32)}, Tq=x.queries, Tk=x.keys, count=ends, **facts)

    return remember(queue, key, make)(**given)


def _padded(where: str, x: Geometry, s: Settings) -> Lengths:
    """The lengths of queries and keys of each sample."""
    for name, t in (("query_lengths", s.query_lengths), ("key_lengths", s.key_lengths)):
        if t is not None and t.shape != (x.batch,):
            raise ShapeError(f"{where}: expected {name} of shape ({x.batch},), got {t.shape}.")
    return _whole(where, "query_lengths", s.query_lengths), _whole(where, "key_lengths", s.key_lengths)


def _packed(where: str, x: Geometry, s: Settings) -> Lengths:
    """Where sequences begin, and the last ends; those of keys are those of queries where they are not given."""
    if s.query_lengths is not None or s.key_lengths is not None:
        raise ShapeError(f"{where}: expected lengths of padded sequences or cu_seqlens of packed ones, got both.")
    queries, keys = s.cu_seqlens_q, s.cu_seqlens_q if s.cu_seqlens_k is None else s.cu_seqlens_k
    if queries is None or queries.ndim != 1 or queries.shape[0] < 1 or keys is None or keys.shape != queries.shape:
        shapes = [None if t is None else t.shape for t in (queries, keys)]
        raise ShapeError(f"{where}: expected cu_seqlens_q and cu_seqlens_k of one shape (S + 1,), got {shapes}.")
    if x.batch != 1:
        raise ShapeError(f"{where}: expected q of shape (1, H, T, D) with packed sequences, got {x.batch} samples.")
    return _whole(where, "cu_seqlens_q", queries), _whole(where, "cu_seqlens_k", keys)


def _whole(where: str, name: str, t: Tensor | None) -> Tensor | None:
    """Numbers of the kernel's type."""
    if t is None:
        return None
    if t.dtype not in (INT32, INT64):
        raise DTypeError(f"{where}: expected {name} of int32 or int64, got {t.dtype}; convert it with astype.")
    return t.astype(INT32).contiguous()


def _numpy(
    *given: np.ndarray,
    names: tuple[str, ...],
    sizes: tuple[int, int, int],
    packed: bool,
    facts: tuple[int, int, int],
) -> np.ndarray:
    """What attention_bounds.cl computes."""
    causal, lower, window = facts
    batch, queries, keys = sizes
    spans = {name: a.astype(np.int64) for name, a in zip(names, given)}
    i = np.arange(queries)[None]
    if packed:
        ends = {name: np.clip(a, 0, n) for (name, a), n in zip(spans.items(), (queries, keys))}
        s = np.searchsorted(spans["queries"][1:], i, side="right")
        behind = {name: np.append(a, n) for (name, a), n in zip(ends.items(), (queries, keys))}
        tail = s == len(spans["queries"]) - 1
        q0, k0 = behind["queries"][s], np.where(tail, keys, behind["keys"][s])
        nq = np.where(tail, 0, behind["queries"][s + 1] - q0)
        nk = np.where(tail, 0, np.maximum(behind["keys"][s + 1] - k0, 0))
    else:
        q0 = k0 = np.zeros((1, 1), np.int64)
        nq = np.clip(spans.get("queries", np.full(batch, queries)), 0, queries)[:, None]
        nk = np.clip(spans.get("keys", np.full(batch, keys)), 0, keys)[:, None]
    own, last = k0 + i - q0 + (nk - nq if lower else 0), k0 + nk
    lo = own - window + 1 if window else k0
    hi = own + 1 if causal else own + window if window else last
    lo, hi = np.clip(lo, k0, last), np.clip(hi, k0, last)
    nothing = np.where(i < q0, k0, last)
    seen = (i >= q0) & (i < q0 + nq)
    found = [np.where(seen, lo, nothing), np.where(seen, hi, nothing), own, np.zeros_like(own)]
    return np.stack([np.broadcast_to(a, (batch, queries)) for a in found], -1).astype(np.int32)
