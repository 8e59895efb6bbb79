"""What a compiled function became, in words: kernels, boundaries and why, bytes moved against the least possible."""

from __future__ import annotations

from collections.abc import Sequence

from netcl.autograd.fused import FusedStep
from netcl.autograd.program import EagerCall, FusedCall, Program
from netcl.autograd.trace import TraceNode
from netcl.core import layout
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops import chain as chains
from netcl.ops import rows
from netcl.ops.render import render_python

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
        else:
            moved += 0 if call.name in FREE else call.moved
            lines.append(f"    {call.name}: {_eager(call)}")
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
            f"{launch.chain.name} ({'fold' if launch.axes else 'rows' if launch.chain.axes else 'map'})"
            for launch in next(reversed(step.backwards.values())).launches
        )
    return text


def bytes_of(step: FusedStep) -> int:
    """Bytes of one read of each input and one write of each output."""
    return sum(n.nbytes for n in (*step.leaves, *step.outputs))


def sources(program: Program) -> list[str]:
    """The text of the program's maps and row kernels for contiguous inputs: OpenCL C, or Python on NumPy."""
    return [source_of(call.step) for call in program.calls if isinstance(call, FusedCall) and not call.step.fold]


def source_of(step: FusedStep) -> str:
    """The forward kernel's text."""
    queue = step.leaves[0].queue
    if isinstance(queue, CPUQueue):
        return render_python(step.chain)
    tensors = [Tensor(None, x.shape, layout.contiguous_strides(x.shape), 0, x.dtype, queue) for x in step.leaves]
    source = rows.source_of if step.axes else chains.source_of
    return source(queue, step.chain, step.compute, step.dtypes, tensors)
