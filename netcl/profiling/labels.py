"""What a launch was for: module, op and direction, read off the Python frames that lead to it.

Nothing is written down for this while a program runs unprofiled: netcl's own frames say which op is at work
(`apply_op`), which record backward walks (`Tape._walk`), which module was called and which optimizer steps.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, NamedTuple

from netcl.core import callers

FORWARD, BACKWARD, UPDATE, REPLAY = "forward", "backward", "update", "replay"
_paths: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()  # of modules in an outermost one
_roles: dict[CodeType, str] = {}


class Label(NamedTuple):
    """Where a launch came from; "" for what is not known."""

    module: str = ""  # the path in the outermost module that was called, and the class
    op: str = ""
    direction: str = ""


ROLES = {  # (end of the file's path, function) -> what the frame tells
    ("autograd/op.py", "apply_op"): "op",
    ("autograd/tape.py", "_walk"): "record",
    ("autograd/jit/program.py", "_run_fused"): "fused",
    ("nn/module.py", "__call__"): "module",
    ("optim/optimizer.py", "step"): "optimizer",
    ("runtime/capture/capture.py", "_tell"): "replayed",
    ("runtime/capture/host_replay.py", "run"): "replayed",
}


def label() -> Label:
    """The label of the launch that is being made."""
    op = direction = ""
    modules: list[Any] = []
    frame: FrameType | None = sys._getframe(1)
    outermost = ""
    while frame is not None:
        own = callers.is_own(frame)
        role = _role(frame.f_code) if own else ""
        if role == "replayed":
            command = frame.f_locals.get("command") or frame.f_locals["step"]
            found: Label = command.label or Label()
            return Label(found.module, found.op or command.name, found.direction or REPLAY)
        if role == "module":
            modules.append(frame.f_locals["self"])
        elif role and not direction:
            op, direction, module = _told(role, frame.f_locals, op)
            if direction != FORWARD:
                return Label(module, op, direction)
        elif own and not op and _is_operator(frame.f_code.co_filename):
            outermost = frame.f_code.co_name
        frame = frame.f_back
    return Label(_path(modules), op or outermost.strip("_"), direction or (FORWARD if modules or outermost else ""))


def _is_operator(path: str) -> bool:
    """Whether code lies among the operators; the guard of their door is none."""
    return os.sep + "ops" + os.sep in path and not path.endswith("guard.py")


def _told(role: str, values: dict[str, Any], op: str) -> tuple[str, str, str]:
    """(op, direction, module) that a frame of netcl's own tells."""
    if role == "record":
        record = values.get("record")
        return (record.name, BACKWARD, record.module) if record is not None else ("", BACKWARD, "")
    if role == "optimizer":
        return type(values["self"]).__name__, UPDATE, ""
    if role == "fused":
        return values["call"].step.title, FORWARD, ""
    return values["name"], FORWARD, ""


def _role(code: CodeType) -> str:
    found = _roles.get(code)
    if found is None:
        path = code.co_filename.replace(os.sep, "/")
        found = next((role for (end, name), role in ROLES.items() if name == code.co_name and path.endswith(end)), "")
        _roles[code] = found
    return found


def _path(modules: list[Any]) -> str:
    """The innermost of the called `modules`, by its path in the outermost one."""
    if not modules:
        return ""
    inner, root = modules[0], modules[-1]
    known = _paths.get(root)
    if known is None or id(inner) not in known:
        known = _paths[root] = {id(m): path for path, m in root.named_modules()}
    path = known.get(id(inner), "")
    return f"{path} {type(inner).__name__}".strip()
