"""Imports point down the layers, files and functions stay small, packages stay inside their line budget."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
ROOT = REPO / "netcl"
FILES = sorted(ROOT.rglob("*.py"))

KIT = {"core", "runtime", "kernels"}
COMPUTE = {*KIT, "fusion", "ops"}
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "runtime": {"core"},
    "profiling": {"core", "runtime"},
    "kernels": {"core", "runtime"},
    "fusion": KIT,
    "ops": {*KIT, "fusion"},
    "autograd": COMPUTE,
    "amp": {"core", "ops", "autograd"},
    "nn": {"core", "ops", "autograd"},
    "optim": {"core", "fusion", "ops", "autograd"},
    "data": {"core", "ops"},
    "io": {"core", "nn", "optim"},
    "distributed": {"core", "ops", "autograd"},
    "text": set(),
    "cluster": {"core", "ops"},
    "transformer": {"core", "ops", "autograd", "nn"},
    "ssl": {"core", "ops", "autograd", "nn", "data"},
    "evo": {"core", "ops", "nn"},
}
PACKAGES = [*ALLOWED, "cli"]
ALLOWED["cli"] = set(ALLOWED)  # the command line stands on top of everything and nothing imports it

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 40  # code lines: docstrings and comments are free


def loc():
    spec = importlib.util.spec_from_file_location("loc", REPO / "tools" / "loc.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported(tree):
    """Packages of netcl that a module imports, also inside functions; "" for `from netcl import x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "netcl":
                yield ""
            elif node.module.startswith("netcl."):
                yield node.module.split(".")[1]
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("netcl."))


def bad_imports(path, package):
    for target in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if target == "":
            yield f"{path.relative_to(REPO)}: `from netcl import ...`; import from the submodule"
        elif target not in {package, "moved"} | ALLOWED[package]:
            yield f"{path.relative_to(REPO)} imports netcl.{target}"


def test_imports_point_down():
    inside = [path for path in FILES if path.parent != ROOT]
    bad = [line for path in inside for line in bad_imports(path, path.relative_to(ROOT).parts[0])]
    assert not bad, "\n".join(bad)


def arrows(files):
    """{module: modules of netcl that it imports}, wherever the import stands; packages' faces are left out."""
    modules = {".".join(path.relative_to(REPO).with_suffix("").parts): path for path in files}
    found = {}
    for name, path in modules.items():
        nodes = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ImportFrom)]
        targets = {t for n in nodes if n.module for t in (n.module, *(f"{n.module}.{a.name}" for a in n.names))}
        found[name] = (targets & set(modules)) - {name}
    return found


def circles(graph):
    """What is left when modules that import nothing left are taken away, again and again: circles and what leads in."""
    left = dict(graph)
    while free := [name for name, targets in left.items() if not targets & set(left)]:
        for name in free:
            del left[name]
    while free := [name for name in left if not any(name in targets for targets in left.values())]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_modules_import_each_other():
    assert circles(arrows([path for path in FILES if path.name != "__init__.py"])) == []


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set(), "e": {"d"}}
    assert circles(graph) == ["b", "c"]


def test_every_package_has_a_layer_and_a_budget():
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(PACKAGES)
    assert packages == set(loc().BUDGET)


def test_an_upward_import_is_caught(tmp_path):
    tree = ast.parse("def f():\n    from netcl.autograd.tape import Tape\nimport netcl.nn.linear\nfrom netcl import x")
    assert sorted(imported(tree)) == ["", "autograd", "nn"]


def test_budgets_of_lines_and_of_exceptions_to_rules_hold():
    problems = loc().over_budget()
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", sorted({path.relative_to(ROOT).parts[0] for path in FILES}))
def test_files_and_functions_are_small(name):
    tool, bad = loc(), []
    for path in (path for path in FILES if path.relative_to(ROOT).parts[0] == name):
        text = path.read_text(encoding="utf-8")
        generated = "Written by tools/" in text.partition("\n")[0]  # nobody edits it
        if text.count("\n") > MAX_FILE_LINES and not generated:
            bad.append(f"{path.relative_to(REPO)}: {text.count(chr(10))} lines, limit {MAX_FILE_LINES}")
        code = tool.python_code_lines(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = len(code & set(range(node.lineno, node.end_lineno + 1)))
                if size > MAX_FUNCTION_LINES and not generated:
                    where = f"{path.relative_to(REPO)}:{node.lineno}"
                    bad.append(f"{where} {node.name}: {size} code lines, limit {MAX_FUNCTION_LINES}")
    assert not bad, "\n".join(bad)


def test_code_lines_ignore_comments_and_docstrings():
    text = '"""Module\ndocstring."""\n\nx = 1  # one\n\n\ndef f():\n    """Doc."""\n    # why\n    return """a\nb"""\n'
    assert loc().python_code_lines(text) == {4, 7, 10, 11}
    assert loc().opencl_code_lines("// a\nint x; // b\n/* c\n d */\n\nint y;\n") == 2


def test_an_ignored_type_needs_a_reason_and_a_kernel_120_columns(tmp_path, monkeypatch):
    tool = loc()
    monkeypatch.setattr(tool, "ROOT", tmp_path / "netcl")
    (tmp_path / "netcl").mkdir()
    (tmp_path / "netcl" / "a.py").write_text(
        "x = 1  # type: ignore[misc]  # a reason\ny = 2  # type: ignore[misc]\nz = [1]  # fmt: skip\n"
    )
    (tmp_path / "netcl" / "a.cl").write_text("int a;\n" + "x" * 121 + "\n")
    assert tool.looking_away() == {"# type: ignore": 2, "# fmt: skip": 1}
    assert tool.badly_written() == [
        "netcl/a.cl:2: 121 columns, limit 120",
        "netcl/a.py:2: `type: ignore` without a reason behind it",
    ]


def test_no_file_is_named_after_nothing():
    vague = {"utils", "helpers", "common", "misc"}
    assert not [path for path in FILES if path.stem in vague]


def unbalanced_macros(text):
    """Macros whose brackets do not close: most likely a line that lost its continuation."""
    for macro in re.findall(r"^[ \t]*#[ \t]*define(?:[^\n]*\\\n)*[^\n]*", text, re.MULTILINE):
        plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", re.sub(r'"(?:\\.|[^"\\])*"', "", macro), flags=re.DOTALL)
        if any(plain.count(a) != plain.count(b) for a, b in ("()", "[]")):
            yield macro.split("\n")[0]


def test_macros_of_kernels_close_their_brackets():
    assert list(unbalanced_macros('#define A(x) f("(", \\\n  x)\n')) == []
    assert list(unbalanced_macros("#define A(x) f(\n  x)\n")) == ["#define A(x) f("]
    bad = [(path.name, *unbalanced_macros(path.read_text())) for path in ROOT.rglob("*.cl")]
    assert [names for names in bad if len(names) > 1] == []
