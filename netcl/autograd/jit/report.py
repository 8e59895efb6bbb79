"""What a compiled function became, in words: kernels, boundaries and why, bytes moved against the least possible."""

from __future__ import annotations

from collections.abc import Sequence

from netcl.autograd.jit.fused import FusedStep, Launch
from netcl.autograd.jit.program import EagerCall, FusedCall, Program
from netcl.autograd.jit.trace import TraceNode
from netcl.core import layout
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.fusion import fold as folds
from netcl.fusion import map, rows
from netcl.fusion.chain import Chain, render_python
from netcl.fusion.fold import Fold
from netcl.kernels.explain import lines_of

FREE = ("reshape", "permute", "expand", "squeeze", "unsqueeze", "getitem", "stop_gradient")  # views move nothing


def explain(name: str, programs: Sequence[Program], reasons: Sequence[str]) -> str:
    """The plans of a compiled function, and why calls ran unfused."""
    lines = [f"{name}: {len(programs)} program{'s' * (len(programs) != 1)}"]
    for program in programs:
        lines += _program(program)
    lines += [f"  ran unfused: {reason}" for reason in reasons]
    return "\n".join(lines)


def _program(program: Program) -> list[str]:
    lines = [f"  ({', '.join(_facts(x) for x in program.inputs)}) -> ({', '.join(_facts(x) for x in program.outputs)})"]
    moved = 0
    for call in program.calls:
        if isinstance(call, FusedCall):
            moved += bytes_of(call.step)
            lines.append(f"    {call.step.name}: {_fused(call.step)}")
        elif call.joined:
            moved += call.moved
            lines.append(f"    {call.joined}: its own kernel {call.reason}; {call.moved:,} bytes")
        else:
            moved += 0 if call.name in FREE else call.moved
            lines.append(f"    {call.name}: {_eager(call)}")
    if program.decisions:
        lines.append("    routes, with costs in cycles of a compute unit:")
        lines += [f"      {line}" for line in lines_of(program.decisions)]
    least = sum(x.nbytes for x in (*program.inputs, *program.outputs))
    ratio = f", {moved / least:.2f} of the least" if least else ""
    lines.append(f"    forward moves {moved:,} bytes; least possible {least:,}{ratio}")
    return lines


def _facts(node: TraceNode) -> str:
    return f"{node.dtype}{list(node.shape)}"


def _eager(call: EagerCall) -> str:
    if call.name in FREE:
        return "a view, no kernel"
    return f"its own kernel, a boundary: {call.reason}; {call.moved:,} bytes"


def _fused(step: FusedStep) -> str:
    kind = "fold" if step.fold else f"rows of the last {step.axes} axes" if step.axes else "map"
    names = " ".join(n.op_name for n in step.nodes)
    text = f"{kind} of {names}; reads {len(step.leaves)}, writes {len(step.outputs)}, {bytes_of(step):,} bytes"
    if step.backwards:
        text += "; backward: " + ", ".join(
            f"{launch.chain.name} ({_kind(launch)})" for launch in next(reversed(step.backwards.values())).launches
        )
    return text


def _kind(launch: Launch) -> str:
    if launch.fold is not None:
        return "map and fold" if "full" in launch.chain.kinds else "fold"
    return "rows" if launch.chain.axes else "map"


def bytes_of(step: FusedStep) -> int:
    """Bytes of one read of each input and one write of each output."""
    return sum(n.nbytes for n in (*step.leaves, *step.outputs))


def sources(program: Program) -> list[str]:
    """The text of the program's kernels for contiguous inputs, forward (folds aside) and, once used, backward."""
    found = []
    for step in (call.step for call in program.calls if isinstance(call, FusedCall)):
        found += [forward_source(step)] if not step.fold else []
        found += [backward_source(step, x) for b in step.backwards.values() for x in b.launches]
    return found


def forward_source(step: FusedStep) -> str:
    """The forward kernel: OpenCL C, or Python on NumPy."""
    facts = [(step.rows if i in step.reshaped else x.shape, x.dtype) for i, x in enumerate(step.leaves)]
    return _source(step, step.chain, step.dtypes, facts)


def backward_source(step: FusedStep, launch: Launch) -> str:
    """The kernel of one backward launch."""
    dtypes = {"x": [x.dtype for x in step.leaves], "g": [x.dtype for x in step.outputs]}
    facts = [(step.shape_of(s), dtypes[s[0]][s[1]] if s[0] in dtypes else step.compute) for s in launch.sources]
    if launch.expand:
        facts[0] = (step.shape, facts[0][1])
    return _source(step, launch.chain, launch.dtypes, facts, launch.fold)


def _source(
    step: FusedStep,
    chain: Chain,
    dtypes: Sequence[DType],
    facts: Sequence[tuple[Shape, DType]],
    fold: Fold | None = None,
) -> str:
    queue = step.leaves[0].queue
    if isinstance(queue, CPUQueue):
        return render_python(chain)
    tensors = [Tensor(None, shape, layout.contiguous_strides(shape), 0, dtype, queue) for shape, dtype in facts]
    if fold is not None:
        return folds.source_of(fold, tensors)
    source = rows.source_of if chain.axes else map.source_of
    return source(queue, chain, step.compute, tuple(dtypes), tensors)
