"""What a kernel takes, read from its OpenCL C: names and types of arguments, and the layout of records.

A fact has one home: the `.cl` file declares an argument or a field, and Python reads it there. Reading needs no
compiler: conditions and simple macros of the text are followed as far as the kernel's declaration.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core.dtypes import DType
from netcl.core.errors import BuildError

SCALARS = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "long": "i8", "ulong": "u8",
    "half": "f2", "float": "f4", "double": "f8",
}  # fmt: skip
CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f", "f8": "d"}
_ALIAS = re.compile(rf"typedef\s+({'|'.join(SCALARS)})\s+(\w+)\s*;")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)")
_MACRO = re.compile(r"(\w+)(\(?)\s*(.*)", re.S)
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_COMMA = re.compile(r",(?![^()]*\))")  # outside brackets: JOIN(T, 4) is one type
_INSIDE = re.compile(r"(?:[^()]|\([^()]*\))*")  # a kernel's brackets
_DEFINED = re.compile(r"defined\s*\(?\s*(\w+)\s*\)?")


class Record:
    """A struct that a kernel takes by value: `names` of its fields, and how Python packs them."""

    __slots__ = ("_layout", "counts", "dtype", "names")

    def __init__(self, fields: list[tuple[str, str, int]]) -> None:
        """Args: fields: (name, C type, how many) in order."""
        self.names = tuple(name for name, _, _ in fields)
        self.counts = tuple(count for _, _, count in fields)
        codes = [(CODES[SCALARS[kind]], count) for _, kind, count in fields]
        widest = max((code for code, _ in codes), key=struct.calcsize)
        self._layout = struct.Struct("@" + "".join(f"{n}{code}" for code, n in codes) + f"0{widest}")
        self.dtype: DType = np.dtype(f"V{self._layout.size}")

    def pack(self, **values: Any) -> bytes:
        """The record's bytes. A field that is an array takes a sequence."""
        flat: list[Any] = []
        for name, count in zip(self.names, self.counts):
            flat += [values[name]] if count == 1 else values[name]
        if len(values) != len(self.names):
            raise KeyError(f"expected the fields {self.names}, got {sorted(set(values) - set(self.names))} besides")
        return self._layout.pack(*flat)


class Signature(NamedTuple):
    """A kernel's arguments: their names, their types (None for memory), and the layouts of those that are records."""

    names: tuple[str, ...]
    types: tuple[DType | None, ...]
    records: dict[str, Record]


@cache
def signature(source: str, name: str) -> Signature:
    """The arguments of the kernel `name` in the program `source`. Raises BuildError when it declares no such kernel."""
    text, macros = _preprocessed(source)
    aliases = {alias: kind for kind, alias in _ALIAS.findall(text)}
    found = re.search(rf"__kernel\b[^;{{}}]*?\b{re.escape(name)}\s*\(", text) or re.search(
        rf"__kernel\b[^;{{}}]*?\b{_named(name, macros)}\s*\(", text
    )
    if found is None:
        raise BuildError(f"{name}: expected a kernel of this name in its program, got none.")
    inside = _expand(_INSIDE.match(text, found.end())[0], macros)  # type: ignore[index]  # it matches nothing as well
    declared = [_argument(part, text, macros, aliases) for part in _COMMA.split(inside) if part.strip()]
    records = {n: kind for n, kind in declared if isinstance(kind, Record)}
    types = tuple(kind.dtype if isinstance(kind, Record) else kind for _, kind in declared)
    return Signature(tuple(n for n, _ in declared), types, records)


def _named(name: str, macros: dict[str, str]) -> str:
    """The macro that stands for the kernel's name in generated programs."""
    return next((re.escape(macro) for macro, value in macros.items() if value == name), re.escape(name))


def _argument(text: str, program: str, macros: dict[str, str], aliases: dict[str, str]) -> tuple[str, Any]:
    """(name, type) of one declared argument."""
    words = text.replace("*", " * ").split()
    if "*" in words:
        return words[-1], None
    kind = next(w for w in words if w not in ("const", "unsigned"))
    kind = aliases.get(kind, kind)
    if kind in SCALARS:
        return words[-1], np.dtype(SCALARS[kind])
    return words[-1], _record(program, kind, macros, aliases)


def _record(program: str, kind: str, macros: dict[str, str], aliases: dict[str, str]) -> Record:
    """The layout of `typedef struct { ... } kind;` in the text of a program."""
    found = re.search(rf"typedef\s+struct\s*\{{([^}}]*)\}}\s*{re.escape(kind)}\s*;", program)
    if found is None:
        raise BuildError(f"{kind}: expected a scalar type or a record declared in the program, got neither.")
    fields = []
    for line in _expand(found[1], macros).split(";"):
        if line.strip():
            c_type, names = line.split(None, 1)
            for one in names.split(","):
                plain, _, count = one.strip().partition("[")
                fields.append((plain, aliases.get(c_type, c_type), int(count.rstrip("]") or 1)))
    return Record(fields)


# -- the part of C's preprocessor that our programs use ----------------------------------------------------------------


def _preprocessed(source: str) -> tuple[str, dict[str, str]]:
    """The lines that conditions leave, and the macros without parameters."""
    macros: dict[str, str] = {}
    kept: list[str] = []
    taken: list[bool] = []  # for each condition around a line: whether its present branch counts
    done: list[bool] = []  # and whether one of its branches did
    for line in _COMMENT.sub("", source).replace("\\\n", " ").split("\n"):
        found = _DIRECTIVE.match(line)
        if found is None:
            if all(taken):
                kept.append(line)
            continue
        word, rest = found[1], found[2].strip()
        if word in ("if", "ifdef", "ifndef"):
            true = all(taken) and _true(word, rest, macros)
            taken.append(true)
            done.append(true)
        elif word in ("elif", "else"):
            taken.pop()
            true = all(taken) and not done[-1] and (word == "else" or _true("if", rest, macros))
            taken.append(true)
            done[-1] |= true
        elif word == "endif":
            taken.pop()
            done.pop()
        elif all(taken) and word == "undef":
            macros.pop(rest, None)
        elif all(taken) and word == "define":
            name, bracket, value = _MACRO.match(rest).groups()  # type: ignore[union-attr]
            macros[name] = "1" if bracket else value.strip()
    return "\n".join(kept), macros


def _true(word: str, condition: str, macros: dict[str, str]) -> bool:
    if word != "if":
        return (condition.split()[0] in macros) == (word == "ifdef")
    text = _WORD.sub("0", _expand(_DEFINED.sub(lambda m: str(int(m[1] in macros)), condition), macros))
    while (inner := re.search(r"\(([^()]*)\)", text)) is not None:
        text = f"{text[: inner.start()]}{_value(inner[1])}{text[inner.end() :]}"
    return bool(_value(text))


def _value(text: str) -> int:
    """The value of an integer expression of C without brackets."""
    condition, question, rest = text.partition("?")
    if question:
        yes, _, no = rest.partition(":")  # the first branch of ours is never a condition itself
        return _value(yes) if _value(condition) else _value(no)
    text = text.replace("&&", " and ").replace("||", " or ").replace("!=", "<>").replace("!", " not ")
    return int(eval(text.replace("<>", "!=").replace("/", "//") or "0", {"__builtins__": {}}))


def _expand(text: str, macros: dict[str, str]) -> str:
    """`text` with macros replaced until none is left."""
    for _ in range(20):
        more = _WORD.sub(lambda m: macros.get(m[0], m[0]), text)
        if more == text:
            return text
        text = more
    return text
