"""Kernels tell their own arguments, and launches take them by name."""

import numpy as np
import pytest

from netcl.core import live
from netcl.core.backend import opencl
from netcl.core.backend.signature import signature
from netcl.core.dtypes import FLOAT32, INT32
from netcl.core.errors import BuildError
from netcl.core.tensor import Tensor
from netcl.kernels.program import program

SCALED = """
#define T float
#define MORE 1
typedef struct { long n, step; int from[2]; T bias; } Sizes;
#if defined(MORE) && (2 > 1 ? MORE == 1 : 0)
#define EXTRA T scale,
#else
#define EXTRA wrong
#endif
/* __kernel void scaled(int commented); */
__kernel void scaled(__global T* restrict Y, __global const T* X, long oX, EXTRA const Sizes D) {
    const long i = get_global_id(0);
    if (i < D.n) Y[i] = X[oX + D.from[0] + D.from[1] + i * D.step] * scale + D.bias;
}
"""


def test_names_types_and_records_come_from_the_text():
    found = signature(SCALED, "scaled")
    assert found.names == ("Y", "X", "oX", "scale", "D")
    assert found.types == (None, None, np.dtype("i8"), np.dtype("f4"), np.dtype("V32"))
    assert found.records["D"].names == ("n", "step", "from", "bias")
    assert found.records["D"].pack(n=1, step=2, **{"from": (3, 4)}, bias=0.5) == (
        np.array([1, 2], "i8").tobytes()
        + np.array([3, 4], "i4").tobytes()
        + np.array([0.5], "f4").tobytes()
        + b"\0" * 4
    )


def test_types_may_be_made_by_macros():
    text = """
    #define JOIN(a, b) a##b
    #define TV JOIN(float, 4)
    __kernel void f(__global TV* restrict sums, __global const JOIN(int, 2)* bounds, long n) {}
    """
    found = signature(text, "f")
    assert found.names == ("sums", "bounds", "n")
    assert found.types == (None, None, np.dtype("i8"))


def test_fields_may_be_named_like_types():
    found = signature("typedef int M; typedef struct { M K; long M; } D; __kernel void f(M x, const D d) {}", "f")
    assert found.names == ("x", "d") and found.types[0] == np.dtype("i4")
    assert found.records["d"].pack(K=1, M=2) == np.array([1, 2], "i8").tobytes()


def test_what_a_program_does_not_declare_is_refused_by_name():
    with pytest.raises(BuildError, match="other: expected a kernel of this name"):
        signature(SCALED, "other")
    with pytest.raises(BuildError, match="Rows: expected a scalar type or a record"):
        signature("__kernel void f(const Rows r) {}", "f")


@pytest.mark.parametrize("native", [True, False], ids=["native", "through pyopencl"])
@pytest.mark.parametrize("hooked", [True, False], ids=["hooked", "flat"])
def test_a_bound_launch_takes_the_rest_by_name(cl_queue, native, hooked, monkeypatch):
    if not native:
        monkeypatch.setattr("netcl.core.backend.native.extension", lambda: None)
    x, y = Tensor.from_host(cl_queue, np.arange(24, dtype=np.float32)), Tensor.zeros(cl_queue, (4,))
    queue = cl_queue
    made = program(queue, SCALED + f"// {native}\n", "scaled")
    launch = made.bind((4,), None, D={"n": 3, "step": 2, "from": (1, 1), "bias": 0.5})
    seen = []
    if hooked:
        monkeypatch.setattr(opencl, "hooks", opencl.hooks)
        opencl.hooks.append(lambda *told: seen.append(told))
    try:
        launch(Y=y.buffer, X=x[5:], scale=2.0)
    finally:
        if hooked:
            opencl.hooks.pop()
    np.testing.assert_array_equal(y.to_host(), [14.5, 18.5, 22.5, 0])
    assert len(seen) == hooked


def test_known_tensors_and_cells_are_read_as_in_any_launch(cl_queue):
    x, y = Tensor.from_host(cl_queue, np.arange(8, dtype=np.float32)), Tensor.zeros(cl_queue, (2,))
    sizes = {"n": 2, "step": 1, "from": (0, 0), "bias": 0.0}
    launch = program(cl_queue, SCALED, "scaled").bind((2,), (1,), X=x[3:], D=sizes)
    launch(Y=y.buffer, scale=live.Cell(lambda: 3.0))
    np.testing.assert_array_equal(y.to_host(), [9, 12])
    launch(Y=y.buffer, scale=1e300)  # beyond the type: infinite, as in every launch
    np.testing.assert_array_equal(y.to_host(), [np.inf, np.inf])


def test_wrong_arguments_are_named(cl_queue):
    made = program(cl_queue, SCALED, "scaled")
    with pytest.raises(TypeError, match=r"scaled: expected arguments among .*, got \['Z'\]"):
        made.bind((1,), None, Z=1)
    with pytest.raises(KeyError, match="step"):
        made.bind((1,), None, D={"n": 1})
    launch = made.bind((1,), None, D={"n": 0, "step": 1, "from": (0, 0), "bias": 0.0})
    with pytest.raises(TypeError, match="scale"):
        launch(Y=None, X=None)


@pytest.mark.parametrize("native", [True, False], ids=["native", "through pyopencl"])
@pytest.mark.parametrize("hooked", [True, False], ids=["hooked", "flat"])
def test_a_launch_makes_its_results(cl_queue, native, hooked, monkeypatch):
    if not native:
        monkeypatch.setattr("netcl.core.backend.native.extension", lambda: None)
    if hooked:
        monkeypatch.setattr(opencl, "hooks", [lambda *told: None])
    text = f"""
    __kernel void split(__global float* Y, __global const float* X, __global int* I, long oX, long oI, float scale) {{
        const long i = get_global_id(0);
        Y[i] = X[oX + i] * scale;
        I[oI + i] = i;
    }} // {native} {hooked}
    """
    made = program(cl_queue, text, "split")
    launch = made.bind((3,), None, {"Y": ((3,), FLOAT32), "I": ((1, 3), INT32)})
    x = Tensor.from_host(cl_queue, np.arange(5, dtype=np.float32))
    first, second = launch(X=x[1:], scale=2.0), launch(X=x[2:], scale=1e300)
    np.testing.assert_array_equal(first[0].to_host(), [2, 4, 6])
    np.testing.assert_array_equal(second[0].to_host(), [np.inf] * 3)
    assert first[1].shape == (1, 3) and first[1].dtype == INT32
    np.testing.assert_array_equal(first[1].to_host(), [[0, 1, 2]])
    one = made.bind((3,), None, {"Y": ((3,), FLOAT32)}, I=first[1], scale=-1.0)
    np.testing.assert_array_equal(one(X=x).to_host(), [0, -1, -2])


def test_arguments_may_have_any_name(cl_queue):
    text = """
    __kernel void named(__global int* pool, int slow, int hooks, int process, int head, int known, int pieces, int p0) {
        *pool = slow + hooks + process + head + known + pieces + p0;
    }
    """
    launch = program(cl_queue, text, "named").bind((1,), None, {"pool": ((1,), INT32)}, head=1, p0=2)
    assert launch(slow=4, hooks=8, process=16, known=32, pieces=64).to_host() == [127]
