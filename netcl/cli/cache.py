"""List the folders in which built kernels are kept, with size and bound, or clear those that are netcl's."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HELP = "list or clear what is kept of built kernels"


class Folder(NamedTuple):
    """One folder: what is in it, how much, and whose it is."""

    what: str
    path: Path
    entries: int
    size: int
    bound: str
    ours: bool


def arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to clear."""
    parser.add_argument("--clear", action="store_true", help="remove everything that netcl keeps; it is built anew")


def folders() -> Iterator[Folder]:
    """Every folder that there is: netcl's programs, PoCL's beside them, and those that drivers keep elsewhere."""
    from netcl.core import settings
    from netcl.core.device import pocl_cache
    from netcl.core.driver import own_pocl_folder, pocl_folder
    from netcl.core.paths import cache_dir

    bound, base = f"{settings.value('NETCL_CACHE_MB')} MiB", cache_dir()
    if base is not None and base.is_dir():
        files = [path for path in base.iterdir() if path.is_file()]
        rest = sum(pocl_cache.size_of(base / name) for name in ("failed", "drivers"))
        yield Folder("programs", base, len(files), sum(path.lstat().st_size for path in files) + rest, bound, True)
    for folder in dict.fromkeys(filter(None, (own_pocl_folder(), pocl_folder()))):
        if folder.is_dir():
            ours = folder == own_pocl_folder()
            count, size = len(pocl_cache.programs(folder)), pocl_cache.size_of(folder)
            yield Folder("programs of PoCL", folder, count, size, bound if ours else "none", ours)
    nvidia = Path(os.environ.get("CUDA_CACHE_PATH") or "~/.nv/ComputeCache").expanduser()
    if nvidia.is_dir():
        count = sum(len(names) for _, _, names in os.walk(nvidia))
        yield Folder("programs of NVIDIA's driver", nvidia, count, pocl_cache.size_of(nvidia), "the driver's", False)


def clear(folder: Folder) -> None:
    """Remove what a folder of netcl's holds. Another process may be filling it: what it made meanwhile may stay."""
    from netcl.core.driver import own_pocl_folder

    for path in folder.path.iterdir():
        if path == own_pocl_folder():
            continue  # a folder of the list itself
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def run(args: argparse.Namespace) -> int:
    """Print the table, after clearing if that was asked for."""
    from rich.console import Console
    from rich.table import Table

    from netcl.cli.devices import size
    from netcl.core.paths import cache_dir, distrust

    console, found = Console(highlight=False), list(folders())
    if args.clear:
        ours = [folder for folder in found if folder.ours and not distrust(folder.path)]
        for folder in ours:
            clear(folder)
        freed, found = sum(folder.size for folder in ours), list(folders())
        console.print(f"cleared {sum(folder.entries for folder in ours):,} entries, {size(freed)}")
    if not found:
        console.print(f"nothing is kept yet; programs will be in {cache_dir() or 'no folder: there is no home'}")
        return 0
    table = Table("what", "entries", "size", "bound")
    for folder in found:
        table.add_row(folder.what, f"{folder.entries:,}", size(folder.size), folder.bound)
    console.print(table)
    for folder in found:
        mine = "" if folder.ours else " (not netcl's: --clear leaves it)"
        console.print(f"{folder.what}: {folder.path}{mine}", soft_wrap=True, markup=False)
    return 0
