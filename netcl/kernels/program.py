"""Kernels with arguments by name: `program(queue, source, "gemm").bind(grid, group, D=...)` gives a launch.

Sizes and constants are bound once, where a launch is planned; the launch then takes what changes, by name:

    launch = program(queue, text, "max_pool").bind(grid, group, D=sizes)
    launch(Y=y, At=at, X=x)

A tensor `X` gives its memory and, where the kernel has an argument `oX`, its first element. Binding writes one flat
function for the launch, since Python's work around a small kernel costs more than the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from netcl.core import process
from netcl.core.backend import native, opencl
from netcl.kernels.signature import Signature, signature
from netcl.runtime.cache import get_kernel

Launch = Callable[..., None]
_TEXT = """
def make(slow, hooks, process, head, pieces, enqueue):
    {pieces} = pieces
    def launch({parameters}):
        if hooks or process.gate is not None:
            return slow({parameters})
        try:
            packed = head + {packed}
        except (OverflowError, StructError):
            return slow({parameters})
        if enqueue(packed):
            slow({parameters})
    return launch
"""


class Program:
    """A built kernel on a queue that knows the names and types of its arguments."""

    __slots__ = ("kernel", "queue", "signature")

    def __init__(self, queue: Any, kernel: opencl.Kernel, known: Signature) -> None:
        self.queue, self.kernel, self.signature = queue, kernel, known

    def record(self, argument: str, **fields: Any) -> bytes:
        """The bytes of a record argument from its fields."""
        return self.signature.records[argument].pack(**fields)

    def bind(self, grid: tuple[int, ...], group: tuple[int, ...] | None, **known: Any) -> Launch:
        """A launch of `grid` work-items in groups of `group` that takes, by name, what is not in `known`.

        Args: known: numbers, records (bytes, or a dict of fields), tensors and memory that stay as they are.
        """
        names, records = self.signature.names, self.signature.records
        unknown = set(known) - set(names)
        if unknown:
            raise TypeError(f"{self.kernel.name}: expected arguments among {names}, got {sorted(unknown)}.")
        known = {n: records[n].pack(**v) if isinstance(v, Mapping) else v for n, v in known.items()}
        for name in [n for n in names if f"o{n}" in names and n in known]:
            known.setdefault(f"o{name}", known[name].offset)
            known[name] = known[name].buffer
        free = tuple(n for n in names if n not in known and not (n[0] == "o" and n[1:] in names))
        values = tuple(_value(n, names, known) for n in names)
        parameters = ", ".join(free)
        arguments = "".join(f"known[{n!r}], " if v is None else f"{v}, " for n, v in zip(names, values, strict=True))
        everything = _gatherer(parameters, arguments)(known)
        kernel, queue = self.kernel, self.queue

        def slow(*given: Any, **named: Any) -> None:
            opencl.launch(kernel, queue, grid, group, *everything(*given, **named))

        sender = kernel.sender
        if sender is None:
            return slow
        head = native.geometry(grid, group) + struct.pack("=QQ", sender.address, queue.int_ptr)
        pieces, packed = _pieces(sender, values, names, known)
        make = _factory(parameters, packed, len(pieces))
        launch: Launch = make(slow, opencl.hooks, process, head, pieces, sender.launch)
        return launch


def program(queue: Any, source: str, name: str, options: tuple[str, ...] = (), edit: Any = None) -> Program:
    """The kernel `name` of `source` for `queue`, built on first use (see runtime.cache.get_kernel)."""
    found = signature(source, name)
    return Program(queue, get_kernel(queue, source, name, found.types, options, edit), found)


def _value(name: str, names: Sequence[str], known: Mapping[str, Any]) -> str | None:
    """What a launch puts in the place of an argument, as Python; None for what is known before."""
    if name in known:
        return None
    if name[0] == "o" and name[1:] in names:
        return f"{name[1:]}.offset"
    return f"{name}.buffer" if f"o{name}" in names else name


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
            parts.append(f"p{len(pieces) - 1}")
        else:
            pieces.append(packer)
            inside = ", ".join(f"{values[i]}.int_ptr" if m else str(values[i]) for i, m in zip(run, memory))
            parts.append(f"p{len(pieces) - 1}({inside})")
        first = last
    return pieces, " + ".join(parts) or 'b""'


@cache
def _gatherer(parameters: str, values: str) -> Callable[..., Callable[..., tuple[Any, ...]]]:
    """A maker of functions from the free arguments to all arguments in the kernel's order."""
    space: dict[str, Any] = {}
    exec(f"def make(known):\n    return lambda {parameters}: ({values})", space)
    return space["make"]  # type: ignore[no-any-return]


@cache
def _factory(parameters: str, packed: str, count: int) -> Callable[..., Launch]:
    """`make` of _TEXT, written out for these parameters."""
    pieces = f"[{', '.join(f'p{i}' for i in range(count))}]"
    space: dict[str, Any] = {"StructError": struct.error}
    exec(_TEXT.format(pieces=pieces, parameters=parameters, packed=packed), space)
    return space["make"]  # type: ignore[no-any-return]
