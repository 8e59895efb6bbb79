"""Where netcl may keep files between runs."""

from __future__ import annotations

from pathlib import Path

from netcl.core import settings


def cache_dir() -> Path | None:
    """The folder for programs and other things that can be made again, or None where there is no home.

    `NETCL_CACHE_DIR` if set, else the platform's cache folder (`~/.cache/netcl` on Linux). Nothing is created here.
    """
    chosen = settings.value("NETCL_CACHE_DIR")
    try:
        if chosen:
            return Path(chosen).expanduser()
        from platformdirs import user_cache_dir

        return Path(user_cache_dir("netcl", appauthor=False))
    except (ImportError, RuntimeError, OSError):
        return None
