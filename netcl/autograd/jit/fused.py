"""One fused kernel of a compiled function: its forward chain, and the backward chain that recomputes what it needs.

A step is a map (every output has the step's shape), a row step (reductions over the last `axes` axes run inside) or a
fold (one sum or mean of a map, over any axes). Backward is one launch: inputs that were broadcast along the same axes
are summed in it (a long sum takes one more launch for all of them), those along other axes in a launch of their own.
Nothing but the inputs is kept for it, and of row steps the results of their reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from netcl.autograd.jit import shapes
from netcl.autograd.jit.lines import Body, is_number
from netcl.autograd.jit.trace import Scalar, TraceNode
from netcl.core import layout
from netcl.core.dtypes import DType, is_float
from netcl.core.errors import BuildError
from netcl.core.kernels import dialect
from netcl.core.layout import Shape
from netcl.core.queue import Plans
from netcl.core.tensor import Tensor
from netcl.fusion.chain import COUNT, REDUCTIONS, Chain, Line
from netcl.fusion.fold import Fold, run_fold
from netcl.fusion.map import run
from netcl.fusion.rows import run_rows

REDUCE = ("sum", "mean", "max", "min", "logsumexp")


class Launch(NamedTuple):
    """A chain of the backward pass and where its inputs come from: ("x", leaf), ("g", output) or ("r", reduction)."""

    chain: Chain
    sources: tuple[tuple[str, int], ...]
    numbers: tuple[Any, ...]
    dtypes: tuple[DType, ...]
    targets: tuple[int, ...]
    fold: Fold | None  # which may store some targets unfolded; None for a map or rows
    expand: bool  # the inputs alone do not span the step's shape


class Backward(NamedTuple):
    """What backward does for one choice of wanted gradients and given upstream gradients."""

    launches: tuple[Launch, ...]
    passed_on: tuple[tuple[int, int], ...]  # (leaf, output): the upstream gradient itself
    kept: frozenset[int]  # leaves that must stay alive


class FusedStep:
    """`nodes` (in order) computed from `leaves` in one kernel that writes `outputs`, over `shape`.

    `axes` is the number of trailing axes that reductions inside run over, 0 for a map. `aligned` names nodes with one
    element per row that lack those axes. `fold` ends a map in a sum or mean.
    """

    def __init__(
        self,
        name: str,
        nodes: Sequence[TraceNode],
        leaves: Sequence[TraceNode],
        outputs: Sequence[TraceNode],
        shape: Shape,
        compute: DType,
        axes: int = 0,
        aligned: frozenset[int] = frozenset(),
        numbers_as_arguments: bool = False,
    ) -> None:
        self.name, self.nodes, self.leaves, self.outputs = name, list(nodes), list(leaves), list(outputs)
        self.title = f"{name} ({' '.join(n.op_name for n in nodes)})"  # for messages
        self.shape, self.compute, self.axes, self.aligned = shape, compute, axes, aligned
        self.numbers_as_arguments = numbers_as_arguments
        self.over = self._over()
        self.length = float(max(layout.size_of(tuple(shape[a] for a in self.over)), 1))
        self.dtypes = tuple(n.dtype for n in self.outputs)
        self.rows = (*shape[: len(shape) - axes], *(1,) * axes)
        self.reshaped = tuple(i for i, x in enumerate(self.leaves) if id(x) in aligned)
        self.wide = tuple(self._upstream_shape(j) for j in range(len(self.outputs)))
        self.backwards: dict[Any, Backward] = {}
        self.body, self.variables = self._emit(())
        roots = [n.inputs[0] if self.over else n for n in self.outputs]  # of a fold, the argument of its sum
        ends = [self.variables[id(n)] for n in roots]
        lines, _, scalars = self.body.cone(ends)
        if not is_float(compute):
            _check_integers(name, lines, compute)
        kinds = tuple(self.kind(n) for n in self.outputs) if axes else ()
        self.chain = Chain(name, tuple(self.body.inputs), tuple(scalars), lines, tuple(ends), kinds, axes)
        self.numbers = tuple(self.body.scalars[s] for s in scalars)
        self.fold = self._fold() if self.over else None

    def _over(self) -> Shape:
        """The axes of the sum or mean that ends a map; none where it has no such end."""
        last = self.outputs[0]
        if self.axes or last.op_name not in REDUCE:
            return ()
        return layout.as_axes(last.op_name, last.attrs.get("axis"), last.inputs[0].ndim)

    def _fold(self) -> Fold:
        last = self.outputs[0]
        final, keepdims = "mean" if last.op_name == "mean" else "", bool(last.attrs.get("keepdims", False))
        return Fold(self.chain, "sum", self.over, keepdims, self.dtypes, final, self.compute)

    def kind(self, node: TraceNode) -> str:
        """What an output is in a row step: "full", "keep" or "drop"."""
        if not self.is_row(node):
            return "full"
        return "drop" if id(node) in self.aligned else "keep"

    def is_row(self, node: TraceNode) -> bool:
        """Whether a node of a row step has one element per row."""
        if not self.axes:
            return False
        return id(node) in self.aligned or all(n == 1 for n in self._padded(node)[-self.axes :])

    def _padded(self, node: TraceNode) -> Shape:
        return (*(1,) * (len(self.shape) - node.ndim), *node.shape)

    def _emit(self, given: Sequence[Any]) -> tuple[Body, dict[int, str]]:
        """The forward lines and the variable of each node; `given` results of reductions come in as inputs."""
        body = Body(self.numbers_as_arguments)
        names = {id(x): body.input() for x in self.leaves}
        body.given = [body.input() for _ in given]
        for node in self.nodes:
            if self.over and node is self.outputs[0]:
                continue
            args = [names[id(x)] if isinstance(x, TraceNode) else body.number(x) for x in node.inputs]
            names[id(node)] = body.emit(node, args)
        return body, names

    # -- forward ---------------------------------------------------------------------------------------------------

    @cached_property
    def saving(self) -> Chain:
        """The forward chain of a row step that also writes the results of its reductions."""
        given = tuple(v for v in self.body.statistics)
        chain = self.chain
        lines, _, _ = self.body.cone([*chain.outputs, *given])
        kinds = (*chain.kinds, *("keep" for _ in given))
        return Chain(chain.name, chain.inputs, chain.scalars, lines, (*chain.outputs, *given), kinds, chain.axes)

    def forward(
        self, tensors: Sequence[Tensor], floats: Sequence[float] = (), save: bool = False
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The outputs, and with `save` what backward wants of a row step's reductions."""
        numbers = resolve(self.numbers, floats) if self.numbers else ()
        if self.reshaped:
            tensors = self._as_rows(tensors)
        if self.fold:
            return run_fold(self.fold, tensors, numbers, self.length), ()
        if not self.axes:
            return run(self.chain, self.compute, self.dtypes, tensors, numbers), ()
        if not save:
            return run_rows(self.chain, self.compute, self.dtypes, tensors, numbers), ()
        extra = (self.compute,) * len(self.body.statistics)
        found = run_rows(self.saving, self.compute, (*self.dtypes, *extra), tensors, numbers)
        return found[: len(self.outputs)], found[len(self.outputs) :]

    def _as_rows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t.reshape(*self.rows) if i in self.reshaped else t for i, t in enumerate(tensors)]

    # -- backward --------------------------------------------------------------------------------------------------

    def backward_of(self, needs: tuple[bool, ...], present: tuple[bool, ...]) -> Backward:
        """The backward launches for the leaves that want a gradient, given those of some outputs."""
        key = (needs, present)
        if key not in self.backwards:
            self.backwards[key] = self._backward(needs, present)
        return self.backwards[key]

    def _backward(self, needs: tuple[bool, ...], present: tuple[bool, ...]) -> Backward:
        body, names = self._emit(self.body.statistics)
        sources = {v: ("x", i) for i, v in enumerate(body.inputs[: len(self.leaves)])}
        sources |= {v: ("r", i) for i, v in enumerate(body.given)}
        upstream = {j: body.input() for j, there in enumerate(present) if there}
        sources |= {v: ("g", j) for j, v in upstream.items()}
        found = _Gradients(self, body, names).walk(upstream)
        wanted = {i: found[id(x)] for i, x in enumerate(self.leaves) if needs[i] and id(x) in found}
        passed = {i: sources[d][1] for i, d in wanted.items() if d in sources and sources[d][0] == "g"}
        passed = {
            i: j for i, j in passed.items() if not (self.is_row(self.leaves[i]) and not self.is_row(self.outputs[j]))
        }
        main: list[int] = []
        folds: dict[Shape, list[int]] = {}  # by the axes along which they were broadcast
        for i in sorted(wanted.keys() - passed.keys()):
            broadcast = not self.is_row(self.leaves[i]) and self._padded(self.leaves[i]) != self.shape
            lines, _, _ = body.cone([wanted[i]])
            if broadcast and not any(f in REDUCTIONS for _, f, _ in lines):
                folds.setdefault(self._repeated(self.leaves[i]), []).append(i)
            else:
                main.append(i)
        launches = []
        for axes, folded in folds.items():
            stored = main if not self.axes else []  # what needs no sum is written by the first kernel that passes by
            launches.append(self._launch(body, sources, [*folded, *stored], wanted, axes, len(folded)))
            main = [] if stored else main
        if main:
            launches.insert(0, self._launch(body, sources, main, wanted))
        kept = frozenset(i for launch in launches for kind, i in launch.sources if kind == "x")
        return Backward(tuple(launches), tuple(passed.items()), kept)

    def _repeated(self, leaf: TraceNode) -> Shape:
        """The axes of the step's shape along which a leaf is repeated."""
        pairs = zip(self._padded(leaf), self.shape, strict=True)
        return tuple(a for a, (n, m) in enumerate(pairs) if n != m)

    def _launch(
        self,
        body: Body,
        sources: dict[str, tuple[str, int]],
        targets: list[int],
        wanted: dict[int, str],
        axes: Shape = (),
        folded: int = 0,
    ) -> Launch:
        ends = [wanted[i] for i in targets]
        lines, inputs, scalars = body.cone(ends)
        if axes and any(COUNT in args for _, _, args in lines):  # a fold knows no rows: their length is a number there
            length = body.argument(layout.size_of(self.shape[-self.axes :]))
            lines = tuple((v, f, tuple(length if a == COUNT else a for a in args)) for v, f, args in lines)
            scalars = [s for s in body.scalars if s in scalars or s == length]
        rows = self.axes if any(f in REDUCTIONS or COUNT in args for _, f, args in lines) else 0
        kinds = tuple("keep" if self.is_row(self.leaves[i]) else "full" for i in targets)
        rows = self.axes if "keep" in kinds else rows
        if axes:
            kinds, rows = ("fold",) * folded + ("full",) * (len(targets) - folded), 0
        name = f"{self.name}_backward" + (f"_{targets[0]}" if axes and folded == len(targets) else "")
        kinds = kinds if axes or rows else ()
        chain = Chain(name, tuple(inputs), tuple(scalars), lines, tuple(ends), kinds, rows)
        where = tuple(sources[v] for v in inputs)
        spanned = layout.broadcast_shapes(*(self.shape_of(s) for s in where))
        dtypes = tuple(self.leaves[i].dtype for i in targets)
        numbers = tuple(body.scalars[s] for s in scalars)
        fold = Fold(chain, "sum", axes, False, dtypes, compute=self.compute) if axes else None
        return Launch(chain, where, numbers, dtypes, tuple(targets), fold, spanned != self.shape)

    def shape_of(self, source: tuple[str, int]) -> Shape:
        """The shape in which an input of a backward launch takes part."""
        kind, i = source
        if kind == "x":
            return self.rows if i in self.reshaped else self.leaves[i].shape
        if kind == "r":
            return self.rows
        return self.wide[i]

    def _upstream_shape(self, j: int) -> Shape:
        """The shape in which output `j`'s gradient takes part."""
        if self.over:
            return tuple(1 if a in self.over else n for a, n in enumerate(self.shape))
        return self.rows if self.axes and id(self.outputs[j]) in self.aligned else self.outputs[j].shape

    def backward(
        self,
        grads: Sequence[Tensor | None],
        tensors: Sequence[Tensor | None],
        needs: Sequence[bool],
        saved: Sequence[Tensor] = (),
        floats: Sequence[float] = (),
    ) -> list[Tensor | None]:
        """The gradient of each leaf that wants one; `tensors` may lack those that `Backward.kept` does not name."""
        plan = self.backward_of(tuple(needs), tuple([g is not None for g in grads]))
        upstream = [g if g is None or g.shape == s else g.reshape(s) for g, s in zip(grads, self.wide)]
        result: list[Tensor | None] = [None] * len(self.leaves)
        for i, j in plan.passed_on:
            g = upstream[j]
            assert g is not None
            result[i] = self._fitted(g if self.is_row(self.leaves[i]) else g.expand(*self.shape), i)
        given = {"x": tensors, "g": upstream, "r": saved}
        for launch in plan.launches:
            inputs: list[Any] = [given[kind][i] for kind, i in launch.sources]
            if self.reshaped:
                inputs = [
                    t.reshape(*self.rows) if s[0] == "x" and s[1] in self.reshaped else t
                    for t, s in zip(inputs, launch.sources, strict=True)
                ]
            if launch.expand:
                inputs[0] = inputs[0].expand(*self.shape)
            for i, dx in zip(launch.targets, self._run(launch, inputs, floats)):
                result[i] = self._fitted(dx, i)
        return result

    def _fitted(self, dx: Tensor, i: int) -> Tensor:
        """A gradient in the shape of its leaf where it has as many elements; the tape sums what was broadcast."""
        leaf = self.leaves[i]
        return dx.reshape(*leaf.shape) if dx.shape != leaf.shape and dx.size == leaf.size else dx

    def _run(self, launch: Launch, inputs: Sequence[Tensor], floats: Sequence[float]) -> Sequence[Tensor]:
        numbers = resolve(launch.numbers, floats)
        if launch.fold is not None:
            return run_fold(launch.fold, inputs, numbers)
        start = run_rows if launch.chain.axes else run
        return start(launch.chain, self.compute, launch.dtypes, inputs, numbers)


