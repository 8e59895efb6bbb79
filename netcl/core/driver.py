"""What has to be set in the environment before pyopencl loads: the list of drivers, and caches that can be written.

The loader reads a folder of one-line `.icd` files, each naming a driver library. Those that come with the wheel of the
Intel CPU runtime name a path of the machine it was built on, so they never work from a virtual environment. `register`
writes a private folder with a right one and copies of the system's, and points OCL_ICD_VENDORS to it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from netcl.core import settings
from netcl.core.paths import cache_dir, distrust

CHOSEN_BY_USER = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
VENDOR_FOLDERS = ("/etc/OpenCL/vendors", f"{sys.prefix}/etc/OpenCL/vendors")
ROOM, PROBE = 64 << 20, 1 << 16  # bytes that a disk with room has left, and that are written to see
FIX = "pip install intel-opencl-rt intel-cmplr-lib-rt"


def intel_library() -> Path | None:
    """The Intel CPU runtime's driver library, if its wheel is installed; warns when the other half is missing."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(f.locate())).resolve() for f in files if f.name == "libintelocl.so"]
    library = next((path for path in found if path.exists()), None)
    if library is not None and not (library.parent / "libimf.so").exists():
        warnings.warn(f"the Intel CPU runtime needs intel-cmplr-lib-rt beside it and is left out; {FIX}.", stacklevel=3)
        return None
    return library


def system_drivers(folders: tuple[str, ...] = VENDOR_FOLDERS) -> dict[str, str]:
    """File name and content of every usable `.icd` file of the system: a bare library name, or a path that exists."""
    drivers: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        try:
            for path in sorted(Path(folder).glob("*.icd")):
                text = path.read_text(encoding="utf-8", errors="surrogateescape").strip()
                if text and (not text.startswith("/") or Path(text).exists()):
                    drivers.setdefault(path.name, text)
        except OSError:
            continue  # a folder we may not read is one the loader may not read either
    return drivers


def _write(folder: Path, drivers: dict[str, str]) -> None:
    for name, text in drivers.items():
        (folder / name).write_text(text + "\n", encoding="utf-8", errors="surrogateescape")


def vendor_folder(drivers: dict[str, str]) -> Path:
    """A folder holding `drivers`: in the cache, named after its content, else one that lasts for this process."""
    digest = hashlib.sha256(repr(sorted(drivers.items())).encode()).hexdigest()[:16]
    base = cache_dir()
    if base is not None and not any(distrust(f) for f in (base, base / "drivers", base / "drivers" / digest)):
        final = base / "drivers" / digest
        if final.is_dir():
            return final
        try:
            final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=final.parent))
            try:
                _write(draft, drivers)
                draft.rename(final)  # fails when another process was faster; its folder is the same
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            return final
        except OSError:
            if final.is_dir():
                return final
    folder = Path(tempfile.mkdtemp(prefix="netcl-drivers-"))
    _remove_at_exit(folder)
    _write(folder, drivers)
    return folder


def _remove_at_exit(folder: str | Path) -> None:
    """Remove a folder when this process ends; its forks leave it."""
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def prepare() -> None:
    """Everything in this module; `import netcl` calls it first."""
    register()
    spare_caches()


def spare_caches() -> None:
    """Give PoCL a folder beside our programs. Where a cache cannot be used, a temporary one, and turn pyopencl's off.

    PoCL would list no device where it may not write, end the process where the disk is full, and run what others put
    there; pyopencl would fail at the first kernel. A folder that the user chose for PoCL stays.
    """
    if sys.platform != "linux":
        return
    if _unusable(_home()):
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    ours, chosen = own_pocl_folder(), os.environ.get("POCL_CACHE_DIR")
    keep = settings.value("NETCL_CACHE_MB") > 0
    if not chosen and ours is not None and keep:
        os.environ["POCL_CACHE_DIR"] = str(ours)
    chosen = "" if chosen == str(ours) else chosen  # a process that netcl started found it set
    used = pocl_folder()
    bad = distrust(used) or (not chosen and distrust(used.parent))
    why = bad or _unusable(chosen or existing(used))
    if not why and (chosen or keep):
        return
    folder = _temporary()
    if folder is not None:  # else the first program, or `manager.notes`, tells what is missing
        _remove_at_exit(folder)
        os.environ["POCL_CACHE_DIR"] = folder
        if chosen or bad:
            warnings.warn(f"PoCL's programs are built anew and not kept: {used} {why}.", stacklevel=4)


def own_pocl_folder() -> Path | None:
    """The folder that netcl gives PoCL, None where there is no place for it."""
    base = cache_dir()
    return None if base is None else base.absolute() / "pocl"


def pocl_folder() -> Path:
    """The folder in which PoCL compiles and keeps programs in this process: POCL_CACHE_DIR, else its own choice."""
    return Path(os.environ.get("POCL_CACHE_DIR") or os.path.join(_home(), "pocl", "kcache"))


def _home() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


def existing(folder: Path) -> str:
    """The folder, or the one above it that exists."""
    return str(next((f for f in (folder, *folder.parents) if f.exists()), folder))


def _unusable(folder: str) -> str:
    """Why nothing can be kept in `folder`, "" where it can."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            return "cannot be written"
        if room_in(folder) < ROOM:
            return "is on a disk without room"
        with tempfile.TemporaryFile(dir=folder) as file:  # quotas show when something is written
            file.write(bytes(PROBE))
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    return ""


def room_in(folder: str) -> int:
    """Bytes that this user may still write to the disk of `folder`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _temporary() -> str | None:
    """A new temporary folder on a disk with room."""
    with contextlib.suppress(OSError):
        for place in (tempfile.gettempdir(), "/var/tmp", "/dev/shm"):
            if os.path.isdir(place) and not _unusable(place):
                return tempfile.mkdtemp(prefix="netcl-pocl-", dir=place)
    return None


def register() -> Path | None:
    """Make an installed Intel CPU runtime visible; the library's path, or None when there is nothing to do.

    Does nothing on other systems than Linux, when the user chose drivers (OCL_ICD_VENDORS, OPENCL_VENDOR_PATH), or when
    the system already lists the runtime. Warns when it is too late because pyopencl was imported first.
    """
    if sys.platform != "linux" or any(os.environ.get(name) for name in CHOSEN_BY_USER):
        return None
    library = intel_library()
    if library is None:
        return None
    drivers = system_drivers()
    if any(Path(text).name == library.name for text in drivers.values()):
        return None
    if "pyopencl" in sys.modules:
        warnings.warn(
            "pyopencl was imported before netcl, so the Intel CPU runtime stays hidden; import netcl first.",
            stacklevel=3,
        )
        return None
    try:
        folder = vendor_folder({**drivers, "zz-intel-cpu.icd": str(library)})
    except OSError as error:
        warnings.warn(f"the Intel CPU runtime stays hidden: no folder for its .icd file ({error}).", stacklevel=3)
        return None
    os.environ["OCL_ICD_VENDORS"] = str(folder)
    return library
