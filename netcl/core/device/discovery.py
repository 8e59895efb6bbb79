"""Finding devices and opening them: `manager.default("auto").queue` is where most programs start.

A request names a device: "auto", "gpu", "gpu:1", "cpu" (NumPy), "cl:cpu", "cl:cpu:1", "platform:device" (each part a
number or a piece of the name), an index into `manager.devices`, a pyopencl device, or a handle. Nothing ever prompts.

Environment: NETCL_DEVICE replaces "auto" by another request; NETCL_PLATFORM_FILTER keeps only the platforms whose name
holds the given text; NETCL_PROFILE=1 opens queues that take time stamps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from netcl.core import debug, process, settings
from netcl.core.device import pocl
from netcl.core.device.profile import DeviceProfile, device_profile, numpy_profile, override_profile, profile_of
from netcl.core.errors import DeviceError
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue, state_of

__all__ = [
    "DeviceHandle",
    "DeviceManager",
    "DeviceProfile",
    "device",
    "manager",
    "names_device",
    "override_profile",
    "profile_of",
    "queue_of",
]

FORMS = '"auto", "gpu", "gpu:N", "cpu" (NumPy), "cl:cpu", "platform:device", an index, a pyopencl device or a queue'
FIX = (
    "install your GPU vendor's OpenCL driver, or `pip install pyopencl[pocl]` for a driver that uses the CPU; "
    "`netcl devices` and `clinfo` show what the loader finds"
)
EMULATORS = ("FPGA Emulation",)  # answer like devices, but exist to debug FPGA designs
GUESTS = ("Portable Computing Language", "Clover", "rusticl")  # list other vendors' GPUs, whose own drivers go first


@dataclass(frozen=True, eq=False)
class DeviceHandle:
    """An opened device. `backend` is "cl" or "cpu"; on "cpu" (NumPy) platform, device and context are None."""

    platform: Any
    device: Any
    context: Any
    queue: Queue
    backend: str
    device_name: str
    profile: DeviceProfile

    def __repr__(self) -> str:
        return f"DeviceHandle({self.device_name!r}, backend={self.backend!r}, platform={self.profile.platform!r})"


def _numpy_handle() -> DeviceHandle:
    profile = numpy_profile()
    return DeviceHandle(None, None, None, CPUQueue(), "cpu", profile.name, profile)


def _handle_of(queue: Queue) -> DeviceHandle:
    """A handle around a queue that is open already."""
    profile, dev = profile_of(queue), queue.device
    platform, backend = (None, "cpu") if dev is None else (dev.platform, "cl")
    return DeviceHandle(platform, dev, queue.context, queue, backend, profile.name, profile)


def _rank(profile: DeviceProfile) -> tuple[int, int, int]:
    """Sort key: GPUs (own driver first, discrete first), then CPU drivers (Intel, PoCL, others), then the rest."""
    if profile.kind == "gpu":
        return 0, int(any(name in profile.platform for name in GUESTS)), int(profile.integrated)
    if profile.kind == "cpu":
        return 1, {"Intel": 0, "PoCL": 1}.get(_driver(profile), 2), 0
    return 2, 0, 0


def _driver(profile: DeviceProfile) -> str:
    return "Intel" if profile.platform.startswith("Intel") else profile.vendor


class DeviceManager:
    """All platforms and devices, found on first use; opens each device once and keeps its handle.

    `opencl` stands in for the pyopencl module in tests.
    """

    def __init__(self, opencl: Any = None) -> None:
        self._opencl = opencl
        self._lock = threading.RLock()
        self._found: list[tuple[Any, Any, DeviceProfile]] | None = None  # (platform, device, profile)
        self._filtered: tuple[str, list[str]] = ("", [])
        self._notes: list[str] = []
        self._repairs: list[str] = []
        self._handles: dict[Any, DeviceHandle] = {}
        self._numpy: DeviceHandle | None = None
        self._auto: DeviceHandle | None = None
        self._reason = ""

    # -- discovery ----------------------------------------------------------------------------------------------------

    def _scan(self) -> list[tuple[Any, Any, DeviceProfile]]:
        with self._lock:
            if self._found is None:
                process.check()
                found: list[tuple[Any, Any, DeviceProfile]] = []
                for platform in self._platforms():
                    found += self._devices_of(platform)
                self._found = found
            return self._found

    def _platforms(self) -> list[Any]:
        if self._opencl is None:
            try:
                import pyopencl
            except ImportError as error:
                self._notes.append(f"pyopencl could not be imported ({error})")
                return []
            self._opencl = pyopencl
        process.mark_started()
        try:
            platforms = list(self._opencl.get_platforms())
        except Exception as error:  # the loader reports "no platform" as an error
            self._notes.append(f"the OpenCL loader found no driver ({error})")
            return []
        if not platforms:
            self._notes.append("the OpenCL loader found no driver")
        wanted = settings.value("NETCL_PLATFORM_FILTER")
        if wanted:
            self._filtered = (wanted, [str(p.name) for p in platforms])
            platforms = [p for p in platforms if wanted.lower() in str(p.name).lower()]
        return platforms

    def _devices_of(self, platform: Any) -> list[tuple[Any, Any, DeviceProfile]]:
        """The usable devices of a platform; what is left out, and why, goes to the notes."""
        found: list[tuple[Any, Any, DeviceProfile]] = []
        name = "?"
        try:
            name = str(platform.name).strip()
            if any(word in name for word in EMULATORS):
                self._notes.append(f"platform {name!r} was left out: an emulator")
                return []
            devices = list(platform.get_devices())
        except Exception as error:  # a broken driver must not take the others down
            self._notes.append(f"platform {name!r} was left out: {error}")
            return []
        if not devices:
            self._notes.append(f"platform {name!r} lists no device")
        for dev in devices:
            try:
                if not (dev.available and dev.compiler_available):
                    raise DeviceError("not available, or without a compiler")
                found.append((platform, dev, device_profile(dev)))
                if pocl.note(dev):
                    self._repairs.append(pocl.note(dev))
            except Exception as error:  # as above
                self._notes.append(f"a device of platform {name!r} was left out: {error}")
        return found

    @property
    def devices(self) -> tuple[Any, ...]:
        """Every usable pyopencl device, in the order of the platforms."""
        return tuple(dev for _, dev, _ in self._scan())

    @property
    def profiles(self) -> tuple[DeviceProfile, ...]:
        """The profiles of `devices`, in the same order."""
        return tuple(profile for _, _, profile in self._scan())

    def order(self) -> list[int]:
        """Indices of `devices` from the most to the least wanted: what "auto" tries, and how "gpu:N" counts."""
        return sorted(range(len(self._scan())), key=lambda i: _rank(self._scan()[i][2]))

    @property
    def handles(self) -> tuple[DeviceHandle, ...]:
        """Handles of all `devices`; opens those that are not open yet."""
        return tuple(self._open(*entry) for entry in self._scan())

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out during discovery, and why; then what had to be mended."""
        self._scan()
        return (*self._notes, *self._repairs)

    def profile(self, device: Any = "auto") -> DeviceProfile:
        """The profile of the device that a request names."""
        return self.default(device).profile

    # -- requests -----------------------------------------------------------------------------------------------------

    def default(self, device: Any = "auto") -> DeviceHandle:
        """Open what `device` names (see the module's first lines); the same request gives the same handle.

        "auto" is the thread's `device(...)` block, else NETCL_DEVICE, else the first that opens of: a GPU, Intel's CPU
        runtime, PoCL, another CPU driver, NumPy. `reason` then says why. Raises DeviceError, listing the choices, for
        anything unknown or absent.
        """
        if device is None or (isinstance(device, str) and device.strip().lower() == "auto"):
            return self._default()
        if isinstance(device, DeviceHandle):
            return device
        if isinstance(device, str):
            return self._named(device)
        if isinstance(device, int) and not isinstance(device, bool):
            return self._pick(device, list(self._scan()), device)
        if hasattr(device, "platform") and hasattr(device, "int_ptr"):
            known = next((e for e in self._scan() if e[1] == device), None)
            return self._open(*(known or (device.platform, device, device_profile(device))))
        if isinstance(device, CPUQueue) or hasattr(device, "finish"):
            return _handle_of(device)
        raise self._unknown(device)

    @property
    def reason(self) -> str:
        """Why `default("auto")` is what it is, in one sentence."""
        if getattr(_active, "stack", None):
            return "the enclosing device(...) block"
        wanted = settings.value("NETCL_DEVICE")
        if wanted and wanted.lower() != "auto":
            return f"NETCL_DEVICE={wanted}"
        self._default()
        return self._reason

    def _default(self) -> DeviceHandle:
        stack: list[DeviceHandle] = getattr(_active, "stack", [])
        if stack:
            return stack[-1]
        wanted = settings.value("NETCL_DEVICE")
        if wanted and wanted.lower() != "auto":
            return self._named(wanted)
        with self._lock:
            if self._auto is None:
                self._auto = self._choose()
            return self._auto

    def _choose(self) -> DeviceHandle:
        failed = []
        found = self._scan()
        if not found and self._filtered[1]:
            wanted, names = self._filtered
            raise DeviceError(
                f"device: expected NETCL_PLATFORM_FILTER to match a platform, got {wanted!r}; "
                f"choices: {', '.join(names)}."
            )
        for entry in (found[i] for i in self.order()):
            if entry[2].kind == "accelerator":
                continue
            try:
                handle = self._open(*entry)
            except DeviceError as error:
                failed.append(str(error))
                continue
            what = {"gpu": "the first GPU found", "cpu": f"no usable GPU, so the {_driver(entry[2])} driver for CPUs"}
            self._reason = "; ".join([what[entry[2].kind], *failed])
            debug.log(debug.DEVICES, f'device "auto": {handle.device_name}; why: {self._reason}')
            return handle
        why = "; ".join([*self._notes, *failed]) or "no OpenCL GPU or CPU was found"
        self._reason = f"NumPy, because {why}"
        debug.log(debug.DEVICES, f'device "auto": {self._reason}')
        return self._open_numpy()

    def _named(self, request: str) -> DeviceHandle:
        parts = [part.strip() for part in request.strip().split(":")]
        head = parts[0].lower()
        if head == "cpu" and len(parts) == 1:
            return self._open_numpy()
        found = list(self._scan())
        if parts[0].isdigit() and len(parts) == 1:
            return self._pick(int(parts[0]), found, request)
        kinds = parts[1:] if head == "cl" else parts
        if kinds and kinds[0].lower() in ("gpu", "cpu", "accelerator"):
            number = kinds[1] if len(kinds) == 2 else "0"
            if len(kinds) <= 2 and number.isdigit():
                same = [found[i] for i in self.order() if found[i][2].kind == kinds[0].lower()]
                if int(number) >= len(same):
                    raise self._absent(request, kinds[0].lower(), int(number) + 1, len(same))
                return self._pick(int(number), same, request)
        if len(parts) >= 2:
            return self._by_platform(parts[0], ":".join(parts[1:]), found, request)
        raise self._unknown(request)

    def _by_platform(self, platform: str, dev: str, found: list[Any], request: str) -> DeviceHandle:
        names = list(dict.fromkeys(e[2].platform for e in found))
        if platform.isdigit():
            chosen = names[int(platform) : int(platform) + 1]
        else:
            chosen = [name for name in names if platform and platform.lower() in name.lower()]
        entries = [e for e in found if e[2].platform in chosen]
        if dev.isdigit():
            return self._pick(int(dev), entries, request)
        return self._pick(0, [e for e in entries if dev.lower() in e[2].name.lower()], request)

    def _pick(self, index: int, entries: list[Any], request: Any) -> DeviceHandle:
        if not 0 <= index < len(entries):
            raise self._unknown(request)
        return self._open(*entries[index])

    def _absent(self, request: str, kind: str, wanted: int, count: int) -> DeviceError:
        """The error for "gpu", "gpu:3" and the like where there are fewer such devices."""
        if not self._scan():
            return self._unknown(request)
        name = {"gpu": "GPU", "cpu": "CPU device"}.get(kind, kind)
        need = f"an OpenCL {name}" if wanted == 1 else f"{wanted} OpenCL {name}s"
        return DeviceError(
            f"device: expected {need} for {request!r}, found {count or 'none'}; choices:{self._choices()}\n{FIX}."
        )

    def _choices(self) -> str:
        listed = "".join(f'\n  {i}: "{p.platform}:{p.name}" ({p.kind})' for i, p in enumerate(self.profiles))
        return f'\n  "cpu" (NumPy){listed}'

    def _unknown(self, request: Any) -> DeviceError:
        found = self._scan()
        if not found:
            why = "; ".join(self._notes) or "no platform is left by NETCL_PLATFORM_FILTER"
            return DeviceError(
                f"device: expected an OpenCL device for {request!r}, got none: no OpenCL driver was found ({why}); "
                f'{FIX}. Choices: "cpu" (NumPy).'
            )
        return DeviceError(f"device: expected {FORMS}, got {request!r}; choices:{self._choices()}")

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open_numpy(self) -> DeviceHandle:
        with self._lock:
            if self._numpy is None:
                self._numpy = _numpy_handle()
            return self._numpy

    def _open(self, platform: Any, dev: Any, profile: DeviceProfile) -> DeviceHandle:
        with self._lock:
            if dev not in self._handles:
                process.check()
                self._handles[dev] = self._make(platform, dev, profile)
            return self._handles[dev]

    def _make(self, platform: Any, dev: Any, profile: DeviceProfile, context: Any = None) -> DeviceHandle:
        cl = self._opencl
        try:
            context = context or cl.Context([dev])
            # Time stamps can double a GPU's launch cost, so profiling brings queues of its own (backend/timed.py).
            properties = cl.command_queue_properties.PROFILING_ENABLE if settings.value("NETCL_PROFILE") else 0
            queue = cl.CommandQueue(context, dev, properties=properties)
        except Exception as error:
            raise DeviceError(
                f"device: expected {profile.name!r} to open, got {error}; check its driver with `clinfo`."
            ) from error
        state_of(queue).profile = profile
        return DeviceHandle(platform, dev, context, queue, "cl", profile.name, profile)

    def sub_devices(self, handle: DeviceHandle, n: int) -> tuple[DeviceHandle, ...]:
        """`n` handles in one context, each with a queue of its own, for tests and data-parallel runs on one device.

        The device is split into equal parts where it can be; where it cannot, the queues share it. On NumPy the handles
        are independent queues.
        """
        if n < 1:
            raise DeviceError(f"sub_devices: expected n of at least 1, got {n}.")
        if handle.backend == "cpu":
            return tuple(_numpy_handle() for _ in range(n))
        process.check()
        cl, parts = self._opencl, [handle.device] * n
        if n > 1 and handle.profile.compute_units >= n:
            try:
                units = handle.profile.compute_units // n
                parts = handle.device.create_sub_devices([cl.device_partition_property.EQUALLY, units])[:n]
            except cl.Error:  # GPUs rarely split
                parts = [handle.device] * n
        context = cl.Context(list(dict.fromkeys(parts)))
        return tuple(self._make(handle.platform, part, device_profile(part), context) for part in parts)