class _Gradients:
    """Reverse accumulation over the nodes of a step, in the lines of `body`."""

    def __init__(self, step: FusedStep, body: Body, names: dict[int, str]) -> None:
        self.step, self.body, self.names = step, body, names
        self.full: dict[int, str] = {}  # sums of contributions per element
        self.row: dict[int, str] = {}  # and per row

    def _add(self, to: dict[int, str], node: TraceNode, d: str) -> None:
        to[id(node)] = self.body.call("ADD", to[id(node)], d) if id(node) in to else d

    def _total(self, node: TraceNode) -> str | None:
        full, row = self.full.get(id(node)), self.row.get(id(node))
        if full is not None and self.step.is_row(node):
            full = self.body.reduce("SUM", full)
        if full is None or row is None:
            return full if row is None else row
        return self.body.call("ADD", row, full)

    def walk(self, upstream: dict[int, str]) -> dict[int, str]:
        """The variable of each leaf's gradient, by id."""
        step, body = self.step, self.body
        for j, g in upstream.items():
            node = step.outputs[j]
            if step.fold:
                if step.fold.final:
                    g = body.call("MUL", g, body.argument(1.0 / step.length))
                self._add(self.full, node.inputs[0], g)
            else:
                self._add(self.row if step.is_row(node) else self.full, node, g)
        for node in reversed(step.nodes):
            total = self._total(node)
            if total is None or (step.fold and node is step.outputs[0]):
                continue
            args = [self.names[id(x)] if isinstance(x, TraceNode) else body.number(x) for x in node.inputs]
            to = self.row if step.is_row(node) and node.op_name not in REDUCE else self.full
            for x, d in zip(node.inputs, body.gradients(node, args, self.names[id(node)], total), strict=True):
                if isinstance(x, TraceNode) and x.differentiable and d is not None and d != "0":
                    self._add(to, x, d)
        totals = {id(x): self._total(x) for x in step.leaves}
        return {k: d for k, d in totals.items() if d is not None}


