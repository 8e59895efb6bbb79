"""Infinity and NaN in attention: they reach what they reach in plain arithmetic, and nothing that does not see them."""

import pytest
from attention_reference import MASKS, SPECIALS, check_specials
from families import FAMILIES, queue_of

TOLERANCE = {"bfloat16": 0.05, "float16": 1e-2, "float32": 1e-4, "float64": 1e-10}


@pytest.fixture(params=FAMILIES, scope="session")
def queue(request):
    """A queue of every backend, device and kernel family."""
    return queue_of(request.param)


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("masks", MASKS)
def test_specials(queue, special, masks):
    check_specials(queue, special, masks, "float32", TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("special", ["infinite values", "infinite keys", "infinite gradients"])
def test_specials_of_other_types(queue, special, dtype):
    check_specials(queue, special, "causal", dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("special", ["infinite values", "values not a number", "infinite keys", "keys of no weight"])
def test_specials_of_few_queries(queue, special):
    """As in decoding."""
    check_specials(queue, special, "padded", "float32", TOLERANCE["float32"], queries=3)
