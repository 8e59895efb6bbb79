"""The Intel CPU runtime becomes visible without hiding other drivers; importing netcl needs neither driver nor home."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from netcl.core import driver
from netcl.core.device import manager, pocl
from netcl.core.errors import DeviceError
from netcl.runtime.cache import ProgramCache

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def intel(tmp_path, monkeypatch):
    """A machine with the runtime's wheel installed and one system driver; pyopencl is not loaded yet."""
    library = tmp_path / "lib" / "libintelocl.so"
    library.parent.mkdir()
    library.touch()
    (library.parent / "libimf.so").touch()
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    (vendors / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    (vendors / "gone.icd").write_text("/nowhere/libgone.so\n")
    entry = SimpleNamespace(name="libintelocl.so", locate=lambda: library)
    monkeypatch.setattr(driver.importlib.metadata, "files", lambda name: [entry])
    monkeypatch.setattr(driver, "system_drivers", lambda f=driver.system_drivers: f((str(vendors),)))
    monkeypatch.setattr(driver.sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "cache"))
    for name in driver.CHOSEN_BY_USER:
        monkeypatch.setenv(name, "")  # so that what register() sets is undone
    return SimpleNamespace(library=library, vendors=vendors, cache=tmp_path / "cache")


def test_the_runtime_is_added_to_the_systems_drivers(intel):
    assert driver.register() == intel.library
    folder = Path(os.environ["OCL_ICD_VENDORS"])
    assert folder.parent == intel.cache / "drivers"
    texts = {path.name: path.read_text().strip() for path in folder.iterdir()}
    assert texts == {"nvidia.icd": "libnvidia-opencl.so.1", "zz-intel-cpu.icd": str(intel.library)}
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".draft")]


def test_the_folder_is_shared_by_processes_and_follows_the_drivers(intel, monkeypatch):
    driver.register()
    first = os.environ["OCL_ICD_VENDORS"]
    monkeypatch.setenv("OCL_ICD_VENDORS", "")
    driver.register()
    assert os.environ["OCL_ICD_VENDORS"] == first
    (intel.vendors / "amd.icd").write_text("libamdocl64.so")
    monkeypatch.setenv("OCL_ICD_VENDORS", "")
    driver.register()
    assert os.environ["OCL_ICD_VENDORS"] != first


@pytest.mark.parametrize("name", driver.CHOSEN_BY_USER)
def test_the_users_choice_is_left_alone(intel, monkeypatch, name):
    monkeypatch.setenv(name, "/my/vendors")
    assert driver.register() is None
    assert os.environ[name] == "/my/vendors"


def test_nothing_to_do(intel, monkeypatch):
    (intel.vendors / "intel.icd").write_text(str(intel.library))
    assert driver.register() is None  # the system lists it already
    monkeypatch.setattr(driver.sys, "platform", "win32")
    assert driver.register() is None
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver.register()


