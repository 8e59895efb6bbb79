"""Every public op but the elementwise ones x every dtype x every layout equals NumPy on every backend.

A new op is one row. What a row does not accept it refuses with the error that it states, the same on every backend.
"""

import warnings

import numpy as np
import pytest
from matrix import DTYPES, FLOATS, LAYOUTS, ROWS, WHOLE, Row, cells, compare, draw, laid, shaped, wide
from scipy import special

import netcl.autograd as ag
from netcl import ops
from netcl.core.dtypes import as_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels.primitives import TABLE as ELEMENTWISE
from netcl.ops import record

AXES = (None, 0, 1)


def over_axes(op, axes=AXES, **attrs):
    return lambda x: tuple(op(x, axis, **attrs) for axis in axes)


def full(y):
    """A full reduction has shape (1,)."""
    return np.asarray(y).reshape(np.shape(y) or (1,))


def numpy_over_axes(op, axes=AXES):
    return lambda a: tuple(full(op(a, axis=axis)) for axis in axes)


def reduction(name, op, **more):
    return Row(name, over_axes(getattr(ag, name)), numpy_over_axes(op), **more)


def floats(name, text, dtypes=WHOLE):
    """The refusals of an op of floats."""
    return dict.fromkeys(dtypes, f"{name}: expected {text}")


def and_index(*shapes, high=ROWS, kind=np.int64):
    """Operands of the dtype, of the first shapes, and an index of the last."""

    def make(rng, dtype, layout):
        index = rng.integers(0, 1 if layout == "single" else high, shaped(shapes[-1], layout)).astype(kind)
        return [draw(rng, shaped(s, layout), dtype) for s in shapes[:-1]] + [index]

    return make


def of_shapes(*shapes, domain=(-2.0, 2.0)):
    def make(rng, dtype, layout):
        return [draw(rng, shaped(s, layout), dtype, domain) for s in shapes]

    return make


def same(name, *args, ref=None, **kwargs):
    """A row whose NumPy function has the op's name and arguments."""
    op, twin = getattr(ag, name), ref or getattr(np, name)
    return Row(name, lambda x: op(x, *args, **kwargs), lambda a: twin(a, *args, **kwargs))


# -- references --------------------------------------------------------------------------------------------------------


def numpy_scatter_add(x, index, src):
    y = np.array(x)
    for (i, j), k in np.ndenumerate(index):
        y[k, j] += src[i, j]
    return y


def numpy_scatter_reduce(x, index, src, function):
    y = np.array(x)
    for (i, j), k in np.ndenumerate(index):
        y[k, j] = function(y[k, j], src[i, j])
    return y


def numpy_scatter(x, index, src):
    y = np.array(x)
    for (i, j), k in np.ndenumerate(index):
        y[k, j] = src[i, j]
    return y


def numpy_put(x, index, src):
    y = np.array(x)
    for i, k in enumerate(index):
        y[k] = src[i]
    return y


def numpy_search(a, values):
    return np.stack([np.searchsorted(np.sort(r), v) for r, v in zip(a, values, strict=True)])


def numpy_masked_scatter(x, mask, source):
    y = np.array(x)
    y[mask] = source.reshape(-1)[: mask.sum()]
    return y


def masked_pairs(rng, dtype, layout):
    x, m, s = (draw(rng, shaped((5, 7), layout), t) for t in (dtype, "bool", dtype))
    return [x, m, s]


def numpy_topk(a):
    order = np.argsort(-wide_numbers(a), axis=1, kind="stable")[:, :1]
    return np.take_along_axis(a, order, 1), order


def wide_numbers(a):
    return a.astype(np.float64) if is_float(a.dtype) else a.astype(np.int64)


def softmax(a):
    return special.softmax(a.astype(np.float64), axis=-1) if a.size else a


def log_softmax(a):
    return special.log_softmax(a.astype(np.float64), axis=-1) if a.size else a


def logsumexp(a, axis):
    with np.errstate(all="ignore"):
        return np.log(np.sum(np.exp(a.astype(np.float64)), axis=axis))


def normalised(a, axes, eps, center=True):
    with np.errstate(all="ignore"):
        d = a - a.mean(axes, keepdims=True) if center else a
        return d / np.sqrt((d * d).mean(axes, keepdims=True) + eps)


