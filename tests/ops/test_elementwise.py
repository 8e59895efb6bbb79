"""Every row of the primitive table: forward and gradient against independent references on every backend."""

import numpy as np
import pytest
from cases import ELEMENTWISE, INTEGERS
from families import FAMILIES, POSING, queue_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from netcl.core.device import manager
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import TABLE, Primitive
from netcl.core.tensor import Tensor
from netcl.fusion.map import source_of
from netcl.ops import elementwise

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -3.5, 2.5, 88.0, -88.0, 0.5, -0.5], np.float32)


def host(t):
    return t.to_host().astype(np.float64)


def reference(case, xs):
    with np.errstate(all="ignore"):
        return np.asarray(case.ref(*xs, **case.attrs), np.float64)


def close(case, got, expected, rtol=None):
    rtol = rtol or case.rtol
    np.testing.assert_allclose(
        got, expected, rtol=rtol, atol=rtol * max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0))
    )


def test_every_row_has_a_case():
    assert {c.op for c in (*ELEMENTWISE, *INTEGERS)} == set(TABLE)


def test_every_formula_is_in_the_dialect():
    for row in TABLE.values():
        dialect.check(row)


@pytest.mark.parametrize(
    ("value", "grads", "message"),
    [
        ("1 / 2 * a", (), "fold the constant"), ("where(0 < a < 1, a, 0)", (), "chained"), ("a ** 2", (), "Pow"),
        ("bessel(a)", (), "unknown name 'bessel'"), ("a + b", ("g",), "expected 2 gradients"),
        ("a if a else 0", (), "IfExp"),
        ("a * 'x'", (), "expected numbers"),
    ],
)  # fmt: skip
def test_rows_outside_the_dialect_are_refused(value, grads, message):
    with pytest.raises(ValueError, match=message):
        dialect.check(Primitive("bad", value, grads))


def test_saved_is_read_off_the_formulas():
    saved = {name: TABLE[name].saved for name in ("add", "mul", "sigmoid", "relu", "gelu", "div")}
    assert saved == {"add": (), "mul": ("a", "b"), "sigmoid": ("y",), "relu": ("y",), "gelu": ("a",), "div": ("y", "b")}


@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_forward(queue, case):
    xs = case.sample(dtype=np.float32)
    got = elementwise.apply(case.op, *[Tensor.from_host(queue, x) for x in xs], **case.attrs)
    assert got.dtype == (np.bool_ if TABLE[case.op].result == "bool" else np.float32)
    close(case, host(got), reference(case, [x.astype(np.float64) for x in xs]))


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 2e-3), ("bfloat16", 8e-3)])
@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_views_narrow_types_and_broadcast(queue, case, dtype, rtol):
    """The first operand is a transposed, reversed view of a narrow type, the others are repeated along an axis."""
    shapes = ((7, 6), *((6, 1) if i % 2 else (1, 7) for i in range(len(case.shapes) - 1)))
    xs = case.sample(seed=3, dtype=dtype, shapes=shapes)
    first = Tensor.from_host(queue, xs[0])[::-1].T
    got = elementwise.apply(case.op, first, *[Tensor.from_host(queue, x) for x in xs[1:]], **case.attrs)
    expected = reference(case, [xs[0][::-1].T.astype(np.float64), *[x.astype(np.float64) for x in xs[1:]]])
    assert got.shape == (6, 7)
    assert got.dtype == (np.bool_ if TABLE[case.op].result == "bool" else dtype)
    close(case, host(got), expected, rtol)


@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if c.specials], ids=str)
def test_nan_and_infinity(queue, case):
    xs = [np.roll(SPECIAL, 5 * i) for i in range(len(case.shapes))]
    got = host(elementwise.apply(case.op, *[Tensor.from_host(queue, x) for x in xs], **case.attrs))
    expected = reference(case, xs).astype(np.float32).astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(expected)), (xs, got, expected)
    kept = ~np.isnan(expected)
    np.testing.assert_allclose(
        got[kept], expected[kept], rtol=2e-5, atol=1e-30 if case.op in ("exp", "sigmoid") else 1e-6
    )


