"""The pages for readers: examples run, links lead somewhere, and files that are named exist."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))]
ROOTS = {REPO, REPO / "netcl", *(path.parent for path in (REPO / "netcl").rglob("*.cl"))}


def test_the_example_of_the_readme(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (REPO / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    printed = capsys.readouterr().out
    assert "running on " in printed
    assert 1.5 < float(re.search(r"loss: ([\d.]+)", printed)[1]) < 4  # of ten classes, before any training


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
