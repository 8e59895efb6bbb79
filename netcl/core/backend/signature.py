"""What a kernel takes, read from its OpenCL C: names and types of arguments, and the layout of records.

A fact has one home: the `.cl` file declares an argument or a field, and Python reads it there. Reading needs no
compiler: conditions and simple macros of the text are followed. What was read is plain data, so that the program cache
keeps it beside the binary.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.core.dtypes import DType
from netcl.core.errors import BuildError

SCALARS = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "long": "i8", "ulong": "u8",
    "half": "f2", "float": "f4", "double": "f8",
}  # fmt: skip
CODES = {
    "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f2": "e", "f4": "f",
    "f8": "d",
}  # fmt: skip
# An argument: its name, and None for memory, a code such as "i8", or the fields of a record: (name, code, how many).
# A type that is neither goes by its own name.
Argument = tuple[str, Any]
Declared = dict[str, list[Argument]]  # the arguments of each kernel of a program

_ALIAS = re.compile(rf"typedef\s+({'|'.join(SCALARS)})\s+(\w+)\s*;")
_RECORD = re.compile(r"typedef\s+struct\s*\{([^}]*)\}\s*(\w+)\s*;")
_KERNEL = re.compile(r"\b(?:__)?kernel\b[^;{}]*?\bvoid\s+(\w+)\s*\(((?:[^()]|\([^()]*\))*)\)")
_FIELD = re.compile(r"(\w+)(?:\[(\d+)\])?")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)")
_MACRO = re.compile(r"(\w+)(\(?)\s*(.*)", re.S)
_WORD = re.compile(r"(\b[A-Za-z_]\w*\b)")
_COMMA = re.compile(r",(?![^()]*\))")  # outside brackets: JOIN(T, 4) is one type
_DEFINED = re.compile(r"defined\s*\(?\s*(\w+)\s*\)?")


class Record:
    """A struct that a kernel takes by value: `names` of its fields, and how Python packs them."""

    __slots__ = ("_layout", "counts", "dtype", "names")

    def __init__(self, fields: Sequence[tuple[str, str, int]]) -> None:
        """Args: fields: (name, code of its type, how many) in order."""
        self.names = tuple(name for name, _, _ in fields)
        self.counts = tuple(count for _, _, count in fields)
        widest = max((CODES[code] for _, code, _ in fields), key=struct.calcsize)
        self._layout = struct.Struct("@" + "".join(f"{n}{CODES[code]}" for _, code, n in fields) + f"0{widest}")
        self.dtype: DType = np.dtype(f"V{self._layout.size}")

    def pack(self, **values: Any) -> bytes:
        """The record's bytes. A field that is an array takes a sequence."""
        flat: list[Any] = []
        for name, count in zip(self.names, self.counts):
            flat += [values[name]] if count == 1 else values[name]
        if len(values) != len(self.names):
            raise KeyError(f"expected the fields {self.names}, got {sorted(set(values) - set(self.names))} besides")
        return self._layout.pack(*flat)


class Signature:
    """A kernel's arguments: their names, their types (None for memory), and the layouts of those that are records."""

    __slots__ = ("names", "records", "types")

    def __init__(self, arguments: Sequence[Argument]) -> None:
        """Args: arguments: as `declared` reads them. Raises BuildError for a type that no launch can pass."""
        for _, kind in arguments:
            if isinstance(kind, str) and kind not in CODES:
                raise BuildError(f"{kind}: expected a scalar type or a record declared in the program, got neither.")
        self.names = tuple(name for name, _ in arguments)
        self.records = {name: Record(kind) for name, kind in arguments if isinstance(kind, (list, tuple))}
        kinds = [self.records[name].dtype if name in self.records else kind for name, kind in arguments]
        self.types = tuple(None if kind is None else np.dtype(kind) for kind in kinds)


def signature(source: str, name: str) -> Signature:
    """The arguments of the kernel `name` in the program `source`. Raises BuildError when it declares no such kernel."""
    found = declared(source)
    if name not in found:
        raise BuildError(f"{name}: expected a kernel of this name in its program, got {', '.join(found) or 'none'}.")
    return Signature(found[name])


def declared(source: str) -> Declared:
    """The arguments of every kernel in the program `source`."""
    text, macros = _preprocessed(source)
    kinds: dict[str, Any] = dict(SCALARS)
    kinds |= {alias: SCALARS[kind] for kind, alias in _ALIAS.findall(text)}
    kinds |= {name: _fields(_expand(inside, macros), kinds) or name for inside, name in _RECORD.findall(text)}
    found = _KERNEL.findall(text)
    return {_expand(name, macros): _arguments(_expand(inside, macros), kinds) for name, inside in found}


def _arguments(text: str, kinds: dict[str, Any]) -> list[Argument]:
    """What stands between the brackets of a kernel."""
    found: list[Argument] = []
    for part in _COMMA.split(text):
        words = [word for word in part.replace("*", " * ").split() if word not in ("const", "unsigned")]
        if words and words != ["void"]:
            found.append((words[-1], None if "*" in words else kinds.get(words[0], words[0])))
    return found


def _fields(text: str, kinds: dict[str, Any]) -> list[tuple[str, str, int]]:
    """The fields of a record of scalars; none for what holds others."""
    found = []
    for line in text.split(";"):
        kind, _, names = line.strip().partition(" ")
        if kind and kinds.get(kind) not in CODES:
            return []
        found += [(name, kinds[kind], int(count or 1)) for name, count in _FIELD.findall(names)]
    return found


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
            name, bracket, value = _MACRO.match(rest).groups()  # type: ignore[union-attr]  # the pattern fits any directive
            macros[name] = "1" if bracket else value.strip()
    return "\n".join(kept), macros


def _true(word: str, condition: str, macros: dict[str, str]) -> bool:
    if word != "if":
        return (condition.split()[0] in macros) == (word == "ifdef")
    text = _DEFINED.sub(lambda m: str(int(m[1] in macros)), condition)
    text = _WORD.sub("0", _expand(text, macros))
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
        parts = _WORD.split(text)
        more = "".join(map(macros.get, parts, parts))
        if more == text:
            return text
        text = more
    return text
