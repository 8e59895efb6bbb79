"""Write what follows from the records of ops: `ag.<op>`, the methods of Tensor and Node, and docs/operators.md.

Run: python tools/generate_ops.py (after a change to a record, or to the signature or docstring of an op's function).
`python tools/generate_ops.py --check` says what is out of date; a test does the same.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from netcl.core.keywords import INDEX_FIRST  # noqa: E402
from netcl.ops import declared as _declared  # noqa: E402, F401
from netcl.ops import record  # noqa: E402
from netcl.ops.record import Op  # noqa: E402

WIDTH = 120
PARTS = ("gelu_tanh", "gemm")  # ops that only others use
WORDS = {"keepdims": "keepdim", "start_axis": "start_dim", "end_axis": "end_dim"}
HIDDEN = ("recorded", "room", "dim", "start_dim", "end_dim")  # of others, or added again for all ops alike
RENAMED = {"self": "x", "tensors": "xs"}
SUBJECTS = {  # folder or module of an op's function: the module of its `ag.<op>`
    "elementwise": "elementwise", "special": "elementwise", "reduction": "reduction", "movement": "movement",
    "tensor": "movement",
    "index": "index", "create": "index", "losses": "loss", "normalization": "norm", "pooling": "pool",
    "product": "product", "convolution": "product", "attend": "attention",
}  # fmt: skip
TITLES = {
    "elementwise": "Elementwise ops", "reduction": "Reductions", "movement": "Views and movements of elements",
    "index": "Selecting, scattering, sorting", "loss": "Losses", "norm": "Normalisation and softmax",
    "pool": "Pooling", "product": "Matrix products and convolutions", "attention": "Attention",
}  # fmt: skip
NAMES = {  # what annotations may name, and where it comes from
    "Any": "from typing import Any", "NoReturn": "from typing import NoReturn",
    "Sequence": "from collections.abc import Sequence", "Axis": "from netcl.fusion.fold import Axis",
    "Node": "from netcl.autograd.node import Node", "Value": "from netcl.autograd.node import Value",
    "Operand": "from netcl.autograd.node import Operand",
    "apply_one": "from netcl.autograd.op import apply_one", "apply_many": "from netcl.autograd.op import apply_many",
    "layout": "from netcl.core import layout", "axis_of": "from netcl.core.keywords import axis_of",
    "index_before_axis": "from netcl.core.keywords import index_before_axis",
    "needed_axis": "from netcl.core.keywords import needed_axis",
    "Generator": "from netcl.ops.create.random import Generator",
}  # fmt: skip


# -- what a record says ------------------------------------------------------------------------------------------------


def shown() -> list[Op]:
    """The ops that users call, in the order of the table and of their declaration, without users' own."""
    found = [op for name, op in record.every().items() if name not in PARTS]
    return [op for op in found if op.public.__module__.startswith(("netcl.ops.", "netcl.core."))]


