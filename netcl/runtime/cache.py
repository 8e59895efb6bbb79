"""Built OpenCL programs, kept in memory and on disk, and the kernels made from them.

An entry on disk is `<key>.bin` (entry.py); what it holds comes from the driver, and goes to it (build.py). The key
covers source, build options, device, driver and platform version, so an update of any of them is a miss. Entries appear
by an atomic rename, so several processes may fill one folder. A folder that cannot be written means no cache, never an
error; one that others than the user may write to is not used, with one warning, since what they put there would run as
the user.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netcl.core import debug, process, settings
from netcl.core.backend.signature import Declared, Signature, declared
from netcl.core.device import pocl, pocl_cache
from netcl.core.errors import BuildError, DeviceError
from netcl.core.paths import cache_dir as default_cache_dir
from netcl.core.paths import distrust, own_temporary, read_regular
from netcl.moved import attribute
from netcl.runtime import build
from netcl.runtime.build import Edit
from netcl.runtime.entry import MAGIC, decode, encode

if TYPE_CHECKING:
    from netcl.core.backend.opencl import Kernel

LARGEST = 256 << 20  # bytes of a file that is read
KEEP = 0.9  # eviction goes down to this share of the limit, so that it does not run at every write
STALE = 3600.0  # seconds after which a draft was left behind by a process that died
PATIENCE = 2.0  # seconds of building before a line says what takes so long
FOLDER_FROM = ("NETCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME")  # variables that say where programs are kept


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
        self._tended: set[Any] = set()  # devices whose driver's own folder was looked after
        self._told: Any = ()  # the environment from which the folder follows, and that folder
        self._default: Path | None = None
        self.stats = CacheStats()
        self.quiet = False  # whether somebody else shows that programs are built

    @property
    def cache_dir(self) -> Path | None:
        """The folder of the entries; None where there is no home to keep them in, or others may write to it."""
        folder = self._given
        if folder is None:
            told = [os.environ.get(name) for name in FOLDER_FROM]
            if told != self._told:
                self._told, self._default = told, default_cache_dir()
            folder = self._default
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
        if process.forked:  # some drivers answer not even questions about a device there
            process.check()
        with self._lock:
            if where not in self._programs:  # another thread may have built it meanwhile
                start = time.perf_counter()
                key = program_key(src_code, (*options, edit.__name__) if edit else options, device)
                first = (device, os.environ.get("POCL_CACHE_DIR"))
                if first not in self._tended:
                    self._tended.add(first)
                    if pocl.is_pocl(device):
                        pocl_cache.tend_once(self.limit)
                job = build.Job(ctx, src_code, device, options, edit, partial(self._keep_source, key, src_code))
                self._programs[where] = self._restored(job, key) or self._new(job, key)
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

    def _restored(self, job: build.Job, key: str) -> Any:
        """The program from disk, or None."""
        import pyopencl as cl

        folder = self.cache_dir
        path = None if folder is None else folder / f"{key}.bin"
        entry = None if path is None else read_regular(path, LARGEST)
        if path is None or entry is None:
            return None
        found = decode(key, entry)
        raw = None if found is None else build.restore(job, found[1])
        if found is None or raw is None:
            self.stats.rejected += 1
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of last use decides what is evicted
        self.stats.disk_hits += 1
        program: Any = cl.Program(raw)
        program.netcl_kernels = found[0]
        return program

    def _built(self, device: Any, seconds: float) -> None:
        """Count a build from source; after PATIENCE seconds of them, say once what takes so long."""
        self.stats.builds += 1
        self._waited += seconds
        if self._waited > PATIENCE:
            self._waited = -math.inf
            if not (self.quiet or settings.value("NETCL_QUIET")):
                kept = ", kept for next time" if self.limit and self.cache_dir else ""
                print(f"netcl: building kernels for {device.name.strip()}{kept}", file=sys.stderr, flush=True)

    def _new(self, job: build.Job, key: str) -> Any:
        """The program from its text; what can be kept of it is put on disk."""
        import pyopencl as cl

        began = time.perf_counter()
        raw, binary = build.build(job, self.limit > 0)
        self._built(job.device, time.perf_counter() - began)
        program: Any = cl.Program(raw)
        program.netcl_kernels = _declared(job.source)
        if binary:
            self._store(key, encode(key, program.netcl_kernels, binary))
        return program

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


cacher = ProgramCache()


def get_kernel(queue: Any, source: str, name: str, options: tuple[str, ...] = (), edit: Edit | None = None) -> Kernel:
    """The kernel `name` of `source` for `queue`, built on first use and then kept with the queue.

    Every queue has kernel objects of its own, since they hold their arguments; the program behind them is shared.
    Raises BuildError when it does not build, or has no such kernel.
    """
    found: Kernel | None = getattr(queue, "netcl_kernels", {}).get((source, name, options))
    if found is not None:
        return found
    if debug.level >= debug.SOURCE:
        debug.log(debug.SOURCE, f"{name} {' '.join(options)}\n{source}")
    program = cacher.get_program(queue.context, source, queue.device, options, edit)
    kernels = program.netcl_kernels
    if name not in kernels:
        raise BuildError(f"get_kernel: expected a kernel {name!r}, got a program with: {', '.join(kernels) or 'none'}.")
    from netcl.core.backend.opencl import Kernel

    own: dict[Any, Kernel] = vars(queue).setdefault("netcl_kernels", {})
    return own.setdefault((source, name, options), Kernel(program, name, Signature(kernels[name])))


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
