"""Infinity and NaN in attention: they reach what they reach in plain arithmetic, and nothing that does not see them."""

import pytest
from attention_reference import MASKS, SPECIALS, check_specials
from families import FAMILIES, POSING, queue_of

TOLERANCE = {"bfloat16": 0.05, "float16": 1e-2, "float32": 1e-4, "float64": 1e-10}


@pytest.fixture(params=FAMILIES, scope="session")
def queue(request):
    """A queue of every backend, device and kernel family."""
    return queue_of(request.param)


# Kernels for CPU devices and NumPy multiply what a query does not see by 0.
ALL = [(f, m) for f in FAMILIES for m in MASKS if m == "all" or f.startswith(POSING) or f.endswith("-gpu")]


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize(("queue", "masks"), ALL, indirect=["queue"])
def test_specials(queue, special, masks):
    check_specials(queue, special, masks, "float32", TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("special", ["infinite values", "infinite keys", "infinite gradients"])
def test_specials_of_other_types(queue, special, dtype):
    check_specials(queue, special, "all", dtype, TOLERANCE[dtype])
