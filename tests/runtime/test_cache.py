"""The program cache: hits, misses, and that nothing on disk can hurt."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from netcl.core import debug
from netcl.core.backend.opencl import launch
from netcl.core.device import manager
from netcl.core.errors import BuildError, DeviceError
from netcl.runtime import cache as module
from netcl.runtime import entry as entry_module
from netcl.runtime.build import kernel_names
from netcl.runtime.cache import ProgramCache, cacher, get_kernel, program_key

cl = pytest.importorskip("pyopencl")
REPO = Path(__file__).resolve().parents[2]
TYPES = (None, np.dtype("int32"))


def source(value):
    return f"__kernel void put(__global int* out, int n) {{ out[0] = {value} + n; }}\n"


def entries(folder):
    return sorted(Path(folder).glob("*.bin"))


def runs(program, queue, value):
    """Whether the program computes what its source says."""
    out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4)
    kernel = cl.Kernel(program, "put")
    kernel(queue, (1,), (1,), out, np.int32(1))
    host = np.zeros(1, np.int32)
    cl.enqueue_copy(queue, host, out)
    return host[0] == value + 1


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    """Entries are kept here, unlike in the rest of the suite, and PoCL is a driver that keeps nothing itself."""
    monkeypatch.delenv("NETCL_CACHE_MB", raising=False)
    monkeypatch.setattr(module.pocl, "is_pocl", lambda device: False)


@pytest.fixture
def get(cl_queue, tmp_path):
    """get(value, cache=None, ...) -> program, from a cache on an empty folder."""

    def call(value, cache=None, **options):
        cache = cache or ProgramCache(tmp_path)
        call.stats = cache.stats
        program = cache.get_program(cl_queue.context, source(value), cl_queue.device, **options)
        assert runs(program, cl_queue, value)
        return program

    return call


def counts(stats):
    return stats.builds, stats.disk_hits, stats.memory_hits, stats.rejected


# -- hits and misses --------------------------------------------------------------------------------------------------


def test_memory_then_disk_then_build(get, tmp_path):
    cache = ProgramCache(cache_dir=str(tmp_path))
    first = get(1, cache)
    assert counts(cache.stats) == (1, 0, 0, 0) and len(entries(tmp_path)) == 1
    assert get(1, cache) is first
    assert counts(cache.stats) == (1, 0, 1, 0)
    get(1)
    assert counts(get.stats) == (0, 1, 0, 0)
    cache.clear_memory()
    get(1, cache)
    assert counts(cache.stats) == (1, 1, 1, 0) and cache.stats.seconds > 0


def test_source_and_options_are_part_of_the_key(get, tmp_path):
    cache = ProgramCache(tmp_path)
    get(1, cache)
    get(2, cache)
    get(1, cache, options=("-DX=1",))
    get(1, cache, options="-DX=2")
    assert counts(cache.stats) == (4, 0, 0, 0) and len(entries(tmp_path)) == 4
    get(1, cache, options=["-DX=1"])
    assert cache.stats.memory_hits == 1


@pytest.mark.parametrize("fact", ["name", "version", "driver_version", "platform.name", "platform.version"])
def test_device_driver_and_platform_are_part_of_the_key(fact):
    """An update of the driver or the platform is a miss."""

    def fake(**changed):
        facts = dict.fromkeys(("name", "version", "driver_version", "platform.name", "platform.version"), "1") | changed
        host = SimpleNamespace(name=facts["platform.name"], version=facts["platform.version"])
        return SimpleNamespace(
            name=facts["name"], version=facts["version"], driver_version=facts["driver_version"], platform=host
        )

    assert program_key("s", (), fake()) == program_key("s", (), fake())
    assert program_key("s", (), fake()) != program_key("s", (), fake(**{fact: "2"}))
    assert (
        program_key("sa", ("b",), fake()) != program_key("s", ("ab",), fake()) != program_key("s", ("a", "b"), fake())
    )


# -- damaged entries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry[: len(entry) // 2],
        lambda entry: entry[: entry_module.HEADER],
        lambda entry: entry[: entry_module.HEADER - 5],
        lambda entry: b"",
        lambda entry: np.random.default_rng(0).bytes(len(entry)),
        lambda entry: entry[:-1] + bytes([entry[-1] ^ 1]),
        lambda entry: entry[entry_module.HEADER :],
        lambda entry: entry + b"more",
    ],
    ids=["half", "header-only", "part-of-header", "empty", "random", "one-bit", "no-header", "longer"],
)
def test_a_damaged_entry_is_rebuilt_and_replaced(get, tmp_path, damage):
    """The driver never sees it (PoCL crashes on half a binary)."""
    get(1)
    (path,) = entries(tmp_path)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    get(1)
    assert counts(get.stats) == (1, 0, 0, 1)
    get(1)
    assert counts(get.stats) == (0, 1, 0, 0)


def test_an_entry_of_another_program_is_rebuilt(get, tmp_path):
    get(1)
    (one,) = entries(tmp_path)
    get(2)
    (two,) = set(entries(tmp_path)) - {one}
    two.write_bytes(one.read_bytes())
    get(2)
    assert counts(get.stats) == (1, 0, 0, 1)


def test_an_entry_that_the_driver_refuses_is_rebuilt(get, tmp_path):
    """Intact, but from a driver that changed without changing its version."""
    get(1)
    (path,) = entries(tmp_path)
    path.write_bytes(module.encode(path.stem, {}, b"a binary of something else" * 50))
    get(1)
    assert counts(get.stats) == (1, 0, 0, 1)
    get(1)
    assert counts(get.stats) == (0, 1, 0, 0)


def test_an_entry_of_another_driver_version_is_not_used(get, tmp_path, monkeypatch):
    """Before and after an update, and when such an entry lies under the new name."""
    get(1)
    (old,) = entries(tmp_path)

    def key_after_update(source, options, device):
        facts = {name: getattr(device, name) for name in ("name", "version", "platform")}
        return program_key(source, options, SimpleNamespace(**facts, driver_version=f"{device.driver_version}.1"))

    monkeypatch.setattr(module, "program_key", key_after_update)
    get(1)
    assert counts(get.stats) == (1, 0, 0, 0)
    (new,) = set(entries(tmp_path)) - {old}
    new.write_bytes(old.read_bytes())
    get(1)
    assert counts(get.stats) == (1, 0, 0, 1)
    monkeypatch.setattr(module, "program_key", program_key)
    get(1)
    assert counts(get.stats) == (0, 1, 0, 0)


# -- folders that do not work -----------------------------------------------------------------------------------------


def test_no_folder_can_be_made(get, tmp_path, capsys):
    """An unwritable cache is no cache, not an error; NETCL_DEBUG=1 says so, once."""
    (tmp_path / "file").touch()
    cache, before = ProgramCache(tmp_path / "file" / "below"), debug.set_level(1)
    try:
        get(1, cache), get(2, cache)
    finally:
        debug.set_level(before)
    assert capsys.readouterr().err.count("programs are not kept") == 1
    for _ in range(2):
        get(1, ProgramCache(tmp_path / "file" / "below"))
        assert counts(get.stats) == (1, 0, 0, 0)


@pytest.mark.parametrize("call", ["mkstemp", "fdopen", "replace", "mkdir"])
def test_read_only_or_full_disk(get, tmp_path, monkeypatch, call):
    """Whichever step fails, the program is there and no draft is left behind."""

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    owner = {"mkstemp": module.tempfile, "fdopen": module.os, "replace": module.os, "mkdir": Path}[call]
    monkeypatch.setattr(owner, call, fail)
    get(1)
    assert counts(get.stats) == (1, 0, 0, 0)
    monkeypatch.undo()
    leftover = [path for path in tmp_path.iterdir() if not path.name.startswith(".draft") or call != "fdopen"]
    assert leftover == []


@pytest.fixture
def writing(monkeypatch):
    """writing(before, after): run `before` and `after` round every attempt to write an entry."""
    write = module._write_atomically

    def install(before, after):
        def guarded(path, data):
            before()
            try:
                return write(path, data)
            finally:
                after()

        monkeypatch.setattr(module, "_write_atomically", guarded)

    return install


@pytest.mark.skipif(os.name == "nt", reason="permissions are different there")
def test_a_read_only_folder(get, tmp_path, writing):
    """By the system's own refusal; root, who may write everywhere, writes as somebody else."""
    tmp_path.chmod(0o500)
    if os.geteuid() == 0:
        writing(lambda: os.seteuid(65534), lambda: os.seteuid(0))
    get(1)
    assert counts(get.stats) == (1, 0, 0, 0) and entries(tmp_path) == []
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on the size of files")
def test_a_disk_that_is_full_after_some_bytes(get, tmp_path, writing):
    """The system stops the write half way; nothing of it stays and the next process builds again."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))  # noqa: E731
    writing(full, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before))
    for _ in range(2):
        get(1)
        assert counts(get.stats) == (1, 0, 0, 0) and list(tmp_path.iterdir()) == []


def test_an_unreadable_entry_is_a_miss(get, tmp_path):
    get(1)
    (path,) = entries(tmp_path)
    path.unlink()
    path.mkdir()
    get(1)
    assert counts(get.stats) == (1, 0, 0, 1)


def test_no_home(get, monkeypatch):
    monkeypatch.setattr(module, "default_cache_dir", lambda: None)
    cache = ProgramCache()
    get(1, cache)
    assert cache.cache_dir is None and counts(cache.stats) == (1, 0, 0, 0)


def test_the_folder_is_chosen_by_the_environment_and_late(monkeypatch, tmp_path):
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "a"))
    assert cacher.cache_dir == tmp_path / "a" and not (tmp_path / "a").exists()
    monkeypatch.setenv("NETCL_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert ProgramCache().cache_dir == tmp_path / "netcl"


# -- size -------------------------------------------------------------------------------------------------------------


def test_the_entries_used_longest_ago_are_evicted(tmp_path):
    cache = ProgramCache(tmp_path, limit=3500)
    keys = [f"{i:064x}" for i in range(4)]
    abandoned, fresh = tmp_path / ".draft-old", tmp_path / ".draft-new"
    for draft in (abandoned, fresh):
        draft.touch()
    os.utime(abandoned, (1, 1))
    for age, key in enumerate(keys[:3], start=1):
        cache._store(key, bytes(1000))
        os.utime(tmp_path / f"{key}.bin", (age, age))
    os.utime(tmp_path / f"{keys[0]}.bin")  # what a hit does
    assert cache.stats.evictions == 0
    cache._store(keys[3], bytes(1000))
    assert cache.stats.evictions == 1
    assert [path.stem for path in entries(tmp_path)] == [keys[0], keys[2], keys[3]]
    assert fresh.exists() and not abandoned.exists()


def test_a_hit_makes_an_entry_young_again(get, tmp_path):
    get(1)
    (path,) = entries(tmp_path)
    os.utime(path, (1, 1))
    get(1)
    assert path.stat().st_mtime > 1


def test_an_entry_larger_than_the_limit_is_not_kept(get, tmp_path):
    get(1, ProgramCache(tmp_path, limit=10))
    assert entries(tmp_path) == []


def test_limit_from_the_environment(monkeypatch, tmp_path):
    assert ProgramCache(tmp_path).limit == 512 << 20
    monkeypatch.setenv("NETCL_CACHE_MB", "3")
    assert ProgramCache(tmp_path).limit == 3 << 20


def test_a_limit_of_nothing_asks_for_no_binary(get, tmp_path):
    cache = ProgramCache(tmp_path, limit=0)
    get(1, cache)
    assert entries(tmp_path) == []
    assert (cache.stats.builds, cache.stats.disk_hits) == (1, 0)


# -- several processes and threads ------------------------------------------------------------------------------------

WORKER = """
import sys
import numpy as np, pyopencl as cl
from netcl.core.device import manager
from netcl.runtime.cache import ProgramCache
dev, cache = manager.default("cl:cpu"), ProgramCache(sys.argv[1])
for value in range(int(sys.argv[2])):
    code = f"__kernel void put(__global int* out, int n) {{ out[0] = {value} + n; }}\\n"
    kernel = cl.Kernel(cache.get_program(dev.context, code, dev.device), "put")
    out, host = cl.Buffer(dev.context, cl.mem_flags.READ_WRITE, 4), np.zeros(1, np.int32)
    kernel(dev.queue, (1,), (1,), out, np.int32(1))
    cl.enqueue_copy(dev.queue, host, out)
    assert host[0] == value + 1
