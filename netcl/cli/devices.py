"""List every OpenCL platform and device, the one that "auto" takes, and why."""

import argparse

from netcl.core.device.discovery import FIX, DeviceManager, DeviceProfile, manager
from netcl.core.device.profile import numpy_profile
from netcl.core.errors import DeviceError

HELP = "list platforms and devices, the default one, and why"


def arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def size(nbytes: int) -> str:
    """Bytes for people: 512 KiB, 2.0 GiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes >> 10} KiB"


def requests(found: DeviceManager) -> list[str]:
    """The short request for each device, in the order of `found.devices`: "gpu:0", "cl:cpu:0", "cl:accelerator:0"."""
    names = [""] * len(found.devices)
    for i, position in enumerate(found.order()):
        kind = found.profiles[position].kind
        same = sum(found.profiles[j].kind == kind for j in found.order()[:i])
        names[position] = f"{kind}:{same}" if kind == "gpu" else f"cl:{kind}:{same}"
    return names


def row(profile: DeviceProfile) -> tuple[str, ...]:
    """The cells of one device after the first column; none is wide, so that the table fits 80 columns."""
    numpy = profile.kind == "numpy"
    opencl = "" if numpy else f"\nOpenCL {profile.version[0]}.{profile.version[1]}, driver {profile.driver}"
    shared = "\nshared memory" if profile.kind == "gpu" and profile.integrated else ""
    yes = {True: "yes", False: "no"}
    return (
        f"{profile.name}\n{profile.platform}{opencl}",
        f"{profile.kind}\n{profile.compute_units} units{shared}",
        f"memory {size(profile.global_mem)}\nbuffer {size(profile.max_alloc)}"
        + ("" if numpy else f"\nlocal {size(profile.local_mem)}\ngroup {profile.max_work_group}"),
        f"{yes[profile.has_fp16]}\n{yes[profile.has_fp64]}\n{yes[profile.has_subgroups]}",
    )


def default_line(found: DeviceManager) -> str:
    """What "auto" takes and why, or why it takes nothing."""
    try:
        handle = found.default("auto")
    except DeviceError as error:
        return f"default: none; {error}"
    return f'default ("auto"): {handle.device_name}; why: {found.reason}.'


def run(args: argparse.Namespace, found: DeviceManager = manager) -> int:
    """Print the table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("request", "device", "type", "limits", "fp16\nfp64\nsubgroups", show_lines=True)
    for column in table.columns[2:]:
        column.no_wrap = True
    for i, (request, profile) in enumerate(zip(requests(found), found.profiles)):
        table.add_row(f"{request}\nor {i}", *map(escape, row(profile)))
    table.add_row("cpu", *map(escape, row(numpy_profile())))
    console.print(table)
    console.print(escape(default_line(found)))
    for note in found.notes:
        console.print(escape(f"note: {note}"))
    if not found.profiles:
        console.print(escape(f"No OpenCL device was found: {FIX}."))
    return 0
