"""Records of what selects, scatters, sorts and sums up along an axis: what was read from a place is added to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netcl.core import layout
from netcl.core.dtypes import BOOL, INT64, as_dtype, common_dtype, is_float
from netcl.core.errors import NetclError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.index import pick, scan, scatter
from netcl.ops.index.combine import scatter_reduce, scatter_reduce_grad
from netcl.ops.index.counts import bincount, histc, histogram, unique
from netcl.ops.index.find import argwhere, masked_fill, nonzero, take_along_dim
from netcl.ops.index.nd import gather_nd, index_put, masked_scatter, ravel_index, repeat_interleave, scatter_nd
from netcl.ops.index.place import index_add, index_add_grad, index_copy, index_copy_grad, scatter_grad
from netcl.ops.index.place import scatter as put
from netcl.ops.index.search import bucketize, check_rows, searchsorted
from netcl.ops.index.sort import argsort, sort, topk
from netcl.ops.record import FLOAT, INDICES, NUMBERS, Facts, Op, alike, compose, register


def _take_grad(g: Tensor, y: Any, x: Any, index: Tensor, axis: int = 0) -> Tensor:
    return scatter.take_grad("take", g, index, x.shape, axis)


def _index_select_grad(g: Tensor, y: Any, x: Any, index: Tensor, axis: int = 0) -> Tensor:
    return scatter.take_grad("index_select", g, index, x.shape, axis)


def _embedding_grad(g: Tensor, y: Any, weight: Any, index: Tensor, padding_index: int | None = None) -> Tensor:
    return scatter.take_grad("embedding", g, index, weight.shape, 0, padding_index)


def _gather_grad(g: Tensor, y: Any, x: Any, index: Tensor, axis: int) -> Tensor:
    return scatter.gather_grad(g, index, x.shape, axis)


def _scatter_add_grad(
    g: Tensor, y: Any, x: Any, index: Tensor, src: Any, axis: int, *, needs: Sequence[bool]
) -> list[Tensor | None]:
    return [g, None, pick.gather(g, index, axis) if needs[2] else None]


def _masked_select_grad(g: Tensor, y: Any, x: Any, mask: Tensor, *, aux: Tensor) -> Tensor:
    """`aux` is the running count of the mask: where each element went."""
    shape = layout.broadcast_shapes(x.shape, mask.shape)
    if g.size == 0:
        return Tensor.zeros(g.queue, shape, g.dtype)
    source = elementwise.clip(elementwise.sub(aux, 1), lo=0)
    return elementwise.where(mask, pick.take(g, source, 0).reshape(shape), 0.0)


def _cumsum_grad(g: Tensor, y: Any, x: Any, axis: int | None = None) -> Tensor:
    """A sum of what comes after: the running sum from the other end, seen through reversed views."""
    place = 0 if axis is None else layout.as_axis("cumsum", axis, g.ndim)
    back = (slice(None),) * place + (slice(None, None, -1),)
    return scan.cumsum(g[back], place)[back].reshape(x.shape)


def _taken(x: Any, index: Any, axis: int = 0, **_: Any) -> Facts:
    axis = layout.as_axis("take", axis, x.ndim)
    return (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype


def _promoted(x: Any, src: Any) -> Facts:
    return x.shape, as_dtype(common_dtype(x.dtype, src.dtype))


def _counted(name: str) -> Callable[..., Facts]:
    def refuse(*_: Any, **__: Any) -> Facts:
        raise NetclError(f"the length of {name}'s result depends on the data")

    return refuse


def _histc_facts(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Facts:
    if min == max:
        raise NetclError("the bins of histc depend on the data")
    return (bins,), x.dtype


def _searched(sorted: Any, values: Any, *_: Any, **__: Any) -> Facts:
    check_rows("searchsorted", sorted.shape, values.shape)
    return values.shape, INT64


def _summed(x: Any, axis: Any = None) -> Facts:
    return (x.size,) if axis is None else x.shape, x.dtype if is_float(x.dtype) else INT64


for _op in (
    Op("take", pick.take, _take_grad, (1,), shape=_taken, onnx="Gather", array_api="take", methods=("take",)),
    Op("index_select", pick.index_select, _index_select_grad, (1,), shape=_taken, onnx="Gather",
       methods=("index_select",)),
    Op("gather", pick.gather, _gather_grad, (1,), shape=lambda x, index, axis: (index.shape, x.dtype),
       onnx="GatherElements", methods=("gather",)),
    Op("embedding", pick.embedding, _embedding_grad, (1,), shape=_taken, onnx="Gather"),
    Op("scatter_add", scatter.scatter_add, _scatter_add_grad, (1,), dtypes=NUMBERS,
       shape=lambda x, index, src, axis: _promoted(x, src),
       methods=("scatter_add",)),
    Op("scatter", put, scatter_grad, (1,), shape=alike, onnx="ScatterElements", methods=("scatter",)),
    Op("scatter_reduce", scatter_reduce, scatter_reduce_grad, ("y", 0, 1, 2), dtypes=NUMBERS,
       shape=lambda x, index, src, axis, reduce="sum", include_self=True: _promoted(x, src),
       methods=("scatter_reduce",)),
    Op("index_copy", index_copy, index_copy_grad, (1,), shape=alike, methods=("index_copy",)),
    Op("index_add", index_add, index_add_grad, (1,), dtypes=NUMBERS,
       shape=lambda x, index, src, axis=0, alpha=1: _promoted(x, src),
       methods=("index_add",)),
    Op("masked_select", pick.select_marked, _masked_select_grad, (1,), True, shape=_counted("masked_select"),
       function=pick.masked_select, methods=("masked_select",)),
    Op("one_hot", pick.one_hot, dtypes=INDICES,
       shape=lambda index, classes, dtype="float32": ((*index.shape, classes), as_dtype(dtype))),
    Op("isin", pick.isin, shape=lambda x, values: (x.shape, BOOL), methods=("isin",)),
    Op("cumsum", scan.cumsum, _cumsum_grad, (), shape=_summed, methods=("cumsum",), cast=FLOAT, onnx="CumSum"),
    Op("argsort", argsort, shape=lambda x, axis=-1, descending=False: (x.shape, INT64), array_api="argsort",
       methods=("argsort",)),
    Op("bincount", bincount, shape=_counted("bincount"), constants=("weights",), dtypes=INDICES),
    Op("histogram", histogram, shape=_counted("histogram"), constants=("weights",)),
    Op("histc", histc, shape=_histc_facts, dtypes=NUMBERS, methods=("histc",)),
    Op("unique", unique, shape=_counted("unique"), methods=("unique",), onnx="Unique", array_api="unique_values"),
    Op("searchsorted", searchsorted, shape=_searched, constants=("sorter",), array_api="searchsorted"),
    Op("bucketize", bucketize, shape=lambda x, boundaries, right=False: (x.shape, INT64)),
    Op("ravel_index", ravel_index, shape=lambda index, dims, where="": (index.shape[:-1], INT64), dtypes=INDICES),
    Op("nonzero", nonzero, shape=_counted("nonzero"), methods=("nonzero",)),
    Op("argwhere", argwhere, shape=_counted("argwhere"), methods=("argwhere",)),
):  # fmt: skip
    register(_op)
compose(Op("gather_nd", gather_nd, onnx="GatherND"))
compose(Op("scatter_nd", scatter_nd, onnx="ScatterND"))
compose(Op("index_put", index_put, methods=("index_put",)))
compose(Op("masked_scatter", masked_scatter, methods=("masked_scatter",)))
compose(Op("repeat_interleave", repeat_interleave, methods=("repeat_interleave",), array_api="repeat"))
compose(Op("sort", sort, methods=("sort",), array_api="sort"))
compose(Op("topk", topk, methods=("topk",), onnx="TopK"))
compose(Op("masked_fill", masked_fill, methods=("masked_fill",)))
compose(Op("take_along_dim", take_along_dim, methods=("take_along_dim",), array_api="take_along_axis"))
