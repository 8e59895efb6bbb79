"""Count code lines per package and compare them with the budget.

A code line holds at least one token that is neither a comment nor (part of) a docstring. Files that a tool wrote are
not counted: nobody reads or edits them, and what they are made of is counted where it stands. Run: python tools/loc.py
Prints a table, the positional arguments of the places that plan or send launches, how often tools are told to look
away, and what is above its limit. Raising a limit is a commit of its own.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "netcl"

# package: (Python lines, OpenCL C lines). Core holds device discovery, driver set-up and the maths of CPU devices; ops
# three forms of each op (NumPy, CPU devices, GPUs); autograd the compiler, its row patterns and the recorded step.
BUDGET = {
    "core": (4160, 210),
    "runtime": (1640, 0),
    "profiling": (920, 40),
    "kernels": (720, 280),
    "fusion": (1580, 220),
    "ops": (10330, 7920),
    "autograd": (4270, 0),
    "nn": (1580, 0),
    "optim": (1420, 0),
    "data": (680, 0),
    "io": (860, 0),
    "cli": (850, 0),
}

LOOKING_AWAY = {"# type: ignore": 30, "# fmt: skip": 40}  # the first with its error and a reason, the other at tables
WIDTH = 120  # columns of a line of OpenCL C; ruff holds those of Python
ARGUMENTS = 3  # positional ones of a launch, on average: the rest goes by name

_NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines taken by the docstrings of the module, its classes and its functions."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def python_code_lines(text: str) -> set[int]:
    """Line numbers of `text` that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(ast.parse(text))


def opencl_code_lines(text: str) -> int:
    """Lines of OpenCL C that hold more than comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    return sum(1 for line in text.splitlines() if re.sub(r"//.*", "", line).strip())


def written_by_hand(text: str) -> bool:
    """Whether no tool wrote a module, by its first line."""
    return "Written by tools/" not in text.partition("\n")[0]


def counts(package: str) -> tuple[int, int]:
    """(Python, OpenCL C) code lines of one package."""
    folder = ROOT / package
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    python = sum(len(python_code_lines(text)) for text in texts if written_by_hand(text))
    opencl = sum(opencl_code_lines(path.read_text(encoding="utf-8")) for path in folder.rglob("*.cl"))
    return python, opencl


def launch_sites() -> tuple[int, float]:
    """How many places plan a launch (`bind`) or send one (`launch`), and their positional arguments on average."""
    found = []
    for package in ("ops", "fusion", "kernels", "profiling"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    found += [len(node.args)] if name in ("bind", "launch") else []
    return len(found), sum(found) / len(found)


def looking_away() -> dict[str, int]:
    """How often the package tells tools to look away, by what it says."""
    texts = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    return {words: sum(text.count(words) for text in texts) for words in LOOKING_AWAY}


def badly_written() -> list[str]:
    """One sentence for each `type: ignore` without a reason, and each line of OpenCL C that is too long."""
    found = []
    for path in sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.cl")]):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path.relative_to(ROOT.parent)}:{number}"
            if "# type: ignore" in line and not re.search(r"# type: ignore\[[\w-]+\]  # \w", line):
                found.append(f"{where}: `type: ignore` without a reason behind it")
            if path.suffix == ".cl" and len(line) > WIDTH:
                found.append(f"{where}: {len(line)} columns, limit {WIDTH}")
    return found


def over_budget() -> list[str]:
    """One sentence for each limit that is exceeded, and each package that has none."""
    packages = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())
    problems = [f"{name}: no budget in tools/loc.py" for name in packages if name not in BUDGET]
    for name in packages:
        for kind, have, limit in zip(("Python", "OpenCL C"), counts(name), BUDGET.get(name, (0, 0))):
            if name in BUDGET and have > limit:
                problems.append(f"{name}: {have} lines of {kind}, limit {limit}")
    for words, times in looking_away().items():
        if times > LOOKING_AWAY[words]:
            problems.append(f"netcl: {times} times `{words}`, limit {LOOKING_AWAY[words]}")
    problems += badly_written()
    if launch_sites()[1] > ARGUMENTS:
        problems.append(f"launches: {launch_sites()[1]:.1f} positional arguments on average, limit {ARGUMENTS}")
    return problems


def main() -> int:
    """Print the table; 1 when something is above its limit."""
    print(f"{'package':<12} {'Python':>7} {'limit':>7} {'OpenCL C':>9} {'limit':>7}")
    total = [0, 0, 0, 0]
    for name, (python_limit, opencl_limit) in BUDGET.items():
        python, opencl = counts(name)
        row = (python, python_limit, opencl, opencl_limit)
        total = [a + b for a, b in zip(total, row)]
        print("{:<12} {:>7,} {:>7,} {:>9,} {:>7,}".format(name, *row))
    print("{:<12} {:>7,} {:>7,} {:>9,} {:>7,}".format("total", *total))
    sites, arguments = launch_sites()
    print(f"launches: {sites} places with {arguments:.1f} positional arguments on average, limit {ARGUMENTS}")
    for words, times in looking_away().items():
        print(f"{words}: {times} times, limit {LOOKING_AWAY[words]}")
    problems = over_budget()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
