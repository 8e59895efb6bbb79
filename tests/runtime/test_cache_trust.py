"""The program cache takes programs only from the user's own files, and needs none."""

import errno
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from netcl.core import paths
from netcl.runtime import cache as module
from netcl.runtime.cache import ProgramCache

linux = pytest.mark.skipif(sys.platform != "linux", reason="owners, modes and nodes of Linux")


def entries(folder):
    return sorted(Path(folder).glob("*.bin"))


@pytest.fixture
def get(cl_queue, tmp_path, monkeypatch):
    """get(value, cache=None) -> (builds, disk hits, rejected entries) of a cache whose folder keeps entries."""
    monkeypatch.delenv("NETCL_CACHE_MB", raising=False)
    monkeypatch.setattr(module.pocl, "is_pocl", lambda device: False)

    def call(value, cache=None):
        cache = cache or ProgramCache(tmp_path)
        source = f"__kernel void put(__global int* out, int n) {{ out[0] = {value} + n; }}"
        assert cache.get_program(cl_queue.context, source, cl_queue.device).kernel_names == "put"
        return cache.stats.builds, cache.stats.disk_hits, cache.stats.rejected

    return call


@linux
@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_folder_that_others_may_write_to_is_not_used(get, tmp_path, mode):
    """A program of theirs would run as the user. It is built anew and not kept, and that is said once."""
    get(1)
    assert len(entries(tmp_path)) == 1
    tmp_path.chmod(mode)
    cache = ProgramCache(tmp_path)
    with pytest.warns(UserWarning, match=r"programs are built anew and not kept: .* can be written by other users"):
        get(1, cache)
    get(2, cache)  # a second warning would be an error
    assert (cache.stats.builds, cache.stats.disk_hits) == (2, 0) and len(entries(tmp_path)) == 1
    tmp_path.chmod(0o700)
    assert get(1) == (0, 1, 0)


@linux
def test_a_folder_of_another_user_is_not_used(get, tmp_path, monkeypatch):
    get(1)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    cache = ProgramCache(tmp_path)
    with pytest.warns(UserWarning, match="belongs to user"):
        get(1, cache)
    assert (cache.stats.builds, cache.stats.disk_hits) == (1, 0)


@linux
def test_only_a_group_of_the_user_s_own_may_write(tmp_path, monkeypatch):
    tmp_path.chmod(0o770)
    group = SimpleNamespace(gr_name="ada", gr_mem=[])
    monkeypatch.setattr(paths.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="ada"))
    monkeypatch.setattr(paths.grp, "getgrgid", lambda gid: group)
    assert paths.distrust(tmp_path) == ""
    group.gr_mem = ["ada", "bob"]
    assert "other users" in paths.distrust(tmp_path)
    group.gr_name, group.gr_mem = "staff", []
    assert "other users" in paths.distrust(tmp_path)


def _link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _node(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _folder(path):
    path.unlink()
    path.mkdir()


@linux
@pytest.mark.parametrize(
    "change", [_link, _node, _pipe, _folder, lambda p: os.truncate(p, module.LARGEST + 1), lambda p: p.chmod(0o666)]
)
def test_only_regular_files_of_sane_size_are_read(get, tmp_path, change):
    """Links are not followed; a pipe would be waited for, a device read without end."""
    get(1)
    (path,) = entries(tmp_path)
    change(path)
    assert get(1) == (1, 0, 1)


@linux
def test_a_planted_link_among_the_temporary_files_is_not_followed(get, tmp_path, monkeypatch):
    """The source of a program that fails is kept there when there is no cache."""
    target, temporary = tmp_path / "target", tmp_path / "temporary"
    target.mkdir(), temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert paths.own_temporary() == temporary / f"netcl-{os.geteuid()}"
    paths.own_temporary().rmdir()
    (temporary / f"netcl-{os.geteuid()}").symlink_to(target)
    (tmp_path / "file").touch()
    cache = ProgramCache(tmp_path / "file" / "below")
    assert paths.own_temporary() is None and cache._keep_source("0" * 64, "source") is None
    assert list(target.iterdir()) == []


def test_a_full_disk_means_no_cache(get, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = ProgramCache(tmp_path)
    monkeypatch.setattr(module.tempfile, "mkstemp", full)
    get(1, cache)
    assert cache.stats.builds == 1 and entries(tmp_path) == []
