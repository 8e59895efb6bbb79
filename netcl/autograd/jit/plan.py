"""From a trace to steps: which operations share a kernel, which run as they are, and in what order.

Elementwise operations join the kernel of what they read as long as compute dtype and shape agree and no other step
lies between. Reductions over trailing axes join too when a row per work-item is a good walk; a longer sum or mean ends
the kernel it reads from. Everything else is a boundary: it runs as its eager operation, with a reason that `explain`
prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from netcl.autograd.jit import shapes
from netcl.autograd.jit.fused import REDUCE, FusedStep
from netcl.autograd.jit.lines import ALIASES
from netcl.autograd.jit.primitive import PRIMITIVES, primitive_of
from netcl.autograd.jit.trace import TraceNode
from netcl.core import layout
from netcl.core.dtypes import DType, compute_dtype, is_float
from netcl.core.layout import Shape
from netcl.fusion.rows import fits


class CallStep(NamedTuple):
    """An operation that runs as it is."""

    node: TraceNode
    outputs: tuple[TraceNode, ...]  # itself, or its items when it returns several
    reason: str


class Group:
    """Operations that share a kernel."""

    def __init__(self, shape: Shape, compute: DType, axes: int = 0) -> None:
        self.shape, self.compute, self.axes = shape, compute, axes
        self.nodes: list[TraceNode] = []
        self.aligned: set[int] = set()  # ids of nodes with one element per row and without the reduced axes
        self.closed = False  # a fold: nothing joins

    @property
    def rows(self) -> Shape:
        """The shape of one element per row, reduced axes kept."""
        return (*self.shape[: len(self.shape) - self.axes], *(1,) * self.axes)


Unit = Any  # a Group or a CallStep
VIEWS = ("reshape", "unsqueeze", "getitem")


class Planner:
    """Builds the steps of one trace."""

    def __init__(self, nodes: Sequence[TraceNode], outputs: Sequence[TraceNode], numbers_as_arguments: bool) -> None:
        self.nodes, self.outputs = _reachable(nodes, outputs), list(outputs)
        self.numbers_as_arguments = numbers_as_arguments
        self.unit: dict[int, Unit] = {}  # id of a node -> what computes it
        self.members: list[Unit] = []
        self.compute: dict[int, DType] = {}
        self.aligned: set[int] = set()  # of all groups
        for node in self.nodes:
            if node.op_name not in ("input", "item"):
                self._place(node)
        if len(self.members) > 1:
            self._merge_neighbours()

    # -- grouping --------------------------------------------------------------------------------------------------

    def _place(self, node: TraceNode) -> None:
        if node.op_name in ALIASES:
            placed = self._alias(node)
        elif node.op_name in REDUCE:
            placed = self._reduce(node)
        else:
            primitive = PRIMITIVES.get(node.op_name) or primitive_of(node.op_name)
            placed = primitive is not None and primitive.fusible
            if placed:
                known = node.compute
                if known is None:
                    known = shapes.compute_type(node.op_name, node.inputs, node.queue, node.attrs)[0]
                self.compute[id(node)] = known
                self._join(node)
        if not placed:
            self._call(node)

    def _call(self, node: TraceNode) -> None:
        items = tuple(n for n in self.nodes if n.op_name == "item" and n.inputs[0] is node)
        step = CallStep(node, items or (node,), _reason(node))
        self.members.append(step)
        for n in (node, *items):
            self.unit[id(n)] = step

    def _alias(self, node: TraceNode) -> bool:
        """Casts between floats of one compute dtype, stop_gradient, and views that give a row's value its axes back."""
        source = node.operands[0]
        group = self.unit.get(id(source))
        if node.op_name in VIEWS:
            if not isinstance(group, Group) or id(source) not in group.aligned or node.shape != group.rows:
                return False
            if node.op_name == "getitem" and not _only_adds_axes(node.attrs["key"]):
                return False
            self.compute[id(node)] = group.compute
            self._add(group, node)
            return True
        if node.op_name == "stop_gradient" and not isinstance(group, Group):
            return False
        if node.dtype != source.dtype and not (is_float(node.dtype) and is_float(source.dtype)):
            return False
        if compute_dtype(node.dtype) != compute_dtype(source.dtype):
            return False
        self.compute[id(node)] = self.compute.get(id(source), compute_dtype(node.dtype))
        self._join(node)
        return True

    def _reduce(self, node: TraceNode) -> bool:
        source = node.operands[0]
        axes = layout.as_axes(node.op_name, node.attrs.get("axis"), source.ndim)
        k = len(axes)
        if not is_float(source.dtype) or source.size == 0 or not axes:
            return False
        self.compute[id(node)] = compute_dtype(source.dtype)
        trailing = axes == tuple(range(source.ndim - k, source.ndim))
        if trailing and fits(source.shape, k):
            group = self._open(source, self.compute[id(node)])
            if group is None or group.shape != source.shape or group.axes not in (0, k) or _is_row(group, source):
                group = Group(source.shape, self.compute[id(node)])
                self.members.append(group)
            group.axes = k
            self._add(group, node, not node.attrs.get("keepdims", False))
            return True
        if node.op_name not in ("sum", "mean"):
            return False
        group = Group(source.shape, self.compute[id(node)])
        group.closed = True
        self.members.append(group)
        self._add(group, node)
        return True

    def _open(self, node: TraceNode, compute: DType) -> Group | None:
        group = self.unit.get(id(node))
        open_ = isinstance(group, Group) and not group.closed and group.compute == compute
        return group if open_ else None

    def _join(self, node: TraceNode) -> None:
        """Put a map into the group of its operands, merging their groups where that is possible."""
        compute, target = self.compute[id(node)], None
        by_rows = any(id(x) in self.aligned for x in node.operands)
        for operand in node.operands:
            group = self.unit.get(id(operand))
            if not isinstance(group, Group) or group.closed or group.compute != compute or group is target:
                continue
            if not self._accepts(group, node):
                continue
            if by_rows and id(operand) not in self.aligned:
                continue
            if target is None:
                target = group
            elif self._mergeable(target, group, node.shape):
                target = self._merge(target, group)
        if target is None:
            target = Group(node.shape, compute)
            self.members.append(target)
        aligned = bool(target.axes) and any(id(x) in target.aligned for x in node.operands)
        if not target.axes:
            target.shape = layout.broadcast_shapes(target.shape, node.shape)
        self._add(target, node, aligned)

    def _add(self, group: Group, node: TraceNode, aligned: bool = False) -> None:
        group.nodes.append(node)
        self.unit[id(node)] = group
        if aligned:
            group.aligned.add(id(node))
            self.aligned.add(id(node))

    def _accepts(self, group: Group, node: TraceNode) -> bool:
        outside = [self.unit[id(x)] for x in node.operands if id(x) in self.unit and self.unit[id(x)] is not group]
        if any(self._depends(u, group) for u in outside):
            return False
        if not group.axes:
            shape = layout.broadcast_shapes(group.shape, node.shape)
            return shape in (group.shape, node.shape)
        aligned = [x for x in node.operands if id(x) in group.aligned]
        if aligned:  # one element per row, without the reduced axes: only its like goes with it
            alike = all(id(x) in group.aligned or self.unit.get(id(x)) is not group for x in node.operands)
            return alike and all(x.shape == node.shape for x in node.operands)
        return node.shape in (group.shape, group.rows)

    def _mergeable(self, a: Group, b: Group, shape: Shape) -> bool:
        if a.axes and b.axes and (a.axes, a.shape) != (b.axes, b.shape):
            return False
        domain = layout.broadcast_shapes(a.shape, b.shape)
        if any(g.axes and g.shape != domain for g in (a, b)) or domain not in (a.shape, b.shape, shape):
            return False
        return not (self._depends_around(a, b) or self._depends_around(b, a))

    def _merge(self, a: Group, b: Group) -> Group:
        a.shape, a.axes = layout.broadcast_shapes(a.shape, b.shape), max(a.axes, b.axes)
        a.aligned |= b.aligned
        order = {id(n): i for i, n in enumerate(self.nodes)}
        a.nodes = sorted(a.nodes + b.nodes, key=lambda n: order[id(n)])
        self.members.remove(b)
        for n in b.nodes:
            self.unit[id(n)] = a
        return a

    def _merge_neighbours(self) -> None:
        """Merge groups of one shape that read a common tensor and do not wait for each other."""
        groups = [u for u in self.members if isinstance(u, Group) and not u.closed]
        for i, a in enumerate(groups):
            for b in groups[i + 1 :]:
                if a not in self.members or b not in self.members or (a.shape, a.compute) != (b.shape, b.compute):
                    continue
                common = {id(x) for n in a.nodes for x in n.operands} & {id(x) for n in b.nodes for x in n.operands}
                if common and not self._depends(a, b) and not self._depends(b, a) and self._mergeable(a, b, a.shape):
                    self._merge(a, b)

    def _needs(self, unit: Unit) -> list[Unit]:
        """The units that `unit` reads from."""
        nodes: Iterable[TraceNode] = unit.nodes if isinstance(unit, Group) else (unit.node,)
        found = {
            id(u): u for n in nodes for x in n.operands if (u := self.unit.get(id(x))) is not None and u is not unit
        }
        return list(found.values())

    def _depends(self, unit: Unit, on: Unit) -> bool:
        seen: set[int] = set()
        todo = [unit]
        while todo:
            u = todo.pop()
            if u is on:
                return True
            if id(u) not in seen:
                seen.add(id(u))
                todo += self._needs(u)
        return False

    def _depends_around(self, unit: Unit, on: Unit) -> bool:
        """Whether `unit` reaches `on` through a third unit."""
        return any(self._depends(u, on) for u in self._needs(unit) if u is not on)

    # -- steps -----------------------------------------------------------------------------------------------------

    def steps(self) -> list[FusedStep | CallStep]:
        """The steps in an order in which each finds what it reads."""
        made: list[FusedStep | CallStep] = []
        for unit in self._ordered():
            if isinstance(unit, CallStep):
                made.append(unit)
            else:
                made += self._fused(unit, len([s for s in made if isinstance(s, FusedStep)]))
        return made

    def _ordered(self) -> list[Unit]:
        if len(self.members) == 1:
            return self.members
        done: set[int] = set()
        order: list[Unit] = []

        def visit(unit: Unit) -> None:
            if id(unit) in done:
                return
            done.add(id(unit))
            for u in self._needs(unit):
                visit(u)
            order.append(unit)

        for unit in self.members:
            visit(unit)
        return order

    def _fused(self, group: Group, number: int) -> list[FusedStep]:
        """The kernels of a group: one for the values of its shape, one for each smaller shape that others need."""
        inside = {id(n) for n in group.nodes}
        needed = self._needed(group)
        ends = [n for n in group.nodes if id(n) in needed]
        by_shape: dict[Any, list[TraceNode]] = {}
        for n in ends:
            rows = group.axes and (id(n) in group.aligned or _is_row(group, n))
            whole = group.closed or rows or n.shape == group.shape
            by_shape.setdefault(None if whole else n.shape, []).append(n)
        steps: list[FusedStep] = []
        for outputs in by_shape.values():
            nodes, leaves = self._cone(outputs, inside, group.closed)
            axes = group.axes if any(n.op_name in REDUCE for n in nodes) and not group.closed else 0
            shape = (
                layout.broadcast_shapes(*(x.shape for x in leaves)) if not axes and not group.closed else group.shape
            )
            name = f"fused_{number + len(steps)}"
            aligned = frozenset(group.aligned)
            if aligned:
                aligned |= {id(x) for x in leaves if self._is_aligned_leaf(x, nodes, group)}
            inside_aligned = aligned if axes else frozenset()
            arguments = self.numbers_as_arguments
            steps.append(FusedStep(name, nodes, leaves, outputs, shape, group.compute, axes, inside_aligned, arguments))
        return steps

    def _needed(self, group: Group) -> set[int]:
        """Which of the group's nodes the outputs and other steps read."""
        needed = {id(x) for x in self.outputs}
        for n in self.nodes:
            unit = self.unit.get(id(n))
            if unit is not group:
                fold = unit if isinstance(unit, Group) and unit.closed else None
                read = [x for x in n.operands if self.unit.get(id(x)) is group]
                needed |= {id(x) for x in read if fold is None or not self._recomputes(fold, x)}
        return needed

    def _recomputes(self, fold: Group, node: TraceNode) -> bool:
        """Whether a fold computes `node` itself rather than reading it."""
        nodes, _ = self._cone(fold.nodes, set(), True)
        return any(n is node for n in nodes)

    def _cone(
        self, outputs: Sequence[TraceNode], inside: set[int], through: bool
    ) -> tuple[list[TraceNode], list[TraceNode]]:
        """The nodes that `outputs` need, and what they read; a fold looks `through` the maps of other groups."""
        nodes: dict[int, TraceNode] = {}
        leaves: dict[int, TraceNode] = {}
        compute = self.compute[id(outputs[0])]

        todo = list(reversed(outputs))
        while todo:
            n = todo.pop()
            if id(n) in nodes or id(n) in leaves:
                continue
            unit = self.unit.get(id(n))
            maps = through and isinstance(unit, Group) and not unit.axes and unit.compute == compute
            if id(n) in inside or n in outputs or (maps and n.op_name not in REDUCE):
                nodes[id(n)] = n
                todo += reversed(n.operands)
            else:
                leaves[id(n)] = n
        return [n for n in self.nodes if id(n) in nodes], list(leaves.values())

    @staticmethod
    def _is_aligned_leaf(leaf: TraceNode, nodes: Sequence[TraceNode], group: Group) -> bool:
        """Whether a leaf meets a value that has one element per row and lacks the reduced axes."""
        users = [n for n in nodes if any(x is leaf for x in n.operands)]
        return bool(users) and all(id(n) in group.aligned and n.op_name not in REDUCE for n in users)


