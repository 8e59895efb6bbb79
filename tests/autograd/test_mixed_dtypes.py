"""Operands of different dtypes: values, result dtypes and gradients of everything that multiplies, normalises or
compares, for pairs of dtypes. References are NumPy in float64; samples are exact in every dtype.

A sample of the pairs runs always, all of them with NETCL_TEST_ALL=1.
"""

import itertools
import os
import zlib
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from families import FAMILIES, queue_of
from scipy import special

import netcl.autograd as ag
from netcl import ops
from netcl.autograd.compiler import jit_compile
from netcl.core.errors import DTypeError
from netcl.core.tensor import Tensor
from netcl.ops.product import linear_grad

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype("float16"), BFLOAT16, np.dtype("float32"), np.dtype("float64")]
WHOLE = [np.dtype(t) for t in ("int8", "uint8", "int32", "int64")]
EVERY = os.environ.get("NETCL_TEST_ALL") == "1"
SHARE = 6  # one pair in so many runs always


class Case(NamedTuple):
    """An op, its NumPy form in float64, the shapes of its operands, and how many of them may have any dtype."""

    op: object
    reference: object
    shapes: list
    free: int = 2  # leading operands that may be whole numbers
    made: str = "common"  # the result's dtype: NumPy's "common" one, that of the "first", or what it is "computed" in
    rated: bool = True  # whether the last operand has a gradient


def conv(x, w, b=None, padding=0, groups=1):
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    parts = zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    y = np.concatenate([np.einsum("nchwuv,ocuv->nohw", p, q) for p, q in parts], 1)
    return y if b is None else y + b[:, None, None]


def gelu(z):
    return z * special.ndtr(z)


def silu(z):
    return z * special.expit(z)


def relu(z):
    return np.maximum(z, 0)


def affine(x, w, b):
    return x @ w.T + b


def normalise(x, axes, eps):
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


