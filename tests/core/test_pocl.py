"""Processors that PoCL's compiler does not know, on a made-up record of a device."""

import ctypes
import platform
import sys
from types import SimpleNamespace

import pytest

from netcl.core.device import pocl

ZEN5 = "flags\t\t: fpu " + " ".join(sorted(pocl.NAMES[0][1])) + " avx2 fma f16c bmi1 bmi2 movbe avx512_vp2intersect"


def record(text):
    """The memory of a device: words, one of which points to the processor's name."""
    name = ctypes.create_string_buffer(text)
    words = (ctypes.c_uint64 * 512)(*range(512))
    words[80] = ctypes.addressof(name)
    version = f"OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-{text.decode()}"
    return SimpleNamespace(int_ptr=ctypes.addressof(words), version=version, name="pthread-X", keep=(name, words))


@pytest.fixture
def x86(monkeypatch, tmp_path):
    if sys.platform != "linux":
        pytest.skip("the repair reads /proc")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(pocl, "_taught", {})
    monkeypatch.setattr(pocl, "like", lambda text, like=pocl.like: like(ZEN5))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (ZEN5, "icelake-server"),
        ("flags : avx512f avx512bw avx512cd avx512dq avx512vl avx2", "skylake-avx512"),
        ("flags : avx2 fma f16c bmi1 bmi2 movbe avx512f", "haswell"),
        ("flags : sse2", ""),
        ("processor : 0", ""),
    ],
)
def test_the_name_has_only_instructions_that_are_there(flags, name):
    assert pocl.like("processor : 0\n" + flags + "\nbugs :") == name


def test_an_unknown_processor_gets_a_name(x86):
    device = record(b"generic")
    assert pocl.note(device) == ""
    assert pocl.teach(device) == "icelake-server"
    name, words = device.keep
    assert ctypes.string_at(words[80]) == b"icelake-server" and name.value == b"generic"
    assert [w for i, w in enumerate(words) if i != 80] == [i for i in range(512) if i != 80]
    assert pocl.teach(device) == "icelake-server"
    assert "icelake-server" in pocl.note(device)


def test_a_part_of_a_device_that_has_its_name(x86):
    device = record(b"generic")
    pocl.teach(device)
    part = record(b"generic")
    part.keep[1][80] = device.keep[1][80]  # a sub-device starts as a copy
    assert pocl.teach(part) == "icelake-server"


def test_a_known_processor_is_left_alone(x86):
    device = record(b"znver3")
    assert pocl.teach(device) == "" and pocl.note(device) == ""
    assert ctypes.string_at(device.keep[1][80]) == b"znver3"


def test_a_record_without_the_name_is_left_alone(x86):
    device = record(b"generic")
    device.keep[1][80] = 5
    before = list(device.keep[1])
    assert pocl.teach(device) == "" and list(device.keep[1]) == before
