"""Maps of operands that lie across their result: squares of vectors are turned in registers on GPUs."""

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import FLOAT32
from netcl.core.tensor import Tensor
from netcl.fusion import map
from netcl.ops import elementwise

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "bool", "int32", "int64"]
LAYOUTS = {  # shapes in memory, and the order in which their axes are read
    "aligned": ((40, 72), (1, 0)), "ragged": ((33, 65), (1, 0)), "smallest": ((8, 8), (1, 0)),
    "thin": ((7, 64), (1, 0)), "batches": ((3, 17, 24), (0, 2, 1)), "ends swapped": ((9, 5, 16), (2, 1, 0)),
    "batches in the middle": ((16, 3, 2, 8), (3, 1, 2, 0)), "channels last": ((2, 16, 3, 9), (0, 2, 3, 1)),
    "channels first": ((2, 3, 9, 16), (0, 3, 1, 2)), "no turn": ((4, 16, 8), (1, 0, 2)),
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def every_queue(request):
    """The devices, and the GPU kernels where there is no GPU."""
    return queue_of(request.param)


def numbers(shape, dtype):
    values = np.random.default_rng(0).integers(-100, 100, shape)
    return values > 0 if dtype == "bool" else values.astype(Tensor.empty(queue_of(FAMILIES[0]), (1,), dtype).dtype)


def check(tensor, array):
    np.testing.assert_array_equal(tensor.to_host().astype(np.float64), array.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies(every_queue, layout, dtype):
    """All of a tensor, and views that start within a vector and skip rows."""
    shape, order = LAYOUTS[layout]
    x = numbers(shape, dtype)
    t = Tensor.from_host(every_queue, x)
    for part in (..., (..., slice(3, None)), (slice(1, None, 2), ...)):
        check(t[part].permute(*order).contiguous(), x[part].transpose(order))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_into_views(every_queue, layout, dtype):
    """The result is the operand that lies across."""
    shape, order = LAYOUTS[layout]
    x = numbers(shape, dtype)
    y = Tensor.zeros(every_queue, tuple(shape[a] + 1 for a in order), x.dtype)
    inside = y[tuple(slice(1, None) for _ in order)]
    elementwise.assign(inside.permute(*np.argsort(order)), Tensor.from_host(every_queue, x))
    check(inside, x.transpose(order))
    assert float(np.abs(y.to_host()[0]).max()) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_operands(every_queue, layout):
    """Two that lie across, one that does not, one that repeats; of several types."""
    shape, order = LAYOUTS[layout]
    a, b, c = numbers(shape, "float16"), numbers(shape, "float32"), numbers(tuple(shape[k] for k in order), "int8")
    ta, tb, tc = (Tensor.from_host(every_queue, x) for x in (a, b, c))
    check(
        elementwise.where(tc, ta.permute(*order), tb.permute(*order)),
        np.where(c, a.transpose(order), b.transpose(order)),
    )
    check(elementwise.sub(tb.permute(*order), tc[..., :1]), b.transpose(order) - c[..., :1])
    check(ta.permute(*order).astype("int32"), a.transpose(order).astype(np.int32))


def test_special_values_pass(every_queue):
    x = np.float32([np.nan, np.inf, -np.inf, -0.0] * 16).reshape(8, 8)
    np.testing.assert_array_equal(Tensor.from_host(every_queue, x).T.contiguous().to_host(), x.T)


def test_far_positions(every_queue, monkeypatch):
    """The same with 64-bit index arithmetic."""
    monkeypatch.setattr(map, "FAR", 1)
    x = numbers((2, 24, 40), "float32") + np.float32(0.5)
    t = Tensor.from_host(every_queue, x)
    check(elementwise.mul(t.permute(0, 2, 1), 3), x.transpose(0, 2, 1) * 3)


def test_which_are_turned():
    """Long axes only, and in blocks whose vectors have 16 bytes where they may."""
    queue = queue_of(next((f for f in FAMILIES if f.startswith(POSING)), FAMILIES[-1]))

    def form(shape, start, dtype):
        x = Tensor(None, shape, (1, 64), start, np.dtype(dtype), queue)
        return map._walk(profile_of(queue), shape, FLOAT32, (x.dtype,), [x])[0]

    single, half, inside = form((64, 32), 0, "float32"), form((64, 32), 0, "float16"), form((64, 32), 2, "float32")
    assert {f.inputs[0].access for f in (single, half, inside)} == {"turned"}
    assert [(f.aligned, f.across, f.width) for f in (single, half, inside)] == [
        (True, 8, 4),
        (True, 4, 8),
        (False, 4, 4),
    ]
    assert form((64, 3), 0, "float32").inputs[0].access == "strided"
