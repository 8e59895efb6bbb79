"""Dtypes and numbers of elementwise calls: NumPy 2's rule, the same eager, under the JIT and on every backend."""

import dataclasses
import itertools
import operator

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import ops
from netcl.autograd.compiler import jit_compile
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import SUPPORTED
from netcl.core.errors import DTypeError, NumberOutOfRange
from netcl.core.kernels.primitives import TABLE
from netcl.core.tensor import Tensor
from netcl.fusion.map import source_of
from netcl.ops import elementwise, promotion

INTEGERS = ("int8", "uint8", "int32", "int64")
EDGES = {t: np.array([np.iinfo(t).min, np.iinfo(t).max, 0, 1, 2, 3, 7, 100], t) for t in INTEGERS}


def jitted(fn):
    """`fn` compiled, checked to run without falling back."""
    compiled = jit_compile(fn)

    def run(*args):
        y = compiled(*args)
        assert compiled.cache_info().unfused == 0, compiled.reasons
        return y

    return run


def every_way(fn, queue, *arrays):
    """The result of `fn` on tensors (cold and warm), on nodes, and under the JIT, as host arrays."""
    tensors = [Tensor.from_host(queue, a) for a in arrays]
    nodes = [ag.tensor(t) for t in tensors]
    found = [fn(*tensors), fn(*tensors), fn(*nodes), jitted(fn)(*nodes)]
    return [y.to_host() for y in found]


def equal(fn, queue, *arrays, wanted=None):
    """`fn` on tensors and nodes, eager and compiled, equals NumPy's in value and dtype."""
    with np.errstate(all="ignore"):
        wanted = np.asarray(fn(*arrays) if wanted is None else wanted)
    for y in every_way(fn, queue, *arrays):
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y, wanted)


def refused(fn, queue, *arrays, error, match):
    """`fn` raises the same error eager (cold and warm) and compiled."""
    tensors = [Tensor.from_host(queue, a) for a in arrays]
    nodes = [ag.tensor(t) for t in tensors]
    for run, operands in ((fn, tensors), (fn, tensors), (fn, nodes), (jit_compile(fn), nodes)):
        with pytest.raises(error, match=match):
            run(*operands)


# -- bits and truth ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
def test_bitwise_operators_are_numpys(queue, op):
    rng = np.random.default_rng(0)
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        a, b = (rng.integers(limits.min, limits.max, 37, dtype, endpoint=True) for _ in range(2))
        equal(op, queue, a, b)
        equal(lambda x: op(x, 6), queue, a)
        equal(lambda x: op(6, x), queue, a)
    masks = np.array([True, True, False, False]), np.array([True, False, True, False])
    equal(op, queue, *masks)
    equal(lambda x: op(x, True), queue, masks[0])
    equal(op, queue, masks[0], np.array([1, 2, 4, 8], np.int32))


def test_masks_combine(queue):
    x = np.linspace(-2, 2, 41, dtype=np.float32)
    equal(lambda x: (x > 0) & (x < 1), queue, x)
    equal(lambda x: ~((x < -1) | (x > 1)), queue, x)
    equal(lambda x: (x > 0) ^ (x > 1), queue, x)
    equal(operator.invert, queue, np.array([200, 0, 255], np.uint8))
    equal(operator.invert, queue, np.array([-7, 0], np.int64))


def test_bits_of_floats_are_refused(queue):
    x = np.ones(3, np.float32)
    for fn in (lambda x: x & x, lambda x: x | 1, lambda x: ~x):
        refused(fn, queue, x, error=DTypeError, match=r"bitwise_\w+: expected integers or bools, got float32")


def test_minus_of_bools_is_refused(queue):
    m = np.array([True, False])
    refused(operator.neg, queue, m, error=DTypeError, match="neg: expected numbers, got bool; use ~")
    refused(operator.sub, queue, m, m, error=DTypeError, match=r"sub: expected numbers, got bool; use \^")
    equal(lambda m: m - 1, queue, m)


