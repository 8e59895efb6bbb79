"""PoCL on processors newer than its compiler: name one that it knows and whose instructions are there.

PoCL asks its LLVM what the processor is called and hands the answer to clang. To an AMD processor that is newer than
LLVM, the one in PoCL's wheel is of 2022, the answer is "generic", which clang refuses for x86: every program fails with
"unknown target CPU 'generic'" (pocl/pocl, issue 1049), and no build option or variable overrides the name. It is a
pointer in the driver's record of the device; `teach` points it to another name.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
from pathlib import Path
from typing import Any

from netcl.core.driver import pocl_folder, room_in
from netcl.core.errors import DeviceError

UNKNOWN = b"generic\0"
ROOM = 4 << 20  # bytes on the disk without which nothing is compiled
RECORD = 2048  # bytes of the driver's record that are searched; in PoCL 3.0 the name is at 640
NAMES = (  # processors known to LLVM 14 and the flags, in Linux's words, of what PoCL and clang use on them
    ("icelake-server", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vbmi2", "avx512_vnni",
                        "avx512_bitalg", "avx512_vpopcntdq", "avx512ifma", "vaes", "vpclmulqdq", "gfni", "sha_ni"}),
    ("skylake-avx512", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("haswell", {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"}),
)  # fmt: skip
_names: list[Any] = []  # C strings that devices point to, for as long as the process lasts
_taught: dict[int, str] = {}  # address of a device's record -> the name given


def teach(device: Any) -> str:
    """Give a PoCL CPU device whose processor its compiler does not know the name of a like one; "" if not needed."""
    if not str(device.version).strip().endswith("-generic") or platform.machine() not in ("x86_64", "AMD64"):
        return ""
    address = int(device.int_ptr)
    if address not in _taught and sys.platform == "linux":
        name, place = "", 0
        with contextlib.suppress(OSError):  # where /proc is hidden, the driver's own error tells
            with open("/proc/cpuinfo") as file:
                name = like(file.read())
            place = _place(address) if name else 0
        if place:
            _names.append(ctypes.create_string_buffer(name.encode()))
            ctypes.c_void_p.from_address(place).value = ctypes.addressof(_names[-1])
            _taught[address] = name
    return _taught.get(address, "")


def note(device: Any) -> str:
    """What was done to the device, for `netcl devices`; "" if nothing was."""
    name = _taught.get(int(getattr(device, "int_ptr", 0)), "")
    return name and f"{device.name}: PoCL's compiler does not know this processor; netcl has it compile for {name}"


def is_pocl(device: Any) -> bool:
    """Whether PoCL drives the device. It keeps what it compiled; asked for a binary, it compiles all kernels again."""
    return str(device.platform.name).startswith("Portable Computing Language")


def workplace(device: Any) -> Path | None:
    """The folder in which PoCL compiles for the device; None where another driver does.

    Raises DeviceError where it has no room: PoCL would end the process, or fail without a word.
    """
    if not is_pocl(device):
        return None
    folder = pocl_folder()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a folder that is not there: PoCL's own error tells
            place = next((f for f in (folder, *folder.parents) if f.exists()), folder)
            left = room_in(str(place))
            if left < ROOM:
                raise DeviceError(
                    f"PoCL: expected room on the disk of {place}, where it compiles, got {left:,} bytes; free some, or "
                    "set POCL_CACHE_DIR to a folder on another disk."
                )
    return folder


def like(cpuinfo: str) -> str:
    """The best of NAMES all of whose flags are in the text of /proc/cpuinfo, "" if there is none."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    flags = set(line.split())
    return next((name for name, needed in NAMES if needed <= flags), "")


def _place(address: int) -> int:
    """Where in the record at `address` the pointer to "generic" is, or, in a part of a device, to a name of ours."""
    spans, ours = _readable(), {ctypes.addressof(name) for name in _names}
    for place in range(address, address + RECORD, 8):
        if not _within(spans, place, 8):
            break
        target = ctypes.c_uint64.from_address(place).value
        text = ctypes.string_at(target, len(UNKNOWN)) if _within(spans, target, len(UNKNOWN)) else b""
        if target in ours or text == UNKNOWN:
            return place
    return 0


def _readable() -> list[tuple[int, int]]:
    """Spans of memory that this process may read."""
    spans = []
    with open("/proc/self/maps") as file:
        for line in file:
            span, rights = line.split()[:2]
            if rights.startswith("r"):
                low, high = span.split("-")
                spans.append((int(low, 16), int(high, 16)))
    return spans


def _within(spans: list[tuple[int, int]], address: int, size: int) -> bool:
    return any(low <= address and address + size <= high for low, high in spans)
