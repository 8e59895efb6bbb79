"""The pages for readers: examples run, links lead somewhere, and files that are named exist."""

import importlib.util
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))]
ROOTS = {REPO, REPO / "netcl", *(path.parent for path in (REPO / "netcl").rglob("*.cl"))}


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPO / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example_of_the_readme(capsys):
    exec(examples()[0], {})
    assert re.fullmatch(r"loss [\d.]+ gradient \(2, 4\)\n", capsys.readouterr().out)


def test_the_training_script_of_the_readme_learns_saves_and_resumes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(examples()[1], names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and float(lines[-1].rpartition(" ")[2]) > 0.93
    assert names["state"]["epoch"] == 7 and type(names["again"]).__name__ == "Sequential"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.netcl", "run.netcl"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    named = re.findall(r"`([\w./]+\.(?:py|cl|json|jsonl|md|toml)|[\w.]+/[\w./]*)`", page.read_text(encoding="utf-8"))
    assert [n for n in named if not any((root / n).exists() for root in ROOTS)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_targets_of_make_exist(page):
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^(?:    |`)make (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []


def test_what_is_written_from_the_records_of_ops_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate_ops", REPO / "tools" / "generate_ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.stale() == [], "run python tools/generate_ops.py"
