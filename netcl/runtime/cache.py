"""Built OpenCL programs, kept in memory and on disk, and the kernels made from them.

An entry on disk is `<key>.bin`: a header (magic, key, checksum and length of what follows), the arguments of the
program's kernels as JSON, and the driver's binary. The key covers source, build options, device, driver and platform
version, so an update of any of them is a miss. The header is checked before the driver sees the binary, because drivers
crash on damaged ones. Entries appear by an atomic rename, so several processes may fill one folder. A folder that
cannot be written means no cache, never an error; one that others than the user may write to is not used, with one
warning, since what they put there would run as the user.

PoCL keeps what it compiled itself, for the group sizes that were used. Asked for a binary it compiles every kernel once
more for all sizes, which took two thirds of a first run. So its entries only note that PoCL has the program, and
core/device/pocl_cache.py looks after its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netcl.core import debug, process, settings
from netcl.core.backend.signature import Declared, Signature, declared
from netcl.core.device import pocl, pocl_cache
from netcl.core.driver import pocl_folder
from netcl.core.errors import BuildError, DeviceError
from netcl.core.paths import cache_dir as default_cache_dir
from netcl.core.paths import distrust, own_temporary, read_regular
from netcl.moved import attribute

if TYPE_CHECKING:
    from netcl.core.backend.opencl import Kernel

MAGIC = b"netcl program 2\n"
HEADER = len(MAGIC) + 32 + 32 + 4  # magic, key, sha256 of what follows it, length of the JSON
LARGEST = 256 << 20  # bytes of an entry that is read
KEEP = 0.9  # eviction goes down to this share of the limit, so that it does not run at every write
STALE = 3600.0  # seconds after which a draft was left behind by a process that died
PATIENCE = 2.0  # seconds of building before a line says what takes so long


Edit = Callable[[bytes], bytes]


@dataclass
class CacheStats:
    """Counts since the cache was made. `seconds` is the time spent building and loading programs."""

    builds: int = 0  # from source
    disk_hits: int = 0
    memory_hits: int = 0
    rejected: int = 0  # entries on disk that were damaged, foreign or refused by the driver
    evictions: int = 0
    seconds: float = 0.0


def program_key(source: str, options: Sequence[str], device: Any) -> str:
    """Name of an entry: sha256 over everything that the binary depends on."""
    host = device.platform
    facts = (device.name, device.version, device.driver_version, host.name, host.version)
    digest = hashlib.sha256()
    for field in (MAGIC, source, "\0".join(options), *facts):
        data = str(field).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


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


class ProgramCache:
    """Programs by source, options and device: in memory, then on disk, then built.

    `cache_dir` None means NETCL_CACHE_DIR, else the user's cache folder, looked up late. `limit` is in bytes; above
    it the entries used longest ago are removed.
    """

    def __init__(self, cache_dir: str | os.PathLike[str] | None = None, limit: int | None = None) -> None:
        self._given = None if cache_dir is None else Path(cache_dir).expanduser()
        self._limit = limit
        self._programs: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self._size: int | None = None  # bytes on disk, None before the first write
        self._writable = True  # as far as was seen
        self._waited = 0.0  # seconds of building until it was said, then -inf
        self._distrusted: set[Path] = set()  # folders that were warned of
        self.stats = CacheStats()

    @property
    def cache_dir(self) -> Path | None:
        """The folder of the entries; None where there is no home to keep them in, or others may write to it."""
        folder = self._given or default_cache_dir()
        why = "" if folder is None else distrust(folder)
        if folder is None or not why:
            return folder
        if folder not in self._distrusted:
            self._distrusted.add(folder)
            warnings.warn(
                f"programs are built anew and not kept: {folder} {why}, and would be a way to run their code; "
                f"`chmod 700` a folder of your own, or set NETCL_CACHE_DIR.",
                stacklevel=2,
            )
        return None

    @property
    def limit(self) -> int:
        """Bytes that the folder may take: as given, else NETCL_CACHE_MB, looked up late like the folder."""
        if self._limit is not None:
            return self._limit
        return int(settings.value("NETCL_CACHE_MB")) << 20

    def get_program(
        self, ctx: Any, src_code: str, device: Any, options: Sequence[str] | str = (), edit: Edit | None = None
    ) -> Any:
        """The built `cl.Program` of `src_code` for `device`. Raises BuildError with options, device and full log.

        `edit` changes the driver's binary before it is loaded and kept (see ops/nvidia/edit.py).
        """
        options = (options,) if isinstance(options, str) else tuple(options)
        where = (ctx, device, src_code, options, edit)
        program = self._programs.get(where)
        if program is not None:
            self.stats.memory_hits += 1
            return program
        if ctx is None or device is None:
            raise DeviceError("get_program: expected an OpenCL context and device, got those of the NumPy backend.")
        process.check()
        with self._lock:
            if where not in self._programs:  # another thread may have built it meanwhile
                start = time.perf_counter()
                key = program_key(src_code, (*options, edit.__name__) if edit else options, device)
                if pocl.is_pocl(device) and not edit:
                    program = self._from_driver(ctx, src_code, key, device, options)
                else:
                    program = self._load(ctx, key, device) or self._build(ctx, src_code, key, device, options, edit)
                self._programs[where] = program
                self.stats.seconds += time.perf_counter() - start
            return self._programs[where]

    def read(self, name: str) -> bytes | None:
        """The content of a file of the folder: None where there is none, b"" where it is no file to be read."""
        folder = self.cache_dir
        return None if folder is None else read_regular(folder / name, LARGEST)

    def write(self, name: str, data: bytes) -> bool:
        """Put a file into the folder, seen whole or not at all; False where that is not possible."""
        folder = self.cache_dir
        return folder is not None and _write_atomically(folder / name, data)

    def clear_memory(self) -> None:
        """Forget the programs of this process; those on disk stay."""
        self._programs.clear()

    def _entry(self, key: str) -> tuple[Declared, bytes, Path] | None:
        """What the folder holds of a program, and in which file; None where there is nothing of it."""
        folder = self.cache_dir
        path = None if folder is None else folder / f"{key}.bin"
        entry = None if path is None else read_regular(path, LARGEST)
        if path is None or entry is None:
            return None
        found = decode(key, entry)
        self.stats.rejected += found is None
        return None if found is None else (*found, path)

    def _load(self, ctx: Any, key: str, device: Any) -> Any:
        """The program from disk, or None."""
        import pyopencl as cl

        found = self._entry(key)
        if found is None:
            return None
        kernels, binary, path = found
        try:
            raw = cl._cl._Program(ctx, [device], [binary])
            raw._build(options=b"", devices=[device])
        except cl.Error:  # a driver that changed without changing its version
            self.stats.rejected += 1
            return None
        self._hit(path)
        return _program(raw, kernels)

    def _hit(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of last use decides what is evicted
        self.stats.disk_hits += 1

    def _from_driver(self, ctx: Any, source: str, key: str, device: Any, options: tuple[str, ...]) -> Any:
        """The program from PoCL, which looks into its folder first."""
        import pyopencl as cl

        pocl_cache.tend_once(self.limit)
        note = f"kept by PoCL in {pocl_folder()}".encode()
        kernels, kept, path = self._entry(key) or ({}, b"", Path())
        known = kept == note
        start, began = time.time(), time.perf_counter()
        raw = self._compiled(ctx, source, key, device, options, retry=known)
        if not raw.get_info(cl.program_info.NUM_KERNELS) and pocl_cache.forget(start):  # what it kept was damaged
            self.stats.rejected += 1
            raw, known = self._compiled(ctx, source, key, device, options), False
        if known:
            self._hit(path)
        else:
            kernels = _declared(source)
            self._built(device, time.perf_counter() - began)
            self._store(key, encode(key, kernels, note))
        return _program(raw, kernels)

    def _compiled(
        self, ctx: Any, source: str, key: str, device: Any, options: tuple[str, ...], retry: bool = False
    ) -> Any:
        """The driver's program, built. The raw class, because `build` of pyopencl keeps a cache of its own and turns
        compiler remarks into warnings. With `retry`, what PoCL kept is forgotten and built anew before it fails."""
        import pyopencl as cl

        pocl.check_room(device)
        raw, start = cl._cl._Program(ctx, source), time.time()
        try:
            raw._build(" ".join(options).encode(), [device])
        except cl.Error as error:
            if retry and pocl_cache.forget(start):
                return self._compiled(ctx, source, key, device, options)
            raise self._failure(cl, raw, source, key, device, options, error) from None
        return raw

    def _built(self, device: Any, seconds: float) -> None:
        """Count a build from source; after PATIENCE seconds of them, say once what takes so long."""
        self.stats.builds += 1
        self._waited += seconds
        if self._waited > PATIENCE:
            self._waited = -math.inf
            if not settings.value("NETCL_QUIET"):
                kept = ", kept for next time" if self.limit and self.cache_dir else ""
                print(f"netcl: building kernels for {device.name.strip()}{kept}", file=sys.stderr, flush=True)

    def _build(
        self, ctx: Any, source: str, key: str, device: Any, options: tuple[str, ...], edit: Edit | None = None
    ) -> Any:
        import pyopencl as cl

        began = time.perf_counter()
        raw = self._compiled(ctx, source, key, device, options)
        self._built(device, time.perf_counter() - began)
        kernels = _declared(source)
        if not edit and self.limit == 0:
            return _program(raw, kernels)
        devices: Any = raw.get_info(cl.program_info.DEVICES)
        binaries: Any = raw.get_info(cl.program_info.BINARIES)
        binary = dict(zip(devices, binaries)).get(device)
        if edit:
            binary = edit(bytes(binary or b""))
            raw = cl._cl._Program(ctx, [device], [binary])
            try:
                raw._build(options=b"", devices=[device])
            except cl.Error as error:
                raise self._failure(cl, raw, source, key, device, (*options, "edited"), error) from None
        if binary:
            self._store(key, encode(key, kernels, bytes(binary)))
        return _program(raw, kernels)

    def _failure(
        self, cl: Any, raw: Any, source: str, key: str, device: Any, options: tuple[str, ...], error: Exception
    ) -> BuildError:
        """The error for a program that does not build, with the log; the source is kept for its line numbers."""
        try:
            log = str(raw.get_build_info(device, cl.program_build_info.LOG)).strip()
        except cl.Error:
            log = ""
        log = log or str(error)
        path = self._keep_source(key, source)
        names = ", ".join(kernel_names(source)) or "a program without kernels"
        failure = BuildError(
            f'{names}: failed to build on "{device.name.strip()}" (driver {device.driver_version}, '
            f"options {' '.join(options) or 'none'}; source kept at {path or 'no writable folder'}):\n{log}"
        )
        failure.log, failure.options, failure.device, failure.source_path = log, options, device.name.strip(), path
        return failure

    def _keep_source(self, key: str, source: str) -> Path | None:
        for folder in (self.cache_dir, own_temporary()):
            if folder is not None and _write_atomically(folder / "failed" / f"{key}.cl", source.encode()):
                return folder / "failed" / f"{key}.cl"
        return None

    def _store(self, key: str, entry: bytes) -> None:
        folder = self.cache_dir
        if folder is None or len(entry) > self.limit:
            return
        if not _write_atomically(folder / f"{key}.bin", entry):
            if self._writable:
                debug.log(debug.DEVICES, f"programs are not kept: {folder} cannot be written, or its disk is full")
            self._writable = False
        else:
            self._size = _entries(folder)[1] if self._size is None else self._size + len(entry)
            if self._size > self.limit:
                self._evict(folder)

    def _evict(self, folder: Path) -> None:
        """Remove the entries used longest ago, and drafts of processes that died."""
        entries, size = _entries(folder)
        for _, length, path in sorted(entries):
            if size <= self.limit * KEEP:
                break
            with contextlib.suppress(OSError):  # another process may have removed it
                path.unlink()
                self.stats.evictions += 1
            size -= length
        for draft in folder.glob(".draft-*"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > STALE:
                    draft.unlink()
        self._size = size


def _declared(source: str) -> Declared:
    """The arguments of a program's kernels; none where conditions of the text are beyond our reading."""
    try:
        return declared(source)
    except (SyntaxError, TypeError, ArithmeticError):
        return {}


