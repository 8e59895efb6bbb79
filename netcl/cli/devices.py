"""List every OpenCL platform and device, the one that "auto" takes, and why."""

import argparse

from netcl.core.device.discovery import FIX, DeviceManager, DeviceProfile, manager
from netcl.core.device.profile import numpy_profile
from netcl.core.errors import DeviceError

SHORT = 6  # facts shown without --all
HELP = "list platforms and devices, the default one, and why"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--all", action="store_true", help="show also versions, limits and subgroups")


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


def facts(profile: DeviceProfile) -> dict[str, str]:
    """What is shown of one device after its request, one fact a column; the later ones with --all."""
    numpy = profile.kind == "numpy"
    shared = " shared" if profile.kind == "gpu" and profile.integrated else ""
    opencl = "" if numpy else f"{profile.version[0]}.{profile.version[1]}"
    return {
        "device": profile.name,
        "type": profile.kind,
        "units": str(profile.compute_units),
        "memory": size(profile.global_mem) + shared,
        "fp16": "yes" if profile.has_fp16 else "no",
        "fp64": "yes" if profile.has_fp64 else "no",
        "platform": profile.platform,
        "OpenCL": opencl,
        "driver": "" if numpy else profile.driver,
        "largest buffer": size(profile.max_alloc),
        "local memory": "" if numpy else size(profile.local_mem),
        "largest group": "" if numpy else str(profile.max_work_group),
        "subgroups": "yes" if profile.has_subgroups else "no",
    }


def default_line(found: DeviceManager) -> str:
    """What "auto" takes and why, or why it takes nothing."""
    try:
        handle = found.default("auto")
    except DeviceError as error:
        return f"default: none; {error}"
    return f'default ("auto"): {handle.device_name}; why: {found.reason}.'


def run(args: argparse.Namespace, found: DeviceManager = manager) -> int:
    """Print the table."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    rows = [*((f"{r} or {i}", facts(p)) for i, (r, p) in enumerate(zip(requests(found), found.profiles)))]
    rows.append(("cpu", facts(numpy_profile())))
    if args.all:
        table = Table("", *(request for request, _ in rows), box=SIMPLE)
        for name in rows[0][1]:
            table.add_row(name, *(escape(values[name]) for _, values in rows))
    else:
        columns = list(rows[0][1])[:SHORT]
        table = Table("request", *columns, box=SIMPLE)
        for column in table.columns:
            column.no_wrap = column.header != "device"
        for request, values in rows:
            table.add_row(request, *(escape(values[c]) for c in columns))
    console.print(table)
    line = default_line(found)
    console.print(escape(line))
    for note in found.notes:
        if note not in line:
            console.print(escape(f"note: {note}"))
    if not found.profiles:
        console.print(escape(f"No OpenCL device was found: {FIX}."))
    return 0