@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if c.grad], ids=str)
def test_gradient(queue, case):
    """<v, J^T g> equals the central difference of <g, f> along v in float64; float32 devices agree with it."""
    xs, rng = case.sample(seed=1), np.random.default_rng(2)
    shape = np.broadcast_shapes(*case.shapes)
    g, directions = rng.normal(size=shape), [rng.normal(size=x.shape) for x in xs]

    def along(t):
        return (g * reference(case, [x + t * v for x, v in zip(xs, directions)])).sum()

    numeric = (along(1e-6) - along(-1e-6)) / 2e-6
    exact = queue is manager.default("cpu").queue or case.op in ("mul", "gelu", "pow")  # double builds cost seconds
    for dtype, tolerance in ((np.float64, 1e-6), (np.float32, 2e-4)) if exact else ((np.float32, 2e-4),):
        tensors = [Tensor.from_host(queue, x.astype(dtype)) for x in xs]
        y = elementwise.apply(case.op, *tensors, **case.attrs)
        needs = [True] * len(tensors)
        grads = elementwise.gradients(
            case.op, Tensor.from_host(queue, g.astype(dtype)), y, tensors, needs, **case.attrs
        )
        row = TABLE[case.op]
        analytic = sum((v * host(d)).sum() for v, d, f in zip(directions, grads, row.grads) if f)
        assert abs(analytic - numeric) <= tolerance * max(1.0, abs(numeric), np.abs(g).sum())


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 65, 1000003])
def test_sizes_across_block_borders(queue, size):
    """Sizes around vector and group borders, from an offset that is no multiple of a vector."""
    x = np.random.default_rng(size).standard_normal(size + 3).astype(np.float32)
    t = Tensor.from_host(queue, x)
    assert np.array_equal((t[3:] + t[:size]).to_host(), x[3:] + x[:size])
    assert np.array_equal(elementwise.where(t[3:] > 0, t[3:], -1).to_host(), np.where(x[3:] > 0, x[3:], np.float32(-1)))


@settings(max_examples=40)
@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=4, min_side=0), st.randoms())
def test_any_broadcast_of_any_views(queue, case, random):
    arrays, tensors = [], []
    for i, shape in enumerate(case.input_shapes):
        axes = list(range(len(shape)))
        random.shuffle(axes)
        base = np.random.default_rng(i).standard_normal([shape[a] for a in axes]).astype(np.float32)
        inverse = [axes.index(a) for a in range(len(axes))]
        arrays.append(base.transpose(inverse))
        t = Tensor.from_host(queue, base)
        tensors.append(t.permute(*inverse) if axes else t)
    a, b, c = tensors
    expected = arrays[0] * arrays[1] + arrays[2]
    assert np.allclose((a * b + c).to_host(), expected, rtol=1e-6, atol=1e-6)
    assert (a * b + c).shape == case.result_shape


def test_assign_writes_through_any_view(queue):
    target, source = np.zeros((6, 8), np.float32), np.arange(12, dtype=np.int32).reshape(3, 4)
    t = Tensor.from_host(queue, target)
    elementwise.assign(t[::2, 1::2], Tensor.from_host(queue, source))
    target[::2, 1::2] = source
    assert np.array_equal(t.to_host(), target)
    elementwise.assign(t.T[2:4], Tensor.from_host(queue, np.array([9.0], np.float32)))
    target.T[2:4] = 9
    assert np.array_equal(t.to_host(), target)


def test_every_half_is_read_and_rounded_as_numpy_does(queue):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    t = Tensor.from_host(queue, halves)
    np.testing.assert_array_equal(elementwise.neg(t).to_host(), -halves)
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(5000) * 10.0**k for k in (-8, -6, -4, 0, 4)]).astype(np.float32)
    ties = (halves[:0x7C00].astype(np.float32)[1:] + halves[: 0x7C00 - 1].astype(np.float32)) / 2
    for x in (values, ties):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(Tensor.from_host(queue, x).astype("float16").to_host(), x.astype(np.float16))


def test_every_bfloat_is_read_and_rounded_bit_by_bit(queue):
    """All 65536 patterns, and floats at, beside and between them: nearest even, overflow to infinity, quiet NaN."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bits.view("bfloat16")
    t = Tensor.from_host(queue, values)
    np.testing.assert_array_equal(t.to_host().view(np.uint16), bits)
    np.testing.assert_array_equal(t.astype("float32").to_host().view(np.uint32), bits.astype(np.uint32) << 16)
    nan = bits & 0x7FFF > 0x7F80

    def same(found, wanted, nan, sign=0x8000):
        """Numbers bit by bit; NaN is quiet and keeps its sign, its payload is the backend's."""
        found = found.to_host().view(np.uint16).ravel()
        np.testing.assert_array_equal(found[~nan], wanted[~nan])
        np.testing.assert_array_equal(found[nan] & (0x7FC0 | sign), wanted[nan] & sign | 0x7FC0)

    for copied in (t[::-1].copy()[::-1], t.reshape(256, 256).T.copy().T):  # moves keep signalling NaNs, too
        np.testing.assert_array_equal(copied.to_host().view(np.uint16).ravel(), bits)
    same(elementwise.neg(elementwise.neg(t)), bits, nan, sign=0)  # arithmetic may give one NaN for all: NVIDIA's does
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        f = (bits.astype(np.uint32) << 16 | low).view(np.float32)
        above = 1 if low > 0x8000 else bits & 1 if low == 0x8000 else 0
        wanted = np.where(np.isnan(f), bits, bits + above).astype(np.uint16)  # 7f7f + 1: infinity
        for shift in (0, 3):
            same(Tensor.from_host(queue, f)[shift:].astype("bfloat16"), wanted[shift:], np.isnan(f)[shift:])
        with np.errstate(all="ignore"):
            rounded = f.astype("bfloat16").view(np.uint16)
        np.testing.assert_array_equal(rounded[~np.isnan(f)], wanted[~np.isnan(f)])