def layer_norm(a, w, b):
    return normalised(a, -1, 1e-5) * w + b


def rms_norm(a, w):
    return normalised(a, -1, 1e-6, center=False) * w


def group_norm(a, w, b):
    groups = 2 if a.shape[1] == 4 else 1
    grouped = normalised(a.reshape(a.shape[0], groups, a.shape[1] // groups, *a.shape[2:]), (2, 3, 4), 1e-5)
    return grouped.reshape(a.shape) * w[:, None, None] + b[:, None, None]


def batch_norm(a, w, b):
    return normalised(a, (0, 2, 3), 1e-5) * w[:, None, None] + b[:, None, None]


def windows(a, size, step, pad=0, fill=0.0):
    """(N, C, H', W', size, size)."""
    a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(a, (size, size), (2, 3))
    return found[:, :, ::step, ::step]


def lowest(dtype):
    return -np.inf if is_float(dtype) else False if dtype.kind == "b" else np.iinfo(dtype).min


def conv2d(x, w, b):
    return np.einsum("nchwij,ocij->nohw", windows(x, 3, 1, 1), w) + b[:, None, None]


def attention(q, k, v):
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    return special.softmax(scores, -1) @ v if scores.size else np.zeros(q.shape)


def cross_entropy(z, t):
    with np.errstate(all="ignore"):
        return full(-np.take_along_axis(log_softmax(z), t[:, None], 1).mean())


def nll_loss(z, t):
    with np.errstate(all="ignore"):
        return full(-np.take_along_axis(z, t[:, None], 1).mean())


def mean_of(loss):
    """A loss of pairs, by its mean."""

    def ref(x, t):
        with np.errstate(all="ignore"):
            return full(np.mean(loss(x.astype(np.float64), t.astype(np.float64))))

    return ref


def huber(x, t):
    d = np.abs(x - t)
    return np.where(d < 1, d * d / 2, d - 0.5)


def pair_loss(name, formula, domain=(-2.0, 2.0)):
    text = floats(name, "a floating prediction")
    return Row(name, getattr(ag, name), mean_of(formula), of_shapes((5, 7), (5, 7), domain=domain), text)


# -- the table ---------------------------------------------------------------------------------------------------------

EMPTY = "expected at least one element"
IMAGES = (5, 4, 6, 6)
NORMS = "a float tensor"

ROWS_OF_OPS = [
    reduction("sum", np.sum, result="sum"), reduction("prod", np.prod, result="sum", tolerance=4),
    reduction("mean", np.mean, result="float", as_float=True), reduction("max", np.max, empty=f"max: {EMPTY}"),
    reduction("min", np.min, empty=f"min: {EMPTY}"), reduction("var", np.var, result="float", as_float=True),
    reduction("std", np.std, result="float", as_float=True), reduction("any", np.any, result="bool"),
    reduction("all", np.all, result="bool"), reduction("logsumexp", logsumexp, result="float", tolerance=2),
    reduction("argmax", np.argmax, result="index", empty=f"argmax: {EMPTY}"),
    reduction("argmin", np.argmin, result="index", empty=f"argmin: {EMPTY}"),
    Row("norm", lambda x: tuple(ag.norm(x, order, 1) for order in (1, 2, np.inf)),
        lambda a: tuple(np.linalg.norm(a.astype(np.float64), order, axis=1) for order in (1, 2, np.inf)),
        result="float"),
    # movement
    Row("concat", lambda x, y: (ag.concat([x, y]), ag.concat([x, x], 1)),
        lambda a, b: (np.concatenate([a, b]), np.concatenate([a, a], 1)), of_shapes((5, 7), (5, 7))),
    Row("stack", lambda x, y: ag.stack([x, y], 1), lambda a, b: np.stack([a, b], 1), of_shapes((5, 7), (5, 7))),
    Row("split", lambda x: ag.split(x, 3, 1), lambda a: tuple(np.split(a, range(3, a.shape[1], 3), 1))),
    Row("chunk", lambda x: ag.chunk(x, 2, 1), lambda a: tuple(np.array_split(a, [4], 1))[: min(2, a.shape[1])]),
    same("flip", 1), same("roll", 2, 1), same("repeat", 3, 1), same("tile", (2, 3)),
    same("transpose", 1, 0, ref=lambda a, *_: a.T),
    same("reshape", (-1, 1)), same("permute", 1, 0, ref=lambda a, *_: a.T), same("flatten", ref=np.ravel),
    same("unsqueeze", 1, ref=np.expand_dims), same("contiguous", ref=np.array),
    Row("squeeze", lambda x: ag.squeeze(ag.unsqueeze(x, 1), 1), lambda a: a),
    Row("expand", lambda x: ag.expand(x, 3, -1, -1), lambda a: np.broadcast_to(a, (3, *a.shape))),
    Row("getitem", lambda x: ag.getitem(x, (slice(1, None), slice(None, None, 2))),
        lambda a: a[1:, ::2]),
    Row("pad", lambda x: (ag.pad(x, ((1, 2), (0, 3))), ag.pad(x, ((0, 0), (-1, 1)), value=1)),
        lambda a: (np.pad(a, ((1, 2), (0, 3))), np.pad(a[:, 1:], ((0, 0), (0, 1)), constant_values=1))),
    Row("pad edges", lambda x: (ag.pad(x, ((0, 0), (2, 1)), "replicate"), ag.pad(x, ((0, 0), (2, 1)), "reflect")),
        lambda a: (np.pad(a, ((0, 0), (2, 1)), "edge"), np.pad(a, ((0, 0), (2, 1)), "reflect")),
        layouts=("contiguous", "strided", "expanded", "empty")),
    *[Row(f"astype {t}", lambda x, t=t: ag.astype(x, t), lambda a, t=t: a.astype(t), result=t,
          make=of_shapes((5, 7), domain=(0.0, 100.0))) for t in DTYPES],
    same("tril", 1), same("triu", -1),
    Row("meshgrid", lambda x, y: ops.meshgrid(x, y), lambda a, b: tuple(np.meshgrid(a, b, indexing="ij")),
        of_shapes((5,), (7,))),
    # positions
    Row("cumsum", lambda x: (ag.cumsum(x, 0), ag.cumsum(x, 1), ag.cumsum(x)),
        lambda a: tuple(np.cumsum(a, axis, dtype=None if is_float(a.dtype) else np.int64) for axis in (0, 1, None)),
        result="sum"),
    Row("take", lambda x, i: ag.take(x, i), lambda a, i: np.take(a, i, 0), and_index((5, 7), (3, 2)),
        layouts=LAYOUTS[:3] + LAYOUTS[4:]),
    Row("index_select", lambda x, i: ag.index_select(x, i, 1), lambda a, i: np.take(a, i, 1), and_index((5, 7), (3,))),
    Row("gather", lambda x, i: ag.gather(x, i, 0), lambda a, i: np.take_along_axis(a, i, 0), and_index((5, 7), (5, 7))),
    Row("embedding", ag.embedding, lambda a, i: a[i], and_index((6, 7), (5, 2))),
    Row("scatter_add", lambda x, s, i: ag.scatter_add(x, i, s, 0), lambda x, s, i: numpy_scatter_add(x, i, s),
        and_index((5, 7), (5, 7), (5, 7)), {"bool": "scatter_add: expected numbers, got bool"}, tolerance=2),
    Row("scatter", lambda x, s, i: ag.scatter(x, i, s, 0), lambda x, s, i: numpy_scatter(x, i, s),
        and_index((5, 7), (5, 7), (5, 7))),
    *[Row(f"scatter_reduce {r}", lambda x, s, i, r=r: ag.scatter_reduce(x, i, s, 0, r),
          lambda x, s, i, f=f: numpy_scatter_reduce(x, i, s, f), and_index((5, 7), (5, 7), (5, 7)),
          {"bool": "scatter_reduce: expected numbers, got bool"}, tolerance=4)
      for r, f in (("prod", np.multiply), ("amax", np.maximum), ("amin", np.minimum))],
    Row("index_copy", lambda x, s, i: ag.index_copy(x, i[:, 0], s), lambda x, s, i: numpy_put(x, i[:, 0], s),
        and_index((5, 7), (5, 7), (5, 7)), layouts=LAYOUTS[:3]),
    Row("index_add", lambda x, s, i: ag.index_add(x, i[:, 0], s),
        lambda x, s, i: numpy_scatter_add(x, np.broadcast_to(i[:, :1], i.shape), s),
        and_index((5, 7), (5, 7), (5, 7)), {"bool": "index_add: expected numbers, got bool"}, tolerance=2,
        layouts=LAYOUTS[:3]),
    Row("masked_select", lambda x, m: ag.masked_select(x, m), lambda a, m: a[m],
        lambda rng, dtype, layout: [draw(rng, shaped((5, 7), layout), t) for t in (dtype, "bool")]),
    Row("masked_fill", lambda x, m: ag.masked_fill(x, m, True), lambda a, m: np.where(m, np.ones((), a.dtype), a),
        lambda rng, dtype, layout: [draw(rng, shaped((5, 7), layout), t) for t in (dtype, "bool")]),
    Row("take_along_dim", lambda x, i: (ag.take_along_dim(x, i, 0), ag.take_along_dim(x, i)),
        lambda a, i: (np.take_along_axis(a, i, 0), np.take_along_axis(a, i.reshape(-1), None)),
        and_index((5, 7), (3, 1)), layouts=LAYOUTS[:3]),
    Row("nonzero", ag.nonzero, np.argwhere, result="index"),
    Row("argwhere", ag.argwhere, np.argwhere, result="index"),
    Row("argsort", lambda x: (ag.argsort(x), ag.argsort(x, 0, descending=True)),
        lambda a: (np.argsort(a, 1, kind="stable"), np.argsort(-wide_numbers(a), 0, kind="stable")), result="index"),
    Row("sort", lambda x: (ag.sort(x), ag.sort(x, 0, descending=True)), lambda a: (np.sort(a, 1), np.sort(a, 0)[::-1])),
    Row("topk", lambda x: ag.topk(x, 1), numpy_topk, result=("same", "index")),
    Row("isin", ag.isin, np.isin, of_shapes((5, 7), (3,)), result="bool"),
    Row("bincount", lambda i: (ag.bincount(i), ag.bincount(i, minlength=9)),
        lambda i: (np.bincount(i), np.bincount(i, minlength=9)), of_shapes((35,), domain=(0.0, 5.0)),
        floats("bincount", "int32 or int64 indices", [t for t in DTYPES if t not in ("int32", "int64")]),
        result="index"),
    Row("unique", lambda x: ag.unique(x, return_inverse=True, return_counts=True),
        lambda a: np.unique(a, return_inverse=True, return_counts=True), result=("same", "index", "index")),
    Row("histogram", lambda x: ag.histogram(x, 4, (-1.0, 1.5))[0],
        lambda a: np.histogram(a.astype(np.float64), 4, (-1.0, 1.5))[0], result="index"),
    Row("histc", lambda x: ag.histc(x, 4, -1.0, 1.5), lambda a: np.histogram(a.astype(np.float64), 4, (-1.0, 1.5))[0],
        refuses={"bool": "histc: expected numbers, got bool"}),
    Row("searchsorted", lambda x, v: ag.searchsorted(ag.sort(x), v), numpy_search, of_shapes((5, 7), (5, 7)),
        result="index", layouts=LAYOUTS[:3]),
    Row("bucketize", lambda x, b: ag.bucketize(x, ag.sort(b), True),
        lambda x, b: np.searchsorted(np.sort(b), x, "right"), of_shapes((5, 7), (6,)), result="index"),
    Row("ravel_index", lambda i: ag.ravel_index(i, (6,) * i.shape[1]),
        lambda i: np.ravel_multi_index(tuple(np.moveaxis(i, 1, 0)), (6,) * i.shape[1]),
        of_shapes((5, 7), domain=(0.0, 5.0)),
        floats("ravel_index", "int32 or int64 indices", [t for t in DTYPES if t not in ("int32", "int64")]),
        result="index", layouts=LAYOUTS[:3]),
    Row("gather_nd", lambda x, i: ag.gather_nd(x, i[:, :2]), lambda a, i: a[i[:, 0], i[:, 1]],
        and_index((5, 7), (6, 2)), layouts=LAYOUTS[:3]),
    Row("scatter_nd", lambda x, s, i: ag.scatter_nd(x, i[:, :1], s), lambda x, s, i: numpy_put(x, i[:, 0], s),
        and_index((5, 7), (5, 7), (5, 7)), layouts=LAYOUTS[:3]),
    Row("index_put", lambda x, s, i: ag.index_put(x, (i[:, 0],), s), lambda x, s, i: numpy_put(x, i[:, 0], s),
        and_index((5, 7), (5, 7), (5, 7)), layouts=LAYOUTS[:3]),
    Row("masked_scatter", ag.masked_scatter, numpy_masked_scatter, masked_pairs),
    Row("repeat_interleave", lambda x, i: ag.repeat_interleave(x, i, 0), lambda a, i: np.repeat(a, i, 0),
        and_index((5, 7), (5,)), layouts=LAYOUTS[:3]),
    Row("one_hot", lambda i: ag.one_hot(i, 7), lambda i: np.eye(7)[i], of_shapes((5, 7), domain=(0.0, 5.0)),
        floats("one_hot", "int32 or int64 indices", [t for t in DTYPES if t not in ("int32", "int64")]),
        result="float32"),
    # products
    Row("matmul", ag.matmul, np.matmul, of_shapes((5, 7), (7, 6)), tolerance=4,
        layouts=LAYOUTS),
    Row("linear", ag.linear, lambda x, w, b: x @ w.T + b, of_shapes((5, 7), (6, 7), (6,)), tolerance=4),
    Row("conv2d", lambda x, w, b: ag.conv2d(x, w, b, padding=1), conv2d, of_shapes(IMAGES, (3, 4, 3, 3), (3,)),
        floats("conv2d", "floating dtypes"), tolerance=8, layouts=LAYOUTS[:4]),
    Row("attention", ag.attention, attention, of_shapes((5, 2, 6, 8), (5, 2, 7, 8), (5, 2, 7, 8)),
        floats("attention", "floating q"), tolerance=4, layouts=("contiguous", "strided", "expanded", "empty")),
    # norms
    Row("softmax", ag.softmax, softmax, result="soft"), Row("log_softmax", ag.log_softmax, log_softmax, result="soft"),
    Row("layer_norm", ag.layer_norm, layer_norm, of_shapes((5, 7), (7,), (7,)), floats("layer_norm", NORMS),
        tolerance=4),
    Row("rms_norm", ag.rms_norm, rms_norm, of_shapes((5, 7), (7,)), floats("rms_norm", NORMS), tolerance=4),
    Row("group_norm", lambda x, w, b: ag.group_norm(x, 2 if x.shape[1] == 4 else 1, w, b), group_norm,
        of_shapes(IMAGES, (4,), (4,)), floats("group_norm", NORMS), tolerance=8),
    Row("batch_norm", ag.batch_norm, batch_norm, of_shapes(IMAGES, (4,), (4,)), floats("batch_norm", NORMS),
        tolerance=8, layouts=LAYOUTS[:3]),
    # pools
    Row("max_pool2d", lambda x: ag.max_pool2d(x, 3, 2, 1),
        lambda a: windows(a, 3, 2, 1, lowest(a.dtype)).max((-2, -1)), of_shapes(IMAGES)),
    Row("avg_pool2d", lambda x: ag.avg_pool2d(x, 3, 2, 1), lambda a: windows(a, 3, 2, 1).mean((-2, -1)),
        of_shapes(IMAGES), floats("avg_pool2d", "a floating dtype")),
    Row("adaptive_avg_pool2d", lambda x: ag.adaptive_avg_pool2d(x, 3), lambda a: windows(a, 2, 2).mean((-2, -1)),
        of_shapes(IMAGES), floats("adaptive_avg_pool2d", "a floating dtype"), layouts=("contiguous", "strided")),
    Row("global_avg_pool2d", ag.global_avg_pool2d, lambda a: a.mean((2, 3), keepdims=True), of_shapes(IMAGES),
        floats("avg_pool2d", "a floating dtype")),
    Row("dropout", lambda x: ag.dropout(x, 1.0), np.zeros_like, refuses=floats("dropout", "a floating tensor")),
    # losses
    Row("cross_entropy", ag.cross_entropy, cross_entropy, and_index((5, 7), (5,)),
        floats("cross_entropy", "floating logits"), "cross_entropy: .* none empty", result="loss"),
    Row("nll_loss", ag.nll_loss, nll_loss, and_index((5, 7), (5,)), floats("nll_loss", "floating logits"),
        "nll_loss: .* none empty", result="loss"),
    pair_loss("mse_loss", lambda x, t: (x - t) ** 2), pair_loss("l1_loss", lambda x, t: np.abs(x - t)),
    pair_loss("smooth_l1_loss", huber), pair_loss("huber_loss", huber),
    pair_loss("hinge_loss", lambda x, t: np.maximum(0, 1 - t * x)),
    pair_loss("kl_div", lambda x, t: t * (np.log(t) - x), (0.1, 0.9)),
    pair_loss("binary_cross_entropy", lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p)), (0.1, 0.9)),
    pair_loss("binary_cross_entropy_with_logits", lambda x, t: np.logaddexp(0, x) - t * x, (0.1, 0.9)),
]  # fmt: skip
TABLE = {str(row): row for row in ROWS_OF_OPS}
WIDENED = {"sum": "int64", "float": "float64", "soft": "float32"}  # what becomes of integers and bools
FIXED = {"bool": "bool", "index": "int64"}
NARROW = ("float16", "bfloat16")


