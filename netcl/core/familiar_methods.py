"""Methods that users of PyTorch type first: those of `familiar`, conversions by a dtype's name, new tensors alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from netcl.core import familiar
from netcl.core.dtypes import is_float
from netcl.core.keywords import needed_axis

if TYPE_CHECKING:
    from typing_extensions import Self


T = TypeVar("T")


class Conversions:
    """Methods named like dtypes, apart from others because they hide the names of Python's types in their class."""

    __slots__ = ()

    def _as(self, dtype: str) -> Self:
        own: Any = self
        found: Self = own.astype(dtype)
        return found

    def half(self) -> Self:
        """As float16."""
        return self._as("float16")

    def bfloat16(self) -> Self:
        """As bfloat16."""
        return self._as("bfloat16")

    def float(self) -> Self:
        """As float32."""
        return self._as("float32")

    def double(self) -> Self:
        """As float64."""
        return self._as("float64")

    def int(self) -> Self:
        """As int32."""
        return self._as("int32")

    def long(self) -> Self:
        """As int64."""
        return self._as("int64")

    def byte(self) -> Self:
        """As uint8."""
        return self._as("uint8")

    def bool(self) -> Self:
        """As bool: what is not zero."""
        return self._as("bool")

    def type_as(self, other: Any) -> Self:
        """In the dtype of another."""
        return self._as(other.dtype)


class FamiliarMethods:
    """One line each; what they do is said where they stand as functions."""

    __slots__ = ()

    def mm(self, other: Any) -> Self:
        """The product of two matrices."""
        return _same(self, familiar.mm(self, other))

    def bmm(self, other: Any) -> Self:
        """The products of two stacks of matrices."""
        return _same(self, familiar.bmm(self, other))

    def mv(self, other: Any) -> Self:
        """A matrix times a vector."""
        return _same(self, familiar.mv(self, other))

    def dot(self, other: Any) -> Self:
        """The sum of the products of two vectors' elements."""
        return _same(self, familiar.dot(self, other))

    def outer(self, other: Any) -> Self:
        """Every element of a vector times every one of another."""
        return _same(self, familiar.outer(self, other))

    def narrow(self, axis: int | None = None, start: Any = None, length: Any = None, *, dim: int | None = None) -> Self:
        """The part of `length` elements from `start` on along an axis, as a view."""
        return _same(self, familiar.narrow(self, needed_axis("narrow", axis, dim), start, length))

    def select(self, axis: int | None = None, index: Any = None, *, dim: int | None = None) -> Self:
        """The slice at one position of an axis, as a view."""
        return _same(self, familiar.select(self, needed_axis("select", axis, dim), index))

    def unbind(self, axis: int = 0, *, dim: int | None = None) -> tuple[Self, ...]:
        """All slices along an axis, as views."""
        return familiar.unbind(self, axis, dim=dim)

    def swapaxes(self, first: int, second: int) -> Self:
        """Two axes exchanged, as a view."""
        return _same(self, familiar.swapaxes(self, first, second))

    swapdims = swapaxes

    def movedim(self, source: Any, destination: Any) -> Self:
        """Axes at `source` moved to `destination`, as a view."""
        return _same(self, familiar.movedim(self, source, destination))

    moveaxis = movedim

    def t(self) -> Self:
        """A matrix transposed; vectors and numbers stay."""
        return _same(self, familiar.t(self))

    @property
    def mT(self) -> Self:
        """The last two axes exchanged, as a view."""
        return _same(self, familiar.swapaxes(self, -2, -1))

    def ravel(self) -> Self:
        """All elements along one axis."""
        return _same(self, familiar.ravel(self))

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """One axis split into several; one of `sizes` may be -1."""
        return _same(self, familiar.unflatten(self, axis, sizes))

    def expand_as(self, other: Any) -> Self:
        """Repeated to the shape of another, as a view."""
        return _same(self, familiar.expand_as(self, other))

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Repeated to a shape, as a view."""
        return _same(self, familiar.broadcast_to(self, shape))

    def view_as(self, other: Any) -> Self:
        """In the shape of another."""
        return _same(self, familiar.view_as(self, other))

    reshape_as = view_as

    def count_nonzero(self, axis: Any = None, *, dim: Any = None) -> Self:
        """How many elements are not zero, int64."""
        return _same(self, familiar.count_nonzero(self, axis, dim=dim))

    def detach(self) -> Self:
        """Itself: a tensor has no history."""
        return self

    def clone(self) -> Self:
        """A copy with memory of its own, through which gradients go."""
        own: Any = self
        copy = own._operations.get("copy")  # of tensors; on nodes a product, so that it has a gradient
        if copy is None:
            return _same(self, own * 1.0 if is_float(own.dtype) else type(own)(own.value.copy()))
        return _same(self, copy(self))

    # -- others of the same kind -----------------------------------------------------------------------------------

    def new_zeros(self, *shape: Any, dtype: Any = None) -> Any:
        """Zeros of a shape, on the same device and in the same dtype."""
        return self._new("zeros", shape, dtype)

    def new_ones(self, *shape: Any, dtype: Any = None) -> Any:
        """Ones of a shape, on the same device and in the same dtype."""
        return self._new("ones", shape, dtype)

    def new_empty(self, *shape: Any, dtype: Any = None) -> Any:
        """A tensor of a shape with undefined values, on the same device and in the same dtype."""
        return self._new("empty", shape, dtype)

    def new_full(self, shape: Sequence[int], value: float, dtype: Any = None) -> Any:
        """A tensor of a shape that holds `value`, on the same device and in the same dtype."""
        return self.new_empty(shape, dtype=dtype).fill_(value)

    def new_tensor(self, data: Any, dtype: Any = None) -> Any:
        """A copy of `data` on the same device and in the same dtype."""
        own: Any = self
        plain = getattr(own, "value", own)
        return type(plain).from_host(plain.queue, data, dtype or plain.dtype)

    def _new(self, kind: str, shape: tuple[Any, ...], dtype: Any) -> Any:
        own: Any = self
        plain = getattr(own, "value", own)
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return getattr(type(plain), kind)(plain.queue, tuple(sizes), dtype or plain.dtype)

    # -- facts -----------------------------------------------------------------------------------------------------

    def is_floating_point(self) -> Any:
        """Whether the dtype has fractions."""
        own: Any = self
        return is_float(own.dtype)

    def element_size(self) -> int:
        """Bytes of an element."""
        own: Any = self
        return int(own.dtype.itemsize)

    def nelement(self) -> int:
        """Number of elements."""
        own: Any = self
        return int(own.size)

    def ndimension(self) -> int:
        """Number of axes."""
        own: Any = self
        return len(own.shape)


def _same(own: T, found: Any) -> T:
    """What a function gives, typed as the value that it is a method of."""
    value: T = found
    return value