def attend(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return special.softmax(s, -1) @ v


def grouped(x, w, b):
    n = normalise(x.reshape(x.shape[0], 2, -1), 2, 1e-5).reshape(x.shape)
    return n * w[:, None] + b[:, None]


def rms(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def bce(x, t, w):
    return ((1 - t) * x + (1 + (w - 1) * t) * np.logaddexp(0, -x)).mean(keepdims=True).reshape(1)


LABELS = np.array([2, 0, 1, 2], np.int32)
PLACES = np.random.default_rng(4).integers(0, 5, (3, 7)).astype(np.int32)


def log_softmax(z):
    return z - special.logsumexp(z, 1, keepdims=True)


def cross_entropy(z, t, w):
    return ag.cross_entropy(z, t, ag.tensor(w).value)


def entropy(z, t, w):
    return -(t * w * log_softmax(z)).sum(1).mean().reshape(1)


def nll_loss(x, w):
    return ag.nll_loss(x, Tensor.from_host(x.queue, LABELS), ag.tensor(w).value)


def likelihood(x, w):
    return -((w[LABELS] * x[np.arange(4), LABELS]).sum() / w[LABELS].sum()).reshape(1)


def scatter_add(x, src):
    return ag.scatter_add(x, Tensor.from_host(x.queue, PLACES), src, 1)


def scattered(x, src):
    y = x.copy()
    np.add.at(y, (np.arange(3)[:, None], PLACES), src)
    return y


CASES = {
    "matmul": Case(ag.matmul, np.matmul, [(3, 4), (4, 5)]),
    "matmul batch": Case(ag.matmul, np.matmul, [(2, 3, 4), (4, 5)]),
    "matmul batches": Case(ag.matmul, np.matmul, [(2, 1, 3, 4), (3, 4, 2)]),
    "matmul vector": Case(ag.matmul, np.matmul, [(3, 4), (4,)]),
    "vector matmul": Case(ag.matmul, np.matmul, [(4,), (4, 3)]),
    "linear": Case(ag.linear, lambda x, w: x @ w.T, [(6, 8), (16, 8)]),
    "linear bias": Case(ag.linear, affine, [(2, 3, 8), (5, 8), (5,)]),
    "linear_relu": Case(ag.linear_relu, lambda *xs: relu(affine(*xs)), [(6, 8), (5, 8), (5,)]),
    "linear_gelu": Case(ag.linear_gelu, lambda *xs: gelu(affine(*xs)), [(6, 8), (5, 8), (5,)]),
    "linear_silu": Case(ag.linear_silu, lambda *xs: silu(affine(*xs)), [(2, 3, 8), (5, 8), (5,)]),
    "conv2d": Case(ag.conv2d, conv, [(2, 2, 5, 4), (3, 2, 3, 2), (3,)]),
    "conv2d_relu": Case(ag.conv2d_relu, lambda *xs: relu(conv(*xs)), [(2, 2, 5, 4), (3, 2, 3, 2), (3,)]),
    "conv2d_gelu": Case(ag.conv2d_gelu, lambda *xs: gelu(conv(*xs)), [(2, 2, 5, 4), (3, 2, 3, 2), (3,)]),
    "conv2d depthwise": Case(
        lambda x, w: ag.conv2d(x, w, padding=1, groups=4), lambda x, w: conv(x, w, None, 1, 4),
        [(2, 4, 5, 5), (4, 1, 3, 3)],
    ),
    "conv2d winograd": Case(
        lambda x, w: ag.conv2d(x, w, padding=1), lambda x, w: conv(x, w, None, 1), [(1, 12, 6, 6), (12, 12, 3, 3)]
    ),
    "attention": Case(
        lambda q, k, v: ag.attention(q, k, v), attend, [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)], free=0
    ),
    "layer_norm": Case(
        ag.layer_norm, lambda x, w, b: normalise(x, -1, 1e-5) * w + b, [(4, 6), (6,), (6,)], 0, True
    ),
    "rms_norm": Case(ag.rms_norm, rms, [(4, 6), (6,)], 0, "first"),
    "group_norm": Case(lambda x, w, b: ag.group_norm(x, 2, w, b), grouped, [(2, 4, 3), (4,), (4,)], 0, "first"),
    "batch_norm": Case(
        ag.batch_norm, lambda x, w, b: normalise(x, 0, 1e-5) * w + b, [(6, 4), (4,), (4,)], 0, True
    ),
    "batch_norm relu": Case(
        lambda x, w, b: ag.batch_norm(x, w, b, activation="relu"),
        lambda x, w, b: relu(normalise(x, 0, 1e-5) * w + b), [(6, 4), (4,), (4,)], 0, "first",
    ),
    "mse_loss": Case(ag.mse_loss, lambda x, t: ((x - t) ** 2).mean().reshape(1), [(3, 4), (3, 4)], 0),
    "huber_loss": Case(
        lambda x, t: ag.huber_loss(x, t, 0.9, "none"),
        lambda x, t: np.where(abs(x - t) < 0.9, (x - t) ** 2 / 2, 0.9 * (abs(x - t) - 0.45)), [(3, 4), (3, 4)], 0,
    ),
    "bce with logits": Case(ag.binary_cross_entropy_with_logits, bce, [(3, 4), (3, 4), (4,)], 0),
    "cross_entropy": Case(cross_entropy, entropy, [(4, 3), (4, 3), (3,)], 0, "computed", False),
    "nll_loss": Case(nll_loss, likelihood, [(4, 3), (3,)], 0, "computed", False),
    "concat": Case(lambda a, b: ag.concat([a, b], 1), lambda a, b: np.concatenate([a, b], 1), [(3, 4), (3, 2)]),
    "stack": Case(lambda a, b: ag.stack([a, b]), lambda a, b: np.stack([a, b]), [(3, 4), (3, 4)]),
    "scatter_add": Case(scatter_add, scattered, [(3, 5), (3, 7)]),
    "swiglu": Case(ag.swiglu, lambda a, b: silu(a) * b, [(3, 4), (3, 4)], 0),
    "where": Case(lambda a, b: ag.where(ag.gt(a, 0.1), a, b), lambda a, b: np.where(a > 0.1, a, b), [(3, 4), (4,)], 0),
}  # fmt: skip


def sample(shape, place, whole):
    """Multiples of 1/4 (of a bias and the like, plus 1/32, so that nothing lies on a kink); small counts for whole."""
    rng = np.random.default_rng(place)
    if whole:
        return rng.integers(0, 4, shape).astype(np.float64)
    return rng.integers(-5, 6, shape) / 4 + (1 / 32 if place > 1 or len(shape) == 1 else 0)


@cache
def expected(name, whole):
    """Value and gradients of sum(op * upstream), in float64: by central differences."""
    case = CASES[name]
    xs = [sample(s, i, w) for i, (s, w) in enumerate(zip(case.shapes, whole, strict=True))]
    y = case.reference(*xs)
    up = upstream(y.shape)
    grads = []
    for x in xs:
        g = np.empty_like(x)
        for i in np.ndindex(x.shape):
            kept, step = x[i], 2.0**-13
            x[i] = kept + step
            above = (case.reference(*xs) * up).sum()
            x[i] = kept - step
            g[i] = (above - (case.reference(*xs) * up).sum()) / (2 * step)
            x[i] = kept
        grads.append(g)
    return y, grads


def upstream(shape):
    return np.random.default_rng(9).integers(-4, 5, shape) / 4 + 1 / 8


def common(dtypes):
    """NumPy's result type; bfloat16 behaves as float16 does, and both together are float32."""
    if BFLOAT16 not in dtypes:
        return np.result_type(*dtypes)
    found = np.result_type(*(np.float16 if t == BFLOAT16 else t for t in dtypes))
    return found if found != np.float16 else np.dtype("float32") if np.dtype("float16") in dtypes else BFLOAT16


def choices(name):
    """Dtypes of the operands: all pairs of the first two, and each of the others against them."""
    case = CASES[name]
    rest = len(case.shapes) - 2
    first = FLOATS + WHOLE if case.free else FLOATS
    pairs = [p for p in itertools.product(first, first) if any(t in FLOATS for t in p)]
    found = [(*p, *[FLOATS[(i + j) % 4] for j in range(rest)]) for i, p in enumerate(pairs)]
    found += [(t, t, *[u] * rest) for t in FLOATS for u in FLOATS if rest and t != u]
    return dict.fromkeys(found)


def cases():
    for name in CASES:
        for i, dtypes in enumerate(choices(name)):
            if EVERY or (zlib.crc32(name.encode()) + i) % SHARE == 0:
                yield pytest.param(name, dtypes, id=f"{name}-{'-'.join(map(str, dtypes))}")


def epsilon(dtype):
    return float(ml_dtypes.finfo(dtype).eps)


def compare(found, wanted, dtype, rough):
    assert found.dtype == dtype
    tolerance = 8 * max(epsilon(dtype), rough, 1e-7 if dtype == np.float64 else 0)
    scale = max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * scale)