@pytest.mark.parametrize("other", ["float16", "float64", "int8", "uint8", "int32", "int64", "bool"])
def test_casts_between_bfloat_and_all_others(queue, other):
    """Through float32, as ml_dtypes has it: other numbers are rounded to float32 first."""
    x = (np.random.default_rng(0).standard_normal(1003) * 60).astype(other)
    narrow = Tensor.from_host(queue, x).astype("bfloat16")
    wanted = x.astype(np.float32).astype("bfloat16")
    np.testing.assert_array_equal(narrow.to_host(), wanted)
    if other != "uint8":  # negative values do not fit
        np.testing.assert_array_equal(narrow.astype(other).to_host(), wanted.astype(np.float32).astype(other))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_large_copies(queue, dtype):
    x = (np.arange((1 << 20) + 5) % 251).astype(dtype)
    t = Tensor.from_host(queue, x)
    copied = t[3:].copy()
    t.fill_(0)
    np.testing.assert_array_equal(copied.to_host(), x[3:])


def test_transposed_views_in_tiles(queue):
    """Views whose neighbours in memory lie in other rows, larger than a tile of the CPU kernels."""
    x = np.arange(600 * 70, dtype=np.float32).reshape(600, 70)
    t = Tensor.from_host(queue, x)
    np.testing.assert_array_equal(elementwise.neg(t.T).to_host(), -x.T)
    np.testing.assert_array_equal(elementwise.add(t.T, t.T[:, ::-1]).to_host(), x.T + x.T[:, ::-1])
    y = x.reshape(3, 40, 350)
    np.testing.assert_array_equal(t.reshape(3, 40, 350).permute(0, 2, 1).contiguous().to_host(), y.transpose(0, 2, 1))


def test_integers(queue):
    a = np.array([7, -7, 0, 5, -2147483648, 2147483647], np.int32)
    t = Tensor.from_host(queue, a)
    with np.errstate(all="ignore"):
        for b in (3, -3, 1, -1):
            assert np.array_equal((t % b).to_host(), a % b)
        assert np.array_equal(
            elementwise.remainder(t, Tensor.from_host(queue, np.int32(0).reshape(1))).to_host(), a % np.int32(0)
        )
        assert np.array_equal((t**3).to_host(), a**3) and np.array_equal((t * t).to_host(), a * a)
    assert np.array_equal(elementwise.clip(t, -5, 6).to_host(), np.clip(a, -5, 6))
    assert np.array_equal(elementwise.floor(t).to_host(), a)
    with pytest.raises(DTypeError, match="negative exponent"):
        _ = t**-1


def test_errors(queue):
    t = Tensor.ones(queue, (2, 3))
    with pytest.raises(ShapeError, match=r"add: expected shapes that broadcast .* got \(2, 3\) and \(4,\)"):
        _ = t + Tensor.ones(queue, (4,))
    with pytest.raises(DTypeError, match="at least one tensor"):
        elementwise.add(1, 2)
    with pytest.raises(DTypeError, match="got str"):
        elementwise.add(t, "x")
    with pytest.raises(ValueError, match="approximate"):
        elementwise.gelu(t, approximate="fast")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bytes_at_a_time(dtype):
    """On GPUs, vectors of eight narrow elements wherever all operands lie for them; the same values everywhere else."""
    queue = queue_of(next(f for f in FAMILIES if f.startswith(POSING) or f.endswith("-gpu")))
    a = (np.arange(3 * 56, dtype=np.float32).reshape(3, 56) / 8 - 9).astype(dtype)
    whole, ragged = Tensor.from_host(queue, a), Tensor.from_host(queue, a[0, :51])
    chain, compute, result = elementwise.resolve("add", (a.dtype, a.dtype))
    cases = [
        (True, whole, whole), (True, ragged, ragged), (True, whole[:, :24], whole[:, 24:48]),
        (True, whole[:, :24], whole[1, :24]), (True, whole[:, 8:], whole[:, :1]), (False, whole[:, :20], whole[:, :20]),
        (False, whole[:, 4:20], whole[:, 4:20]), (False, whole[:, 3:19], whole[:, 3:19]),
        (False, whole[:, ::2], whole[:, ::2]),
    ]  # fmt: skip
    for eights, x, y in cases:
        kernel = source_of(queue, chain, compute, (result,), (x, y)).split("__kernel")[-1]
        assert ("8A(" in kernel) == eights
        wanted = x.to_host().astype(np.float32) + y.to_host().astype(np.float32)
        np.testing.assert_array_equal(elementwise.add(x, y).to_host(), wanted.astype(dtype))