def _program(raw: Any, kernels: Declared) -> Any:
    """The driver's program as pyopencl knows it, with what its kernels take."""
    import pyopencl as cl

    program: Any = cl.Program(raw)
    program.netcl_kernels = kernels
    return program


def _entries(folder: Path) -> tuple[list[tuple[float, int, Path]], int]:
    """(time of last use, size, path) of every entry, and their total size."""
    found = []
    for path in folder.glob("*.bin"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            found.append((status.st_mtime, status.st_size, path))
    return found, sum(size for _, size, _ in found)


def _write_atomically(path: Path, data: bytes) -> bool:
    """Write `data` so that other processes see all of it or nothing; False where that is not possible."""
    draft = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, draft = tempfile.mkstemp(prefix=".draft-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(draft, path)
        return True
    except OSError:  # read-only, full, or gone: then there is no cache
        if draft is not None:
            with contextlib.suppress(OSError):
                os.unlink(draft)
        return False


def kernel_names(source: str) -> list[str]:
    """Names of the kernels in `source`."""
    return re.findall(
        r"\bkernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)", source.replace("__kernel", "kernel")
    )


cacher = ProgramCache()


def get_kernel(queue: Any, source: str, name: str, options: tuple[str, ...] = (), edit: Edit | None = None) -> Kernel:
    """The kernel `name` of `source` for `queue`, built on first use and then kept with the queue.

    Every queue has kernel objects of its own, since they hold their arguments; the program behind them is shared.
    Raises BuildError when it does not build, or has no such kernel.
    """
    try:
        found: Kernel = queue.netcl_kernels[source, name, options]
        return found
    except (AttributeError, KeyError):
        return _make_kernel(queue, source, name, options, edit)


def _make_kernel(queue: Any, source: str, name: str, options: tuple[str, ...], edit: Edit | None) -> Kernel:
    from netcl.core.backend.opencl import Kernel

    if debug.level >= debug.SOURCE:
        debug.log(debug.SOURCE, f"{name} {' '.join(options)}\n{source}")
    program = cacher.get_program(queue.context, source, queue.device, options, edit)
    kernels = program.netcl_kernels
    if name not in kernels:
        raise BuildError(f"get_kernel: expected a kernel {name!r}, got a program with: {', '.join(kernels) or 'none'}.")
    kernel = Kernel(program, name, Signature(kernels[name]))
    own: dict[Any, Kernel] = vars(queue).setdefault("netcl_kernels", {})
    return own.setdefault((source, name, options), kernel)


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
