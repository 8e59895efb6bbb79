"""Inverse and special functions over their whole range, divisions and shifts at their edges, replacements."""

import builtins

import numpy as np
import pytest
from scipy import special

import netcl.autograd as ag
from netcl import ops
from netcl.core.kernels import special as without_scipy
from netcl.core.tensor import Tensor

EVEN = np.linspace(-1, 1, 4001)
POSITIVE = np.concatenate([np.geomspace(1e-6, 1e3, 3000), np.linspace(0.1, 4, 1001)])
RANGES = {  # of each function: where it is looked at, its reference, and how far off it may be in float32
    "asin": (EVEN, np.arcsin, 1e-6), "acos": (EVEN, np.arccos, 1e-6), "asinh": (EVEN * 1e4, np.arcsinh, 1e-6),
    "acosh": (1 + POSITIVE, np.arccosh, 2e-6), "atanh": (EVEN[1:-1], np.arctanh, 2e-6),
    "exp2": (EVEN * 30, np.exp2, 1e-6),
    "erfc": (EVEN * 5, special.erfc, 2e-6), "erfinv": (EVEN[1:-1], special.erfinv, 1e-6),
    "lgamma": (np.concatenate([POSITIVE, EVEN[:-1:7] * 9 + 0.01]), special.gammaln, 3e-6),
    "digamma": (np.concatenate([POSITIVE, EVEN[:-1:7] * 9 + 0.013]), special.digamma, 3e-6),
    "sinc": (EVEN * 3, np.sinc, 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_the_whole_range_follows_the_reference(queue, name):
    at, reference, tolerance = RANGES[name]
    for dtype, off in (("float32", tolerance), ("float64", 4e-14)):
        x = at.astype(dtype)
        found = getattr(ops, name)(Tensor.from_host(queue, x)).to_host()
        expected = reference(x.astype(np.float64))
        np.testing.assert_allclose(found, expected, rtol=off, atol=off)


def test_erfinv_is_right_far_out_in_its_tails(queue):
    for dtype, off in (("float32", 3e-6), ("float64", 1e-13)):
        rest = np.geomspace(2e-7 if dtype == "float32" else 1e-15, 0.1, 400).astype(dtype)
        x = (1 - rest).astype(dtype)
        for sign in (1, -1):
            found = ops.erfinv(Tensor.from_host(queue, sign * x)).to_host()
            np.testing.assert_allclose(found, special.erfinv(sign * x.astype(np.float64)), rtol=off)


SPECIALS = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -2.0, 2.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_edges(queue, dtype):
    x = Tensor.from_host(queue, SPECIALS.astype(dtype))
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(ops.erfinv(x).to_host(), [0, 0, inf, -inf, nan, nan, nan, nan, nan])
    np.testing.assert_allclose(
        ops.digamma(x).to_host(),
        [-inf, inf, special.digamma(1), nan, inf, nan, nan, nan, special.digamma(2)],
        rtol=1e-5,
    )
    np.testing.assert_allclose(ops.lgamma(x).to_host(), [inf, inf, 0, inf, inf, inf, nan, inf, 0], atol=1e-6)
    np.testing.assert_array_equal(ops.logaddexp(x, x).to_host()[4:6], [inf, -inf])
    np.testing.assert_array_equal(ops.xlogy(ops.mul(x, 0), x).to_host()[[0, 2, 3, 7]], [0, 0, 0, 0])


DIVIDENDS = np.array([7.0, -7.0, 7.0, -7.0, 0.0, 5.0, -5.0, 0.3, np.inf, 1.0, -1.0, np.nan, 6.0])
DIVISORS = np.array([2.0, 2.0, -2.0, -2.0, 3.0, 0.0, 0.0, 0.1, 2.0, np.inf, np.inf, 2.0, -0.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_divide_with_pythons_rule(queue, dtype):
    a, b = DIVIDENDS.astype(dtype), DIVISORS.astype(dtype)
    x, y = Tensor.from_host(queue, a), Tensor.from_host(queue, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((x // y).to_host(), np.floor_divide(a, b))
    np.testing.assert_array_equal(ops.trunc_divide(x, y).to_host()[:4], [3, -3, -3, 3])
    np.testing.assert_array_equal((2 // x).to_host()[:4], [0, -1, 0, -1])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_divide_and_shift_as_numpys_do(queue, dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([7, low, high, low, 100, 5, 0, 3], dtype)
    b = np.array([2, 2, 3, high, 7, 0, 5, 1], dtype)
    if low < 0:
        a, b = np.append(a, np.array([-7, 7, low], dtype)), np.append(b, np.array([2, -2, -1], dtype))
    x, y = Tensor.from_host(queue, a), Tensor.from_host(queue, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((x // y).to_host(), np.floor_divide(a, b))
    places = np.resize(np.array([0, 1, 3, 7, 8, 31, 63, 64], dtype), a.shape)
    z = Tensor.from_host(queue, places)
    np.testing.assert_array_equal((x << z).to_host(), np.left_shift(a, places))
    np.testing.assert_array_equal((x >> z).to_host(), np.right_shift(a, places))
    np.testing.assert_array_equal((x >> 1).to_host(), a >> 1)
    np.testing.assert_array_equal((1 << ops.clip(x, 0, 5)).to_host(), np.left_shift(1, np.clip(a, 0, 5)).astype(dtype))


def test_bools_divide_and_shift_as_int8(queue):
    t = np.array([True, False])
    x = Tensor.from_host(queue, t)
    assert (x << x).dtype == np.int8 and (x << x).to_host().tolist() == [2, 0]
    assert (x // Tensor.from_host(queue, ~t)).dtype == np.int8


def test_numbers_for_nan_and_the_infinities(queue):
    for dtype in ("float16", "float32", "bfloat16"):
        x = Tensor.from_host(queue, np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)).astype(dtype)
        found = ops.nan_to_num(x).astype("float64").to_host()
        assert found[0] == 0 and found[3] == 1.5 and np.isfinite(found).all() and -found[2] == found[1] > 6e4
        found = ops.nan_to_num(x, nan=2.0, posinf=3.0, neginf=-4.0).astype("float64").to_host()
        assert found.tolist() == [2, 3, -4, 1.5]
    whole = Tensor.from_host(queue, np.arange(3))
    assert ops.nan_to_num(whole).to_host().tolist() == [0, 1, 2]


def test_a_third_operands_gradient_reads_the_third_operand(queue):
    """The loop of a kernel has a variable `c`, too."""
    a, b, c = (ag.tensor(Tensor.from_host(queue, np.full((3, 9), v)), requires_grad=True) for v in (2.0, 3.0, 5.0))
    with ag.Tape() as tape:
        y = ag.sum(ag.addcmul(a, b, c, value=0.5))
    tape.backward(y)
    assert [float(n.grad.to_host()[0, 0]) for n in (a, b, c)] == [1, 2.5, 1.5]


def test_without_scipy_the_values_are_the_same(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    x = np.linspace(-0.999, 0.999, 41)
    expected = {
        "erf": special.erf(x),
        "erfc": special.erfc(x),
        "erfinv": special.erfinv(x),
        "gammaln": special.gammaln(x),
    }
    monkeypatch.setattr(builtins, "__import__", without)
    for name, values in expected.items():
        fn = {"gammaln": without_scipy.log_gamma}.get(name) or getattr(without_scipy, name)
        np.testing.assert_allclose(without_scipy._by_scipy(name, fn)(x), values, rtol=1e-11)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.celu(x, 0), "celu: expected alpha other than 0"),
        (lambda x: ops.softshrink(x, -1), "softshrink: expected lambd at least 0, got -1"),
        (lambda x: ops.hypot(x), "missing 1 required positional argument"),
        (lambda x: x << 1, "left_shift: expected integers or bools, got float32"),
        (lambda x: x >> 1.0, "right_shift: expected integers or bools, got float32"),
        (lambda x: ops.lerp(x, x, weight=1), "lerp"),
        (lambda x: ops.threshold(x, 0.5), "missing 1 required positional argument: 'value'"),
        (lambda x: ops.nan_to_num(3.0), "nan_to_num: expected a"),
        (lambda x: ops.asin(x, out=1), "asin: "),
        (lambda x: ops.erfinv("a"), "erfinv: expected"),
    ],
)
def test_wrong_input_is_named(cpu_queue, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(Tensor.from_host(cpu_queue, np.ones(3, np.float32)))
