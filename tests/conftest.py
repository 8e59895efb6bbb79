"""Shared set-up: a program cache of the suite's own, and one `queue` per backend and device found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Before netcl or any driver starts. All workers share one folder: entries are complete or absent (runtime/cache.py).
CACHE = Path(__file__).resolve().parents[1] / ".cache"
os.environ.setdefault("NETCL_CACHE_DIR", str(CACHE / "netcl"))
os.environ.setdefault("POCL_CACHE_DIR", str(CACHE / "pocl"))
os.environ.setdefault("NETCL_CACHE_MB", "0")  # PoCL keeps its own programs, for all workers
os.environ.setdefault("NETCL_QUIET", "1")
os.environ.pop("NETCL_DEVICE", None)
os.environ.pop("NETCL_PLATFORM_FILTER", None)

import pytest
from hypothesis import HealthCheck, settings

from netcl.core.backend import native
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


@pytest.fixture(scope="session")
def c_library(tmp_path_factory):
    """The optional C functions: built here where there is a compiler, else those of the installation, else None.

    Tests that take it must hold without them too: launches and replays then go another way, and that is said.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return native.extension()
    source = Path(native.__file__).with_name("_send.c")
    path = tmp_path_factory.mktemp("c") / "_send.so"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, source], check=True)
    return native.load(str(path))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Wait for GPUs: a test that loses a device's context ends this process, instead of failing all that follow."""
    for i, profile in enumerate(manager.profiles):
        if profile.kind != "gpu":
            continue
        try:
            manager.default(i).queue.finish()
        except Exception as error:
            lost = f"{item.nodeid}: {profile.name} lost its context ({error})"
            if not hasattr(item.config, "workerinput"):
                pytest.exit(lost, returncode=70)
            sys.__stderr__.write(lost + "\n")
            os._exit(70)  # a worker of pytest-xdist: the next one takes over


POSING = ("gpu-kernels-on-", " as gpu")  # a CPU device that runs the kernels meant for GPUs: slow to build for
POSING_EACH = 2  # such cases kept per test function; all of them with NETCL_TEST_ALL=1


def pytest_collection_modifyitems(config, items):
    """Skip what is marked `gpu` where there is none; of the many cases of posing devices keep a spread."""
    posing = {}
    for item in items:
        if any(mark in item.name for mark in POSING):
            posing.setdefault(item.nodeid.split("[")[0], []).append(item)
    dropped = set()
    if os.environ.get("NETCL_TEST_ALL") != "1":
        for group in posing.values():
            step = max(1, -(-len(group) // POSING_EACH))
            dropped |= {item for i, item in enumerate(group) if i % step}
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]
    if any(profile.kind == "gpu" for profile in manager.profiles):
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no OpenCL GPU here"))