def test_too_late_is_a_warning(intel, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", SimpleNamespace())
    with pytest.warns(UserWarning, match="import netcl first"):
        assert driver.register() is None
    assert os.environ["OCL_ICD_VENDORS"] == ""


def test_half_an_installation_is_a_warning(intel):
    (intel.library.parent / "libimf.so").unlink()
    with pytest.warns(UserWarning, match="pip install intel-opencl-rt intel-cmplr-lib-rt"):
        assert driver.register() is None


def test_an_unwritable_cache_means_a_temporary_folder(intel, monkeypatch):
    intel.cache.touch()  # a file where the folder should be
    at_exit = []
    monkeypatch.setattr(driver.atexit, "register", at_exit.append)
    assert driver.register() == intel.library
    folder = Path(os.environ["OCL_ICD_VENDORS"])
    assert folder.is_dir()
    for remove in at_exit:
        remove()
    assert not folder.exists()


def python(code, **env):
    """Run `code` in a process of its own; its output."""
    path = os.pathsep.join(filter(None, (str(REPO), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_import_without_pyopencl():
    """No pyopencl at all; the NumPy backend is there and says why."""
    code = (
        "import sys; sys.modules['pyopencl'] = None\n"
        "import netcl; from netcl.core.device import manager\n"
        "h = manager.default('auto'); x = netcl.Tensor.from_host(h.queue, [1.0, 2.0]) * 2 + 1\n"
        "print(h.backend, x.to_host().tolist(), manager.devices, manager.reason)"
    )
    out = python(code)
    assert out.startswith("cpu [3.0, 5.0] () NumPy, because pyopencl could not be imported")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_unwritable_home_costs_no_device():
    """PoCL lists nothing and pyopencl fails at the first kernel when their caches have no place."""
    code = (
        "import netcl; from netcl.core.device import manager\n"
        "for h in (manager.default('cpu'), *manager.handles):\n"
        "    print((netcl.Tensor.from_host(h.queue, [1.0, 2.0]) * 2 + 1).to_host().tolist())"
    )
    out = python(code, HOME="/proc/nowhere", NETCL_CACHE_DIR="", XDG_CACHE_HOME="", POCL_CACHE_DIR="")
    assert out.splitlines() == ["[3.0, 5.0]"] * (1 + len(manager.devices))


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """`caches(chosen)`: POCL_CACHE_DIR after `spare_caches` with this choice of the user's; home is below tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYOPENCL_NO_CACHE", "")
    monkeypatch.setenv("NETCL_CACHE_DIR", "")
    monkeypatch.setenv("NETCL_CACHE_MB", "")

    def spare(chosen=""):
        monkeypatch.setenv("POCL_CACHE_DIR", str(chosen))
        driver.spare_caches()
        return os.environ["POCL_CACHE_DIR"]

    return spare


@pytest.mark.skipif(sys.platform != "linux", reason="PoCL's place on Linux")
def test_a_full_disk_gives_pocl_a_temporary_cache(tmp_path, caches, monkeypatch):
    """It would end the process. Where the user chose the folder, it is said."""
    chosen = tmp_path / "chosen"
    assert caches() == str(tmp_path / "home" / "netcl" / "pocl") and caches(chosen) == str(chosen)
    full = (str(chosen), str(tmp_path / "home"))
    monkeypatch.setattr(driver, "room_in", lambda folder: 0 if folder.startswith(full) else 1 << 40)
    assert "netcl-pocl-" in caches()
    with pytest.warns(UserWarning, match="chosen is on a disk without room"):
        assert "netcl-pocl-" in caches(chosen)


@pytest.mark.skipif(sys.platform != "linux", reason="PoCL's place on Linux")
def test_where_pocl_has_no_room_a_program_is_refused(cl_queue, tmp_path, monkeypatch):
    """A disk may become full at any time, and PoCL would end the process."""
    if "PoCL" not in cl_queue.device.platform.version:
        pytest.skip("PoCL compiles in files")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pocl, "room_in", lambda folder: 1000)
    with pytest.raises(DeviceError, match=r"PoCL: expected room on the disk of .*, got 1,000 bytes"):
        ProgramCache(tmp_path, limit=0).get_program(
            cl_queue.context, "__kernel void one(__global int* x) { x[0] = 1; }", cl_queue.device
        )


@pytest.mark.skipif(sys.platform != "linux", reason="owners and modes of Linux")
def test_pocl_runs_nothing_that_others_may_have_put_there(tmp_path, caches):
    for chosen, folder in [(tmp_path / "chosen", tmp_path / "chosen"), ("", tmp_path / "home" / "netcl")]:
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        with pytest.warns(UserWarning, match="can be written by other users"):
            assert "netcl-pocl-" in caches(chosen)


@pytest.mark.skipif(sys.platform != "linux", reason="owners and modes of Linux")
def test_a_list_of_drivers_that_others_may_write_to_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "cache"))
    drivers = {"a.icd": "liba.so"}
    kept = driver.vendor_folder(drivers)
    assert kept.is_relative_to(tmp_path) and driver.vendor_folder(drivers) == kept
    for folder in (kept, kept.parent, tmp_path / "cache"):
        folder.chmod(0o777)
        found = driver.vendor_folder(drivers)
        assert not found.is_relative_to(tmp_path) and (found / "a.icd").read_text() == "liba.so\n"
        folder.chmod(0o700)


@pytest.mark.skipif(sys.platform != "linux", reason="PoCL's place on Linux")
def test_pocl_keeps_its_programs_beside_ours(tmp_path):
    """In a folder that is not made before there are any; without one where none are to be kept."""
    code = "import os, netcl; print(os.environ['POCL_CACHE_DIR'], os.environ.get('PYOPENCL_NO_CACHE'))"
    home = {"XDG_CACHE_HOME": str(tmp_path), "POCL_CACHE_DIR": "", "NETCL_CACHE_DIR": "", "NETCL_CACHE_MB": ""}
    assert python(code, **home).split() == [str(tmp_path / "netcl" / "pocl"), "None"] and not [*tmp_path.iterdir()]
    assert python(code, **home | {"NETCL_CACHE_DIR": "here"}).split() == [f"{os.getcwd()}/here/pocl", "None"]
    assert python(code, **home | {"POCL_CACHE_DIR": str(tmp_path)}).split() == [str(tmp_path), "None"]
    assert "netcl-pocl-" in python(code, **home | {"NETCL_CACHE_MB": "0"})


@pytest.mark.parametrize(
    ("module", "packages", "most"),
    [
        ("netcl", "core ops runtime fusion kernels moved front", 130),
        ("netcl.data", "core data ops runtime fusion kernels moved front", 130),
        ("netcl.optim", "core ops optim runtime fusion kernels moved front", 142),
        ("netcl.profiling", "core ops profiling runtime fusion kernels moved front", 135),
        ("netcl.autograd", "autograd core ops runtime fusion kernels moved front", 222),
        ("netcl.nn", "autograd core nn ops runtime fusion kernels moved front", 244),
    ],
)
def test_an_import_loads_little_and_starts_nothing(module, packages, most):
    """No other packages, few modules, no driver asked and no program built. The time itself is a benchmark."""
    code = (
        "import sys; from netcl.core import driver; driver.prepare(); import pyopencl\n"
        "def refuse(*args, **kwargs): raise AssertionError('a driver was used at import')\n"
        "pyopencl.get_platforms = pyopencl.Context = pyopencl.CommandQueue = pyopencl.Program = refuse\n"
        f"import {module}; print(*[name for name, m in sys.modules.items() if type(m).__name__ != 'Moved'])"
    )
    loaded = python(code).split()
    ours = [name for name in loaded if name.startswith("netcl.")]
    assert {name.split(".")[1] for name in ours} == set(packages.split()) and len(ours) <= most
    later = {"rich", "safetensors", "scipy", "sklearn", "torch", "matplotlib", "platformdirs", "hypothesis", "pytest"}
    assert not later & {name.partition(".")[0] for name in loaded}
    if module == "netcl":  # what has kernels of its own is loaded at first use
        assert not {"netcl.ops.convolution.op", "netcl.ops.attend.op", "netcl.ops.pooling.op"} & set(ours)


def test_signal_handlers_are_left_alone():
    code = (
        "import signal; before = [signal.getsignal(s) for s in signal.valid_signals()]\n"
        "import netcl; from netcl.core.device import manager; manager.default('cpu')\n"
        "print(before == [signal.getsignal(s) for s in signal.valid_signals()])"
    )
    assert python(code).strip() == "True"
