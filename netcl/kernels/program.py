"""Kernels with arguments by name: `program(queue, source, "gemm").bind(grid, group, D=...)` gives a launch.

Sizes and constants are bound once, where a launch is planned; the launch then takes what changes, by name:

    launch = program(queue, text, "max_pool").bind(grid, group, D=sizes)
    launch(Y=y, At=at, X=x)

A tensor `X` gives its memory and, where the kernel has an argument `oX`, its first element. Results whose shape is
known as well can be left to the launch, which then returns them:

    launch = program(queue, text, "max_pool").bind(grid, group, {"Y": (shape, dtype), "At": (shape, INT32)}, D=sizes)
    y, at = launch(X=x)

Binding writes one flat function for the launch, since Python's work around a small kernel costs more than the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from netcl.core import layout, process
from netcl.core.backend import native, opencl
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.memory import pool_of
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels.signature import Signature, signature
from netcl.runtime.cache import get_kernel

New = Mapping[str, tuple[Shape, DType]]
_TEXT = """
def make(_slow, _opencl, _process, _head, _pieces, _enqueue, _pool, _queue, _sizes):
    {pieces} = _pieces
    {sizes} = _sizes
    def launch({parameters}):
        if _opencl.hooks or _process.gate is not None:
            return _slow({parameters})
        {new}
        try:
            _packed = _head + {packed}
        except (OverflowError, StructError):
            return _slow({parameters})
        if _enqueue(_packed):
            return _slow({parameters})
        return {results}
    return launch
"""  # names of its own begin with _, for the others are those of a kernel's arguments
_SLOW = """
def make(_opencl, _kernel, _grid, _group, _known, _pool, _queue, _sizes):
    {known} = _known
    {sizes} = _sizes
    def launch({parameters}):
        {new}
        _opencl.launch(_kernel, _queue, _grid, _group, {arguments})
        return {results}
    return launch
"""  # the same by pyopencl, or where launches are watched


class Program:
    """A built kernel on a queue that knows the names and types of its arguments."""

    __slots__ = ("kernel", "queue", "signature")

    def __init__(self, queue: Queue, kernel: opencl.Kernel, known: Signature) -> None:
        self.queue, self.kernel, self.signature = queue, kernel, known

    def record(self, argument: str, **fields: Any) -> bytes:
        """The bytes of a record argument from its fields."""
        return self.signature.records[argument].pack(**fields)

    def bind(
        self, grid: tuple[int, ...], group: tuple[int, ...] | None, new: New | None = None, /, **known: Any
    ) -> Launch[Any]:
        """A launch of `grid` work-items in groups of `group` that takes, by name, what is neither new nor in `known`.

        Args: new: shape and dtype of the tensors that every launch makes and returns: one, or a tuple of several.
            known: numbers, records (bytes, or a dict of fields), tensors and memory that stay as they are.
        """
        names, records, new = self.signature.names, self.signature.records, new or {}
        unknown = {*known, *new} - set(names)
        if unknown:
            raise TypeError(f"{self.kernel.name}: expected arguments among {names}, got {sorted(unknown)}.")
        known = {n: records[n].pack(**v) if isinstance(v, Mapping) else v for n, v in known.items()}
        for name in [n for n in names if f"o{n}" in names and n in known]:
            known.setdefault(f"o{name}", known[name].offset)
            known[name] = known[name].buffer
        known |= {f"o{n}": 0 for n in new if f"o{n}" in names}
        values = tuple(_value(n, names, known, new) for n in names)
        free = [n for n in names if n not in known and n not in new and not (n[0] == "o" and n[1:] in names)]
        return self._launch(grid, group, values, free, known, new)

    def _launch(
        self, grid: Any, group: Any, values: tuple[str | None, ...], free: list[str], known: dict[str, Any], new: New
    ) -> Launch[Any]:
        """The function behind `bind`: `values` are what stands for the arguments, None for the `known`."""
        names, kernel, queue = self.signature.names, self.kernel, self.queue
        given = [f"_k{i}" if v is None else v for i, v in enumerate(values)]
        bound = {f"_k{i}": known[n] for i, (n, v) in enumerate(zip(names, values, strict=True)) if v is None}
        pool = pool_of(queue)
        sizes = [(layout.size_of(s) * t.itemsize, s, layout.contiguous_strides(s), t) for s, t in new.values()]
        make = _factory(_SLOW, tuple(new), parameters=", ".join(free), known=_listed(bound), arguments=", ".join(given))
        slow: Launch[Any] = make(opencl, kernel, grid, group, [*bound.values()], pool, queue, sizes)
        sender = kernel.sender
        if sender is None:
            return slow
        head = native.geometry(grid, group) + struct.pack("=QQ", sender.address, queue.int_ptr)
        pieces, packed = _pieces(sender, values, names, known)
        names_of_pieces = _listed(f"_p{i}" for i in range(len(pieces)))
        make = _factory(_TEXT, tuple(new), parameters=", ".join(free), packed=packed, pieces=names_of_pieces)
        launch: Launch[Any] = make(slow, opencl, process, head, pieces, sender.launch, pool, queue, sizes)
        return launch


def program(queue: Queue, source: str, name: str, options: tuple[str, ...] = (), edit: Any = None) -> Program:
    """The kernel `name` of `source` for `queue`, built on first use (see runtime.cache.get_kernel)."""
    found = signature(source, name)
    return Program(queue, get_kernel(queue, source, name, found.types, options, edit), found)


def _value(name: str, names: Sequence[str], known: Mapping[str, Any], new: New) -> str | None:
    """What a launch puts in the place of an argument, as Python; None for what is known before."""
    if name in known:
        return None
    if name[0] == "o" and name[1:] in names:
        return f"{name[1:]}.offset"
    return f"{name}.buffer" if name in new or f"o{name}" in names else name


def _pieces(
    sender: native.Sender, values: Sequence[str | None], names: Sequence[str], known: Mapping[str, Any]
) -> tuple[list[Any], str]:
    """Bytes and packers for runs of known and unknown arguments, and the expression that joins them."""
    pieces: list[Any] = []
    parts: list[str] = []
    first = 0
    for last in range(1, len(names) + 1):
        if last < len(names) and (values[last] is None) == (values[first] is None):
            continue
        packer, run = sender.packer(first, last), range(first, last)
        memory = [sender.is_memory(i) for i in run]
        if values[first] is None:
            given = [known[names[i]] for i in run]
            pieces.append(packer(*[g.int_ptr if m else g for g, m in zip(given, memory)]))
            parts.append(f"_p{len(pieces) - 1}")
        else:
            pieces.append(packer)
            inside = ", ".join(f"{values[i]}.int_ptr" if m else str(values[i]) for i, m in zip(run, memory))
            parts.append(f"_p{len(pieces) - 1}({inside})")
        first = last
    return pieces, " + ".join(parts) or 'b""'


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


@cache
def _factory(text: str, new: tuple[str, ...], **parts: str) -> Callable[..., Launch[Any]]:
    """`make` of _TEXT or _SLOW, written out for these parts and new tensors."""
    made = [f"{y} = Tensor(_pool.buffer(_n{k}), _s{k}, _t{k}, 0, _d{k}, _queue)" for k, y in enumerate(new)]
    sizes = _listed(f"(_n{k}, _s{k}, _t{k}, _d{k})" for k in range(len(new)))
    space: dict[str, Any] = {"StructError": struct.error, "Tensor": Tensor}
    exec(text.format(sizes=sizes, new="; ".join(made) or "pass", results=", ".join(new) or "None", **parts), space)
    make: Callable[..., Launch[Any]] = space["make"]
    return make
