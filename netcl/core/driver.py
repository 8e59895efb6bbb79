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

from netcl.core.paths import cache_dir

CHOSEN_BY_USER = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
VENDOR_FOLDERS = ("/etc/OpenCL/vendors", f"{sys.prefix}/etc/OpenCL/vendors")
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
    if base is not None:
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
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write(folder, drivers)
    return folder


def prepare() -> None:
    """Everything in this module; `import netcl` calls it first."""
    register()
    spare_caches()


def spare_caches() -> None:
    """Where the user's cache folder cannot be written, give PoCL a temporary one and turn pyopencl's off.

    PoCL would list no device, and pyopencl would fail at the first kernel. What the user set stays.
    """
    if sys.platform != "linux" or _writable(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")):
        return
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    if not os.environ.get("POCL_CACHE_DIR"):
        with contextlib.suppress(OSError):  # not even a temporary folder: `manager.notes` then tells what is missing
            folder = tempfile.mkdtemp(prefix="netcl-pocl-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.environ["POCL_CACHE_DIR"] = folder


def _writable(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


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
