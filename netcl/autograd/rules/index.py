"""Gradients of selecting, scattering, sorting and running sums: what was read from a place is added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.jit import shapes
from netcl.autograd.op import register_op
from netcl.core import layout
from netcl.core.dtypes import BOOL, INT64, as_dtype, common_dtype
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.create import factories as create
from netcl.ops.index import pick as indexing
from netcl.ops.index import scan, scatter
from netcl.ops.index.sort import argsort


def _cumsum_grad(g: Tensor, y: Any, x: Any, axis: int | None = None) -> Tensor:
    """A sum of what comes after: the running sum from the other end, seen through reversed views."""
    place = 0 if axis is None else layout.as_axis("cumsum", axis, g.ndim)
    back = (slice(None),) * place + (slice(None, None, -1),)
    return scan.cumsum(g[back], place)[back].reshape(x.shape)


def _scatter_add_grad(
    g: Tensor, y: Any, x: Any, index: Tensor, src: Any, axis: int, *, needs: Sequence[bool]
) -> list[Tensor | None]:
    return [g, None, indexing.gather(g, index, axis) if needs[2] else None]


def _masked_select(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The elements, and the running count of the mask: where each went."""
    return indexing.select_marked(x, mask)


def _masked_select_grad(g: Tensor, y: Any, x: Any, mask: Tensor, *, aux: Tensor) -> Tensor:
    shape = layout.broadcast_shapes(x.shape, mask.shape)
    if g.size == 0:
        return Tensor.zeros(g.queue, shape, g.dtype)
    source = elementwise.clip(elementwise.sub(aux, 1), lo=0)
    return elementwise.where(mask, indexing.take(g, source, 0).reshape(shape), 0.0)


register_op("cumsum", scan.cumsum, _cumsum_grad, saves=())
register_op(
    "take",
    indexing.take,
    lambda g, y, x, index, axis=0: scatter.take_grad("take", g, index, x.shape, axis),
    saves=(1,),
)
register_op(
    "index_select",
    indexing.index_select,
    lambda g, y, x, index, axis=0: scatter.take_grad("index_select", g, index, x.shape, axis),
    saves=(1,),
)
register_op(
    "gather", indexing.gather, lambda g, y, x, index, axis: scatter.gather_grad(g, index, x.shape, axis), saves=(1,)
)
register_op(
    "embedding",
    indexing.embedding,
    lambda g, y, weight, index, padding_index=None: scatter.take_grad(
        "embedding", g, index, weight.shape, 0, padding_index
    ),
    saves=(1,),
)
register_op("scatter_add", scatter.scatter_add, _scatter_add_grad, saves=(1,))
register_op("masked_select", _masked_select, _masked_select_grad, saves=(1,), aux=True)
register_op("tril", create.tril, lambda g, y, x, k=0: create.tril(g, k), saves=())
register_op("triu", create.triu, lambda g, y, x, k=0: create.triu(g, k), saves=())
register_op("argsort", argsort)
register_op("one_hot", indexing.one_hot)
register_op("isin", indexing.isin)


# -- what a trace knows of them ----------------------------------------------------------------------------------------


@shapes.rule("take", "index_select", "embedding")
def _taken(x: Any, index: Any, axis: int = 0, **_: Any) -> shapes.Facts:
    axis = layout.as_axis("take", axis, x.ndim)
    return (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype


@shapes.rule("gather")
def _gathered(x: Any, index: Any, axis: int) -> shapes.Facts:
    return index.shape, x.dtype


@shapes.rule("scatter_add")
def _scattered(x: Any, index: Any, src: Any, axis: int) -> shapes.Facts:
    return x.shape, as_dtype(common_dtype(x.dtype, src.dtype))


@shapes.rule("tril", "triu")
def _alike(x: Any, *_: Any, **__: Any) -> shapes.Facts:
    return x.shape, x.dtype


@shapes.rule("argsort")
def _places(x: Any, axis: int = -1, descending: bool = False) -> shapes.Facts:
    return x.shape, INT64


@shapes.rule("one_hot")
def _hot(index: Any, classes: int, dtype: Any = "float32") -> shapes.Facts:
    return (*index.shape, classes), as_dtype(dtype)


@shapes.rule("isin")
def _inside(x: Any, values: Any) -> shapes.Facts:
    return x.shape, BOOL
