"""Methods of Tensor and Node. Written by tools/generate_ops.py from the records of ops; do not edit.

Each looks the op up in a table of the class: ops on tensors for Tensor, ops on nodes for Node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

Axis = int | Sequence[int] | None


class Methods:
    """The methods that are ops. `_operations` has the op of each name, `_operands` is what operators take."""

    __slots__ = ()
    __hash__ = object.__hash__
    _operations: Mapping[str, Callable[..., Self]]
    _operands: tuple[type, ...]

    def _refuse(self, name: str, other: Any) -> Any:
        """What an operator gives for an operand it does not take."""
        return NotImplemented

    def __add__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["add"](self, other) if known else self._refuse("add", other)

    def __radd__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["add"](other, self) if known else self._refuse("add", other)

    def __sub__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["sub"](self, other) if known else self._refuse("sub", other)

    def __rsub__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["sub"](other, self) if known else self._refuse("sub", other)

    def __mul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["mul"](self, other) if known else self._refuse("mul", other)

    def __rmul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["mul"](other, self) if known else self._refuse("mul", other)

    def __truediv__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["div"](self, other) if known else self._refuse("div", other)

    def __rtruediv__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["div"](other, self) if known else self._refuse("div", other)

    def __neg__(self) -> Self:
        return self._operations["neg"](self)

    def __abs__(self) -> Self:
        return self._operations["abs"](self)

    def abs(self) -> Self:
        """abs: y = abs(a), elementwise. Gradient: d/da = where(a > 0, g, where(a < 0, -g, 0 * g))."""
        return self._operations["abs"](self)

    def square(self) -> Self:
        """square: y = a * a, elementwise. Gradient: d/da = 2 * g * a."""
        return self._operations["square"](self)

    def __pow__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["pow"](self, other) if known else self._refuse("pow", other)

    def __rpow__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["pow"](other, self) if known else self._refuse("pow", other)

    def __mod__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["remainder"](self, other) if known else self._refuse("remainder", other)

    def __rmod__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["remainder"](other, self) if known else self._refuse("remainder", other)

    def clip(self, lo: float | None = None, hi: float | None = None) -> Self:
        """min(max(a, lo), hi), so `hi` where the bounds cross; None leaves a side open. NaN stays NaN."""
        return self._operations["clip"](self, lo, hi)

    def __lt__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["lt"](self, other) if known else self._refuse("lt", other)

    def __le__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["le"](self, other) if known else self._refuse("le", other)

    def __gt__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["gt"](self, other) if known else self._refuse("gt", other)

    def __ge__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["ge"](self, other) if known else self._refuse("ge", other)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # elementwise, as NumPy's
        known = isinstance(other, self._operands)
        return self._operations["eq"](self, other) if known else self._refuse("eq", other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]  # elementwise, as NumPy's
        known = isinstance(other, self._operands)
        return self._operations["ne"](self, other) if known else self._refuse("ne", other)

    def __and__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_and"](self, other) if known else self._refuse("bitwise_and", other)

    def __rand__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_and"](other, self) if known else self._refuse("bitwise_and", other)

    def __or__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_or"](self, other) if known else self._refuse("bitwise_or", other)

    def __ror__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_or"](other, self) if known else self._refuse("bitwise_or", other)

    def __xor__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_xor"](self, other) if known else self._refuse("bitwise_xor", other)

    def __rxor__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_xor"](other, self) if known else self._refuse("bitwise_xor", other)

    def __invert__(self) -> Self:
        return self._operations["bitwise_not"](self)

    def exp(self) -> Self:
        """exp: y = exp(a), elementwise. Gradient: d/da = g * y."""
        return self._operations["exp"](self)

    def log(self) -> Self:
        """log: y = log(a), elementwise. Gradient: d/da = g / a."""
        return self._operations["log"](self)

    def sqrt(self) -> Self:
        """sqrt: y = sqrt(a), elementwise. Gradient: d/da = 0.5 * g / y."""
        return self._operations["sqrt"](self)

    def tanh(self) -> Self:
        """tanh: y = tanh(a), elementwise. Gradient: d/da = g * (1 - y * y)."""
        return self._operations["tanh"](self)

    def relu(self) -> Self:
        """relu: y = where(a < 0, 0, a), elementwise. Gradient: d/da = where(y > 0, g, 0 * y)."""
        return self._operations["relu"](self)

    def sigmoid(self) -> Self:
        """sigmoid: y = 1 / (1 + exp(-a)), elementwise. Gradient: d/da = g * y * (1 - y)."""
        return self._operations["sigmoid"](self)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Sum over `axis` (all axes when None), float32 in blocks; integers and booleans give int64."""
        return self._operations["sum"](self, axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Product over `axis`; integers and booleans give int64. Its gradient is exact where elements are zero."""
        return self._operations["prod"](self, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Largest element over `axis`; NaN wins. Raises ShapeError over no elements."""
        return self._operations["max"](self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Smallest element over `axis`; NaN wins. Raises ShapeError over no elements."""
        return self._operations["min"](self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """sum / count over `axis`; NaN over no elements. Integers and booleans give floats."""
        return self._operations["mean"](self, axis, keepdims)

    def var(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """sum((x - mean)^2) / (n - correction) over `axis`, by two passes; NaN over no elements."""
        return self._operations["var"](self, axis, keepdims, correction)

    def std(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """Square root of `var`; the gradient is 0 where it is 0."""
        return self._operations["std"](self, axis, keepdims, correction)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether some element over `axis` is not zero (NaN is not zero); bool."""
        return self._operations["any"](self, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether every element over `axis` is not zero; bool."""
        return self._operations["all"](self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Position of the first largest element along `axis` (None: of the flattened tensor); int64. NaN comes
        first.
        """
        return self._operations["argmax"](self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Position of the first smallest element along `axis` (None: of the flattened tensor); int64. NaN comes
        first.
        """
        return self._operations["argmin"](self, axis, keepdims)

    def cumsum(self, axis: int | None = None) -> Self:
        """y[k] = x[0] + ... + x[k] along `axis`; without an axis, of the flattened tensor, as in NumPy."""
        return self._operations["cumsum"](self, axis)

    def reshape(self, *shape: Any) -> Self:
        """The elements in row-major order as `shape` (one length may be -1); copies only when strides demand it."""
        return self._operations["reshape"](self, *shape)

    def permute(self, *axes: Any) -> Self:
        """The axes in the given order, as NumPy's transpose(axes); without arguments they are reversed."""
        return self._operations["permute"](self, *axes)

    def expand(self, *shape: Any) -> Self:
        """Axes of length one repeated to `shape` without a copy; -1 keeps a length."""
        return self._operations["expand"](self, *shape)

    def squeeze(self, axis: Any = None) -> Self:
        """Without the axes of length one (all of them, or those named; a named axis must have length one)."""
        return self._operations["squeeze"](self, axis)

    def unsqueeze(self, axis: int) -> Self:
        """With a new axis of length one before `axis`."""
        return self._operations["unsqueeze"](self, axis)

    def __getitem__(self, key: Any) -> Self:
        return self._operations["getitem"](self, key)

    def astype(self, dtype: Any) -> Self:
        """The values as `dtype`; itself when it already is. Floats go to integers by truncation, as in NumPy."""
        return self._operations["astype"](self, dtype)

    def to(self, queue: Any) -> Self:
        """`x` on another device (a queue, a handle, a device's name), or as another dtype; the gradient travels
        back.
        """
        return self._operations["to"](self, queue)

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) / sum(exp(x)) along `axis`, with the maximum taken out first so that nothing overflows."""
        return self._operations["softmax"](self, axis)

    def matmul(self, b: Any) -> Self:
        """The matrix product by NumPy's rules."""
        return self._operations["matmul"](self, b)

    def __matmul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["matmul"](self, other) if known else self._refuse("matmul", other)

    def __rmatmul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["matmul"](other, self) if known else self._refuse("matmul", other)

    def flatten(self, start_axis: int = 0) -> Self:
        """Axes from `start_axis` on merged into one."""
        return self._operations["flatten"](self, start_axis)

    def transpose(self, *axes: Any) -> Self:
        """Two axes exchanged when two are given for a tensor of any rank; else the same as `permute`."""
        return self._operations["transpose"](self, *axes)
