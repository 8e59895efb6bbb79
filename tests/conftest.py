"""Shared set-up: a program cache of the suite's own, and one `queue` per backend and device found."""

import os
from pathlib import Path

# Before netcl or any driver starts. All workers share one folder: entries are complete or absent (runtime/cache.py).
CACHE = Path(__file__).resolve().parents[1] / ".cache"
os.environ.setdefault("NETCL_CACHE_DIR", str(CACHE / "netcl"))
os.environ.setdefault("POCL_CACHE_DIR", str(CACHE / "pocl"))
os.environ.pop("NETCL_DEVICE", None)
os.environ.pop("NETCL_PLATFORM_FILTER", None)

import pytest
from hypothesis import HealthCheck, settings

from netcl.core.device import manager

settings.register_profile(
    "ci", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("ci")

DEVICES = ["numpy", *(f"cl{i}-{profile.vendor}-{profile.kind}" for i, profile in enumerate(manager.profiles))]


def handle(name):
    """The handle behind one of DEVICES."""
    return manager.default("cpu") if name == "numpy" else manager.default(int(name[2:].split("-")[0]))


@pytest.fixture(params=DEVICES, scope="session")
def queue(request):
    """A queue of every backend: NumPy and each OpenCL device."""
    return handle(request.param).queue


@pytest.fixture(params=DEVICES[1:], scope="session")
def cl_queue(request):
    """A queue of every OpenCL device."""
    return handle(request.param).queue


@pytest.fixture(scope="session")
def cpu_queue():
    """The NumPy queue."""
    return manager.default("cpu").queue


def pytest_collection_modifyitems(items):
    """Skip what is marked `gpu` where there is none."""
    if any(profile.kind == "gpu" for profile in manager.profiles):
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no OpenCL GPU here"))
