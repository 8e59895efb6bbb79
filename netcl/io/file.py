"""The .netcl file: a safetensors file whose metadata holds plain data as JSON, and a checksum of the whole file.

Layout: 8 bytes length, a JSON header with names, dtypes, shapes and offsets, then raw bytes. Reading runs no code.
The checksum is the CRC-32 of every byte of the file, with zeros in the place of its own eight digits. Files of version
1 have one over the tensors alone; they are read, and what can be checked is.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from io import BufferedReader
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from netcl.core.errors import CheckpointError
from netcl.io.draft import replacing

KEY, CHECKSUM = "netcl", "netcl.crc32"  # keys of the metadata
VERSION, TENSORS_ONLY = 2, 1  # of files; those of version 1 have a checksum of their tensors alone
NO_DIGITS = "00000000"
DIGITS_FOLLOW = f'"{CHECKSUM}":"'.encode()
MAX_HEADER = 100_000_000  # bytes; readers of safetensors refuse longer headers
PIECE = 1 << 20  # bytes read at a time
CODES = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
Arrays = dict[str, np.ndarray]


def one_line(value: Any, limit: int = 300) -> str:
    """`value` as text for a message: printable, on one line, of bounded length."""
    text = "".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in str(value)[: 2 * limit])
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write arrays and plain data to exactly `path`; whoever reads sees the old file or the whole new one."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that all are aligned
    parts = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data for name in order]
    try:
        head = _header(arrays, order, json.dumps({**metadata, "version": VERSION}))
        total = zlib.crc32(head)
        for part in parts:
            total = zlib.crc32(part, total)
        with replacing(path) as file:
            file.write(head.replace(DIGITS_FOLLOW + NO_DIGITS.encode(), DIGITS_FOLLOW + b"%08x" % total, 1))
            for part in parts:
                file.write(part)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"save: expected to write {one_line(path)}, got {one_line(error)}.") from error


def _header(arrays: Mapping[str, np.ndarray], order: list[str], text: str) -> bytes:
    """The length and the header, with no checksum yet."""
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: NO_DIGITS, KEY: text}}
    end = 0
    for name in order:
        array, start = arrays[name], end
        end += array.nbytes
        if array.dtype.name not in CODES or name in header:
            raise ValueError(f"{name} of type {array.dtype}, which a safetensors file cannot hold")
        name.encode()  # raises ValueError where the name is no Unicode text
        header[name] = {"dtype": CODES[array.dtype.name], "shape": array.shape, "data_offsets": (start, end)}
    line = json.dumps(header, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    if len(line) > MAX_HEADER:
        raise ValueError(f"{len(line)} bytes of plain data and names, of which {MAX_HEADER} can be read back")
    return len(line).to_bytes(8, "little") + line


def read(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, Any] | None]:
    """The arrays of a file and its plain data, None for a safetensors file of another origin.

    Raises CheckpointError for a file that is missing, truncated, damaged or of another kind.
    """
    shown = one_line(path)
    source = _source(path, shown)
    try:
        while True:
            with open(source, "rb") as file:
                found, expected = _checksums(file)
                arrays, marks = _contents(source)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(source)):  # else a save replaced it in between
                    break
        if CHECKSUM in marks and (found is None or marks[CHECKSUM] != found or found != expected):
            raise CheckpointError(f"load: expected {shown} as it was written, got other bytes; the file is damaged.")
        metadata = json.loads(marks[KEY]) if KEY in marks else None
        if metadata is not None and not isinstance(metadata, dict):
            raise ValueError("its metadata is not a table")
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"load: expected a .netcl or safetensors file, got {shown}, which is damaged or not one: {one_line(error)}."
        ) from None
    if metadata is not None:
        _check_version(arrays, metadata, CHECKSUM in marks, shown)
    return arrays, metadata


def _source(path: str | os.PathLike[str], shown: str) -> str:
    source = os.fsdecode(path)
    try:
        regular = stat.S_ISREG(os.stat(source).st_mode)
    except (OSError, ValueError) as error:
        reason = f" ({one_line(error)})" if not isinstance(error, FileNotFoundError) else ""
        raise CheckpointError(f"load: expected a file at {shown}, found none{reason}.") from None
    if not regular:
        raise CheckpointError(f"load: expected a file at {shown}, found none; it is a folder or a device.")
    return source


def _checksums(file: BufferedReader) -> tuple[str | None, str]:
    """The digits that a file holds, None where it holds none, and those that its bytes ask for."""
    length = file.read(8)
    head = file.read(min(int.from_bytes(length, "little"), MAX_HEADER))
    place = head.find(DIGITS_FOLLOW) + len(DIGITS_FOLLOW)
    found = None
    if place >= len(DIGITS_FOLLOW):
        found = head[place : place + len(NO_DIGITS)].decode("latin-1")
        head = head[:place] + NO_DIGITS.encode() + head[place + len(NO_DIGITS) :]
    total = zlib.crc32(head, zlib.crc32(length))
    if found is not None:
        piece = memoryview(bytearray(PIECE))
        while count := file.readinto(piece):
            total = zlib.crc32(piece[:count], total)
    return found, f"{total:08x}"


def _contents(source: str) -> tuple[Arrays, dict[str, str]]:
    """The arrays and the metadata."""
    with safe_open(source, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _check_version(arrays: Arrays, metadata: dict[str, Any], whole: bool, shown: str) -> None:
    """Raise CheckpointError for a file of another version, or one whose checksum is wrong or lost."""
    found = metadata.get("version")
    if found not in (VERSION, TENSORS_ONLY):
        raise CheckpointError(
            f"load: expected a file of version {VERSION} or {TENSORS_ONLY}, got {one_line(found)} in {shown}; "
            "update netcl."
        )
    if whole != (found == VERSION) or (found == TENSORS_ONLY and metadata.get("crc32") != _tensors_checksum(arrays)):
        raise CheckpointError(f"load: expected {shown} as it was written, got other bytes; the file is damaged.")


def _tensors_checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """What files of version 1 hold: a CRC-32 over names and contents, in the order of the names."""
    total = 0
    for name in sorted(arrays):
        contents = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data
        total = zlib.crc32(contents, zlib.crc32(name.encode(), total))
    return total
