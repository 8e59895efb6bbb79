"""Attention of padded and packed sequences against each sequence by itself, on every queue and kernel family."""

import numpy as np
import pytest
from attention_reference import TOLERANCE, compare, upload, whole_map
from families import FAMILIES, POSING, queue_of

from netcl import autograd as ag
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.attend.op import attention, attention_draw, attention_grad


@pytest.fixture(params=FAMILIES, scope="session")
def queue(request):
    """A queue of every backend, device and kernel family."""
    return queue_of(request.param)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "upper left": {"causal": True, "align": "upper_left"},
    "window": {"window": 9},
    "causal window": {"causal": True, "window": 5},
    "slopes and sinks": {"causal": True, "slopes": True, "sinks": True, "softcap": 2.0},
}
PADDED = ([37, 0, 5], [41, 70, 13])  # queries and keys of each sample, of 40 and 70
PACKED = ([30, 1, 0, 45, 4], [12, 1, 9, 60, 0])  # of each sequence; more room behind them
FEW = ([2, 0, 1], [41, 70, 13])


def tensors(batch, queries, keys, dtype):
    rng = np.random.default_rng(queries + keys)
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    return draw(batch, 4, queries, 16), draw(batch, 2, keys, 16), draw(batch, 2, keys, 24), draw(batch, 4, queries, 24)


def by_itself(arrays, places, options, sinks, slopes):
    """o, lse and gradients, sequence by sequence: `places` has the sample and the slices of its queries and keys."""
    q, k, v, g = (a.astype(np.float64) for a in arrays)
    found = [
        np.zeros(v.shape[:1] + q.shape[1:3] + v.shape[3:]),
        np.full(q.shape[:3], -np.inf),
        *map(np.zeros_like, (q, k, v)),
    ]
    found[1][:] = -np.inf if sinks is None else sinks[:, None]
    extra = [None, None if sinks is None else np.zeros(4), None if slopes is None else np.zeros(4)]
    for b, i, j in places:
        one, at = slice(b, b + 1), (i, i, i, j, j)
        parts = whole_map(q[one, :, i], k[one, :, j], v[one, :, j], g[one, :, i], sinks=sinks, slopes=slopes, **options)
        for total, part, rows in zip(found, parts[:5], at, strict=True):
            total[one, :, rows] = part
        for n, part in enumerate(parts[5:]):
            extra[n] = extra[n] if part is None else extra[n] + part
    return found + extra


def check(queue, arrays, lengths, places, options, dtype):
    options = dict(options)
    rng = np.random.default_rng(0)
    sinks = rng.standard_normal(4).astype(dtype) if options.pop("sinks", False) else None
    slopes = (rng.random(4) / 4).astype(dtype) if options.pop("slopes", False) else None
    wanted = by_itself(arrays, places, options, sinks, slopes)
    q, k, v, g, *extras = upload(queue, *arrays, None, sinks, slopes)
    settings = options | {name: Tensor.from_host(queue, np.array(n)) for name, n in lengths.items()}
    o, lse = attention(q, k, v, sinks=extras[1], alibi_slopes=extras[2], **settings)
    needs = (True,) * 3 + tuple(t is not None for t in extras)
    grads = attention_grad(g, q, k, v, o, lse, *extras, needs=needs, **settings)
    compare((o, lse, *grads), wanted, TOLERANCE[dtype])


CASES = [(kind, name, "float32") for kind in ("padded", "packed", "few") for name in OPTIONS]
CASES += [(kind, "causal", t) for kind in ("padded", "packed") for t in ("float16", "bfloat16", "float64")]
POSED = [("padded", "causal window", "float32"), ("packed", "slopes and sinks", "float32")]
ALL = [(f, *c) for f in FAMILIES for c in (POSED if f.startswith(POSING) else CASES)]


