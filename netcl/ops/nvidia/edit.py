"""Edits of NVIDIA program binaries: the only place that changes what a compiler produced.

Why: the warpgroup instructions of compute capability 9.0 (`wgmma`, `setmaxnreg`) exist only for the target `sm_90a`,
and NVIDIA's OpenCL compiler assembles for `sm_90`. Its program binary, however, is PTX text, which the driver assembles
again when it is loaded. So a kernel writes those instructions as comments ("// @@wgmma..."), is built normally, and the
text is then changed in three ways: the comment marks go, the target becomes `sm_90a`, and the kernel promises how many
groups a multiprocessor holds ("// @@groups 2", else one): the assembler then cuts registers to fit, and without the
promise it ignores `setmaxnreg`.

Everything is refused that is not exactly such a text (`UnknownProgram`); the caller then uses another kernel. What the
driver does with the result is tried in a child process first (probe.py).
"""

from __future__ import annotations

import re

from netcl.core.errors import DeviceError

MARK = "// @@"
GROUPS = "groups "
VERSIONS = ((8, 0), (9, 9))  # of PTX: the first with these instructions, the last minor release of what was tried
TARGET = "sm_90"
INSTRUCTIONS = (
    "wgmma.fence.sync.aligned;",
    "wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group.sync.aligned ",
    "setmaxnreg.dec.sync.aligned.u32 ",
    "setmaxnreg.inc.sync.aligned.u32 ",
    "{ .reg .pred p; setp.ne.b32 p, ",
)


class UnknownProgram(DeviceError):
    """A program binary is not the text that `activate` knows how to edit."""


def activate(binary: bytes) -> bytes:
    """The PTX of a program with its marked instructions active, for the target sm_90a. Raises UnknownProgram."""
    text = _text(binary)
    _check_header(text)
    marked = [line[line.index(MARK) + len(MARK) :] for line in text.splitlines() if MARK in line]
    if not marked:
        raise _refusal("at least one instruction marked '// @@'", "none")
    promised = {int(line.removeprefix(GROUPS)) for line in marked if re.fullmatch(GROUPS + r"[1-8]", line)}
    if len(promised) > 1:
        raise _refusal("one promised number of groups", repr(promised))
    for instruction in (line for line in marked if not re.fullmatch(GROUPS + r"[1-8]", line)):
        if not instruction.startswith(INSTRUCTIONS):
            raise _refusal("marked wgmma or setmaxnreg instructions", repr(instruction[:60]))
    if text.count(".entry") != text.count(".reqntid"):
        raise _refusal("kernels with a required work-group size", "one without")
    if ".minnctapersm" in text or ".maxntid" in text:
        raise _refusal("kernels without launch bounds", "one with")
    text = re.sub(f"{MARK}{GROUPS}.*", "", text).replace(MARK, "")
    text = re.sub(rf"^(\.target\s+){TARGET}\b", rf"\g<1>{TARGET}a", text, count=1, flags=re.M)
    groups = max(promised, default=1)
    return text.replace(".reqntid", f".minnctapersm {groups}\n.reqntid").encode("ascii")


def _text(binary: bytes) -> str:
    """The binary as text, without trailing zeros."""
    try:
        text = binary.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise _refusal("PTX text", "a binary") from None
    if "\0" in text:
        raise _refusal("one PTX text", "several parts")
    return text


def _check_header(text: str) -> None:
    """Refuse unless version, target and address size are stated once each and are known."""
    version = re.findall(r"^\.version\s+(\d+)\.(\d+)\s*$", text, flags=re.M)
    if len(version) != 1 or not VERSIONS[0] <= tuple(map(int, version[0])) <= VERSIONS[1]:
        raise _refusal(f"PTX of version {VERSIONS[0]} to {VERSIONS[1]}", repr(version))
    targets = re.findall(r"^\.target\s+(.*?)\s*$", text, flags=re.M)
    if len(targets) != 1 or targets[0].split(",")[0].strip() != TARGET:
        raise _refusal(f"the target {TARGET}", repr(targets))
    if re.findall(r"^\.address_size\s+(\d+)", text, flags=re.M) != ["64"]:
        raise _refusal("64-bit addresses", "another size")


def _refusal(expected: str, got: str) -> UnknownProgram:
    return UnknownProgram(f"activate: expected {expected}, got {got}; the driver's program format is not known here.")
