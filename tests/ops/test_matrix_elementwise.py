"""Every row of the primitive table x every dtype x every layout equals NumPy on every backend, eager and compiled."""

import itertools

import numpy as np
import pyopencl as cl
import pytest
from cases import ELEMENTWISE, INTEGERS
from families import FAMILIES, POSING, queue_of
from matrix import DTYPES, FLOATS, WHOLE, WHOLE_MATRIX, cells, compare, draw, laid, shaped, wide

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.dtypes import C_NAME, as_dtype, compute_dtype
from netcl.core.errors import DTypeError
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import TABLE
from netcl.ops import elementwise

CASES = {f"{i}-{c}": c for i, c in enumerate((*ELEMENTWISE, *INTEGERS))}
REFUSED = {("neg", "bool"): "neg: expected numbers, got bool", ("sub", "bool"): "sub: expected numbers, got bool"}
REFUSED |= {(c.op, t): f"{c.op}: expected integers or bools" for c in INTEGERS for t in FLOATS}


def operands(case, dtype, layout, seed=0):
    """Host arrays of the case's operands, first dtype for all."""
    rng = np.random.default_rng(seed)
    domains = case.domain if isinstance(case.domain[0], tuple) else (case.domain,) * len(case.shapes)
    if case.op == "pow" and dtype not in FLOATS:
        domains = ((-2.0, 2.0), (0, 5))
    return [draw(rng, shaped(s, layout), dtype, d) for s, d in zip(case.shapes, domains, strict=True)]


def reference(case, arrays):
    """The independent result: of floats in float64, of integers by NumPy's own rules."""
    row = TABLE[case.op]
    if row.result == "float" or (row.name in ("sign", "relu") and arrays[0].dtype == bool):
        arrays = [a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(case.ref(*map(wide, arrays), **case.attrs))


def check(queue, case, dtype, layouts, jit=False):
    for layout in layouts:
        print(dtype, layout)  # which one failed
        arrays, tensors = zip(*[laid(queue, x, layout) for x in operands(case, dtype, layout)], strict=True)
        if (case.op, dtype) in REFUSED:
            with pytest.raises(DTypeError, match=REFUSED[case.op, dtype]):
                elementwise.apply(case.op, *tensors, **case.attrs)
            continue
        wanted = reference(case, arrays)
        found = elementwise.apply(case.op, *tensors, **case.attrs).to_host()
        compare(found, wanted, dtype)
        if jit and layout == "contiguous":
            compiled = jit_compile(lambda *xs: ag.apply_op(case.op, *xs, **case.attrs))
            twin = compiled(*map(ag.tensor, tensors)).to_host()
            assert compiled.cache_info().unfused == 0
            assert twin.dtype == found.dtype
            compare(twin, wanted, dtype)


@pytest.mark.parametrize(("number", "name"), list(enumerate(CASES)))
def test_rows(queue, number, name):
    for dtype, layouts in cells(number, queue):
        check(queue, CASES[name], dtype, layouts, jit=WHOLE_MATRIX or dtype in WHOLE)


@pytest.mark.parametrize(("number", "name"), list(enumerate(CASES))[:: 1 if WHOLE_MATRIX else 2])
def test_rows_on_gpus(number, name):
    """The kernels for GPUs, on a device that poses as one where there is none."""
    queue = queue_of(next(f for f in FAMILIES if f.startswith(POSING) or f.endswith("-gpu")))
    for dtype, layouts in cells(number + 4, queue):
        check(queue, CASES[name], dtype, layouts[:2] if WHOLE_MATRIX else layouts[1:2])


ELEMENTS = sorted({C_NAME[compute_dtype(as_dtype(t))] for t in DTYPES})


@pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")  # NVIDIA's compiler says how many registers it took
@pytest.mark.parametrize("plain", [True, False], ids=["cpu", "gpu"])
@pytest.mark.parametrize("width", [1, 4, 8, 16])
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_function_builds_at_every_width(cl_queue, element, width, plain):
    """Each value and, of floats, each gradient: nothing that a driver refuses, such as an int beside a uchar8."""
    rows = [r for r in TABLE.values() if element in dialect.FLOATING or r.result != "float"]
    rows = [r for r in rows if element not in dialect.FLOATING or r.result != "integer"]
    functions = [f for r in rows for f in r.functions() if element in dialect.FLOATING or "_D" not in f[0]]
    text = dialect.preamble(frozenset(name for name, _, _ in functions), element, width, plain)
    if element == "double":
        text = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + text
    calls = [f"y += {name}({', '.join('x' for _ in parameters)});" for name, parameters, _ in functions]
    body = " ".join(calls if WHOLE_MATRIX else calls[:1])
    text += f"__kernel void all(__global T* p) {{ T x = p[0], y = p[1]; {body} p[2] = y; }}\n"
    cl.Program(cl_queue.context, text).build(options=["-w"])


def pair_cells():
    names = [n for n, c in CASES.items() if len(c.shapes) > 1 and len(TABLE[c.op].inputs) > 1]
    cells = [(n, a, b) for n in names for a, b in itertools.permutations(DTYPES, 2)]
    return cells if WHOLE_MATRIX else cells[:: len(cells) // 20]


@pytest.mark.parametrize(("name", "first", "second"), pair_cells())
def test_pairs_of_dtypes(queue, name, first, second):
    """Operands of two dtypes promote as NumPy's; bfloat16 as float16, with which it makes float32."""
    case = CASES[name]
    a, b = (operands(case, t, "contiguous", seed) for seed, t in enumerate((first, second)))
    arrays = [x if i % 2 == 0 else y for i, (x, y) in enumerate(zip(a, b, strict=True))]
    if case in INTEGERS and {first, second} & {*FLOATS}:
        with pytest.raises(DTypeError, match=f"{case.op}: expected integers or bools"):
            elementwise.apply(case.op, *[laid(queue, x, "")[1] for x in arrays])
        return
    tensors = [laid(queue, x, "contiguous")[1] for x in arrays]
    found = elementwise.apply(case.op, *tensors, **case.attrs).to_host()
    compare(found, reference(case, arrays), min((first, second), key=lambda t: DTYPES.index(t)))


DOUBTED = ("pow", "fmod", "remainder")  # of which a driver's builtin was wrong in some lanes


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if c not in INTEGERS and (WHOLE_MATRIX or c.op in DOUBTED)]
)
def test_a_million_doubles(queue, name):
    """Ordinary, large, tiny and whole values side by side: some builtins err in lanes beside such neighbours."""
    case, rng, n = CASES[name], np.random.default_rng(0), 10**6
    edges = np.array([0.0, -0.0, 1e300, 1e-308, 5e-324, *([np.nan, np.inf, -np.inf] if case.specials else [])])

    def values():
        scales = 10.0 ** rng.integers(-12, 12, n // 4)
        parts = rng.uniform(-5, 5, n // 2), rng.standard_normal(n // 4) * scales, rng.integers(-40, 40, n // 4) / 4
        return rng.permutation(np.concatenate([*parts, rng.choice(edges, n // 10)]))

    arrays = [values() for _ in case.shapes]
    with np.errstate(all="ignore"):
        wanted = np.asarray(case.ref(*arrays, **case.attrs)).astype(np.float64)
    tensors = [laid(queue, x, "contiguous")[1] for x in arrays]
    found = elementwise.apply(case.op, *tensors, **case.attrs).to_host().astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)