def _check_integers(name: str, lines: Sequence[Line], compute: DType) -> None:
    """Raise BuildError for what a registered expression may do to integers, and only floats can."""
    for _, function, args in lines:
        found = [a for a in args if is_number(a) and not float(a).is_integer()]
        found += [function] if dialect.needs_floats(function) else []
        if found:
            where = name.removeprefix("netcl_")
            raise BuildError(f"{where}: expected a floating operand for {found[0]}, got {compute}; use astype.")


def resolve(numbers: Sequence[Any], floats: Sequence[float]) -> list[Any]:
    """Kernel arguments: constants, or what a float argument of this call makes of them."""
    return [n.compute(floats[n.index]) if type(n) is Scalar else n for n in numbers] if numbers else []


_eager = Plans()  # steps of primitives outside the JIT


class EagerPrimitive(NamedTuple):
    """A registered primitive outside the JIT: a step of one node."""

    step: FusedStep
    places: tuple[int, ...]  # of the tensors among the operands

    def forward(self, operands: Sequence[Any]) -> Tensor:
        """The result."""
        return self.step.forward([operands[i] for i in self.places])[0][0]

    def backward(self, grads: Sequence[Tensor], operands: Sequence[Any], needs: Sequence[bool]) -> list[Tensor | None]:
        """The gradient of each operand, in the broadcast shape."""
        found = self.step.backward(grads, [operands[i] for i in self.places], [needs[i] for i in self.places])
        result: list[Tensor | None] = [None] * len(operands)
        for i, dx in zip(self.places, found, strict=True):
            result[i] = dx
        return result


def eager_step(name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> EagerPrimitive:
    """The step that computes primitive `name` for operands (tensors and numbers) of these shapes and dtypes."""
    facts = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else (type(x), x) for x in operands)
    primitive = shapes.PRIMITIVES[name]
    key = (primitive, facts, tuple((k, type(v), v) for k, v in sorted(attrs.items())))
    places = tuple(i for i, x in enumerate(operands) if isinstance(x, Tensor))
    step = _eager.get(key)
    if step is None:
        inputs = [TraceNode("input", (), x.shape, x.dtype) if isinstance(x, Tensor) else x for x in operands]
        queue = operands[places[0]].queue
        compute, dtype = shapes.compute_type(name, inputs, queue, attrs)
        shape = layout.broadcast(name, *(inputs[i].shape for i in places))
        node = TraceNode(name, inputs, shape, dtype, attrs)
        leaves = [inputs[i] for i in places]
        step = FusedStep(f"netcl_{name}", [node], leaves, [node], shape, compute, numbers_as_arguments=True)
        _eager[key] = step
    return EagerPrimitive(step, places)
