"""What messages tell a user to do exists: functions, methods, arguments, commands, settings and extras."""

import ast
import re
import sys
from pathlib import Path

import pytest

from netcl.core import settings

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "netcl").rglob("*.py"))}
SHOWING = {"warn", "warn_once", "note", "_warn", "refuse", "note_once"}  # functions that show a message
FOREIGN = {"int", "float", "bool", "len", "list", "print", "str"}
FOREIGN |= {"MUL", "wait"}  # a function of the kernels' language, a method of events


def messages():
    """(path, line, text) of every message: what is raised, warned of or noted, with {} for what is filled in."""
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            shown = isinstance(node, ast.Raise) or (
                isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in SHOWING
            )
            for part in ast.walk(node) if shown else ():
                if isinstance(part, ast.JoinedStr):
                    pieces = [v.value if isinstance(v, ast.Constant) else "{}" for v in part.values]
                    yield path.relative_to(ROOT), part.lineno, "".join(map(str, pieces))
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield path.relative_to(ROOT), part.lineno, part.value


def public_names():
    """Every function, class, method, attribute and argument that the package defines, and those of generated files."""
    defined, arguments = set(), set()
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            if isinstance(node, ast.FunctionDef):
                given = node.args
                arguments |= {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                defined.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                arguments.add(node.target.id)  # a field of a record is an argument of its constructor
    return defined, arguments


DEFINED, ARGUMENTS = public_names()
MESSAGES = sorted(set(messages()), key=lambda m: (str(m[0]), m[1], m[2]))


def found(pattern, known):
    """The messages with words of `pattern` that are not known."""
    wrong = []
    for path, line, text in MESSAGES:
        for match in re.finditer(pattern, text):
            word = match[1].rpartition(".")[2]
            if word and word not in known and word not in FOREIGN:
                wrong.append(f"{path}:{line}: {match[0]!r} in {text!r}")
    return wrong


def test_functions_that_messages_name_exist():
    assert not found(r"(?<![\w}])([A-Za-z_][\w.]*)\(", DEFINED)


def test_words_behind_use_exist():
    """`use astype`, `convert with astype`, `call begin`."""
    plain = {"it", "the", "that", "smaller"}
    assert not found(r"\b(?:use|convert with|convert by|call) ([A-Za-z_][\w.]*)", DEFINED | ARGUMENTS | plain)


def test_paths_that_messages_name_lead_somewhere():
    import netcl

    homes = {"ops", "ag", "nn", "optim", "data", "io", "netcl"}
    for path, line, text in MESSAGES:
        for match in re.finditer(r"(?<![\w./{-])([a-z]+(?:\.[A-Za-z_]\w*)+)", text):
            first, *rest = match[1].split(".")
            if first in homes:
                reached = netcl if first == "netcl" else getattr(netcl, first)
                for name in rest:
                    assert hasattr(reached, name), f"{path}:{line}: {match[1]} in {text!r}"
                    reached = getattr(reached, name)


def test_arguments_that_messages_name_exist():
    assert not found(r"(?<![\w.{])([a-z]\w*)=(?!=)", ARGUMENTS | DEFINED)


def test_settings_that_messages_name_exist():
    known = set(settings.TABLE)
    assert not found(r"\b(NETCL_\w+)", known)


def test_commands_that_messages_name_exist():
    from netcl.cli import main

    assert not found(r"(?:run|try|see|with) `?netcl ([a-z]+)", set(main.COMMANDS))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_extras_that_messages_name_exist():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert not found(r"\.\[(\w+)", extras)


def test_there_are_messages():
    assert len(MESSAGES) > 800