def result_of(kind, dtype):
    """The dtype of a result of this kind."""
    if kind in WIDENED:
        return dtype if dtype in FLOATS else WIDENED[kind]
    if kind == "same" or (kind == "loss" and dtype not in NARROW):
        return dtype
    return "float32" if kind == "loss" else FIXED.get(kind, kind)


def as_tuple(x):
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def check(queue, row, dtype, layout):
    rng = np.random.default_rng(0)
    drawn = row.make(rng, dtype, layout)
    pairs = [laid(queue, x, layout if x.dtype == dtype or layout != "expanded" else "contiguous") for x in drawn]
    arrays, tensors = zip(*pairs, strict=True)
    if dtype in row.refuses:
        with pytest.raises(DTypeError, match=row.refuses[dtype]):
            row.call(*tensors)
        return
    if layout == "empty" and row.empty:
        with pytest.raises(ShapeError, match=row.empty):
            row.call(*tensors)
        return
    feed = [a.astype(np.float64) if row.as_float else wide(a) for a in arrays]
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # NumPy's means of nothing
        wanted = as_tuple(row.ref(*feed))
    found = as_tuple(row.call(*tensors))
    kinds = row.result if isinstance(row.result, tuple) else (row.result,) * len(found)
    for y, w, kind in zip(found, wanted, kinds, strict=True):
        assert y.dtype == as_dtype(result_of(kind, dtype))
        compare(y.to_host(), w, dtype, row.tolerance)


