"""PyTorch's words for arguments, beside NumPy's: one table for functions, methods and operators."""

from __future__ import annotations

from typing import Any, NoReturn

from netcl.core.errors import DTypeError

SYNONYMS = {"dim": "axis", "dims": "axis", "keepdim": "keepdims"}
SYNONYMS |= {"start_dim": "start_axis", "end_dim": "end_axis"}
WITH_INDICES = ("max", "min")  # PyTorch gives values and indices for `dim`, and values alone without
INDEX_FIRST = ("gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_copy", "index_add")


def axis_of(name: str, axis: Any, default: Any, dim: Any) -> Any:
    """The axis that was given as `axis` or as `dim`; `default` is what `axis` is when nobody gives it."""
    if dim is None:
        return axis
    if axis is not None and axis != default:
        raise DTypeError(f"{name}: expected axis or dim, which mean the same, got both.")
    if name in WITH_INDICES:
        refuse_dim(name)
    return dim


def needed_axis(name: str, axis: Any, dim: Any) -> Any:
    """The same where there is no default."""
    found = axis_of(name, axis, None, dim)
    if found is None:
        raise DTypeError(f"{name}: expected axis (or dim), got none.")
    return found


def index_before_axis(*given: Any) -> tuple[Any, ...]:
    """(index, ..., axis) of what may have PyTorch's order (axis, index, ...)."""
    return (*given[1:], given[0]) if isinstance(given[0], int) else given


def in_our_order(name: str, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call (x, axis, index, ...), as PyTorch has it, in the order (x, index, ..., axis)."""
    operands = 1 if name in ("gather", "index_select") else 2
    x, axis, *rest = args
    if len(rest) < operands:
        return (x, *rest), {**given, "axis": axis}
    return (x, *rest[:operands], axis, *rest[operands:]), given


def refuse_dim(name: str) -> NoReturn:
    """Raise DTypeError: what PyTorch would give is something else."""
    raise DTypeError(
        f"{name}: expected axis, got dim, for which PyTorch gives values and indices; {name}(x, axis=...) gives the "
        f"values, arg{name}(x, axis=...) the indices."
    )


def renamed(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of a call with NumPy's words in place of PyTorch's."""
    found = dict(given)
    for word, ours in SYNONYMS.items():
        if word in found:
            if ours in found:
                raise DTypeError(f"{name}: expected {ours} or {word}, which mean the same, got both.")
            if name in WITH_INDICES and ours == "axis":
                refuse_dim(name)
            found[ours] = found.pop(word)
    return found
