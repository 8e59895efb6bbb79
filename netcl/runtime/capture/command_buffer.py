"""Kernels as one cl_khr_command_buffer, through ctypes: pyopencl does not know the extension."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from netcl.core.errors import DeviceError
from netcl.core.protocols import Queue

P, UINT = ctypes.c_void_p, ctypes.c_uint
EXTENSION = "cl_khr_command_buffer"
CAPABILITIES, SIMULTANEOUS = 0x12A9, 1 << 2  # CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR and its bit
FLAGS, SIMULTANEOUS_USE = 0x1293, 1  # CL_COMMAND_BUFFER_FLAGS_KHR and its bit
FUNCTIONS = {
    "clCreateCommandBufferKHR": (P, (UINT, P, P, P)),
    "clFinalizeCommandBufferKHR": (ctypes.c_int, (P,)),
    "clReleaseCommandBufferKHR": (ctypes.c_int, (P,)),
    "clCommandNDRangeKernelKHR": (ctypes.c_int, (P, P, P, P, UINT, P, P, P, UINT, P, P, P)),
    "clEnqueueCommandBufferKHR": (ctypes.c_int, (UINT, P, P, UINT, P, P)),
}


@cache
def functions(api: Any, platform: int) -> dict[str, Any] | None:
    """The extension's functions on a platform, or None."""
    lookup = api.clGetExtensionFunctionAddressForPlatform
    lookup.restype, lookup.argtypes = P, (P, ctypes.c_char_p)
    found = {}
    for name, (result, arguments) in FUNCTIONS.items():
        address = lookup(platform, name.encode())
        if not address:
            return None
        found[name] = ctypes.CFUNCTYPE(result, *arguments)(address)
    return found


class CommandBuffer:
    """Kernel launches that the driver took once; `run` sends them all."""

    def __init__(self, queue: Queue, api: Any, launches: Sequence[tuple[str, Any, bool]]) -> None:
        """Args: launches: (name, replay.Record, whether its local size counts), in order."""
        found = functions(api, queue.device.platform.int_ptr)
        if found is None:
            raise DeviceError(f"replay: expected {EXTENSION}, got a driver without it.")
        self._f, self._api, self._event = found, api, P()
        self._overlaps = self._capabilities(queue) & SIMULTANEOUS != 0
        self._queue = (P * 1)(queue.int_ptr)
        properties = (ctypes.c_uint64 * 3)(FLAGS, SIMULTANEOUS_USE, 0) if self._overlaps else None
        status = ctypes.c_int(0)
        self._handle = found["clCreateCommandBufferKHR"](1, self._queue, properties, ctypes.byref(status))
        self._check("creation", status.value)
        point = UINT(0)
        for i, (name, r, has_local) in enumerate(launches):
            before = (UINT * 1)(point.value)  # each waits for the one before, as in the queue
            what = (None, None, r.object, r.dims, r.start, r.global_size, r.local_size if has_local else None)
            waits = (min(i, 1), before if i else None, ctypes.byref(point), None)
            self._check(name, found["clCommandNDRangeKernelKHR"](self._handle, *what, *waits))
        self._check("finalizing", found["clFinalizeCommandBufferKHR"](self._handle))

    def _capabilities(self, queue: Queue) -> int:
        value = ctypes.c_uint64(0)
        self._api.clGetDeviceInfo.argtypes = (P, UINT, ctypes.c_size_t, P, P)
        self._api.clGetDeviceInfo(queue.device.int_ptr, CAPABILITIES, 8, ctypes.byref(value), None)
        return value.value

    @staticmethod
    def _check(what: str, status: int) -> None:
        if status:
            raise DeviceError(f"replay: command buffer: {what} failed with OpenCL error {status}.")

    @staticmethod
    def supported(queue: Queue, api: Any) -> bool:
        """Whether the driver of `queue` has the extension with all its functions."""
        device = queue.device
        return EXTENSION in device.extensions.split() and functions(api, device.platform.int_ptr) is not None

    def run(self) -> None:
        """Send the launches once."""
        if self._overlaps:
            event = None
        else:  # the driver takes it again only when it is done
            self._wait()
            event = ctypes.byref(self._event)
        self._check("sending", self._f["clEnqueueCommandBufferKHR"](0, None, self._handle, 0, None, event))

    def _wait(self) -> None:
        if self._event.value:
            self._api.clWaitForEvents(1, ctypes.byref(self._event))
            self._api.clReleaseEvent(self._event)
            self._event = P()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._wait()
            self._f["clReleaseCommandBufferKHR"](self._handle)