@pytest.mark.parametrize(("number", "name"), list(enumerate(TABLE)))
def test_ops(queue, number, name):
    for dtype, layouts in cells(number, queue):
        for layout in layouts:
            if layout in TABLE[name].layouts:
                print(dtype, layout)  # which one failed
                check(queue, TABLE[name], dtype, layout)


def test_every_op_has_a_row():
    """Of the records here or among the elementwise cases; of `ops` also what takes no tensor or is a part of others."""
    known = {name.split()[0] for name in TABLE}
    of_others = {"to", "gemm", "weighted_bce_smooth_l1_loss"}  # moves between devices, and parts of other ops
    ours = {name for name, op in record.every().items() if op.public.__module__.startswith("netcl.ops.")}
    assert ours - known - {*ELEMENTWISE} - of_others == set()
    others = {
        "swish", "apply", "assign", "cast", "copy", "reduce", "reduce_mean", "reduce_sum", "gemm",  # other names
        "arange", "eye", "linspace", "Generator", "bernoulli", "normal", "uniform", "permutation", "randint", "seed",
        "force",
        "explain",
    }  # fmt: skip
    assert {*ops.__all__} - known - {*ELEMENTWISE} - others == set()


ACCEPTED = {
    record.ANY: DTYPES, record.FLOATS: FLOATS, record.NUMBERS: [t for t in DTYPES if t != "bool"],
    record.INDICES: ("int32", "int64"),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in TABLE if record.find(n)])
def test_records_say_which_dtypes_are_taken(name):
    taken = {t for t in DTYPES if t not in TABLE[name].refuses}
    assert taken == {*ACCEPTED[record.find(name).dtypes]}
