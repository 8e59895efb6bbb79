"""`netcl devices` on this machine and on described ones, and the command line around it."""

import argparse

import pytest
from fake_opencl import CPU, FakeOpenCL, FakePlatform, device

import netcl
from netcl.cli import devices
from netcl.cli.main import build_parser, main
from netcl.core.device import DeviceManager, manager


def shown(opencl, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert devices.run(argparse.Namespace(all=True), DeviceManager(opencl)) == 0
    return capsys.readouterr().out


def test_this_machine(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert main(["devices", "--all"]) == 0
    out = capsys.readouterr().out
    assert all(profile.name in out and profile.driver in out for profile in manager.profiles)
    assert 'default ("auto"): ' + manager.default("auto").device_name in out and "NumPy" in out


def test_several_platforms(capsys, monkeypatch):
    cpu = device("EPYC", CPU, vendor="AuthenticAMD", driver_version="5.0")
    gpus = device("RTX [A]", extensions="cl_khr_fp16"), device("RTX B", host_unified_memory=True)
    out = shown(
        FakeOpenCL(FakePlatform("Portable Computing Language", cpu), FakePlatform("NVIDIA CUDA", *gpus)),
        capsys,
        monkeypatch,
    )
    for text in (
        "cl:cpu:0",
        "gpu:0",
        "gpu:1",
        "RTX [A]",
        "550.1",
        "8.0 GiB",
        "8.0 GiB shared",
        "2.0 GiB",
        "1024",
        "48 KiB",
    ):
        assert text in out
    assert 'default ("auto"): RTX [A]; why: the first GPU found.' in out


def test_an_empty_list_gives_the_reason_and_the_fix(capsys, monkeypatch):
    out = shown(FakeOpenCL(error="PLATFORM_NOT_FOUND_KHR"), capsys, monkeypatch)
    assert "NumPy, because the OpenCL loader found no driver (PLATFORM_NOT_FOUND_KHR)" in out
    assert "pip install pyopencl[pocl]" in out.replace("\n", " ") and out.count("found no driver") == 1


def test_a_bad_netcl_device_is_reported(capsys, monkeypatch):
    monkeypatch.setenv("NETCL_DEVICE", "gpu:9")
    out = shown(FakeOpenCL(FakePlatform("NVIDIA CUDA", device("RTX"))), capsys, monkeypatch)
    assert "default: none" in out and "'gpu:9'" in out


def test_every_command_has_help_and_errors_have_no_traceback(capsys, monkeypatch):
    assert "devices" in build_parser().format_help()
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and netcl.__version__ in capsys.readouterr().out
    assert main([]) == 0 and "usage: netcl" in capsys.readouterr().out

    def fail(args):
        raise netcl.core.errors.DeviceError("devices: expected one, got none.")

    monkeypatch.setattr(devices, "run", fail)
    assert main(["devices"]) == 1
    assert "netcl: devices: expected one" in capsys.readouterr().err
