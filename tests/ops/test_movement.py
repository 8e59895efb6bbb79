"""Movement of elements against NumPy on every backend, from views, with empty parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netcl.core.errors import ShapeError
from netcl.core.tensor import Tensor
from netcl.ops import movement as mv

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def pair(queue, array=X):
    """A transposed view on the device and the same array on the host."""
    return Tensor.from_host(queue, array.T.copy()).T, array


def same(tensor, array):
    assert tensor.shape == array.shape and tensor.dtype == array.dtype
    assert np.array_equal(tensor.to_host(), array)


def test_concat_and_stack(queue):
    t, n = pair(queue)
    for axis in (0, 1, 2, -1):
        same(
            mv.concat([t, t[..., :2] if axis in (2, -1) else t], axis),
            np.concatenate([n, n[..., :2] if axis in (2, -1) else n], axis),
        )
        same(mv.stack([t, t], axis), np.stack([n, n], axis))
    same(mv.concat([t[:0], t], 0), n)
    ints = Tensor.from_host(queue, np.arange(3, dtype=np.int32))
    same(mv.concat([ints, ints.astype("float64")]), np.concatenate([np.arange(3), np.arange(3.0)]))
    with pytest.raises(ShapeError, match="differ only along axis 0"):
        mv.concat([t, t[:, :2]], 0)
    with pytest.raises(ShapeError, match="at least one"):
        mv.concat([])
    with pytest.raises(ShapeError, match="equal shapes"):
        mv.stack([t, t[:1]])


def test_split_and_chunk_are_views(queue):
    t, n = pair(queue)
    for ours, theirs in zip(mv.split(t, 2, -1), np.split(n, 2, -1), strict=True):
        same(ours, theirs)
        assert ours.buffer is t.buffer
    assert [p.shape for p in mv.split(t, [1, 3], 2)] == [(2, 3, 1), (2, 3, 3)]
    assert [p.shape[1] for p in mv.split(t, 2, 1)] == [2, 1]
    assert [p.shape[2] for p in mv.chunk(t, 3, 2)] == [2, 2]
    with pytest.raises(ShapeError, match="add up to 4"):
        mv.split(t, [1, 1], 2)


def test_flip_roll_repeat_tile(queue):
    t, n = pair(queue)
    for axis in (None, 0, (0, 2), -1):
        same(mv.flip(t, axis), np.flip(n, axis))
    for shift, axis in [(1, 0), (-5, 1), (3, None), ((1, 2), (0, 2)), (0, 1)]:
        same(mv.roll(t, shift, axis), np.roll(n, shift, axis))
    for k, axis in [(2, 0), (3, 2), (2, None), (0, 1)]:
        same(mv.repeat(t, k, axis), np.repeat(n, k, axis))
    for times in (2, (2, 1, 3), (2, 1, 1, 2), (0, 1, 1)):
        same(mv.tile(t, times), np.tile(n, times))


def test_pad(queue):
    t, n = pair(queue)
    widths = ((0, 0), (1, 2), (2, 1))
    same(mv.pad(t, widths, value=7), np.pad(n, widths, constant_values=7))
    same(mv.pad(t, widths, mode="reflect"), np.pad(n, widths, mode="reflect"))
    same(mv.pad(t, widths, mode="replicate"), np.pad(n, widths, mode="edge"))
    same(mv.pad(t, ((3, 3),), mode="reflect"), np.pad(n, ((0, 0), (0, 0), (3, 3)), mode="reflect"))
    same(mv.pad(t, 1), np.pad(n, 1))
    same(mv.pad(t, ((-1, 0), (0, -2))), n[:, 1:, :2])
    same(mv.pad(t, ((-1, 2),)), np.pad(n, ((0, 0), (0, 0), (0, 2)))[..., 1:])
    with pytest.raises(ShapeError, match="below the length"):
        mv.pad(t, ((4, 0),), mode="reflect")
    with pytest.raises(ShapeError, match="at most 3"):
        mv.pad(t, ((1, 1),) * 4)
    with pytest.raises(ShapeError, match="leave"):
        mv.pad(t, ((-3, -2),))
    with pytest.raises(ValueError, match="mode"):
        mv.pad(t, 1, mode="wrap")


@settings(max_examples=30)
@given(st.integers(0, 3), st.integers(1, 40), st.integers(0, 50), st.integers(-60, 60))
def test_sizes(queue, lead, n, m, shift):
    a = np.random.default_rng(n).standard_normal((lead, n)).astype(np.float32)
    b = np.random.default_rng(m).standard_normal((lead, m)).astype(np.float32)
    ta, tb = Tensor.from_host(queue, a), Tensor.from_host(queue, b)
    same(mv.concat([ta, tb, ta], 1), np.concatenate([a, b, a], 1))
    same(mv.roll(ta, shift, 1), np.roll(a, shift, 1))