def by_hand() -> list[str]:
    """The names of `ag` in netcl/autograd/composed.py, read off its text: what is written here may be broken now."""
    tree = ast.parse((ROOT / "netcl/autograd/composed.py").read_text(encoding="utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    listed = next(node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    return list(ast.literal_eval(listed))


def subject(op: Op) -> str:
    """The module that an op belongs to."""
    parts = op.public.__module__.split(".")
    return SUBJECTS[next(p for p in reversed(parts) if p in SUBJECTS)]


def parameters_of(op: Op) -> list[inspect.Parameter]:
    """The public parameters, operands first as users give them."""
    found = [p for p in inspect.signature(op.public).parameters.values() if p.name not in HIDDEN]
    return [p.replace(name=RENAMED.get(p.name, p.name)) for p in found]


def is_operand(op: Op, p: inspect.Parameter) -> bool:
    """Whether a parameter is a tensor that may get a gradient."""
    first = p.name == "x" or any(word in str(p.annotation) for word in ("Tensor", "Operand", "Optional"))
    return first and p.name not in op.constants


def doc_of(op: Op) -> str:
    """The docstring."""
    return inspect.getdoc(op.public) or ""


# -- ag.<op> -----------------------------------------------------------------------------------------------------------


def annotation(op: Op, p: inspect.Parameter) -> str:
    """The type of a parameter on nodes."""
    if p.name == "x" or p.kind is p.VAR_KEYWORD:
        return "Value" if p.name == "x" else "NoReturn"
    return str(p.annotation).replace("Tensor", "Value").replace("Optional", "Value | None")


def declared(op: Op, p: inspect.Parameter) -> str:
    """A parameter as it stands in the signature."""
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    default = "" if p.default is p.empty else f" = {p.default!r}".replace("'", '"')
    return f"{star}{p.name}: {annotation(op, p)}{default}"


def words_of(op: Op, given: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """PyTorch's words for arguments of the op, by name only."""
    kind, found = inspect.Parameter.KEYWORD_ONLY, []
    for p in given:
        word = {"axis": "dims" if op.name in ("flip", "roll") else "dim", **WORDS}.get(p.name)
        if word:
            default = False if word == "keepdim" else None
            type_ = str(p.annotation) if "None" in str(p.annotation) or word == "keepdim" else f"{p.annotation} | None"
            type_ = "Axis" if type_ == "Axis | None" else type_
            found.append(inspect.Parameter(word, kind, default=default, annotation=type_))
    return found


def with_words(op: Op, given: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters as they are declared: with PyTorch's words, and the axis optional where it is needed."""
    words = words_of(op, given)
    if not words or any(p.kind is p.VAR_POSITIONAL for p in given):
        return given
    shown = []
    for p in given:
        if p.name == "axis" and p.default is p.empty:
            p = p.replace(default=None, annotation=f"{p.annotation} | None")
        shown.append(p)
    end = [p for p in shown if p.kind is p.VAR_KEYWORD]
    return [*(p for p in shown if p not in end), *words, *end]


def heeding(op: Op, given: list[inspect.Parameter], indent: str) -> list[str]:
    """Lines that take PyTorch's words and order."""
    lines, names = [], [p.name for p in given]
    if op.name in INDEX_FIRST:
        between = names[1 : names.index("axis")]
        rotated = ", ".join([*between, "axis"])
        lines.append(f"{indent}{rotated} = index_before_axis({rotated})")
    for p in given:
        word = next((w.name for w in words_of(op, [p]) if w.name != "keepdim"), "")
        if word and not any(p.kind is p.VAR_POSITIONAL for p in given):
            if p.default is p.empty:
                lines.append(f'{indent}axis = needed_axis("{op.name}", axis, {word})')
            else:
                lines.append(f"{indent}if {word} is not None:")
                lines.append(f'{indent}    {p.name} = axis_of("{op.name}", {p.name}, {p.default!r}, {word})')
    return lines


def signature(op: Op, given: list[inspect.Parameter]) -> list[str]:
    """The parameters as they stand in the signature, with the mark before those that go by name."""
    items = [declared(op, p) for p in given]
    named = [i for i, p in enumerate(given) if p.kind is p.KEYWORD_ONLY]
    return (
        items
        if not named or any(p.kind is p.VAR_POSITIONAL for p in given)
        else [*items[: named[0]], "*", *items[named[0] :]]
    )


def wrapped(head: str, items: list[str], tail: str, indent: str) -> str:
    """head(items)tail as the formatter breaks it."""
    line = f"{indent}{head}{', '.join(items)}{tail}"
    if len(line) <= WIDTH:
        return line
    inner = f"{indent}    {', '.join(items)}"
    if len(inner) <= WIDTH:
        return f"{indent}{head}\n{inner}\n{indent}{tail}"
    rows = "".join(f"{indent}    {item},\n" for item in items)
    return f"{indent}{head}\n{rows}{indent}{tail}"


def operands_of(given: list[inspect.Parameter]) -> tuple[str, str]:
    """The line that collects operands some of which may be None ("" where none may), and how they are passed."""
    names = [f"*{p.name}" if "Sequence" in str(p.annotation) else p.name for p in given]
    sure = sum(p.default is p.empty for p in given)
    if sure == len(given):
        return "", ", ".join(names)
    choices = []
    for n in range(sure, len(given)):
        absent = " and ".join(f"{name} is None" for name in names[n:])
        choices.append(f"({', '.join(names[:n])}{',' * (n == 1)}) if {absent} else ")
    last = f"({', '.join(names)})"
    line = f"    operands = {''.join(choices)}{last}"
    if len(line) > WIDTH:  # as the formatter breaks it
        rows = [
            row for choice in choices for row in choice.removesuffix("else ").replace(" if ", "\n if ").splitlines()
        ]
        text = "\n".join(rows).replace("\n(", "\n        else (").replace("\n if ", "\n        if ")
        line = f"    operands = (\n        {text.rstrip()}\n        else {last}\n    )".replace(" \n", "\n")
    return line, "*operands"


def attribute(op: Op, p: inspect.Parameter) -> str:
    """A parameter that is no operand as it is passed on."""
    if p.kind is p.VAR_KEYWORD:
        return f"**{p.name}"
    if p.kind is p.VAR_POSITIONAL:
        return f'{p.name}=layout.flat_ints("{op.name}", {p.name}, "{"a shape" if p.name == "shape" else p.name}")'
    if p.name == "keepdims":
        return "keepdims=keepdims or keepdim"
    if p.name in op.constants:
        return f"{p.name}={p.name}.value if isinstance({p.name}, Node) else {p.name}"
    return f"{p.name}={p.name}"


def function_text(op: Op) -> str:
    """The source of `ag.<op>`."""
    given = parameters_of(op)
    count = len([p for p in given if is_operand(op, p)])
    many = str(inspect.signature(op.public).return_annotation).startswith("tuple") and not op.aux
    result, door = ("tuple[Node, ...]", "apply_many") if many else ("Node", "apply_one")
    collected, passed = operands_of([p for p in given if is_operand(op, p)])
    items = [f'"{op.name}"', *passed.split(", "), *(attribute(op, p) for p in given if not is_operand(op, p))]
    assert count, op.name
    lines = [wrapped(f"def {op.name}(", signature(op, with_words(op, given)), f") -> {result}:", "")]
    lines.append(quoted(doc_of(op), "    "))
    lines += heeding(op, given, "    ")
    lines += [collected] if collected else []
    lines.append(wrapped(f"return {door}(", items, ")", "    "))
    return "\n".join(lines)


def quoted(doc: str, indent: str) -> str:
    """A docstring, with lines that are too long broken."""
    room = WIDTH - len(indent)
    lines = doc.splitlines()
    if len(lines[0]) > room - (3 if lines[1:] else 6) or any(len(line) > room for line in lines):
        parts = [textwrap.wrap(part, room - 6) for part in doc.split("\n\n")]
        lines = [line for part in parts for line in ("", *part)][1:]
    if len(lines) == 1:
        return f'{indent}"""{lines[0]}"""'
    body = "\n".join(f"{indent}{line}".rstrip() for line in lines[1:])
    return f'{indent}"""{lines[0]}\n{body}\n{indent}"""'


def module_text(title: str, ops: list[Op]) -> str:
    """A module of `ag.<op>` functions."""
    body = "\n\n\n".join(function_text(op) for op in ops)
    names = [op.name for op in ops]
    if any(op.name == "silu" for op in ops):
        body += "\n\n\nswish = silu"
        names.append("swish")
    listed = wrapped("__all__ = [", [f'"{n}"' for n in sorted(names, key=natural)], "]", "")
    return "\n".join([
        f'"""{title} on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""', "",
        "from __future__ import annotations", "", imports(body), "", listed, "", "", body, "",
    ])  # fmt: skip


def natural(name: str) -> list[tuple[int, int, str]]:
    """Order by parts, numbers by value: log1p, log2, log10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def imports(body: str) -> str:
    """The imports that a text needs, as the linter sorts them."""
    words = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    wanted: dict[str, list[str]] = {}
    for name, line in NAMES.items():
        if name in words:
            module = line.split()[1]
            wanted.setdefault(module, []).append(name)
    blocks: tuple[list[str], list[str]] = ([], [])
    for module, names in sorted(wanted.items()):
        blocks[module.startswith("netcl")].append(f"from {module} import {', '.join(sorted(names))}")
    return "\n\n".join("\n".join(block) for block in blocks if block)


# -- methods of Tensor and Node ----------------------------------------------------------------------------------------

METHODS_HEAD = '''"""Methods of Tensor and Node. Written by tools/generate_ops.py from the records of ops; do not edit.

Each looks the op up in a table of the class: ops on tensors for Tensor, ops on nodes for Node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from netcl.core.keywords import axis_of, index_before_axis, needed_axis

if TYPE_CHECKING:
    from typing_extensions import Self

Axis = int | Sequence[int] | None


class Methods:
    """The methods that are ops. `_operations` has the op of each name, `_operands` is what operators take."""

    __slots__ = ()
    __hash__ = object.__hash__
    _operations: Mapping[str, Callable[..., Self]]
    _several: Mapping[str, Callable[..., tuple[Self, ...]]]  # the same table, for ops with several results
    _operands: tuple[type, ...]

    def _refuse(self, name: str, other: Any) -> Any:
        """What an operator gives for an operand it does not take."""
        return NotImplemented
'''


def method_text(op: Op, name: str) -> str:
    """The source of one method."""
    if name.startswith("__"):
        return operator_text(op, name)
    given = [p for p in parameters_of(op)[1:] if p.kind is not p.VAR_KEYWORD]
    shown = signature(op, with_words(op, given))
    items = [
        "self",
        *(text.replace("Value", "Any").replace("Operand", "Any").replace("Scalar", "float") for text in shown),
    ]
    passed = ["self", *(passed_on(p) for p in given)]
    result = "tuple[Self, ...]" if "tuple[" in str(inspect.signature(op.public).return_annotation) else "Self"
    head = wrapped(f"def {name}(", items, f") -> {result}:", "    ")
    table = "_operations" if result == "Self" else "_several"
    body = wrapped(f'return self.{table}["{op.name}"](', passed, ")", " " * 8)
    doc = quoted(doc_of(op).split("\n\n")[0], " " * 8)
    return "\n".join([head, doc, *heeding(op, [op_first(op), *given], " " * 8), f"{body}"])


def op_first(op: Op) -> inspect.Parameter:
    """The operand that a method is of."""
    return parameters_of(op)[0]


def passed_on(p: inspect.Parameter) -> str:
    """A parameter of a method as its op gets it."""
    if p.name == "keepdims":
        return "keepdims or keepdim"
    return f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name


def operator_text(op: Op, name: str) -> str:
    """The source of an operator."""
    find = f'self._operations["{op.name}"]'
    given = [p for p in parameters_of(op) if p.kind is not p.VAR_KEYWORD]
    if name == "__getitem__" or len(given) == 1:
        key = (", key: Any", ", key") if name == "__getitem__" else ("", "")
        call = f"{find}(self{key[1]})"
        return f"    def {name}(self{key[0]}) -> Self:\n        return {call}"
    reflected = name.startswith("__r") and name != "__rshift__"
    order = "other, self" if reflected else "self, other"
    ignored, kind = (
        ("  # type: ignore[override]  # elementwise, as NumPy's", "object")
        if name in ("__eq__", "__ne__")
        else ("", "Any")
    )
    return (
        f"    def {name}(self, other: {kind}) -> Self:{ignored}\n"
        f"        known = isinstance(other, self._operands)\n"
        f'        return {find}({order}) if known else self._refuse("{op.name}", other)'
    )


def methods_text() -> str:
    """netcl/core/methods.py."""
    parts = [method_text(op, name) for op in shown() for name in op.methods]
    return METHODS_HEAD + "\n" + "\n\n".join(parts) + "\n"


# -- docs --------------------------------------------------------------------------------------------------------------

DOCS_HEAD = """# Operators

Every op is `ag.<name>` on nodes. Written by `tools/generate_ops.py` from the records of ops; do not edit.

- gradient: whether one flows back; "part" marks functions made of other ops, whose gradients are theirs.
- dtypes: what is taken; others are refused by name.
- precision: what mixed precision computes floats in; empty where they stay as they come.
- ONNX, array API: the operator of the same meaning there.
"""


def docs_text() -> str:
    """docs/operators.md."""
    groups: dict[str, list[Op]] = {}
    for op in shown():
        groups.setdefault(subject(op), []).append(op)
    lines = [DOCS_HEAD]
    for key, title in TITLES.items():
        heads = ("name", "arguments", "gradient", "dtypes", "precision", "methods", "ONNX", "array API")
        lines += [f"## {title}", "", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
        for op in sorted(groups[key], key=lambda op: op.name):
            gradient = "part" if op.name in record.COMPOSED else "yes" if op.backward else "no"
            names = " ".join(f"`{n}`" for n in op.methods)
            cells = (op.name, arguments(op), gradient, op.dtypes, op.cast, names, op.onnx, op.array_api)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def arguments(op: Op) -> str:
    """Names and defaults of the arguments."""
    star = {inspect.Parameter.VAR_POSITIONAL: "*"}
    return ", ".join(
        f"{star.get(p.kind, '')}{p.name}" + ("" if p.default is p.empty else f"={p.default!r}")
        for p in parameters_of(op)
        if p.kind is not p.VAR_KEYWORD
    )


# -- files -------------------------------------------------------------------------------------------------------------


def texts() -> Iterator[tuple[str, Callable[[], str]]]:
    """(path, text) of each file."""
    groups: dict[str, list[Op]] = {}
    composed = by_hand()
    for op in shown():
        if op.name not in composed:
            groups.setdefault(subject(op), []).append(op)
    for key, title in TITLES.items():
        yield f"netcl/autograd/functional/{key}.py", lambda key=key, title=title: module_text(title, groups[key])
    yield "netcl/core/methods.py", methods_text
    yield "docs/operators.md", docs_text


def stale() -> list[str]:
    """The files that are not as they would be written."""
    found = []
    for path, text in texts():
        file = ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != text():
            found.append(path)
    return found


def main() -> int:
    """Write the files, or say which are out of date."""
    if "--check" in sys.argv[1:]:
        out_of_date = stale()
        print("\n".join(f"{path}: out of date; run python tools/generate_ops.py" for path in out_of_date))
        return 1 if out_of_date else 0
    for path, text in texts():
        (ROOT / path).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
