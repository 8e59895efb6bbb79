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
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from netcl.core import layout, process
from netcl.core.backend import native, opencl
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.memory import pool_of
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor
from netcl.runtime.cache import get_kernel

New = Mapping[str, tuple[Shape, DType]]
# The launch is `launch`; `_slow` does the same by pyopencl, where launches are watched, or numbers exceed their type.
# Names of its own begin with _, for the others are those of a kernel's arguments.
_TEXT = """
def make(_opencl, _process, _kernel, _grid, _group, _pool, _queue, _enqueue, _pack, _known, _sizes):
    {known} = _known
    {sizes} = _sizes
    def _slow({free}):
        {new}
        _opencl.launch(_kernel, _queue, _grid, _group, {arguments})
        return {results}
    def launch({free}):
        if _opencl.hooks or _process.gate is not None:
            return _slow({free})
        {new}
        try:
            _packed = _pack({packed})
        except (OverflowError, StructError):
            return _slow({free})
        if _enqueue(_packed):
            return _slow({free})
        return {results}
    return _slow if _enqueue is None else launch
"""


class Program(NamedTuple):
    """A built kernel on a queue, whose arguments go by name."""

    queue: Any
    kernel: opencl.Kernel

    def record(self, argument: str, **fields: Any) -> bytes:
        """The bytes of a record argument from its fields."""
        return self.kernel.signature.records[argument].pack(**fields)

    def bind(
        self, grid: tuple[int, ...], group: tuple[int, ...] | None, new: New | None = None, /, **known: Any
    ) -> Launch[Any]:
        """A launch of `grid` work-items in groups of `group` that takes, by name, what is neither new nor in `known`.

        Args: new: shape and dtype of the tensors that every launch makes and returns: one, or a tuple of several.
            known: numbers, records (bytes, or a dict of fields), tensors and memory that stay as they are.
        """
        signature, new = self.kernel.signature, new or {}
        kernel, queue, sender, names = self.kernel, self.queue, self.kernel.sender, signature.names
        unknown = {*known, *new} - set(names)
        if unknown:
            raise TypeError(f"{kernel.name}: expected arguments among {names}, got {sorted(unknown)}.")
        free, values = [], list[Any]()  # parameters of the launch; per argument what it reads as Python, or is known
        for name in names:
            owner = name[1:] if name[0] == "o" and name[1:] in names else ""  # whose first element it is
            given = known.get(name, known.get(owner))
            if name in known and owner:
                values.append(given)
            elif owner:
                values.append(0 if owner in new else f"{owner}.offset" if given is None else given.offset)
            elif given is not None:
                record = isinstance(given, Mapping)
                values.append(
                    signature.records[name].pack(**given) if record else given.buffer if f"o{name}" in names else given
                )
            else:
                values.append(f"{name}.buffer" if name in new or f"o{name}" in names else name)
                free += [] if name in new else [name]
        fixed = {f"_k{i}": value for i, value in enumerate(values) if not isinstance(value, str)}
        arguments = ", ".join([v if isinstance(v, str) else f"_k{i}" for i, v in enumerate(values)])
        pack, packed = None, ""
        if sender is not None:
            head = native.geometry(grid, group) + struct.pack("=QQ", sender.address, queue.int_ptr)
            pack, packed, runs = _packing(head, sender.layout, kernel.types, values)
            fixed |= runs
        makes = [f"{y} = Tensor(_pool.buffer(_n{k}), _s{k}, _t{k}, 0, _d{k}, _queue)" for k, y in enumerate(new)]
        facts = ", ".join([f"(_n{k}, _s{k}, _t{k}, _d{k})" for k in range(len(new))])
        text = _TEXT.format(
            known=f"[{', '.join(fixed)}]", sizes=f"[{facts}]", free=", ".join(free), new="; ".join(makes) or "pass",
            arguments=arguments, packed=packed, results=", ".join(new) or "None",
        )  # fmt: skip
        sizes = [(layout.size_of(s) * t.itemsize, s, layout.contiguous_strides(s), t) for s, t in new.values()]
        pool, enqueue = (queue.netcl_state.pool or pool_of(queue)) if new else None, sender and sender.launch
        return _made(text)(opencl, process, kernel, grid, group, pool, queue, enqueue, pack, fixed.values(), sizes)


def program(queue: Any, source: str, name: str, options: tuple[str, ...] = (), edit: Any = None) -> Program:
    """The kernel `name` of `source` for `queue`, built on first use (see runtime.cache.get_kernel)."""
    return Program(queue, get_kernel(queue, source, name, options, edit))


def _packing(
    head: bytes, slots: list[str], types: tuple[DType | None, ...], values: list[Any]
) -> tuple[Callable[..., bytes], str, dict[str, bytes]]:
    """How one `struct` packs a launch: its function, what to give it as Python, and the bytes named in that.

    Neighbouring arguments that are known are packed here, and are one string of bytes to a launch.
    """
    runs, format, parts, last = {"_p0": head}, [f"{len(head)}s"], ["_p0"], "_p0"
    for slot, kind, value in zip(slots, types, values):
        address = ".int_ptr" if kind is None else ""
        if isinstance(value, str):
            format.append(slot)
            parts.append(value + address)
            last = ""
            continue
        more = struct.pack(f"={slot}", value.int_ptr if address else value)
        if last:
            runs[last] += more
            format[-1] = f"{len(runs[last])}s"
        else:
            last = f"_p{len(runs)}"
            runs[last] = more
            format.append(f"{len(more)}s")
            parts.append(last)
    return struct.Struct("=" + "".join(format)).pack, ", ".join(parts), runs


@cache
def _made(text: str) -> Callable[..., Launch[Any]]:
    """`make` of a text of _TEXT's form."""
    space: dict[str, Any] = {"StructError": struct.error, "Tensor": Tensor}
    exec(text, space)
    make: Callable[..., Launch[Any]] = space["make"]
    return make
