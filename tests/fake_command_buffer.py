"""An OpenCL loader with cl_khr_command_buffer on top of the real one, for drivers without the extension.

It holds to the rules of the extension's specification: commands before finalization, sync points that exist, a buffer
without simultaneous use only when its last run is done, kernels kept alive. What breaks a rule gets an error code.
"""

import ctypes

from netcl.core.backend import native
from netcl.runtime.capture.command_buffer import CAPABILITIES, FLAGS, FUNCTIONS, SIMULTANEOUS, SIMULTANEOUS_USE

P = ctypes.c_void_p
INVALID_VALUE, INVALID_OPERATION, INVALID_HANDLE, INVALID_SYNC_POINT = -30, -59, -1138, -1139


def words(address, count, kind=ctypes.c_size_t):
    """`count` numbers at `address`, or None where there are none."""
    return None if not address else list((kind * count).from_address(address))


class Buffer:
    def __init__(self, queue, simultaneous):
        self.queue, self.simultaneous = queue, simultaneous
        self.commands, self.final, self.pending = [], False, False


class FakeLoader:
    """Everything of `native.library()`, and the extension's functions. `fails` maps a function's name to a status."""

    def __init__(self, simultaneous=True, without=(), fails=None):
        self.real, self.capable, self.without = native.library(), simultaneous, without
        self.fails, self.buffers, self.runs, self.released = fails or {}, {}, [], []
        kinds = {name: ctypes.CFUNCTYPE(result, *arguments) for name, (result, arguments) in FUNCTIONS.items()}
        self._kept = {name: kind(getattr(self, f"_{name[2:]}")) for name, kind in kinds.items()}
        self.clGetExtensionFunctionAddressForPlatform = lambda platform, name: self._address(name.decode())
        self.clGetDeviceInfo = lambda *args: self._device_info(*args)

    def __getattr__(self, name):
        return getattr(self.real, name)

    def _address(self, name):
        return None if name in self.without else ctypes.cast(self._kept[name], P).value

    def _device_info(self, device, what, size, place, _):
        assert (what, size) == (CAPABILITIES, 8)
        ctypes.memmove(place, ctypes.byref(ctypes.c_uint64(SIMULTANEOUS if self.capable else 1)), 8)
        return 0

    def clWaitForEvents(self, count, events):
        for buffer in self.buffers.values():
            buffer.pending = False
        return self.real.clWaitForEvents(count, events)

    def _CreateCommandBufferKHR(self, count, queues, properties, status):
        wanted = words(properties, 3, ctypes.c_uint64)
        right = count == 1 and wanted in ([FLAGS, SIMULTANEOUS_USE, 0], None) and (self.capable or wanted is None)
        code = self.fails.get("create", 0 if right else INVALID_VALUE)
        ctypes.c_int.from_address(status).value = code
        if code:
            return None
        handle = 1000 + len(self.buffers)
        self.buffers[handle] = Buffer(words(queues, 1)[0], wanted is not None)
        return handle

    def _CommandNDRangeKernelKHR(
        self, handle, queue, properties, kernel, dims, start, size, local, waits, points, point, mutable
    ):
        buffer = self.buffers.get(handle)
        if buffer is None or buffer.final or queue or properties or mutable:
            return INVALID_HANDLE if buffer is None else INVALID_OPERATION
        before = words(points, waits, ctypes.c_uint) if waits else []
        if any(not 0 < p <= len(buffer.commands) for p in before):
            return INVALID_SYNC_POINT
        self._each(self.real.clRetainKernel, kernel)
        buffer.commands.append((kernel, dims, *(words(a, 3) for a in (start, size, local)), before))
        ctypes.c_uint.from_address(point).value = len(buffer.commands)
        return self.fails.get("command", 0)

    def _FinalizeCommandBufferKHR(self, handle):
        self.buffers[handle].final = True
        return self.fails.get("finalize", 0)

    def _EnqueueCommandBufferKHR(self, count, queues, handle, waits, events, event):
        buffer = self.buffers[handle]
        if not buffer.final or (buffer.pending and not buffer.simultaneous):
            return INVALID_OPERATION
        for kernel, dims, start, size, local, _ in buffer.commands:
            sizes = [None if a is None else (ctypes.c_size_t * 3)(*a) for a in (start, size, local)]
            status = self.real.clEnqueueNDRangeKernel(buffer.queue, kernel, dims, *sizes, 0, None, None)
            if status:
                return status
        if event:
            buffer.pending = True
            marker = self.real.clEnqueueMarkerWithWaitList
            marker.argtypes = (P, ctypes.c_uint, P, P)
            marker(buffer.queue, 0, None, event)
        self.runs.append(handle)
        return self.fails.get("enqueue", 0)

    def _ReleaseCommandBufferKHR(self, handle):
        buffer = self.buffers.pop(handle)
        self.released.append((handle, buffer.pending))
        self._each(self.real.clReleaseKernel, *(kernel for kernel, *_ in buffer.commands))
        return 0

    @staticmethod
    def _each(function, *handles):
        for handle in handles:
            assert function(P(handle)) == 0
