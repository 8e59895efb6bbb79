"""What is kept on disk of one program.

A header (magic, key, checksum and length of what follows), the arguments of the program's kernels as JSON, and the
driver's binary. The header is checked before the driver sees the binary, because drivers crash on damaged ones.
"""

from __future__ import annotations

import hashlib
import json

from netcl.core.backend.signature import Declared

MAGIC = b"netcl program 2\n"
HEADER = len(MAGIC) + 32 + 32 + 4  # magic, key, sha256 of what follows it, length of the JSON


def encode(key: str, declared: Declared, binary: bytes) -> bytes:
    """An entry of the cache."""
    notes = json.dumps(declared).encode()
    rest = len(notes).to_bytes(4, "little") + notes + binary
    return MAGIC + bytes.fromhex(key) + hashlib.sha256(rest).digest() + rest


def decode(key: str, entry: bytes) -> tuple[Declared, bytes] | None:
    """What `entry` holds of the program, or None when it is truncated, damaged or belongs to another key."""
    start, rest = entry[: HEADER - 4], entry[HEADER - 4 :]
    if start != MAGIC + bytes.fromhex(key) + hashlib.sha256(rest).digest():
        return None
    notes = HEADER + int.from_bytes(entry[HEADER - 4 : HEADER], "little")
    return json.loads(entry[HEADER:notes]), entry[notes:]