print(cache.stats.builds + cache.stats.disk_hits, cache.stats.rejected)
"""


@pytest.mark.skipif(not any(p.kind == "cpu" for p in manager.profiles), reason="needs an OpenCL driver for the CPU")
@pytest.mark.parametrize(("processes", "programs"), [(3, 50), (8, 4)])
def test_processes_fill_one_folder(tmp_path, processes, programs):
    """All run right, entries are complete, no draft stays, and a killed process harms nobody."""
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(programs)]
    (tmp_path / ".draft-of-a-killed-process").write_bytes(b"half")
    crowd = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    crowd[0].kill()
    crowd[0].communicate()
    for process in crowd[1:]:
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0 and out.split() == [str(programs), "0"]
    assert len(entries(tmp_path)) == programs
    assert all(module.decode(path.stem, path.read_bytes()) for path in entries(tmp_path))


def test_threads_build_a_program_once(cl_queue, tmp_path):
    cache, programs = ProgramCache(tmp_path), []

    def work():
        programs.append(cache.get_program(cl_queue.context, source(5), cl_queue.device))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(program) for program in programs}) == 1 and cache.stats.builds == 1


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_build_error_says_everything(cl_queue, tmp_path, capfd):
    """Kernel, options, device, the full log and the source, with the cache on and with no place to write."""
    broken = "__kernel void one(__global float* a) { a[0] = undeclared_name; }\n"
    (tmp_path / "file").touch()
    for cache in (ProgramCache(tmp_path / "ok"), ProgramCache(tmp_path / "file" / "below")):
        for _ in range(2):
            with pytest.raises(BuildError) as caught:
                cache.get_program(cl_queue.context, broken, cl_queue.device, ("-DWG=64",))
            error, text = caught.value, str(caught.value)
            assert text.startswith("one: failed to build on") and "-DWG=64" in text
            assert "undeclared_name" in error.log and error.log in text
            assert error.device == cl_queue.device.name.strip() in text and error.options == ("-DWG=64",)
            assert error.source_path.read_text() == broken and str(error.source_path) in text
        assert cache.stats.builds == 0
    assert entries(tmp_path / "ok") == []


def test_no_program_for_numpy(cpu_queue):
    with pytest.raises(DeviceError, match="NumPy"):
        cacher.get_program(None, source(1), None)


def test_kernel_names():
    text = "kernel void a(int x) {}\n__kernel void b() {}\n"
    text += "__kernel __attribute__((reqd_work_group_size(8,1,1)))\nvoid c() {}"
    assert kernel_names(text) == ["a", "b", "c"]


# -- get_kernel -------------------------------------------------------------------------------------------------------


def test_get_kernel_is_kept_with_the_queue(cl_queue):
    kernel = get_kernel(cl_queue, source(7), "put")
    builds = cacher.stats.builds
    assert get_kernel(cl_queue, source(7), "put") is kernel
    assert get_kernel(cl_queue, source(7), "put", ("-DA",)) is not kernel
    other = cl.CommandQueue(cl_queue.context, cl_queue.device)
    assert get_kernel(other, source(7), "put") is not kernel  # a kernel object holds its arguments
    assert cacher.stats.builds <= builds + 1
    out = cl.Buffer(cl_queue.context, cl.mem_flags.READ_WRITE, 4)
    launch(kernel, cl_queue, (1,), (1,), out, 35)
    host = np.zeros(1, np.int32)
    cl.enqueue_copy(cl_queue, host, out)
    assert host[0] == 42


def test_get_kernel_names_the_kernels_there_are(cl_queue):
    with contextlib.suppress(BuildError):
        get_kernel(cl_queue, source(7), "missing")
    with pytest.raises(BuildError, match="expected a kernel 'missing', got a program with: put"):
        get_kernel(cl_queue, source(7), "missing")


# -- the example of the documentation ---------------------------------------------------------------------------------


def test_documented_use(cl_queue, tmp_path, monkeypatch):
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "default"))
    ctx, device, src_code = cl_queue.context, cl_queue.device, source(11)
    namespace = {"ctx": ctx, "device": device, "src_code": src_code}
    example = """
from netcl.runtime.cache import cacher, ProgramCache

# Using the global singleton:
prg = cacher.get_program(ctx, src_code, device)

# Or create your own instance with a custom cache directory:
my_cache = ProgramCache(cache_dir="/tmp/my_kernels")
prg_2 = my_cache.get_program(ctx, src_code, device)
"""
    exec(example.replace("/tmp/my_kernels", str(tmp_path / "my_kernels")), namespace)
    assert runs(namespace["prg"], cl_queue, 11) and runs(namespace["prg_2"], cl_queue, 11)
    assert len(entries(tmp_path / "default")) == len(entries(tmp_path / "my_kernels")) == 1
