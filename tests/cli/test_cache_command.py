"""`netcl cache`: what is kept where, and clearing it."""

import pytest

from netcl.cli.main import main


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache with one program of ours and one of PoCL's, a folder for PoCL that the user chose, and NVIDIA's."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NETCL_CACHE_MB", "7")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "chosen"))
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "nvidia"))
    for folder in ("cache/pocl", "chosen"):
        program = tmp_path / folder / "AB" / ("C" * 37)
        program.mkdir(parents=True)
        (program / "program.bc").write_bytes(bytes(4096))
    (tmp_path / "cache" / "failed").mkdir()
    (tmp_path / "cache" / "failed" / "x.cl").write_bytes(bytes(1024))
    (tmp_path / "cache" / f"{0:064x}.bin").write_bytes(bytes(2048))
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "index").write_bytes(bytes(1024))
    return tmp_path


def rows(capsys):
    """The cells of the table, by their first."""
    lines = [line.strip("│ ").split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return {first.strip(): tuple(cell.strip() for cell in rest) for first, *rest in lines}


def test_all_folders_are_listed_with_size_and_bound(kept, capsys, monkeypatch):
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    for name in ("cache", "cache/pocl", "chosen", "nvidia"):
        assert f"{kept / name}" in out
    assert out.count("(not netcl's: --clear leaves it)") == 2
    main(["cache"])
    found = rows(capsys)
    assert found["programs"] == ("1", "3 KiB", "7 MiB")
    assert found["programs of NVIDIA's driver"] == ("1", "1 KiB", "the driver's")
    monkeypatch.setenv("POCL_CACHE_DIR", str(kept / "cache" / "pocl"))
    main(["cache"])
    assert rows(capsys)["programs of PoCL"] == ("1", "4 KiB", "7 MiB")


def test_clear_removes_what_is_netcls(kept, capsys):
    assert main(["cache", "--clear"]) == 0
    assert "cleared 2 entries, 7 KiB" in capsys.readouterr().out
    assert [path.name for path in (kept / "cache").iterdir()] == ["pocl"] and not [*(kept / "cache/pocl").iterdir()]
    assert (kept / "chosen/AB").exists() and (kept / "nvidia/index").exists()


def test_nothing_is_kept_yet(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("POCL_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "none"))
    for options in ([], ["--clear"]):
        assert main(["cache", *options]) == 0
        assert f"programs will be in {tmp_path / 'none'}" in capsys.readouterr().out.replace("\n", "")
    assert not [*tmp_path.iterdir()]
