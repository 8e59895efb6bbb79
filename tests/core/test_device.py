"""Discovery and requests: real devices, and described machines without a driver, with several or broken platforms."""

import dataclasses
import multiprocessing
import os
import threading

import pytest
from fake_opencl import ACCELERATOR, CPU, FakeOpenCL, FakePlatform, device

from netcl.core import process
from netcl.core.device import DeviceHandle, DeviceManager, manager, override_profile, profile_of
from netcl.core.device import discovery as module
from netcl.core.errors import DeviceError
from netcl.core.queue import CPUQueue


@pytest.fixture
def two_platforms():
    """An NVIDIA platform with two GPUs, and PoCL, which lists the CPU and one of the same GPUs."""
    nvidia = FakePlatform("NVIDIA CUDA", device("RTX A"), device("RTX B"))
    cpu = device("pthread-EPYC", CPU, vendor="AuthenticAMD", version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-gnu-znver3")
    pocl = FakePlatform("Portable Computing Language", device("CUDA-RTX A"), cpu)
    return DeviceManager(FakeOpenCL(pocl, nvidia))


# -- no driver ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opencl",
    [
        FakeOpenCL(error="clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR"),
        FakeOpenCL(),
        FakeOpenCL(FakePlatform("Empty")),
        FakeOpenCL(FakePlatform("Broken", error="DEVICE_NOT_FOUND")),
    ],
    ids=["no-icd", "no-platform", "no-device", "broken-driver"],
)
def test_without_any_device(opencl):
    """The list is empty, "auto" is NumPy and says why, a GPU is refused with the fix."""
    found = DeviceManager(opencl)
    assert found.devices == () and found.profiles == ()
    handle = found.default("auto")
    assert (handle.backend, handle.platform, handle.device, handle.context) == ("cpu", None, None, None)
    assert isinstance(handle.queue, CPUQueue)
    assert found.reason.startswith("NumPy, because") and found.notes[0] in found.reason
    with pytest.raises(DeviceError, match=r"no OpenCL driver was found .*pip install pyopencl\[pocl\]"):
        found.default("gpu")


def test_without_pyopencl(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyopencl", None)
    found = DeviceManager()
    assert found.default("auto").backend == "cpu"
    assert "pyopencl could not be imported" in found.reason


def test_broken_platforms_and_devices_are_left_out_with_a_note():
    good = FakePlatform("NVIDIA CUDA", device("dead", available=False), device("RTX"))
    emulator = FakePlatform("Intel(R) FPGA Emulation Platform for OpenCL(TM)", device("emulator", ACCELERATOR))
    found = DeviceManager(FakeOpenCL(FakePlatform("Broken", error="boom"), emulator, good))
    assert [p.name for p in found.profiles] == ["RTX"]
    assert found.default("auto").device_name == "RTX"
    notes = "\n".join(found.notes)
    assert "'Broken' was left out: boom" in notes and "emulator" in notes and "not available" in notes


def test_a_gpu_that_does_not_open_is_passed_over_and_named():
    cpu = device("EPYC", CPU, vendor="AuthenticAMD")
    platforms = FakePlatform("NVIDIA CUDA", device("RTX")), FakePlatform("Portable Computing Language", cpu)
    found = DeviceManager(FakeOpenCL(*platforms, refuses=("RTX",)))
    assert found.default("auto").device_name == "EPYC"
    assert "'RTX' to open, got OUT_OF_RESOURCES" in found.reason
    with pytest.raises(DeviceError, match="OUT_OF_RESOURCES"):
        found.default("gpu")


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ("auto", "RTX A"),
        (None, "RTX A"),
        ("gpu", "RTX A"),
        ("gpu:0", "RTX A"),
        ("GPU:1", "RTX B"),
        ("gpu:2", "CUDA-RTX A"),
        ("cl:gpu:1", "RTX B"),
        ("cl:cpu", "pthread-EPYC"),
        ("cl:cpu:0", "pthread-EPYC"),
        ("nvidia:RTX B", "RTX B"),
        ("nvidia:1", "RTX B"),
        ("1:0", "RTX A"),
        ("portable:epyc", "pthread-EPYC"),
        (0, "CUDA-RTX A"),
        ("3", "RTX B"),
    ],
)
def test_every_form_of_request(two_platforms, request_, name):
    """Every form names a device, and the same device gives the same handle."""
    handle = two_platforms.default(request_)
    assert handle.device_name == name and handle.backend == "cl"
    assert two_platforms.default(handle.device) is handle
    assert two_platforms.default(handle) is handle
    assert two_platforms.default(device=request_) is handle


