"""`DeviceProfile`: what kernels and tuning need to know about a device, read once."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from netcl.core.device import pocl
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue, Plans, state_of


@dataclass(frozen=True)
class DeviceProfile:
    """Identity, limits and abilities of a device. Sizes in bytes; versions as (major, minor)."""

    name: str
    vendor: str  # "NVIDIA", "AMD", "Intel", "Apple", "ARM", "Qualcomm", "PoCL", "NumPy", or the driver's own word
    kind: str  # "cpu", "gpu", "accelerator" or "numpy"
    architecture: str  # "sm_90", "gfx1100", "znver3"; "" where the driver does not tell
    driver: str
    platform: str
    version: tuple[int, int]
    compute_units: int
    max_work_group: int
    local_mem: int
    global_mem: int
    max_alloc: int
    extensions: frozenset[str]
    has_fp16: bool
    has_fp64: bool
    has_subgroups: bool
    integrated: bool  # shares its memory with the host
    c_version: tuple[int, int] = (1, 2)
    platform_version: str = ""
    has_svm_support: bool = False
    cache: int = 0  # bytes of the largest cache, 0 where the driver does not tell
    vector: int = 8  # floats of a vector in the kernels for CPU devices: 16 where registers hold as many, else 8

    @property
    def discrete(self) -> bool:
        """Whether it is a GPU with memory of its own, which copies from the host reach over a bus."""
        return self.kind == "gpu" and not self.integrated

    def group(self, most: int) -> int:
        """Work-items of a group: the largest power of two that is at most `most` and that the device can run."""
        return 1 << min(most, self.max_work_group).bit_length() - 1


_VENDORS = (
    ("nvidia", "NVIDIA"),
    ("advanced micro devices", "AMD"),
    ("authenticamd", "AMD"),
    ("amd", "AMD"),
    ("intel", "Intel"),
    ("apple", "Apple"),
    ("qualcomm", "Qualcomm"),
    ("arm", "ARM"),
    ("mesa", "Mesa"),
)


def _optional(device: Any, name: str, default: Any) -> Any:
    """An attribute that older drivers, or older pyopencl, do not know."""
    try:
        return getattr(device, name)
    except Exception:  # pyopencl's errors derive from RuntimeError, a name it does not know is an AttributeError
        return default


def _version(text: str) -> tuple[int, int]:
    found = re.search(r"OpenCL (?:C )?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (1, 0)


def _kind(bits: int) -> str:
    return "gpu" if bits & 4 else "cpu" if bits & 2 else "accelerator"  # CL_DEVICE_TYPE_*


def _vendor(device_vendor: str, platform_name: str, kind: str) -> str:
    if platform_name.startswith("Portable Computing Language") and kind == "cpu":
        return "PoCL"
    low = device_vendor.lower()
    return next((name for part, name in _VENDORS if re.search(rf"\b{part}", low)), device_vendor.strip() or "unknown")


def _architecture(device: Any, vendor: str, name: str) -> str:
    if vendor == "NVIDIA":
        major = _optional(device, "compute_capability_major_nv", None)
        return "" if major is None else f"sm_{major}{_optional(device, 'compute_capability_minor_nv', 0)}"
    if vendor == "AMD" and name.startswith("gfx"):
        return name.split(":")[0]
    if vendor == "PoCL":
        return pocl.teach(device) or str(device.version).rsplit("-", 1)[-1].strip()
    return ""


def device_profile(device: Any) -> DeviceProfile:
    """The profile of a pyopencl device. Raises what the driver raises when the device does not answer."""
    name, host = str(device.name).strip(), device.platform
    kind = _kind(int(device.type))
    vendor = _vendor(str(device.vendor), str(host.name), kind)
    extensions = frozenset(str(device.extensions).split())
    version = _version(str(device.version))
    subgroups = "cl_khr_subgroups" in extensions or (
        version >= (2, 1) and int(_optional(device, "max_num_sub_groups", 0) or 0) > 0
    )
    return DeviceProfile(
        name=name,
        vendor=vendor,
        kind=kind,
        architecture=_architecture(device, vendor, name),
        driver=str(device.driver_version).strip(),
        platform=str(host.name).strip(),
        version=version,
        compute_units=int(device.max_compute_units),
        max_work_group=int(device.max_work_group_size),
        local_mem=int(device.local_mem_size),
        global_mem=int(device.global_mem_size),
        max_alloc=int(device.max_mem_alloc_size),
        extensions=extensions,
        has_fp16="cl_khr_fp16" in extensions,
        has_fp64="cl_khr_fp64" in extensions or int(_optional(device, "double_fp_config", 0) or 0) != 0,
        has_subgroups=subgroups,
        integrated=kind == "cpu" or bool(_optional(device, "host_unified_memory", False)),
        c_version=_version(str(_optional(device, "opencl_c_version", ""))),
        platform_version=str(host.version).strip(),
        has_svm_support=bool(int(_optional(device, "svm_capabilities", 0) or 0)),
        cache=int(_optional(device, "global_mem_cache_size", 0) or 0),
        vector=16 if int(_optional(device, "native_vector_width_float", 0) or 0) >= 16 else 8,
    )


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # systems without sysconf
        return 0


@cache
def numpy_profile() -> DeviceProfile:
    """The profile of the NumPy backend."""
    memory = _host_memory()
    return DeviceProfile(
        name=f"NumPy {np.__version__}",
        vendor="NumPy",
        kind="numpy",
        architecture=platform.machine(),
        driver=np.__version__,
        platform="NumPy",
        version=(0, 0),
        compute_units=os.cpu_count() or 1,
        max_work_group=1,
        local_mem=0,
        global_mem=memory,
        max_alloc=memory,
        extensions=frozenset(),
        has_fp16=True,
        has_fp64=True,
        has_subgroups=False,
        integrated=True,
        c_version=(0, 0),
    )


def profile_of(queue: Queue) -> DeviceProfile:
    """The profile of the device behind `queue`, read on first use and kept with the queue."""
    state = getattr(queue, "netcl_state", None) or state_of(queue)
    if state.profile is None:
        state.profile = numpy_profile() if isinstance(queue, CPUQueue) else device_profile(queue.device)
    profile: DeviceProfile = state.profile
    return profile


@contextmanager
def override_profile(queue: Queue, profile: DeviceProfile) -> Iterator[DeviceProfile]:
    """Pretend that the device behind `queue` is as `profile` says: tests hide an extension or lower a limit with it."""
    state = state_of(queue)
    before = profile_of(queue), state.plans
    state.profile, state.plans = profile, Plans()  # prepared launches depend on the profile
    try:
        yield profile
    finally:
        state.profile, state.plans = before
