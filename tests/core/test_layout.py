"""Views are shape arithmetic: NumPy's own views are the reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from netcl.core import layout
from netcl.core.errors import IndexOutOfRange, ShapeError

shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)


def view(base, shape, strides, offset):
    if 0 in shape:
        return np.empty(shape, base.dtype)
    size = base.itemsize
    return np.ndarray(shape, base.dtype, base, offset * size, tuple(s * size for s in strides))


@st.composite
def arrays_and_keys(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
    key = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    return shape, key


@given(arrays_and_keys())
def test_select_is_numpy_basic_indexing(case):
    shape, key = case
    base = np.arange(int(np.prod(shape)))
    new = layout.select("t", shape, layout.contiguous_strides(shape), 0, key)
    assert np.array_equal(view(base, *new), base.reshape(shape)[key])


@given(shapes, st.randoms())
def test_reshape_without_copy_agrees_with_numpy(shape, random):
    axes = list(range(len(shape)))
    random.shuffle(axes)
    base = np.arange(int(np.prod(shape)))
    array = base.reshape(shape).transpose(axes)
    strides = tuple(layout.contiguous_strides(shape)[a] for a in axes)
    factors = [array.size]
    for n in (2, 3):
        if factors[-1] % n == 0:
            factors = [*factors[:-1], n, factors[-1] // n]
    for target in ((array.size,), tuple(factors), array.shape[::-1], (*array.shape, 1)):
        found = layout.reshape_strides(array.shape, strides, target)
        if found is not None:
            assert np.array_equal(view(base, target, found, 0), array.reshape(target))
        else:
            with pytest.raises(ValueError):
                array.reshape(target, copy=False)


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=4))
def test_broadcast_shapes_is_numpys(case):
    assert layout.broadcast("t", *case.input_shapes) == case.result_shape


def test_refusals_say_what_was_expected():
    with pytest.raises(ShapeError, match=r"add: expected shapes that broadcast.*\(2,\) and \(3,\)"):
        layout.broadcast("add", (2,), (3,))
    with pytest.raises(ShapeError, match="at least 0"):
        layout.as_shape("zeros", (-1, 2))
    with pytest.raises(ShapeError, match="integers"):
        layout.as_shape("zeros", (1.5,))
    with pytest.raises(IndexOutOfRange, match=r"\[-3, 3\) on axis 0, got 3"):
        layout.select("indexing", (3,), (1,), 0, 3)
    with pytest.raises(ShapeError, match="take, gather"):
        layout.select("indexing", (3,), (1,), 0, [0, 1])
    with pytest.raises(ShapeError, match="each axis once"):
        layout.as_axes("sum", (0, -2), 2)
    with pytest.raises(ShapeError, match="6 elements"):
        layout.infer_shape("reshape", 6, (4, -1))


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_reshape_of_no_elements_agrees_with_numpy(axes):
    for shape in itertools.product((0, 1, 2, 4), repeat=3):
        array = np.zeros(shape).transpose(axes)
        if array.size:
            continue
        base = layout.contiguous_strides(shape)
        strides = tuple(base[a] for a in axes)
        for target in itertools.product((0, 1, 3, 4), repeat=2):
            if 0 in target:
                assert layout.reshape_strides(array.shape, strides, target) == layout.contiguous_strides(target)
