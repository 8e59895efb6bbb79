"""Write netcl/nn/__init__.pyi: the classes of netcl.nn, whose constructors take a queue first or leave it out.

    python tools/generate_stubs.py           writes the file; a test refuses one that is out of date

Python has one signature a constructor. Type checkers and editors read both ways to call it from the stub.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from netcl import nn

PATH = Path(__file__).parents[1] / "netcl" / "nn" / "__init__.pyi"
HEAD = """# Written by tools/generate_stubs.py; do not edit. A layer's queue may come first or be left out.

from typing import Any, overload

"""


def text() -> str:
    """The whole stub."""
    plain, layers = [], []
    for name in sorted(nn.__all__):
        found = getattr(nn, name)
        if inspect.ismodule(found):
            plain.append(f"from netcl.nn import {name} as {name}")
        elif inspect.isclass(found) and [*inspect.signature(found).parameters][:1] == ["queue"]:
            layers.append(layer(name, found))
        else:
            plain.append(f"from {found.__module__} import {name} as {name}")
    used = sorted({getattr(nn, name.split("(")[0][6:]).__module__ for name in layers})
    modules = [f"from {path.rpartition('.')[0]} import {path.rpartition('.')[2]} as _{_short(path)}" for path in used]
    names = sorted(f'"{name}"' for name in nn.__all__)
    listed = "".join(f"    {name},\n" for name in names)
    return HEAD + "\n".join([*modules, *sorted(plain)]) + f"\n\n__all__ = [\n{listed}]\n\n" + "\n".join(layers)


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def layer(name: str, found: Any) -> str:
    """A class with its constructor with and without the queue."""
    parameters = [*inspect.signature(found).parameters.values()]
    lines = [f"class {name}(_{_short(found.__module__)}.{name}):"]
    for rest, device in ((parameters, []), (parameters[1:], ["device: Any = ..."])):
        keywords = [p for p in rest if p.kind is p.KEYWORD_ONLY]
        given = [_declared(p) for p in rest if p.kind is not p.KEYWORD_ONLY]
        only = [*map(_declared, keywords), *device]
        arguments = ", ".join(["self", *given, *(["*", *only] if only else [])])
        lines += ["    @overload", f"    def __init__({arguments}) -> None: ..."]
    return "\n".join(lines) + "\n"


def _declared(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else " = ..."
    return f"{parameter.name}: {parameter.annotation}{default}"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