_active = threading.local()


manager = DeviceManager()


def pick_default() -> DeviceHandle:
    """The device that "auto" means, opened."""
    return manager.default("auto")


class _Device:
    """Callable: makes the named device this thread's default inside a block. `device.manager` knows all devices.

    >>> with device("cpu") as dev:
    ...     x = Tensor.zeros(dev.queue, (2, 3))
    """

    @property
    def manager(self) -> DeviceManager:
        """The one manager of this process."""
        return manager

    @contextmanager
    def __call__(self, request: Any = "auto") -> Iterator[DeviceHandle]:
        handle = manager.default(request)
        stack = _active.__dict__.setdefault("stack", [])
        stack.append(handle)
        try:
            yield handle
        finally:
            stack.pop()

    def __repr__(self) -> str:
        return "netcl.device"


device = _Device()


def is_place(given: Any) -> bool:
    """Whether `given` can name a queue: None, a queue, a device or its name, or what has a queue."""
    if given is None or isinstance(given, (CPUQueue, str)):
        return True
    return any(hasattr(given, name) for name in ("netcl_state", "int_ptr", "queue"))


def queue_of(where: str, given: Any) -> Queue:
    """The queue that `given` means: a queue, what has one (a handle, a tensor), or a request to `manager.default`.

    None is the default device. Raises DeviceError for all else, and for devices that are not here.
    """
    queue: Queue = given
    if isinstance(given, CPUQueue) or hasattr(given, "netcl_state"):
        return queue
    if hasattr(given, "int_ptr") and hasattr(given, "finish"):  # a queue that netcl has not met yet
        return queue
    if hasattr(given, "queue"):
        return queue_of(where, given.queue)
    if given is None or isinstance(given, str) or (hasattr(given, "platform") and hasattr(given, "int_ptr")):
        try:
            return manager.default(given).queue
        except DeviceError as error:
            raise DeviceError(f"{where}: {str(error).removeprefix('device: ')}") from None
    raise DeviceError(
        f'{where}: expected a queue, a device handle or a device\'s name such as "auto", got {type(given).__name__} '
        f'{given!r}; take one from manager.default("auto").queue.'
    )


def names_device(text: str) -> bool:
    """Whether a text is meant as a device: "auto", "gpu:1", "cl:cpu", an index, "platform:device"."""
    return ":" in text or text.strip().lower() in ("auto", "gpu", "cpu", "cl", "accelerator") or text.strip().isdigit()
