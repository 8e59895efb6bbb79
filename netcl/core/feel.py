"""What users of PyTorch are used to, for Tensor and Node: names, formats, and operations in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from netcl.core.dtypes import is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.familiar_methods import Conversions, FamiliarMethods

if TYPE_CHECKING:
    from typing_extensions import Self


def _own(x: object) -> Any:
    """`x` as the class that takes `Feel` in."""
    return x


INDEXING: dict[str, Callable[..., Any]] = {}  # filled by ops.index.advanced
_BASIC = (int, slice, type(None), type(Ellipsis))


def is_basic(key: Any) -> bool:
    """Whether a key gives a view: integers, slices, None and Ellipsis."""
    for k in key if type(key) is tuple else (key,):
        if type(k) not in _BASIC and (isinstance(k, (bool, list, np.ndarray, np.bool_)) or hasattr(k, "to_host")):
            return False
    return True


class Feel(FamiliarMethods, Conversions):
    """Stands on item, to_host, reshape, clip and the table of operations of the class that takes it in."""

    __slots__ = ()
    _operations: Mapping[str, Callable[..., Any]]

    def __getitem__(self, key: Any) -> Self:
        """A view for integers, slices, None and Ellipsis; a copy for lists, arrays and masks, by NumPy's rules."""
        if is_basic(key):
            view: Self = self._operations["getitem"](self, key)
            return view
        found: Self = INDEXING["get"](self, key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write in place, at any key that can be read; refused where a gradient would be lost."""
        INDEXING["put_view" if is_basic(key) else "put"](_own(self)._target("assignment"), key, value)

    def numel(self) -> int:
        """Number of elements."""
        return int(_own(self).size)

    def dim(self) -> int:
        """Number of axes."""
        return len(_own(self).shape)

    def tolist(self) -> Any:
        """The elements as nested lists (waits)."""
        return _own(self).to_host().tolist()

    def cpu(self) -> Self:
        """On the NumPy backend."""
        there: Self = self._operations["to"](self, "cpu")
        return there

    def view(self, *shape: Any) -> Self:
        """`reshape`."""
        seen: Self = _own(self).reshape(*shape)
        return seen

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """`clip(min, max)`."""
        inside: Self = self._operations["clip"](self, min, max)
        return inside

    def __int__(self) -> int:
        return int(_own(self).item())

    def __float__(self) -> float:
        return float(_own(self).item())

    def __format__(self, spec: str) -> str:
        """The number of a tensor with one element in this format: f"{loss:.3f}" (waits)."""
        if not spec:
            return str(self)
        if _own(self).size != 1:
            raise ShapeError(f"format: expected a tensor with one element for {spec!r}, got shape {_own(self).shape}.")
        return format(_own(self).item(), spec)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<pre>{escape(repr(self))}</pre>"

    # -- in place: counted as writes, so that a backward that would read the old values is refused -----------------

    def add_(self, other: Any) -> Self:
        """self += other."""
        return self._become("add_", "add", other)

    def sub_(self, other: Any) -> Self:
        """self -= other."""
        return self._become("sub_", "sub", other)

    def mul_(self, other: Any) -> Self:
        """self *= other."""
        return self._become("mul_", "mul", other)

    def div_(self, other: Any) -> Self:
        """self /= other."""
        return self._become("div_", "div", other)

    def clamp_(self, min: Any = None, max: Any = None) -> Self:
        """self = clip(self, min, max)."""
        return self._become("clamp_", "clip", min, max)

    def copy_(self, source: Any) -> Self:
        """Take the values of `source`, a tensor of a shape that broadcasts to this one."""
        target, source = _own(self)._target("copy_"), getattr(source, "value", source)
        if not hasattr(source, "expand"):
            raise DTypeError(
                f"copy_: expected a Tensor, got {type(source).__name__}; make one with netcl.tensor(data)."
            )
        type(target)._operations["assign"](target, source.to(target.queue))
        return self

    def fill_(self, value: Any) -> Self:
        """Set every element to `value`."""
        _own(self)._target("fill_").fill_(value)
        return self

    def zero_(self) -> Self:
        """Set every element to 0."""
        return self.fill_(0)

    def relu_(self) -> Self:
        """self = relu(self)."""
        return self._become("relu_", "relu")

    def masked_fill_(self, mask: Any, value: Any) -> Self:
        """Set the elements at which `mask` is true to `value`."""
        return self._become("masked_fill_", "masked_fill", mask, value)

    def _become(self, where: str, name: str, *operands: Any) -> Self:
        target = _own(self)._target(where)
        table = type(target)._operations
        found = table[name](target, *(getattr(x, "value", x) for x in operands))
        if found.shape != target.shape:
            raise ShapeError(f"{where}: expected a result of the shape {target.shape}, got {found.shape}.")
        if is_float(found.dtype) and not is_float(target.dtype):
            raise DTypeError(
                f"{where}: expected a result that {target.dtype} holds, got {found.dtype}; convert with astype first."
            )
        table["assign"](target, found)
        return self
