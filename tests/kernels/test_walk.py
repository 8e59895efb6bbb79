"""How generated kernels cover elements: the numbers they are told, and the places they decode from them."""

import numpy as np
import pytest

from netcl.core.dtypes import FLOAT16, FLOAT32, FLOAT64
from netcl.core.tensor import Tensor
from netcl.fusion.walk import Axes, Extent, Operand, Walk, collapse

FLOATS = [Operand(FLOAT32, access) for access in ("strided", "repeat", "vector", "row")]
WALK = Walk(FLOAT32, True, 8, tuple(FLOATS[:2]), tuple(FLOATS[2:]), (2, 1))
EXTENT = Extent((Axes((3, 4), ((40, 10), (0, 7), (24, 6))), Axes((5,), ((2,), (0,), (1,)))), 6, (3, 0, 1))


def test_a_launch_is_told_every_number_that_its_kernel_declares():
    found = EXTENT.arguments(WALK)
    assert {*found} | {"oin_0", "oin_1", "oout_0", "oout_1"} == {*WALK.indices()}
    assert len(WALK.indices()) == len({*WALK.indices()})
    assert (found["rows"], found["outer"], found["cols"], found["r_d1"], found["i_in_0"]) == (12, 5, 6, 4, 3)
    assert "i_in_1" not in found  # what repeats or lies in one piece has no step
    assert not [n for n in found if "out_1" in n]  # one element per row: no strides


def test_decoding_gives_the_place_of_each_row():
    lines = [line.removeprefix("I ").replace("/=", "//=") for line in WALK.decode(0, "r")]
    numbers = EXTENT.arguments(WALK) | {"oin_0": 100, "oin_1": 0, "oout_0": 1}
    for r, (i, j) in enumerate(np.ndindex(3, 4)):
        space = {**numbers, "r": r}
        exec("\n".join(lines), space)
        places = (space["p_in_0"], space["p_in_1"], space["p_out_0"])
        assert places == (100 + 40 * i + 10 * j, 7 * j, 1 + 24 * i + 6 * j)


@pytest.mark.parametrize(
    ("dtype", "compute", "offset", "stride", "aligned", "width"),
    [
        (FLOAT16, FLOAT32, 0, 16, True, 8),
        (FLOAT16, FLOAT32, 4, 16, True, 4),
        (FLOAT16, FLOAT32, 8, 12, True, 4),
        (FLOAT16, FLOAT32, 0, 18, False, 4),
        (FLOAT32, FLOAT32, 8, 16, True, 4),
        (FLOAT16, FLOAT64, 0, 16, True, 4),
    ],
)
def test_vectors_are_as_wide_as_alignment_allows(dtype, compute, offset, stride, aligned, width):
    x = Tensor(None, (4, 16), (stride, 1), offset, dtype, None)
    walk = Walk(compute, False, 8, (Operand(dtype, "vector"),)).over([x], [(stride,)], x.size, 1 << 31)
    assert (walk.aligned, walk.width, walk.wide) == (aligned, width, False)
    assert walk.over([x], [(stride,)], x.size, offset + 1).wide


def test_neighbouring_axes_that_step_alike_are_one():
    assert collapse((2, 3, 4), ((12, 4, 1), (0, 0, 1))) == ((6, 4), ((4, 1), (0, 1)))
    assert collapse((2, 1, 4), ((4, 9, 1),)) == ((8,), ((1,),))
    assert collapse((1, 1), ((5, 5),)) == ((1,), ((0,),))
