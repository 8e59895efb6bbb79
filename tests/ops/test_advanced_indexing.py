"""x[key] and x[key] = v by NumPy's rules: lists, arrays, masks and their mixtures with views, of tensors and nodes."""

import numpy as np
import pytest

import netcl as nc
from netcl import ag
from netcl.core.errors import DTypeError, GradientError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor

VALUES = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4) - 7
ROW, COLUMN = np.array([0, -1, 2, 2]), np.array([[1], [-4]])
KEYS = {
    "list": [1, 0, 1],
    "array": np.array([[0, 1], [-1, 0]]),
    "unsigned array": np.array([1, 0], np.uint8),
    "empty list": [],
    "list beside slices": (slice(None), [2, 0]),
    "array at the end": (Ellipsis, ROW),
    "array after steps back": (slice(None, None, -1), slice(2, 0, -1), ROW),
    "two arrays": (slice(None), np.array([0, 2]), np.array([3, 1])),
    "two that broadcast": (slice(None), np.array([0, 2, 1]), COLUMN),
    "three arrays": ([0, 1], [2, 0], [3, -1]),
    "apart": ([0, 1], slice(None), [3, -1]),
    "number and array": (1, slice(None), ROW),
    "number beside array": (slice(None), 1, ROW),
    "new axis before": (None, [1, 0]),
    "new axis between": ([0, 1], None, [2, 0]),
    "mask of rows": np.array([False, True]),
    "mask of two axes": VALUES[:, :, 0] > 0,
    "mask beside array": (np.array([True, True]), [0, 2]),
    "mask after slice": (slice(None), np.array([True, False, True])),
    "mask of all": VALUES > 2,
    "mask list": [True, False],
    "nothing marked": VALUES > 100,
}
BOTH = pytest.mark.parametrize("wrap", [lambda x: x, ag.tensor], ids=["tensor", "node"])


@BOTH
@pytest.mark.parametrize("name", KEYS)
def test_reads_as_numpy(queue, wrap, name):
    x = nc.tensor(VALUES, queue=queue)
    found = wrap(x)[KEYS[name]]
    np.testing.assert_array_equal(found.numpy(), VALUES[KEYS[name]])
    assert type(found) is type(wrap(x))
    turned = np.ascontiguousarray(VALUES.transpose(2, 1, 0))
    seen = wrap(nc.tensor(turned, queue=queue).permute(2, 1, 0))
    np.testing.assert_array_equal(seen[KEYS[name]].numpy(), VALUES[KEYS[name]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32"])
def test_every_dtype(queue, dtype):
    data = VALUES.clip(0).astype(dtype)
    x = nc.tensor(data, queue=queue)
    for key in ([1, 0], (Ellipsis, ROW), data != 0):
        np.testing.assert_array_equal(x[key].numpy(), data[key])


@BOTH
def test_one_tensor_of_positions_stays_on_its_device(queue, wrap, monkeypatch):
    x, flat, wide = nc.tensor(VALUES, queue=queue), np.int32([1, 0, -1]), np.int64([[0, -2], [1, 1]])
    keys = (flat, wide, (slice(None, None, -1), flat), (Ellipsis, flat), (None, flat), (slice(1), slice(None), flat))
    with monkeypatch.context() as patch:
        found = []
        for key in keys:
            parts = key if isinstance(key, tuple) else (key,)
            on_device = tuple(nc.tensor(k, queue=queue) if isinstance(k, np.ndarray) else k for k in parts)
            patch.setattr(nc.Tensor, "to_host", lambda self: pytest.fail("read by the host"))
            found.append(wrap(x)[on_device])
            patch.undo()
    for key, y in zip(keys, found, strict=True):
        np.testing.assert_array_equal(y.numpy(), VALUES[key])
    target, want = nc.tensor(VALUES, queue=queue), VALUES.copy()
    target[nc.tensor(wide, queue=queue)], want[wide] = 5.0, 5.0
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    target[nc.tensor(flat, queue=queue)] = nc.tensor(rows, queue=queue)
    want[flat] = rows
    np.testing.assert_array_equal(target.numpy(), want)
    with pytest.raises(IndexOutOfRange, match=r"expected indices in \[-2, 2\), got 2"):
        x[nc.tensor([2], queue=queue)].to_host()


def test_tensors_are_keys_too(queue):
    x, index = nc.tensor(VALUES, queue=queue), nc.tensor([1, 0, -1], queue=queue)
    np.testing.assert_array_equal(x[index].numpy(), VALUES[[1, 0, -1]])
    np.testing.assert_array_equal(x[x > 2].numpy(), VALUES[VALUES > 2])
    np.testing.assert_array_equal(x[:, ag.tensor(index)].numpy(), VALUES[:, [1, 0, -1]])


@pytest.mark.parametrize("name", KEYS)
def test_gradients_go_where_values_came_from(queue, name):
    x = ag.tensor(nc.tensor(VALUES, queue=queue), requires_grad=True)
    with ag.Tape() as tape:
        y = x[KEYS[name]]
        loss = ag.sum(y * y) if y.size else ag.sum(y)
    tape.backward(loss)
    expected = np.zeros_like(VALUES)
    np.add.at(expected, KEYS[name], 2 * VALUES[KEYS[name]])
    np.testing.assert_allclose(x.grad.to_host(), expected, rtol=1e-6)


def test_compiled(queue):
    x = nc.tensor(VALUES, queue=queue)
    compiled = ag.jit_compile(lambda x: x[:, [2, 0]] * 2.0)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x).numpy(), VALUES[:, [2, 0]] * 2)


