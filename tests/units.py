"""What tests of matrix-unit kernels share: GPUs that have the units, errors that are allowed, packed operands."""

import numpy as np

from netcl.core.backend.opencl import read
from netcl.core.device import manager
from netcl.core.device.profile import profile_of
from netcl.ops.nvidia import probe

TOLERANCE = {
    ("float32", "high"): 8e-7,
    ("float32", "medium"): 5e-4,
    ("float16", "high"): 5e-4,
    ("bfloat16", "high"): 4e-3,
}


def queues():
    found = [i for i, p in enumerate(manager.profiles) if p.vendor == "NVIDIA" and p.kind == "gpu"]
    return [manager.default(i).queue for i in found if probe.available(manager.profiles[i])]


def families(queue):
    return probe.available(profile_of(queue))


def error(y, expected):
    return float(np.linalg.norm(y.astype("f8") - expected) / np.linalg.norm(expected))


def tf32(x):
    """x rounded to 10 bits of mantissa."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def packed(queue, pack, source, shape, dtype):
    out = np.empty(shape, dtype)
    read(queue, out, pack(source).buffer)
    return out
