"""A stand-in for the pyopencl module: platforms and devices as data, so that any machine can be described in a test."""

import itertools
from types import SimpleNamespace

from netcl.core.backend import opencl

GPU, CPU, ACCELERATOR = 4, 2, 8
_pointers = itertools.count(1)


class FakeError(Exception):
    """pyopencl.Error."""


class FakeDevice(SimpleNamespace):
    """The attributes that a profile is made of."""

    def __hash__(self):
        return self.int_ptr

    def __eq__(self, other):
        return self is other


def device(name, kind=GPU, **facts):
    defaults = {
        "vendor": "NVIDIA Corporation",
        "version": "OpenCL 3.0 CUDA",
        "driver_version": "550.1",
        "max_compute_units": 8,
        "max_work_group_size": 1024,
        "local_mem_size": 49152,
        "global_mem_size": 8 << 30,
        "max_mem_alloc_size": 2 << 30,
        "extensions": "cl_khr_fp64",
        "available": True,
        "compiler_available": True,
        "host_unified_memory": False,
    }
    return FakeDevice(name=name, type=kind, int_ptr=next(_pointers), **{**defaults, **facts})


class FakePlatform:
    def __init__(self, name, *devices, error=None):
        self.name, self.version, self._devices, self._error = name, "OpenCL 3.0", devices, error
        for dev in devices:
            dev.platform = self

    def get_devices(self):
        if self._error:
            raise FakeError(self._error)
        return list(self._devices)


class FakeOpenCL:
    """`get_platforms`, `Context` and `CommandQueue`; `refuses` names devices whose context does not open."""

    Error = FakeError
    command_queue_properties = SimpleNamespace(PROFILING_ENABLE=2)
    device_partition_property = SimpleNamespace(EQUALLY=0x1086)

    def __init__(self, *platforms, error=None, refuses=()):
        self.platforms, self.error, self.refuses = platforms, error, refuses

    def get_platforms(self):
        if self.error:
            raise FakeError(self.error)
        return list(self.platforms)

    def Context(self, devices):
        if devices[0].name in self.refuses:
            raise FakeError("OUT_OF_RESOURCES")
        return SimpleNamespace(devices=devices)

    def CommandQueue(self, context, dev, properties=0):
        return SimpleNamespace(context=context, device=dev, properties=properties)


class NarrowFills:
    """`opencl.fill_buffer` with a driver that takes offsets of 32 bits; `reach` stands for 2^31, so that small memory
    shows what lands elsewhere. `sent` counts the fills. Put it in place with `monkeypatch.setattr`.
    """

    def __init__(self, reach):
        self.reach, self.sent, self.real = reach, 0, opencl.fill_buffer

    def __call__(self, queue, buffer, pattern, nbytes, offset=0):
        self.sent += 1
        assert offset + nbytes <= self.reach, f"the driver's fill of {nbytes} bytes at {offset} would land elsewhere"
        self.real(queue, buffer, pattern, nbytes, offset)