@BOTH
@pytest.mark.parametrize("name", [*KEYS, "number", "slices", "all", "new axis"])
@pytest.mark.parametrize("value", ["number", "row", "whole"])
def test_writes_as_numpy(queue, wrap, name, value):
    key = {"number": 1, "slices": (slice(None), slice(0, 3, 2)), "all": Ellipsis, "new axis": (0, None)} | KEYS
    shape = VALUES[key[name]].shape
    given = {"number": np.float32(5), "row": np.arange(shape[-1], dtype=np.float32) + 50}
    given["whole"] = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 90
    expected, tensor = VALUES.copy(), nc.tensor(VALUES, queue=queue)
    expected[key[name]] = given[value]
    wrap(tensor)[key[name]] = 5.0 if value == "number" else nc.tensor(given[value], queue=queue)
    np.testing.assert_array_equal(tensor.to_host(), expected)


def test_writes_go_through_views_and_take_host_values(queue):
    x = nc.tensor(VALUES, queue=queue)
    x[0][1, 2:] = [8.0, 9.0]
    x[1].T[[0, 3]] = 0
    expected = VALUES.copy()
    expected[0, 1, 2:] = [8, 9]
    expected[1].T[[0, 3]] = 0
    np.testing.assert_array_equal(x.to_host(), expected)


def test_writes_are_refused_where_a_gradient_would_be_lost(queue):
    leaf = ag.tensor(nc.tensor(VALUES, queue=queue), requires_grad=True)
    with pytest.raises(GradientError, match="assignment: expected a value that no gradient goes through"):
        leaf[0] = 1.0
    with nc.no_grad():
        leaf[0] = 1.0
    with ag.Tape() as tape:
        loss = ag.sum(leaf * leaf)
    leaf.value[[0]] = 2.0
    with pytest.raises(GradientError, match="as forward read it"):
        tape.backward(loss)


def test_wrong_keys(queue):
    x = nc.tensor(VALUES, queue=queue)
    for key, error, message in (
        ([0, 2], IndexOutOfRange, r"indexing: expected indices in \[-2, 2\), got 2"),
        ([0.5], DTypeError, "expected whole numbers or booleans, got float64"),
        ((0, 0, 0, [1]), ShapeError, "expected at most 3 indices"),
        ((Ellipsis, Ellipsis, [1]), ShapeError, "one '...'"),
        (True, ShapeError, "got True"),
        ("a", ShapeError, "got 'a'"),
    ):
        with pytest.raises(error, match=message):
            x[key]
    with pytest.raises(ShapeError, match=r"expected values that broadcast to \(2, 3, 4\), got shape \(5,\)"):
        x[[0, 1]] = nc.ones(queue, 5)
    whole = nc.arange(3, queue=queue)
    with pytest.raises(DTypeError, match="assignment: expected values that int64 holds, got float32"):
        whole[[0]] = nc.ones(queue, 1)
    assert whole.tolist() == [0, 1, 2]


def test_a_mask_of_another_shape_is_refused_even_where_it_marks_what_there_is(queue):
    x, mask = Tensor.from_host(queue, np.arange(6.0).reshape(2, 3)), np.zeros((3, 3), bool)
    mask[0, 1] = True
    for key in (mask, Tensor.from_host(queue, mask), (slice(None), np.array([True, False]))):
        with pytest.raises(
            ShapeError, match=r"indexing: expected a mask of shape \((2, 3|3,)\), as the axes it is for, got"
        ):
            x[key]
    with pytest.raises(ShapeError, match="expected a mask of shape"):
        x[mask] = 0.0
    assert x[None, [True, False], 1:].tolist() == [[[1, 2]]] and x[:, [True, False, True]].shape == (2, 2)
