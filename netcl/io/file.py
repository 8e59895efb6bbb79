"""The .netcl file: a safetensors file whose metadata holds plain data as JSON, and a checksum of the tensors.

Layout: 8 bytes length, a JSON header with names, dtypes, shapes and offsets, then raw bytes. Reading runs no code.
Writing goes to a temporary file in the same folder, which replaces the target when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from netcl.core.errors import CheckpointError

KEY = "netcl"
VERSION = 1


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(
            np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data, zlib.crc32(name.encode(), total)
        )
    return total


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write arrays and plain data to exactly `path`; whoever reads sees the old file or the whole new one."""
    target = Path(path)
    text = json.dumps({**metadata, "version": VERSION, "crc32": _checksum(arrays)})
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, draft, {KEY: text})
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"save: expected to write {target}, got {error}.") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """The arrays of a file and its plain data, None for a safetensors file of another origin.

    Raises CheckpointError for a file that is missing, truncated, damaged or of another kind.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"load: expected a file at {path}, found none.")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
            text = (file.metadata() or {}).get(KEY)
        metadata = None if text is None else json.loads(text)
        if metadata is not None and not isinstance(metadata, dict):
            raise ValueError("its metadata is not a table")
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"load: expected a .netcl or safetensors file, got {path}, which is not one: {error}."
        ) from None
    if metadata is None:
        return arrays, None
    if metadata.get("version") != VERSION:
        found = metadata.get("version")
        raise CheckpointError(f"load: expected a file of version {VERSION}, got {found} in {path}; update netcl.")
    if metadata.get("crc32") != _checksum(arrays):
        raise CheckpointError(f"load: expected {path} as it was written, got other bytes; the file is damaged.")
    return arrays, metadata
