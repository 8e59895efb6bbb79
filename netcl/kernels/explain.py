"""Which routes a call of an op takes, and why: `netcl.ops.explain(netcl.ops.matmul, a, b)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from netcl.core.errors import RouteError
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.kernels.route import FIRST, HOST, LAST, Decision, watch


class Explanation:
    """What ops chose during a call: `decisions` in order; `str` of it is a table as text."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self.decisions = tuple(decisions)

    @property
    def chosen(self) -> dict[str, str]:
        """The route that each op took first."""
        return {d.op: d.chosen for d in reversed(self.decisions)}

    def __str__(self) -> str:
        return "\n".join(lines_of(self.decisions)) or "no op with several routes"

    def __repr__(self) -> str:
        return f"<Explanation: {', '.join(f'{op} by {name}' for op, name in self.chosen.items())}>"

    def print(self) -> None:
        """The table on a terminal; nothing where the output goes elsewhere."""
        if not sys.stdout.isatty():
            return
        from rich.console import Console
        from rich.table import Table

        table = Table("op", "route", "cost", "remark")
        for op, name, taken, cost, why in rows_of(self.decisions):
            table.add_row(op, name, cost, why, style="bold" if taken else "dim")
        Console().print(table)


def explain(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run `op` once on these arguments and tell which routes it took, at which costs, and what spoke against others.

    Costs are estimates in cycles of a compute unit; "first" stands for routes that measurements showed to be the
    fastest wherever they serve. On a terminal the table is printed. `netcl.ops.force` takes another route.
    Raises RouteError where no tensor is among the arguments.
    """
    queue = _queue_of((*args, *kwargs.values()))
    if queue is None:
        raise RouteError("explain: expected an op and its arguments, with a tensor among them, got none.")
    with watch(queue) as found:
        op(*args, **kwargs)
    explanation = Explanation(found)
    explanation.print()
    return explanation


def rows_of(decisions: Iterable[Decision]) -> list[tuple[str, str, bool, str, str]]:
    """(op, route, whether it was taken, cost, remark) of every route; the op stands in its first row."""
    rows: list[tuple[str, str, bool, str, str]] = []
    for d in decisions:
        for i, (name, cost, why) in enumerate(d.routes):
            rows.append(("" if i else d.op, name, name == d.chosen, _cost(name, cost), why))
    return rows


def lines_of(decisions: Iterable[Decision]) -> list[str]:
    """The table as lines of text, each decision once."""
    rows = rows_of(dict.fromkeys(decisions))
    ops, names, costs = (max((len(str(row[i])) for row in rows), default=0) for i in (0, 1, 3))
    return [
        f"{op:<{ops}}  {'>' if taken else ' '} {name:<{names}}  {cost:>{costs}}  {why}".rstrip()
        for op, name, taken, cost, why in rows
    ]


def _cost(name: str, cost: float) -> str:
    return "-" if cost == LAST or name == HOST else "first" if cost == FIRST else f"{cost:,.0f}"


def _queue_of(values: Iterable[Any]) -> Queue | None:
    """The queue of the first tensor, or of a node's value, among `values`."""
    for value in values:
        value = getattr(value, "value", value)
        found = value.queue if isinstance(value, Tensor) else None
        if isinstance(value, list | tuple):
            found = _queue_of(value)
        if found is not None:
            return found
    return None
