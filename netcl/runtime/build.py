"""The driver's side of the program cache: building a program from its text, and loading what is kept of one.

PoCL keeps what it compiled itself, for the group sizes that were used. Asked for a binary it compiles every kernel once
more for all sizes, which took two thirds of a first run. So what is kept of its programs only says that PoCL has them,
and core/device/pocl_cache.py looks after its folder. It also says with which declarations of built-in functions a
program was built (core/device/pocl_header.py).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from netcl.core.device import pocl, pocl_cache, pocl_header
from netcl.core.errors import BuildError

Edit = Callable[[bytes], bytes]
OF_POCL = "kept by PoCL in {}"


class Job(NamedTuple):
    """A program to load or build. `edit` changes its binary; `keep_source` puts the text of one that fails aside."""

    context: Any
    source: str
    device: Any
    options: tuple[str, ...]
    edit: Edit | None
    keep_source: Callable[[], Path | None]


def restore(job: Job, kept: bytes) -> Any:
    """The driver's program from what `build` gave to keep; None where that is of no use any more."""
    import pyopencl as cl

    folder, start = pocl.workplace(job.device), time.time()
    if folder is None or job.edit:
        return _loaded(cl, job, kept)
    note, _, builtins = kept.decode(errors="replace").partition("\n")
    if note != OF_POCL.format(folder):
        return None
    raw = cl._cl._Program(job.context, builtins + job.source)
    try:
        raw._build(" ".join((*job.options, pocl_header.GUARD) if builtins else job.options).encode(), [job.device])
        whole = raw.get_info(cl.program_info.NUM_KERNELS)
    except cl.Error:
        whole = 0
    return None if not whole and pocl_cache.forget(start) else raw  # what it kept was damaged


def build(job: Job, binary: bool) -> tuple[Any, bytes]:
    """The driver's program from its text, and with `binary` what to keep of it. Raises BuildError."""
    import pyopencl as cl

    folder, start = pocl.workplace(job.device), time.time()
    if folder is not None and not job.edit:
        raw, builtins = _declared(cl, job)
        if not raw.get_info(cl.program_info.NUM_KERNELS) and pocl_cache.forget(start):  # PoCL had a damaged one
            raw, builtins = _declared(cl, job)
        return raw, f"{OF_POCL.format(folder)}\n{builtins}".encode()
    raw = _compiled(cl, job)
    if not binary and not job.edit:
        return raw, b""
    devices, binaries = raw.get_info(cl.program_info.DEVICES), raw.get_info(cl.program_info.BINARIES)
    kept = bytes(dict(zip(devices, binaries)).get(job.device) or b"")
    if job.edit:
        kept = job.edit(kept)
        raw = cl._cl._Program(job.context, [job.device], [kept])
        try:
            raw._build(options=b"", devices=[job.device])
        except cl.Error as error:
            raise failure(cl, job._replace(options=(*job.options, "edited")), raw, error) from None
    return raw, kept


def _loaded(cl: Any, job: Job, kept: bytes) -> Any:
    """The program of a binary; None where the driver changed without changing its version, and refuses it."""
    try:
        raw = cl._cl._Program(job.context, [job.device], [kept])
        raw._build(options=b"", devices=[job.device])
    except cl.Error:
        return None
    return raw


def _declared(cl: Any, job: Job) -> tuple[Any, str]:
    """PoCL's program of a text, and the declarations that it was built with in the place of PoCL's header."""
    builtins = pocl_header.declarations(job.source, job.device)
    if builtins:
        raw = cl._cl._Program(job.context, builtins + job.source)
        with contextlib.suppress(cl.Error):  # a name put together that was missed, or a fault that is told below
            raw._build(" ".join((*job.options, pocl_header.GUARD)).encode(), [job.device])
            return raw, builtins
    return _compiled(cl, job), ""


def _compiled(cl: Any, job: Job) -> Any:
    """The program of a text. The raw class, because `build` of pyopencl keeps a cache of its own and turns compiler
    remarks into warnings."""
    raw = cl._cl._Program(job.context, job.source)
    try:
        raw._build(" ".join(job.options).encode(), [job.device])
    except cl.Error as error:
        raise failure(cl, job, raw, error) from None
    return raw


def failure(cl: Any, job: Job, raw: Any, error: Exception) -> BuildError:
    """The error for a program that does not build, with the log; the source is kept for its line numbers."""
    try:
        log = str(raw.get_build_info(job.device, cl.program_build_info.LOG)).strip()
    except cl.Error:
        log = ""
    log, device = log or str(error), job.device.name.strip()
    path = job.keep_source()
    names = ", ".join(kernel_names(job.source)) or "a program without kernels"
    made = BuildError(
        f'{names}: failed to build on "{device}" (driver {job.device.driver_version}, '
        f"options {' '.join(job.options) or 'none'}; source kept at {path or 'no writable folder'}):\n{log}"
    )
    made.log, made.options, made.device, made.source_path = log, job.options, device, path
    return made


def kernel_names(source: str) -> list[str]:
    """Names of the kernels in `source`."""
    return re.findall(
        r"\bkernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)", source.replace("__kernel", "kernel")
    )