def test_bools_compute_as_numpys(queue):
    m, n = np.array([True, True, False, False]), np.array([True, False, True, False])
    for op in (operator.add, operator.mul, operator.mod, operator.pow, operator.lt, operator.eq):
        equal(op, queue, m, n)
    equal(lambda m: m + 1, queue, m)
    equal(lambda m: m**2, queue, m, wanted=np.power(m, 2))
    equal(lambda m: m * 2.5, queue, m)
    equal(lambda m: abs(m), queue, m)
    for ours, theirs in ((ag.square, np.square), (ag.floor, np.floor), (ag.isfinite, np.isfinite)):
        wanted = theirs(m)
        assert ours(ag.tensor(Tensor.from_host(queue, m))).to_host().tolist() == wanted.tolist()
    np.testing.assert_array_equal(
        ops.where(Tensor.from_host(queue, m), Tensor.from_host(queue, n), True).to_host(), n | ~m
    )
    np.testing.assert_array_equal(ops.sign(Tensor.from_host(queue, m)).to_host(), m)


def test_a_condition_keeps_its_truth_in_narrower_types(queue):
    """Conditions are converted to the type of the branches: 0.5, 256 and 1e-300 stay true."""
    for condition in (np.array([0.5, 0, -0.25], np.float32), np.array([256, 0, 1 << 40]), np.array([1e-300, 0, 1.0])):
        for branch in (np.array([1, 2, 3], np.int8), np.array([1, 2, 3], np.float32)):
            wanted = np.where(condition != 0, branch, 9).astype(branch.dtype)
            tensors = Tensor.from_host(queue, condition), Tensor.from_host(queue, branch)
            np.testing.assert_array_equal(ops.where(*tensors, 9).to_host(), wanted)
            compiled = jitted(lambda c, b: ag.where(c, b, 9))(*map(ag.tensor, tensors))
            np.testing.assert_array_equal(compiled.to_host(), wanted)


def test_what_is_written_to_bools_is_true_or_false(queue):
    mask = Tensor.zeros(queue, (3,), "bool")
    elementwise.assign(mask, Tensor.from_host(queue, np.array([0.5, 0, 7], np.float32)))
    assert (mask == Tensor.from_host(queue, np.array([True, False, True]))).to_host().all()
    x = Tensor.ones(queue, (3,))
    for out in (mask, Tensor.zeros(queue, (3,), "int32")):
        with pytest.raises(DTypeError, match="add: expected `out` of a dtype that can hold float32"):
            elementwise.apply("add", x, x, out=out)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (lambda x: x + 300, "uint8"), (lambda x: x * -3, "uint8"), (lambda x: x + 2**40, "int32"),
        (lambda x: -129 - x, "int8"), (lambda x: x + 2**63, "int64"), (lambda x: x & 256, "uint8"),
        (lambda x: x % 128, "int8"), (lambda x: x**200, "int8"), (lambda x: (x > 0) + 2**63, "int8"),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_refused(queue, fn, dtype):
    refused(fn, queue, np.array([1, 2], dtype), error=NumberOutOfRange, match="expected a number from .* to .* for")
    refused(fn, queue, np.array([1, 2], dtype), error=OverflowError, match="astype")


def test_numbers_of_other_ops_that_do_not_fit_are_refused(queue):
    x, m = np.array([1, 2], np.int8), np.array([True, False])
    refused(
        lambda x: ag.maximum(x, 200), queue, x, error=NumberOutOfRange, match="maximum: expected a number from -128"
    )
    refused(lambda m, x: ag.where(m, x, -129), queue, m, x, error=NumberOutOfRange, match="where: .* got -129")
    refused(lambda x: x + 10**400, queue, np.ones(2, np.float32), error=NumberOutOfRange, match="add: ")
    for value in (300, -1):
        with pytest.raises(NumberOutOfRange, match=f"fill_: expected a number from 0 to 255 for uint8, got {value}"):
            Tensor.full(queue, (3,), value, "uint8")
    with pytest.raises(NumberOutOfRange, match="got nan"):
        Tensor.full(queue, (3,), float("nan"), "int32")


