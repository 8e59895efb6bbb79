"""Functions that users of PyTorch and NumPy type first and that are a line of others; tensors and nodes alike.

They stand on methods and operators of what they are given, so one text serves `netcl.ops`, `netcl.autograd` and
methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.core.errors import ShapeError
from netcl.core.keywords import axis_of
from netcl.core.layout import as_axis, as_int


def _of_rank(name: str, **given: tuple[Any, int]) -> None:
    for word, (x, rank) in given.items():
        if len(x.shape) != rank:
            raise ShapeError(f"{name}: expected {word} with {rank} axes, got shape {x.shape}.")


def mm(a: Any, b: Any) -> Any:
    """The product of two matrices."""
    _of_rank("mm", a=(a, 2), b=(b, 2))
    return a @ b


def bmm(a: Any, b: Any) -> Any:
    """The products of two stacks of matrices: (B, M, K) and (B, K, N) -> (B, M, N)."""
    _of_rank("bmm", a=(a, 3), b=(b, 3))
    if a.shape[0] != b.shape[0]:
        raise ShapeError(f"bmm: expected stacks of one length, got {a.shape} and {b.shape}.")
    return a @ b


def mv(a: Any, x: Any) -> Any:
    """A matrix times a vector."""
    _of_rank("mv", a=(a, 2), x=(x, 1))
    return a @ x


def dot(a: Any, b: Any) -> Any:
    """The sum of the products of two vectors' elements."""
    _of_rank("dot", a=(a, 1), b=(b, 1))
    return a @ b


def outer(a: Any, b: Any) -> Any:
    """Every element of a vector times every one of another: (M,), (N,) -> (M, N)."""
    _of_rank("outer", a=(a, 1), b=(b, 1))
    return a.unsqueeze(1) * b.unsqueeze(0)


def addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * c + alpha * (a @ b), of matrices; c broadcasts. With beta 0, c does not count, NaN neither."""
    return _added("addmm", mm(a, b), c, beta, alpha)


def baddbmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * c + alpha * (a @ b), of stacks of matrices; c broadcasts. With beta 0, c does not count, NaN neither."""
    return _added("baddbmm", bmm(a, b), c, beta, alpha)


def _added(name: str, product: Any, c: Any, beta: float, alpha: float) -> Any:
    product = product if alpha == 1 else product * alpha
    found = product if beta == 0 else product + (c if beta == 1 else c * beta)
    if found.shape != product.shape:
        raise ShapeError(f"{name}: expected c to broadcast to {product.shape}, got {c.shape}.")
    return found


def narrow(x: Any, axis: int, start: int, length: int) -> Any:
    """The part of `length` elements from `start` on along an axis, as a view."""
    axis, start, length = as_axis("narrow", axis, len(x.shape)), as_int("narrow", start), as_int("narrow", length)
    size = x.shape[axis]
    start += size if start < 0 else 0
    if not (start >= 0 and length >= 0 and start + length <= size):
        raise ShapeError(
            f"narrow: expected a part of the {size} elements of axis {axis}, got {length} from {start} on."
        )
    return x[(slice(None),) * axis + (slice(start, start + length),)]


def select(x: Any, axis: int, index: int) -> Any:
    """The slice at one position of an axis, as a view."""
    return x[(slice(None),) * as_axis("select", axis, len(x.shape)) + (as_int("select", index),)]


def unbind(x: Any, axis: int = 0, *, dim: int | None = None) -> tuple[Any, ...]:
    """All slices along an axis, as views."""
    axis = as_axis("unbind", axis_of("unbind", axis, 0, dim), len(x.shape))
    return tuple(select(x, axis, i) for i in range(x.shape[axis]))


def swapaxes(x: Any, first: int, second: int) -> Any:
    """Two axes exchanged, as a view."""
    order = list(range(len(x.shape)))
    i, j = (as_axis("swapaxes", a, len(order)) for a in (first, second))
    order[i], order[j] = order[j], order[i]
    return x.permute(*order) if order else x


def movedim(x: Any, source: Any, destination: Any) -> Any:
    """Axes at `source` moved to `destination`, the others in order, as a view."""
    rank = len(x.shape)
    listed = [[v] if isinstance(v, int) else list(v) for v in (source, destination)]
    origin, target = ([as_axis("movedim", a, rank) for a in v] for v in listed)
    if len(origin) != len(target) or len(set(origin)) != len(origin) or len(set(target)) != len(target):
        raise ShapeError(f"movedim: expected as many different axes on both sides, got {source} and {destination}.")
    rest = iter(a for a in range(rank) if a not in origin)
    places = dict(zip(target, origin))
    return x.permute(*(places[a] if a in places else next(rest) for a in range(rank)))


def t(x: Any) -> Any:
    """A matrix transposed; vectors and numbers stay."""
    if len(x.shape) > 2:
        raise ShapeError(f"t: expected at most 2 axes, got shape {x.shape}; use swapaxes or permute.")
    return x.permute(1, 0) if len(x.shape) == 2 else x


def ravel(x: Any) -> Any:
    """All elements along one axis."""
    return x.reshape(-1)


def unflatten(x: Any, axis: int, sizes: Sequence[int]) -> Any:
    """One axis split into several; one of `sizes` may be -1."""
    axis = as_axis("unflatten", axis, len(x.shape))
    return x.reshape(*x.shape[:axis], *_whole(x.shape[axis], tuple(sizes)), *x.shape[axis + 1 :])


def _whole(length: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    known = 1
    for n in sizes:
        known *= n if n != -1 else 1
    if sizes.count(-1) > 1 or (length % known if -1 in sizes and known else known != length):
        raise ShapeError(f"unflatten: expected sizes whose product is {length}, got {sizes}.")
    return tuple(length // known if n == -1 else n for n in sizes)


def expand_as(x: Any, other: Any) -> Any:
    """`x` repeated to the shape of another, as a view."""
    return x.expand(*other.shape)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """`x` repeated to a shape, as a view."""
    return x.expand(*shape)


def view_as(x: Any, other: Any) -> Any:
    """`x` in the shape of another."""
    return x.reshape(*other.shape)


def count_nonzero(x: Any, axis: Any = None, *, dim: Any = None) -> Any:
    """How many elements are not zero, int64."""
    return (x != 0).sum(axis_of("count_nonzero", axis, None, dim))


def hstack(xs: Sequence[Any]) -> Any:
    """Joined along the second axis, vectors along the only one."""
    parts = [x if x.shape else x.reshape(1) for x in xs]
    return type(parts[0])._operations["concat"](parts, 0 if len(parts[0].shape) == 1 else 1)


def vstack(xs: Sequence[Any]) -> Any:
    """Joined along the first axis; vectors are rows."""
    parts = [x if len(x.shape) > 1 else x.reshape(1, -1) for x in xs]
    return type(parts[0])._operations["concat"](parts, 0)


def fliplr(x: Any) -> Any:
    """The second axis reversed."""
    return x.flip(1)


def flipud(x: Any) -> Any:
    """The first axis reversed."""
    return x.flip(0)


reshape_as = view_as
moveaxis, swapdims = movedim, swapaxes
