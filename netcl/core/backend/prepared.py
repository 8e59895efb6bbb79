"""Launches whose sizes, strides and results are known before: functions from tensors and numbers to new tensors.

Small kernels cost a device less than Python's work around their launch, so these functions are flat: one is written out
for each number of tensors, results and numbers, with nothing left to look up or to loop over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from netcl.core import layout, process
from netcl.core.backend import native, opencl
from netcl.core.backend.opencl import Kernel, launch
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.memory import pool_of
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor

Run = Callable[..., tuple[Tensor, ...]]

_TEXT = """
def make(slow, hooks, process, pool, results, head, pack, middle, pack_numbers, enqueue):
    {facts} = results
    def run({parameters}):
        if hooks or process.gate is not None:
            return slow({parameters})
        queue = t0.queue
        {new}
        try:
            packed = head + pack({values}) + middle{tail}
        except (OverflowError, StructError):
            return slow({parameters})
        if enqueue(packed):
            return slow({parameters})
        return {outputs}
    return run
"""


def prepare(
    kernel: Kernel, queue: Queue, global_size: tuple[int, ...], local_size: tuple[int, ...] | None,
    constants: Sequence[int], inputs: int, shapes: Sequence[Shape], dtypes: Sequence[DType],
) -> Run:  # fmt: skip
    """A function of `inputs` tensors and the kernel's last numbers that launches `kernel`; new tensors of `shapes`.

    The kernel takes the buffers of the tensors and results, then their offsets, `constants`, and the numbers.
    """
    pool = pool_of(queue)
    facts = zip(shapes, dtypes, strict=True)
    results = [(layout.size_of(s) * t.itemsize, s, layout.contiguous_strides(s), t) for s, t in facts]

    def slow(*operands: Any) -> tuple[Tensor, ...]:
        queue, tensors = operands[0].queue, operands[:inputs]
        made = tuple([Tensor(pool.buffer(n), shape, strides, 0, t, queue) for n, shape, strides, t in results])
        known = (*tensors, *made)
        offsets = [t.offset for t in known]
        numbers = operands[inputs:]
        launch(kernel, queue, global_size, local_size, *[t.buffer for t in known], *offsets, *constants, *numbers)
        return made

    sender = kernel.sender
    if sender is None:
        return slow
    first = 2 * (inputs + len(results))
    last = first + len(constants)
    head = native.geometry(global_size, local_size) + struct.pack("=QQ", sender.address, queue.int_ptr)
    pack, middle, pack_numbers = (sender.packer(*cut) for cut in ((0, first), (first, last), (last, None)))
    make = _factory(inputs, len(results), len(kernel.types) - last)
    return make(slow, opencl.hooks, process, pool, results, head, pack, middle(*constants), pack_numbers, sender.launch)


@cache
def _factory(inputs: int, results: int, numbers: int) -> Callable[..., Run]:
    """`make` of _TEXT, written out for these counts."""
    tensors, made = ([f"{c}{k}" for k in range(n)] for c, n in (("t", inputs), ("y", results)))
    facts = [f"(n{k}, shape{k}, strides{k}, dtype{k})" for k in range(results)]
    new = [f"{y} = Tensor(pool.buffer(n{k}), shape{k}, strides{k}, 0, dtype{k}, queue)" for k, y in enumerate(made)]
    pointers = [f"{t}.buffer.int_ptr" for t in (*tensors, *made)]
    offsets = [*(f"{t}.offset" for t in tensors), *("0" for _ in made)]
    scalars = [f"a{k}" for k in range(numbers)]
    text = _TEXT.format(
        facts=f"[{', '.join(facts)}]", parameters=", ".join((*tensors, *scalars)), new="; ".join(new) or "pass",
        values=", ".join((*pointers, *offsets)), tail=f" + pack_numbers({', '.join(scalars)})" if scalars else "",
        outputs=f"({', '.join(made)}{',' * (results == 1)})",
    )  # fmt: skip
    space: dict[str, Any] = {"Tensor": Tensor, "StructError": struct.error}
    exec(text, space)
    return space["make"]  # type: ignore[no-any-return]