def test_after_a_number_that_does_not_fit_others_still_do(queue):
    t = Tensor.from_host(queue, np.array([1, 2], np.uint8))
    for _ in range(2):
        assert (t + 250).to_host().tolist() == [251, 252]
        with pytest.raises(NumberOutOfRange):
            t + 256
        assert (t < 300).to_host().all()
        assert not (t < 1).to_host().any()


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_comparisons_are_right_whatever_the_number(queue, name, dtype):
    compare, low, high = getattr(operator, name), int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    x = EDGES[dtype]
    for number in (low, high, low - 1, high + 1, 5 * low - 7, 3 * high, 10**30, -(10**30)):
        wanted = [compare(v, number) for v in x.tolist()]
        assert all(y.tolist() == wanted for y in every_way(lambda x: compare(x, number), queue, x))  # noqa: B023
        tensor = Tensor.from_host(queue, x)
        wanted = [compare(number, v) for v in x.tolist()]
        assert getattr(ops, name)(number, tensor).to_host().tolist() == wanted
        assert jitted(lambda x: getattr(ag, name)(number, x))(ag.tensor(tensor)).to_host().tolist() == wanted  # noqa: B023


def test_clip_is_right_whatever_the_bounds(queue):
    def clip(*bounds):
        return lambda x: ag.clip(x, *bounds)

    x = np.array([-128, -7, 0, 3, 127], np.int8)
    f = np.array([-2, 0, 2, np.nan, np.inf, -np.inf], np.float32)
    cases = [
        (clip(-1000, 1000), x, x), (clip(-5, 1000), x, np.maximum(x, -5)), (clip(0, None), x, np.maximum(x, 0)),
        (clip(None, 1), x, np.minimum(x, 1)), (clip(None, None), x, x), (clip(5, -5), x, np.full(5, -5, np.int8)),
        (clip(0.5, 2.7), x, np.clip(x, 0.5, 2.7)), (clip(0.5, None), x, np.maximum(x, 0.5)),
        (clip(-1000, 1000), np.array([200], np.uint8), np.array([200], np.uint8)),
        (clip(1, -1), f, np.clip(f, 1, -1)), (clip(None, None), f, f), (clip(-1, 1), f, np.clip(f, -1, 1)),
        (clip(0, 1), np.array([True, False]), np.array([1, 0])),
        (clip(2**53 + 1, None), np.array([0, 2**60]), np.array([2**53 + 1, 2**60])),
    ]  # fmt: skip
    for fn, array, wanted in cases:
        t = Tensor.from_host(queue, array)
        for y in (fn(t), fn(ag.tensor(t)), jitted(fn)(ag.tensor(t))):
            assert y.to_host().dtype == wanted.dtype
            np.testing.assert_array_equal(y.to_host(), wanted)
        np.testing.assert_array_equal(ops.clip(t, *fn.__closure__[0].cell_contents).to_host(), wanted)
    refused(clip(200, 300), queue, x, error=NumberOutOfRange, match="clip: expected a number from -128 to 127")
    refused(clip(-300, -200), queue, x, error=NumberOutOfRange, match="clip")


def test_the_gradient_of_crossed_bounds_is_zero(queue):
    x = ag.tensor(Tensor.from_host(queue, np.array([-2, 0, 2], np.float32)), requires_grad=True)
    with ag.Tape() as tape:
        y = ag.clip(x, 1, -1).sum()
    tape.backward(y)
    assert x.grad.to_host().tolist() == [0, 0, 0]


def test_floats_promote_integers(queue):
    x = np.array([-7, 0, 3], np.int8)
    for fn in (lambda x: x * 0.5, lambda x: x**2.0, lambda x: x % 2.5, lambda x: x < 0.5, lambda x: 2.5 - x):
        equal(fn, queue, x)
    for y in every_way(ag.leaky_relu, queue, x):
        np.testing.assert_array_equal(y, np.where(x < 0, 0.01 * x, x))
    equal(lambda a, b: a + b, queue, x, np.ones(3, np.float32))
    equal(lambda a, b: a + b, queue, x, np.ones(3, np.float16))


