"""Chains written as formulas: `formula("softmax", ("x",), "m = MAX(x)", "y = DIV(EXP(SUB(x, m)), ...)")`."""

from __future__ import annotations

import ast

from netcl.fusion.chain import Chain, Line


def formula(
    name: str,
    inputs: tuple[str, ...],
    *lines: str,
    outputs: tuple[str, ...] = ("y",),
    kinds: tuple[str, ...] = (),
    scalars: tuple[str, ...] = (),
) -> Chain:
    """The row chain (reductions over the last axis) that `lines` describe, nested calls made into lines of their own.

    Inputs broadcast, so one with an element per row has length one on the last axis. Numbers may stand anywhere.
    """
    flat: list[Line] = []
    for line in lines:
        target, text = (part.strip() for part in line.split("=", 1))
        _flatten(ast.parse(text, mode="eval").body, flat, target)
    kinds = kinds or ("full",) * len(outputs)
    return Chain(f"netcl_{name}", inputs, scalars, tuple(flat), outputs, kinds=kinds, axes=1)


def _flatten(node: ast.expr, lines: list[Line], target: str | None = None) -> str:
    """Append the lines of `node`; the name or number that stands for its value."""
    if isinstance(node, ast.Call):
        arguments = tuple(_flatten(a, lines) for a in node.args)
        target = target or f"t{len(lines)}"
        assert isinstance(node.func, ast.Name)
        lines.append((target, node.func.id, arguments))
        return target
    return ast.unparse(node)