@pytest.mark.parametrize(("queue", "kind", "name", "dtype"), ALL, indirect=["queue"])
def test_lengths(queue, kind, name, dtype):
    if kind == "packed":
        queries, keys = PACKED
        ends = [np.cumsum([0, *n]) for n in PACKED]
        places = [(0, slice(i, i + n), slice(j, j + m)) for i, j, n, m in zip(*ends, queries, keys)]
        arrays = tensors(1, 90, 85, dtype)
        lengths = {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1]}
    else:
        queries, keys = PADDED if kind == "padded" else FEW
        places = [(b, slice(n), slice(m)) for b, (n, m) in enumerate(zip(queries, keys))]
        arrays = tensors(3, 40 if kind == "padded" else 3, 70, dtype)
        lengths = {"query_lengths": queries, "key_lengths": keys}
    for b, i, j in [(b, i, j) for b, i, j in places if kind != "packed"] or [(0, slice(80), slice(82))]:
        arrays[1][b, :, j.stop :] = np.nan  # what no sequence has is never met
        arrays[2][b, :, j.stop :] = np.nan
        arrays[0][b, :, i.stop :] = np.nan
    check(queue, arrays, lengths, places, OPTIONS[name], dtype)


def test_lengths_of_one_side_and_beyond_the_tensors(queue):
    """Keys alone, 64-bit numbers, lengths that are too large or negative; packed queries and keys of the same ends."""
    arrays = tensors(3, 9, 20, "float32")
    places = [(0, slice(9), slice(20)), (1, slice(9), slice(0)), (2, slice(9), slice(7))]
    check(queue, arrays, {"key_lengths": [99, -3, 7]}, places, {"causal": True}, "float32")
    arrays = tensors(1, 20, 20, "float32")
    places = [(0, slice(i, j), slice(i, j)) for i, j in ((0, 6), (6, 20))]
    check(queue, arrays, {"cu_seqlens_q": [0, 6, 77]}, places, {"causal": True}, "float32")


def test_gradients_and_dropout_of_packed_sequences(queue):
    """On nodes; each weight keeps its number, whatever sequences there are."""
    arrays = tensors(1, 12, 12, "float64")
    q, k, v, _ = upload(queue, *arrays)
    ends = Tensor.from_host(queue, np.array([0, 5, 12], np.int32))
    settings = {"causal": True, "cu_seqlens_q": ends, "cu_seqlens_k": ends}
    assert ag.gradcheck(lambda *t: ag.attention(*t, **settings), [q, k, v])
    assert ag.gradcheck(ag.jit_compile(lambda *t: ag.attention(*t, **settings)), [q, k, v])
    draw = attention_draw(q, k)
    ones = Tensor.ones(queue, v.shape, "float64")
    apart = attention(q * 0.0, k, ones, dropout=0.5, draw=draw, cu_seqlens_q=ends)[0].to_host()
    mask = np.zeros((12, 12), bool)
    mask[:5, :5] = mask[5:, 5:] = True
    hidden = attention(q * 0.0, k, ones, Tensor.from_host(queue, mask), dropout=0.5, draw=draw)[0].to_host()
    np.testing.assert_allclose(apart, hidden, rtol=1e-6)


def test_errors(queue):
    q, k, v, _ = upload(queue, *tensors(2, 5, 6, "float32"))
    whole = lambda *n, dtype="int32": Tensor.from_host(queue, np.array(n, dtype))  # noqa: E731
    with pytest.raises(ShapeError, match=r"attention: expected key_lengths of shape \(2,\), got \(3,\)"):
        attention(q, k, v, key_lengths=whole(1, 2, 3))
    with pytest.raises(DTypeError, match="expected query_lengths of int32 or int64, got float32"):
        attention(q, k, v, query_lengths=whole(1, 2, dtype="float32"))
    with pytest.raises(ShapeError, match=r"expected q of shape \(1, H, T, D\) with packed sequences, got 2 samples"):
        attention(q, k, v, cu_seqlens_q=whole(0, 5))
    with pytest.raises(ShapeError, match=r"cu_seqlens_q and cu_seqlens_k of one shape \(S \+ 1,\), got"):
        attention(q[:1], k[:1], v[:1], cu_seqlens_q=whole(0, 5), cu_seqlens_k=whole(0, 5, 6))
    with pytest.raises(ShapeError, match="expected lengths of padded sequences or cu_seqlens of packed ones, got both"):
        attention(q[:1], k[:1], v[:1], cu_seqlens_q=whole(0, 5), key_lengths=whole(5))
