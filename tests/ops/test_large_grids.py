"""Launches of more than 65,535 groups along an axis of the grid, which some drivers limit: batches and heads."""

import numpy as np
import pytest
from families import FAMILIES, queue_of
from units import error

from netcl.core.tensor import Tensor
from netcl.ops.attend.op import attention, attention_grad
from netcl.ops.nvidia import probe
from netcl.ops.product.op import matmul

MANY = 70_000
TOLERANCE = {"float32": 2e-6, "float16": 2e-3}
UNITS = {"portable": (), "units": probe.FAMILIES}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("dtype", TOLERANCE),
    pytest.mark.parametrize("units", UNITS),
]


@pytest.fixture(scope="module")
def gpu():
    found = [name for name in FAMILIES if name.endswith("-gpu")]
    if not found:
        pytest.skip("no GPU here")
    return queue_of(found[0])


@pytest.mark.parametrize("size", [8, 16])
def test_matmul(gpu, size, units, dtype):
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal((MANY, size, size), dtype="f4").astype(dtype) for _ in range(2))
    with probe.only(*UNITS[units]):
        y = matmul(Tensor.from_host(gpu, a), Tensor.from_host(gpu, b)).to_host()
    assert error(y, a.astype("f8") @ b.astype("f8")) < TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(MANY, 1, 4, 16), (1, MANY, 4, 16)], ids=["batch", "heads"])
def test_attention(gpu, shape, units, dtype):
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape, dtype="f4").astype(dtype) for _ in range(4)]
    with probe.only(*UNITS[units]):
        q, k, v, g = (Tensor.from_host(gpu, a) for a in arrays)
        o, lse = attention(q, k, v)
        found = (o, *attention_grad(g, q, k, v, o, lse))
    q, k, v, g = (a.astype("f8") for a in arrays)
    p = np.exp(q @ k.swapaxes(2, 3) / 4)
    p /= p.sum(-1, keepdims=True)
    o = p @ v
    ds = p * (g @ v.swapaxes(2, 3) - (g * o).sum(-1, keepdims=True)) / 4
    for t, expected in zip(found, (o, ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g)):
        assert error(t.to_host(), expected) < TOLERANCE[dtype]
