"""Moves keep every bit of 16-bit floats: signalling NaNs, the payload of NaNs, the sign of zero."""

import copy

import numpy as np
import pytest
from families import FAMILIES, queue_of

import netcl.autograd as ag
from netcl import nn, ops
from netcl.autograd.compiler import jit_compile
from netcl.core.dtypes import as_dtype
from netcl.core.errors import DTypeError
from netcl.core.tensor import Tensor
from netcl.io import load_model, save_model
from netcl.ops import elementwise as E
from netcl.runtime.capture import KernelCapture

BITS = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
ROWS, EVERY_THIRD = np.array([3, 250, 127]), np.arange(1 << 16).reshape(256, 256) % 3 == 0
MOVES = {
    "copy": (Tensor.copy, lambda b: b),
    "transposed": (lambda x: x.T.contiguous(), lambda b: b.T),
    "steps": (lambda x: x[::-1, ::3].contiguous(), lambda b: b[::-1, ::3]),
    "unaligned": (lambda x: x[1:, 1:250].copy(), lambda b: b[1:, 1:250]),
    "deep copy": (copy.deepcopy, lambda b: b),
    "flip": (lambda x: ops.flip(x, 0), lambda b: b[::-1]),
    "roll": (lambda x: ops.roll(x, 5, 1), lambda b: np.roll(b, 5, 1)),
    "concat": (lambda x: ops.concat([x, x.T], 1), lambda b: np.concatenate([b, b.T], 1)),
    "stack": (lambda x: ops.stack([x, x], 1), lambda b: np.stack([b, b], 1)),
    "tile": (lambda x: ops.tile(x, (2, 1)), lambda b: np.tile(b, (2, 1))),
    "repeat": (lambda x: E.copy(x[:, :1].expand(256, 3)), lambda b: np.repeat(b[:, :1], 3, 1)),
    "zero padding": (lambda x: ops.pad(x, ((0, 0), (1, 2))), lambda b: np.pad(b, ((0, 0), (1, 2)))),
    "reflected": (lambda x: ops.pad(x, ((0, 0), (1, 2)), mode="reflect"),
                  lambda b: np.pad(b, ((0, 0), (1, 2)), mode="reflect")),
    "take": (lambda x: ops.take(x, Tensor.from_host(x.queue, ROWS), 0), lambda b: b[ROWS]),
    "masked_select": (lambda x: ops.masked_select(x, Tensor.from_host(x.queue, EVERY_THIRD)), lambda b: b[EVERY_THIRD]),
    "tril": (ops.tril, np.tril),
    "assign": (lambda x: E.assign(Tensor.zeros(x.queue, x.shape, x.dtype), x), lambda b: b),
    "assign to a view": (lambda x: E.assign(Tensor.zeros(x.queue, (256, 512), x.dtype)[:, ::2].T, x), lambda b: b),
    "astype": (lambda x: x.astype(x.dtype), lambda b: b),
    "to NumPy and back": (lambda x: x.to("cpu").copy().to(x.queue), lambda b: b),
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


@pytest.fixture(params=["float16", "bfloat16"])
def x(request, queue):
    """Every bit pattern."""
    return Tensor.from_host(queue, BITS.view(as_dtype(request.param)))


def bits(tensor):
    return tensor.to_host().view(np.uint16)


@pytest.mark.parametrize("name", MOVES)
def test_moves_keep_every_bit(x, name):
    move, expected = MOVES[name]
    found = move(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(bits(found), expected(BITS))


@pytest.mark.parametrize("name", ["transposed", "concat", "assign to a view"])
def test_replays_and_compiled_functions_keep_every_bit(x, name):
    move, expected = MOVES[name]
    with KernelCapture() as capture:
        y = move(x)
    y.fill_(0)
    capture.replay()
    np.testing.assert_array_equal(bits(y), expected(BITS))
    turned = jit_compile(lambda n: ag.permute(n, (1, 0)))
    for _ in range(2):
        np.testing.assert_array_equal(bits(turned(ag.tensor(x)).value), BITS.T)


def test_files_and_states_keep_every_bit(x, tmp_path):
    model = nn.Linear(x.queue, 256, 256, bias=False).to(x.dtype)
    model.weight.value = x
    save_model(model, tmp_path / "m.netcl")
    loaded = load_model(tmp_path / "m.netcl", queue=x.queue)
    np.testing.assert_array_equal(bits(loaded.weight.value), BITS)
    other = nn.Linear(x.queue, 256, 256, bias=False).to(x.dtype)
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(bits(other.weight.value), BITS)


def test_the_type_of_bits_is_no_dtype_of_tensors(queue):
    with pytest.raises(DTypeError, match="got int16"):
        Tensor.from_host(queue, np.zeros(3, np.int16))
    with pytest.raises(DTypeError, match="got int16"):
        Tensor.zeros(queue, (3,), "int16")