def test_whole_numbers_keep_every_digit(queue):
    x = np.array([1, -5], np.int64)
    equal(lambda x: x + (2**53 + 1), queue, x)
    equal(lambda x: x - 9007199254740993, queue, x)
    equal(lambda x: x * -(2**53 + 1), queue, x)
    equal(lambda x: x + -(2**63), queue, np.array([1, 5]))


# -- integers ----------------------------------------------------------------------------------------------------------


def pairs(dtype):
    """Dividends and divisors: every pair of edges, and random ones."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(1)
    edges = [*EDGES[dtype].tolist(), 70000, 60000, -1, -3, -70000]
    edges = [v for v in edges if limits.min <= v <= limits.max]
    product = np.array(list(itertools.product(edges, edges)), dtype)
    drawn = rng.integers(limits.min, limits.max, (500, 2), dtype, endpoint=True)
    a, b = np.concatenate([product, drawn]).T
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_remainders_are_exact(queue, dtype):
    """Python's sign for %, C's for fmod; by zero 0; the smallest integer by -1 is 0."""
    a, b = pairs(dtype)
    floored = np.array([x % y if y else 0 for x, y in zip(a.tolist(), b.tolist())], dtype)
    truncated = np.array(
        [(abs(x) % abs(y)) * (-1 if x < 0 else 1) if y else 0 for x, y in zip(a.tolist(), b.tolist())], dtype
    )
    equal(lambda a, b: a % b, queue, a, b, wanted=floored)
    equal(lambda a, b: ag.fmod(a, b), queue, a, b, wanted=truncated)
    for number in {-3, 3, 7, int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)}:
        if number >= np.iinfo(dtype).min and number:
            wanted = np.array([x % number for x in a.tolist()], dtype)
            equal(lambda a: a % number, queue, a, wanted=wanted)  # noqa: B023
    equal(lambda a: a % 0, queue, a, wanted=np.zeros_like(a))


def test_remainder_of_a_product_that_overflows(queue):
    x = np.array([60000, -60000, 5], np.int32)
    equal(lambda x: x % 70000, queue, x)
    equal(lambda x: 60000 % x, queue, np.array([70000, -70000], np.int32))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers(queue, dtype):
    """They wrap as products do; a negative exponent gives the whole part of the power, refused as a number."""
    base = np.array([v for v in (-3, -2, -1, 0, 1, 2, 3, 7, 100) if v >= np.iinfo(dtype).min], dtype)
    for exponent in (0, 1, 2, 3, 5, 30):
        equal(lambda x: x**exponent, queue, base)  # noqa: B023
    equal(lambda x: 3**x, queue, np.arange(6, dtype=dtype))
    if dtype == "uint8":
        return
    exponents = np.array([-1, -2, -3, -100], dtype)[:, None]
    wanted = np.where(base == 1, 1, np.where(base == -1, np.where(exponents % 2 == 0, 1, -1), 0)).astype(dtype)
    equal(operator.pow, queue, base, exponents, wanted=wanted)
    refused(
        lambda x: x**-1, queue, base, error=DTypeError, match="pow: expected a float tensor for the negative exponent"
    )


# -- floats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("name", "reference"), [("fmod", np.fmod), ("remainder", np.remainder)])
def test_remainders_of_a_million_floats_are_exact(queue, dtype, name, reference):
    """The builtin of some drivers is wrong in some lanes: quotients from 2^-40 to 2^60, whole ones, tiny and huge."""
    rng, n = np.random.default_rng(2), 10**6
    with np.errstate(all="ignore"):
        a = (rng.standard_normal(n) * 2.0 ** rng.integers(-20, 40, n)).astype(dtype)
        b = (rng.standard_normal(n) * 2.0 ** rng.integers(-20, 20, n)).astype(dtype)
        a[: n // 4], b[: n // 4] = rng.integers(-500, 500, n // 4) / 8, rng.integers(-60, 60, n // 4) / 8
        a[-1000:], b[-500:] = a[-1000:] * dtype_max(dtype) / 8, b[-500:] * np.finfo(dtype).tiny
        wanted = reference(a, b)
    found = elementwise.apply(name, Tensor.from_host(queue, a), Tensor.from_host(queue, b)).to_host()
    np.testing.assert_array_equal(found, wanted)
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(found)[zeros], np.signbit(wanted)[zeros])


def dtype_max(dtype):
    return np.finfo(dtype).max


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "reference"), [("fmod", np.fmod), ("remainder", np.remainder)])
def test_remainders_of_special_values(queue, dtype, name, reference):
    info = np.finfo(dtype)
    values = [0.0, -0.0, 1, -1, 2.5, -0.5, 3, 1.5, info.max, -info.max, info.tiny, info.eps, np.inf, -np.inf, np.nan]
    a, b = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(np.array(values, dtype), np.array(values, dtype)))
    with np.errstate(all="ignore"):
        wanted = reference(a, b)
    found = elementwise.apply(name, Tensor.from_host(queue, a), Tensor.from_host(queue, b)).to_host()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found)[wanted == 0], np.signbit(wanted)[wanted == 0])


# -- the rule itself ---------------------------------------------------------------------------------------------------

NUMPY_OF = {"add": np.add, "mul": np.multiply, "maximum": np.maximum, "div": np.true_divide, "pow": np.power,
            "remainder": np.remainder, "lt": np.less, "atan2": np.arctan2}  # fmt: skip


@pytest.mark.parametrize("name", NUMPY_OF)
def test_result_dtypes_are_numpys(name):
    """Of every pair of dtypes, and of a dtype and a number; int16 and uint16 are not offered: they become int32."""
    kinds = [t for t in SUPPORTED if t.name != "bfloat16"]
    for a, b in itertools.product(kinds, [*kinds, True, 1, 1.0]):
        if isinstance(b, bool) and a == np.bool_:
            continue  # the same as bool and bool
        weak = b if isinstance(b, (bool, int, float)) else np.ones(1, b)
        wanted = NUMPY_OF[name](np.ones(1, a), weak).dtype
        wanted = np.dtype(np.int32) if wanted == np.int16 else wanted
        assert promotion.resolve(name, (a, b if isinstance(b, np.dtype) else type(b)))[2] == wanted, (a, b)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_source_uses_doubles_on_a_device_without_them(cl_queue, dtype):
    """Also sin, cos and tan, which are reduced in double precision elsewhere."""
    profile = dataclasses.replace(profile_of(cl_queue), has_fp64=False)
    with override_profile(cl_queue, profile):
        x = Tensor.ones(cl_queue, (100,), dtype)
        for row in TABLE.values():
            if row.result == "integer":
                continue
            chain, compute, result = elementwise.resolve(row.name, (np.dtype(dtype),) * len(row.inputs))
            text = source_of(cl_queue, chain, compute, (result,), (x,) * len(row.inputs))
            assert "double" not in text, row.name
            assert "fp64" not in text, row.name
        values = np.linspace(-20, 20, 100, dtype=np.float32)
        np.testing.assert_allclose(ops.sin(Tensor.from_host(cl_queue, values)).to_host(), np.sin(values), atol=1e-6)
        np.testing.assert_allclose(ag.tan(Tensor.from_host(cl_queue, values)).to_host(), np.tan(values), rtol=1e-4)


ARANGES = [
    (0, 3, 0.5, "int64"), (0.5, 5, 0.7, "int32"), (-2.5, 3, 1, "int64"), (0, 7, 1.5, "uint8"), (5, 0, -0.5, "int32"),
    (0, 10, 1, "int8"), (0, -300, -7, "int64"), (0, 0, 1, "int32"), (2**53, 2**53 + 4, 1, "int64"),
    (0, 3, 0.5, "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("start", "stop", "step", "dtype"), ARANGES)
def test_arange_is_numpys(queue, start, stop, step, dtype):
    found = ops.arange(queue, start, stop, step, dtype).to_host()
    np.testing.assert_array_equal(found, np.arange(start, stop, step, dtype))