def check(queue, name, dtypes, op):
    case = CASES[name]
    whole = tuple(t in WHOLE for t in dtypes)
    y, grads = expected(name, whole)
    arrays = [sample(s, i, w).astype(t) for i, (s, t, w) in enumerate(zip(case.shapes, dtypes, whole, strict=True))]
    nodes = [ag.tensor(Tensor.from_host(queue, a), requires_grad=not w) for a, w in zip(arrays, whole, strict=True)]
    with ag.Tape() as tape:
        result = op(*nodes)
    made = common(dtypes) if case.made == "common" else dtypes[0]
    made = np.dtype("float32") if case.made == "computed" and made.itemsize == 2 else made
    rough = max(epsilon(t) for t in (made, *([] if case.free else dtypes)) if t in FLOATS)
    rough = max(rough, 2e-6 if "winograd" in name else 0)
    compare(result.value.to_host(), y, made, rough)
    tape.backward(result, Tensor.from_host(queue, upstream(y.shape).astype(made)))
    for i, (node, wanted, dtype) in enumerate(zip(nodes, grads, dtypes, strict=True)):
        if node.requires_grad and (case.rated or i + 1 < len(nodes)):
            compare(node.grad.to_host(), wanted, dtype, rough)


@pytest.mark.parametrize(("name", "dtypes"), list(cases()))
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_dtypes(family, name, dtypes):
    check(queue_of(family), name, dtypes, CASES[name].op)


@pytest.mark.parametrize(("name", "dtypes"), [p for p in cases() if CASES[p.values[0]].rated])
def test_mixed_dtypes_compiled(queue, name, dtypes):
    op = CASES[name].op
    compiled = jit_compile(lambda *xs: ag.mul(op(*xs), 1.0))
    check(queue, name, dtypes, compiled)
    assert compiled.cache_info().unfused == 0, compiled.reasons


def test_gemm_refuses_operands_of_several_dtypes(queue):
    """It reads them as one; `matmul` and `linear` promote. Also after a plan for the right dtypes was kept."""
    one, two = (Tensor.ones(queue, (3, 3), t) for t in ("float32", "float64"))
    for _ in range(2):
        ops.gemm(one, one, bias=one[0])
        for operands, found in (
            ((one, two), "a of float32, b of float64"),
            ((two, one), "a of float64, b of float32"),
            ((one, one, None, two[0]), "a of float32, b of float32, bias of float64"),
        ):
            with pytest.raises(DTypeError, match=f"gemm: expected operands of one dtype, got {found}; use matmul"):
                ops.gemm(*operands)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_a_layer_promote(queue, relu):
    """Called on tensors, without the tape: with an upstream gradient narrower than the operands too."""
    g, x, w, y = (sample(s, i, False) for i, s in enumerate([(6, 5), (6, 8), (5, 8), (6, 5)]))
    up = np.where(y > 0, g, 0) if relu else g
    for dtypes in itertools.product(FLOATS, repeat=2):
        a, b = dtypes
        on = [Tensor.from_host(queue, v.astype(t)) for v, t in ((g, a), (x, b), (w, b), (y, a))]
        dx, dw, db = linear_grad.gradients(*on[:3], on[3] if relu else None)
        for found, wanted in ((dx, up @ w), (dw, up.T @ x)):
            compare(found.to_host(), wanted, common(dtypes), max(map(epsilon, dtypes)))
        np.testing.assert_allclose(db.to_host().astype(np.float64), up.sum(0), atol=32 * max(map(epsilon, dtypes)))
