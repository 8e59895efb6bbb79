"""Golden sources: the text of ten chains for CPU devices and GPUs, so that a change of the generator shows in review.

After an intended change: python tests/autograd/test_compiler_golden.py
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.autograd.jit import report
from netcl.core import layout
from netcl.core.device.profile import DeviceProfile
from netcl.core.queue import QueueState
from netcl.core.tensor import Tensor
from netcl.kernels import sources

FOLDER = Path(__file__).resolve().parents[1] / "kernels"


def softmax(x):
    e = ag.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, w, b):
    d = x - x.mean(-1, keepdims=True)
    return d / ag.sqrt(ag.square(d).mean(-1, keepdims=True) + 1e-5) * w + b


CASES = {
    "relu_scale": (lambda x: ag.relu(x * 0.5) + 1.0, "float32", [(64, 64)]),
    "bias": (lambda x, w, b: ag.relu(x * w + b), "float32", [(64, 48), (48,), (48,)]),
    "outer": (lambda x, y: ag.tanh(x * y) - x, "float32", [(64, 1), (1, 48)]),
    "channels": (lambda x, s: ag.silu(x * s), "float32", [(4, 6, 8, 8), (6, 1, 1)]),
    "half": (lambda x, y: ag.gelu(x) * y, "float16", [(100,), (100,)]),
    "bfloat": (lambda x, y: ag.gelu(x) * y, "bfloat16", [(100,), (100,)]),
    "double": (lambda x, y: ag.maximum(x, y) / 3.0, "float64", [(100,), (100,)]),
    "integers": (lambda x, y: (x + y) * 3 - 1, "int32", [(100,), (100,)]),
    "outputs": (lambda x, y: (ag.where(x > y, x, 0.0), ag.exp(x) - y), "float32", [(9, 7), (9, 7)]),
    "softmax": (softmax, "float32", [(64, 100)]),
    "layer_norm": (layer_norm, "float32", [(64, 100), (100,), (100,)]),
}


WIDE = ("softmax",)  # also for registers of 16 floats


def queue_of(kind, vector=8):
    """A queue that nothing is sent to, of a device of this kind."""
    facts = dict.fromkeys(DeviceProfile.__dataclass_fields__, 0)
    facts |= {
        "name": "any",
        "kind": kind,
        "has_fp64": True,
        "max_work_group": 256,
        "local_mem": 32 << 10,
        "vector": vector,
        "compute_units": 2,
    }
    profile = DeviceProfile(**facts)
    queue = SimpleNamespace(netcl_state=QueueState(), context=None, device=None)
    queue.netcl_state.profile = profile
    return queue


def text_of(name, case=None):
    fn, dtype, shapes = case or CASES[name]
    parts = []
    for kind, vector in (("cpu", 8), ("gpu", 8), *([("cpu", 16)] if name in WIDE else [])):
        queue = queue_of(kind, vector)
        leaves = [ag.Node(Tensor(None, s, layout.contiguous_strides(s), 0, np.dtype(dtype), queue)) for s in shapes]
        program = jit_compile(fn, fallback=False)._traced(leaves, {}, leaves, []).program
        (call,) = program.calls
        kind += ", vectors of 16" * (vector == 16)
        parts.append(f"// {name}, {kind}, forward\n{report.forward_source(call.step)}")
        if call.recorded:
            backward = call.step.backward_of((True,) * len(leaves), call.differentiable)
            for launch in backward.launches:  # of a fold what goes before reduce.cl
                source = report.backward_source(call.step, launch).split("#define LEAST")[0]
                parts.append(f"// {name}, {kind}, backward\n{source}")
    text = "\n".join(parts)
    for file in ("memory.cl", "half.cl", "bfloat.cl"):
        text = text.replace(sources.text(file), f"// {file}\n")
    return re.sub(r"static inline T (f_\w+)\(.*?\n}\n", r"// \1 of math.cl\n", text, flags=re.S)


@pytest.mark.parametrize("name", CASES)
def test_sources_are_the_golden_ones(name):
    assert text_of(name) == (FOLDER / f"{name}.cl.txt").read_text()


@pytest.mark.parametrize("name", CASES)
def test_sources_hold_no_sizes(name):
    fn, dtype, shapes = CASES[name]
    batch = shapes[0][0]
    larger = [(s[0] + 2, *s[1:]) if s[0] == batch and len(s) == len(shapes[0]) else s for s in shapes]
    assert text_of(name, (fn, dtype, larger)) == (FOLDER / f"{name}.cl.txt").read_text()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        (FOLDER / f"{case}.cl.txt").write_text(text_of(case))