@pytest.mark.parametrize(
    "request_",
    ["gpu:3", "cl:cpu:1", "cuda", "", ":", "cl", "cpu:1", "nvidia:7", "amd:0", "nvidia:xx", 4, -1, True, 1.5, []],
)
def test_unknown_requests_list_the_choices(two_platforms, request_, monkeypatch):
    """Nothing prompts; what is unknown or out of range lists what there is."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("prompted"))
    with pytest.raises(DeviceError) as error:
        two_platforms.default(request_)
    for choice in (
        '"cpu" (NumPy)',
        "NVIDIA CUDA:RTX A",
        "NVIDIA CUDA:RTX B",
        "Portable Computing Language:pthread-EPYC",
    ):
        assert choice in str(error.value)


def test_order_is_gpu_then_intel_then_pocl_then_numpy():
    pocl = FakePlatform("Portable Computing Language", device("cpu-pthread", CPU, vendor="GenuineIntel"))
    intel = FakePlatform("Intel(R) OpenCL", device("Xeon", CPU, vendor="Intel(R) Corporation"))
    other = FakePlatform("Other", device("other cpu", CPU), device("board", ACCELERATOR))
    small = FakePlatform("Intel(R) OpenCL Graphics", device("UHD", vendor="Intel(R)", host_unified_memory=True))
    large = FakePlatform("AMD Accelerated", device("gfx1100", vendor="Advanced Micro Devices, Inc."))
    order = [large, small, intel, pocl, other]
    names = ["gfx1100", "UHD", "Xeon", "cpu-pthread", "other cpu"]
    for skip, name in enumerate(names):
        found = DeviceManager(FakeOpenCL(*reversed(order[skip:])))
        assert found.default("auto").device_name == name
        assert ("GPU found" if skip < 2 else "no usable GPU") in found.reason
    only_board = DeviceManager(FakeOpenCL(FakePlatform("Boards", device("board", ACCELERATOR))))
    assert only_board.default("auto").backend == "cpu"
    assert only_board.default("cl:accelerator").device_name == "board"


def test_environment(two_platforms, monkeypatch):
    monkeypatch.setenv("NETCL_DEVICE", "gpu:1")
    assert two_platforms.default().device_name == "RTX B"
    assert two_platforms.reason == "NETCL_DEVICE=gpu:1"
    assert two_platforms.default("gpu:0").device_name == "RTX A"
    monkeypatch.setenv("NETCL_DEVICE", "cpu")
    assert two_platforms.default("auto").backend == "cpu"
    monkeypatch.setenv("NETCL_DEVICE", "nonsense")
    with pytest.raises(DeviceError, match="got 'nonsense'"):
        two_platforms.default("auto")


def test_platform_filter(two_platforms, monkeypatch):
    monkeypatch.setenv("NETCL_PLATFORM_FILTER", "portable")
    assert two_platforms.default("auto").device_name == "CUDA-RTX A"
    assert {p.platform for p in two_platforms.profiles} == {"Portable Computing Language"}
    monkeypatch.setenv("NETCL_PLATFORM_FILTER", "amd")
    with pytest.raises(DeviceError, match="got 'amd'; choices: NVIDIA CUDA"):
        DeviceManager(FakeOpenCL(FakePlatform("NVIDIA CUDA", device("RTX")))).default("auto")


def test_thread_local_default(two_platforms, monkeypatch):
    monkeypatch.setattr(module, "manager", two_platforms)
    seen = []
    with module.device("cpu") as outer, module.device("gpu:1") as inner:
        assert two_platforms.default() is inner and outer.backend == "cpu"
        assert "block" in two_platforms.reason
        thread = threading.Thread(target=lambda: seen.append(two_platforms.default().device_name))
        thread.start()
        thread.join()
    assert seen == ["RTX A"] and two_platforms.default().device_name == "RTX A"


# -- profiles ---------------------------------------------------------------------------------------------------------


def test_profile_of_fake_devices():
    amd = device(
        "gfx1100:sramecc+",
        vendor="Advanced Micro Devices, Inc.",
        extensions="cl_khr_fp16 cl_khr_subgroups",
        double_fp_config=63,
    )
    nvidia = device("RTX", compute_capability_major_nv=9, compute_capability_minor_nv=0, extensions="")
    mali = device("Mali-G78", vendor="ARM", version="OpenCL 1.2 v1", host_unified_memory=True)
    found = DeviceManager(
        FakeOpenCL(FakePlatform("AMD", amd), FakePlatform("NVIDIA CUDA", nvidia), FakePlatform("ARM", mali))
    )
    a, n, m = found.profiles
    assert (a.vendor, a.kind, a.architecture, a.has_fp16, a.has_fp64, a.has_subgroups) == (
        ("AMD", "gpu", "gfx1100", True, True, True)
    )
    assert (n.vendor, n.architecture, n.has_fp16, n.has_fp64, n.integrated) == ("NVIDIA", "sm_90", False, False, False)
    assert (m.vendor, m.version, m.integrated, m.has_subgroups) == ("ARM", (1, 2), True, False)
    assert found.profile("gpu:0") == a


def test_profile_of_real_queues(queue):
    profile = profile_of(queue)
    assert profile_of(queue) is profile
    assert profile.kind in ("cpu", "gpu", "numpy") and profile.compute_units >= 1
    assert profile.max_alloc <= profile.global_mem
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.name = "x"


def test_override_profile(queue):
    before = profile_of(queue)
    with override_profile(queue, dataclasses.replace(before, has_fp64=False)) as fake:
        assert profile_of(queue) is fake and not profile_of(queue).has_fp64
    assert profile_of(queue) is before
    with pytest.raises(RuntimeError), override_profile(queue, fake):
        raise RuntimeError
    assert profile_of(queue) is before


def test_real_handles():
    handle = manager.default("auto")
    assert isinstance(handle, DeviceHandle) and handle is manager.default("auto") is manager.default(handle)
    assert handle.profile is profile_of(handle.queue) and handle.device_name == handle.profile.name
    assert manager.reason
    assert [h.device for h in manager.handles] == list(manager.devices)
    with pytest.raises(dataclasses.FrozenInstanceError):
        handle.queue = None


def test_sub_devices(queue):
    handle = next(h for h in (manager.default("cpu"), *manager.handles) if h.queue is queue)
    parts = manager.sub_devices(handle, 2)
    assert len({id(p.queue) for p in parts}) == 2 and all(p.backend == handle.backend for p in parts)
    if handle.backend == "cl":
        assert parts[0].context == parts[1].context != handle.context
        divides = any(handle.device.partition_properties)  # Mesa's CPU device does not
        if divides and handle.profile.kind == "cpu" and handle.profile.compute_units >= 2:
            assert parts[0].device != parts[1].device
    with pytest.raises(DeviceError, match="n of at least 1"):
        manager.sub_devices(handle, 0)


# -- fork -------------------------------------------------------------------------------------------------------------


def _in_child(connection):
    try:
        manager.default("cpu")
        DeviceManager(FakeOpenCL(FakePlatform("NVIDIA CUDA", device("RTX")))).default("auto")
        connection.send("no error")
    except DeviceError as error:
        connection.send(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_after_opencl_started_is_an_error_not_a_hang():
    process.mark_started()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(theirs,))
    child.start()
    assert ours.poll(30), "the child hangs"
    assert "fork" in ours.recv()
    child.join(30)
    assert child.exitcode == 0 and not process.forked