def _is_row(group: Group, node: TraceNode) -> bool:
    """Whether a node of the group has one element per row with the reduced axes kept."""
    return bool(group.axes) and node.shape == group.rows and group.rows != group.shape


def _only_adds_axes(key: Any) -> bool:
    return all(k is None or k is Ellipsis or k == slice(None) for k in (key if isinstance(key, tuple) else (key,)))


def _reason(node: TraceNode) -> str:
    """Why an operation runs as it is."""
    if primitive_of(node.op_name) is not None:
        return "registered as not fusible"
    if node.op_name in REDUCE:
        return f"a reduction over axis {node.attrs.get('axis')} of {node.operands[0].shape} {node.operands[0].dtype}"
    return "not an elementwise primitive"


def changes_state(node: TraceNode) -> bool:
    """Whether an operation also writes into a tensor that it is given, so that it must run though nobody reads it."""
    return node.op_name == "batch_norm" and bool(node.attrs.get("training")) and len(node.operands) > len(node.inputs)


def _reachable(nodes: Sequence[TraceNode], outputs: Sequence[TraceNode]) -> list[TraceNode]:
    needed = {id(n) for n in outputs}
    kept = []
    for node in reversed(nodes):
        if id(node) in needed or changes_state(node):
            kept.append(node)
            needed.update(id(x) for x in node.operands)
    return kept[::-1]
