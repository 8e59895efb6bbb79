"""tools/races.py: what it says without Oclgrind, and what it reads of a log."""

from tools import races


def test_without_oclgrind_it_says_where_to_get_it(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert races.main([]) == 1
    assert "apt-get install oclgrind" in capsys.readouterr().err


def test_what_was_said_since(monkeypatch, tmp_path):
    log = tmp_path / "log"
    monkeypatch.setenv(races.LOG, str(log))
    assert races.said() == ""
    log.write_text("before\nInvalid read\n")
    assert races.said(len("before\n")) == "Invalid read\n"


def test_the_chosen_files_exist(pytestconfig):
    assert all((pytestconfig.rootpath / "tests" / name).is_file() for name in races.FILES)
