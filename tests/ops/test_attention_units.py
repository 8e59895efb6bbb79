"""Attention on matrix units: shapes of work that runs anywhere, and results on a GPU that has the units."""

import dataclasses

import numpy as np
import pytest
from attention_reference import MASKS, SPECIALS, Case, check_scores, check_specials

from netcl.core.device import manager
from netcl.core.device.profile import profile_of
from netcl.core.tensor import Tensor
from netcl.kernels.route import force
from netcl.ops.attend import mma as attention_mma
from netcl.ops.attend.op import attention, attention_grad
from netcl.ops.attend.problem import Call, Geometry, Marks
from netcl.ops.nvidia import probe, wgmma

H200 = dataclasses.replace(
    manager.profile("cpu"), name="H", vendor="NVIDIA", kind="gpu", architecture="sm_90", compute_units=132
)
GEOMETRY = Geometry(2, 4, 1, 5, 6, 8, 8, False, True, 0, 1.0, 0.0, 0.0)
USES = ("ATTEND", "QUERY_GRAD", "KEY_GRAD")
SHARED, REGISTERS = 227 << 10, 65536  # of a multiprocessor of compute capability 9.0


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("family", "half", "size"),
    [
        *[(family, True, size) for family in ("mma", "wgmma") for size in (8, 64, 72, 128)],
        *[("mma", False, size) for size in (8, 40, 64)],
    ],
)
def test_groups_fit_a_multiprocessor(family, half, size, use):
    t = attention_mma.tile(family, use, half, size, H200)
    rows, width = t["WARPS"] * t["MT"] * 16, t["DP"] * (2 if half else 4)
    held = (1 if use == "ATTEND" else 2) * (1 if half else 2) * rows * width
    local = held + 4 * t["BC"] * width + (16 * t["BC"] if use == "KEY_GRAD" else 0)
    assert t["DP"] >= size and t["BC"] % 16 == 0 and width % 128 == 0
    assert t["RESIDENT"] * local <= SHARED
    if family == "wgmma":  # a warpgroup has 64 rows; its sums stay in registers
        assert t["WARPS"] % 4 == 0 and t["MT"] == 1
        sums = {"ATTEND": t["BC"] + t["DP"], "QUERY_GRAD": 2 * t["BC"] + t["DP"], "KEY_GRAD": 2 * (t["BC"] + t["DP"])}
        assert t["RESIDENT"] * t["WARPS"] * 32 * sums[use] // 2 < REGISTERS


def test_a_product_can_hold_its_left_operand_in_registers():
    macro = wgmma.product_macro(64, "f16", along_n=True, held=True, name="SPREAD", rows_of_four=True)
    assert macro.startswith("#define SPREAD(c, a, b, keep) asm volatile(")
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0," in macro
    assert "{%32,%33,%34,%35}, %36, p, 1, 1, 1; }" in macro and "setp.ne.b32 p, %37, 0" in macro
    assert '"+f"((c)[7][3]) : "r"((a)[0])' in macro


# -- on a GPU with the units -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu():
    found = [i for i, p in enumerate(manager.profiles) if p.vendor == "NVIDIA" and p.kind == "gpu"]
    queues = [manager.default(i).queue for i in found if probe.attention(manager.profiles[i])]
    if not queues:
        pytest.skip("no GPU with matrix units here")
    return queues[0]


def written_out(q, k, v, g, causal, window, mask):
    """Attention, its log-sums and its gradients with the whole map, in float64."""
    q, k, v, g = (a.astype(np.float64) for a in (q, k, v, g))
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, groups, 1) for a in (k, v))
    (tq, d), tk = q.shape[2:], k.shape[2]
    i, j = np.arange(tq)[:, None] + tk - tq, np.arange(tk)
    seen = (j <= i) | (not causal)
    seen = seen & (np.abs(i - j) < window) if window else seen
    seen = np.broadcast_to(seen, (q.shape[0], 1, tq, tk)) & (True if mask is None else ~mask[:, None, None])
    e = np.where(seen, np.exp(q @ k.swapaxes(2, 3) * d**-0.5), 0)
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    o = p @ v
    with np.errstate(divide="ignore"):
        lse = np.log(total)[..., 0]
    ds = p * (g @ v.swapaxes(2, 3) - (g * o).sum(-1, keepdims=True)) * d**-0.5
    fold = lambda a: a.reshape(q.shape[0], -1, groups, tk, d).sum(2)  # noqa: E731
    return o, lse, ds @ k, fold(ds.swapaxes(2, 3) @ q), fold(p.swapaxes(2, 3) @ g)


TYPES = [*((f, t) for t in ("float16", "bfloat16") for f in ("mma", "wgmma")), ("mma", "float32")]


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "dtype"), TYPES)
@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("masks", MASKS)
def test_specials_on_units(gpu, family, dtype, special, masks):
    if family not in probe.attention(profile_of(gpu)):
        pytest.skip(f"no {family} here")
    tolerance = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-4}[dtype]
    with probe.only(family):
        check_specials(gpu, special, masks, dtype, tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "dtype"), TYPES)
@pytest.mark.parametrize(
    ("causal", "window", "padded"), [(True, None, False), (False, None, False), (True, 30, True), (False, 50, False)]
)
@pytest.mark.parametrize(
    ("tq", "tk", "d"),
    [(1, 1, 64), (65, 63, 64), (130, 200, 64), (77, 77, 40), (200, 129, 128), (33, 70, 32), (300, 190, 8)],
)
def test_attention_on_units(gpu, family, dtype, causal, window, padded, tq, tk, d):
    if family not in probe.attention(profile_of(gpu)):
        pytest.skip(f"no {family} here")
    rng = np.random.default_rng(tq)
    q, g = (rng.standard_normal((2, 4, tq, d)).astype(dtype) for _ in range(2))
    k, v = (rng.standard_normal((2, 2, tk, d)).astype(dtype) for _ in range(2))
    mask = rng.random((2, tk)) < 0.3 if padded else None
    t = [Tensor.from_host(gpu, a) for a in (q, k, v, g)]
    masks = {"causal": causal, "window": window}
    masks["key_padding_mask"] = None if mask is None else Tensor.from_host(gpu, mask)
    with probe.only(family):
        o, lse = attention(*t[:3], **masks)
        found = (o, lse, *attention_grad(t[3], *t[:3], o, lse, **masks))
    tolerance = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 1e-5}[dtype]
    for name, a, e in zip(("o", "lse", "dq", "dk", "dv"), found, written_out(q, k, v, g, causal, window, mask)):
        a, finite = a.to_host().astype(np.float64), np.isfinite(e)
        assert (np.isfinite(a) == finite).all(), name
        worst = np.abs(a[finite] - e[finite]).max(initial=0) / max(1.0, np.abs(e[finite]).max(initial=0))
        assert worst < tolerance, (name, worst)


SCORES = [
    Case("mask", (2, 4, 2, 150, 190, 64, 64), (2, 4, 150, 190)),
    Case("mask of odd keys", (2, 4, 2, 70, 191, 64, 64), (1, 4, 70, 191), options={"causal": True}),
    Case("bools", (2, 4, 2, 150, 190, 64, 64), (2, 1, 150, 190), "bool", padding=True),
    Case("bools of keys", (2, 4, 2, 150, 190, 72, 72), (2, 1, 1, 190), "bool", {"window": 30}),
    Case("mask of float32", (2, 4, 2, 150, 190, 128, 128), (150, 190), "hide", {"causal": True}),
    Case("mask of queries", (2, 4, 2, 150, 190, 64, 64), (4, 150, 1)),
    Case("lowest floats", (2, 4, 2, 65, 64, 64, 64), (2, 1, 1, 64), "lowest"),
    Case("cap", (1, 4, 4, 150, 190, 64, 64), options={"softcap": 2.0}),
    Case("sinks", (1, 4, 4, 150, 90, 64, 64), options={"causal": True}, sinks=True),
    Case("slopes", (1, 4, 2, 150, 190, 64, 64), options={"causal": True, "align": "upper_left"}, slopes=(1, 4)),
    Case("dropout", (1, 4, 2, 150, 190, 64, 64), options={"dropout": 0.3, "causal": True, "window": 77}),
    Case("dropout and all", (2, 4, 2, 150, 191, 64, 64), (191,), "add", {"dropout": 0.2, "softcap": 3.0}, True, (2, 4)),
    Case("all", (2, 4, 2, 150, 190, 64, 64), (2, 1, 150, 190), "hide", {"softcap": 3.0, "causal": True}, True, (4,),
         True),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "dtype"), TYPES)
@pytest.mark.parametrize("case", SCORES, ids=str)
def test_scores_on_units(gpu, family, dtype, case):
    if family not in probe.attention(profile_of(gpu)):
        pytest.skip(f"no {family} here")
    if dtype == "float32" and case.sizes[-1] > 64:
        pytest.skip("float32 is served up to 64 elements")
    tolerance = {"bfloat16": 3e-2, "float16": 5e-3, "float32": 2e-5}[dtype]
    with probe.only(family), force(family):
        check_scores(gpu, dataclasses.replace(case, dtype=dtype), tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "dtype"), TYPES)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("packed", [False, True])
def test_lengths_on_units(gpu, cpu_queue, family, dtype, window, packed):
    """Padded and packed sequences against the NumPy backend."""
    if family not in probe.attention(profile_of(gpu)):
        pytest.skip(f"no {family} here")
    rng = np.random.default_rng(7)
    b = 1 if packed else 3
    arrays = [rng.standard_normal((b, h, t, 64)).astype(dtype) for h, t in ((4, 150), (2, 190), (2, 190), (4, 150))]
    lengths = {"query_lengths": [150, 0, 70], "key_lengths": [77, 190, 190]}
    if packed:
        lengths = {"cu_seqlens_q": [0, 65, 66, 140], "cu_seqlens_k": [0, 1, 66, 180]}
    results = []
    for side in (gpu, cpu_queue):
        q, k, v, g = (Tensor.from_host(side, a if side is gpu else a.astype("f8")) for a in arrays)
        options = {name: Tensor.from_host(side, np.array(n, np.int32)) for name, n in lengths.items()}
        options |= {"causal": True, "window": window}
        with probe.only(family):
            o, lse = attention(q, k, v, **options)
            found = (o, lse, *attention_grad(g, q, k, v, o, lse, **options))
        results.append([t.to_host().astype("f8") for t in found])
    tolerance = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 1e-5}[dtype]
    for y, e in zip(*results, strict=True):
        finite = np.isfinite(e)
        np.testing.assert_array_equal(np.isfinite(y), finite)
        assert np.abs(y[finite] - e[finite]).max() < tolerance * max(1.0, np.abs(e[finite]).max())


def test_masks_are_read_in_pairs_where_they_can_be(cpu_queue):
    """Keys are even in number and side by side, and rows begin at even elements."""

    def pairs(mask, keys=6):
        marks = Marks(mask=mask)
        return attention_mma.in_pairs(Call(GEOMETRY._replace(keys=keys), q, q, q, marks))

    q = Tensor.zeros(cpu_queue, (2, 4, 5, 8))
    whole = Tensor.zeros(cpu_queue, (2, 4, 5, 12))
    assert pairs(whole[..., :6]) and pairs(whole[..., 2:8]) and pairs(whole[:1, :, :1, :6])
    assert not pairs(whole[..., 1:7]) and not pairs(whole[..., ::2]) and not pairs(whole[..., :1])
    odd = Tensor.zeros(cpu_queue, (2, 4, 5, 7))
    assert not pairs(odd, 7) and not pairs(odd[..., :6]) and pairs(odd[:1, :1, :1, :6])


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["mma", "wgmma"])
def test_views_of_one_projection(gpu, family):
    """q, k and v as strided views of (B, T, 3, H, D), as models make them; twice gives the same bits."""
    if family not in probe.attention(profile_of(gpu)):
        pytest.skip(f"no {family} here")
    rng = np.random.default_rng(5)
    packed = rng.standard_normal((2, 150, 3, 4, 64)).astype("float16")
    whole = Tensor.from_host(gpu, packed).permute(2, 0, 3, 1, 4)
    g = rng.standard_normal((2, 4, 150, 64)).astype("float16")
    results = []
    for _ in range(2):
        with probe.only(family), force(family):
            q, k, v = (whole[i] for i in range(3))
            o, lse = attention(q, k, v, causal=True)
            grads = attention_grad(Tensor.from_host(gpu, g), q, k, v, o, lse, causal=True)
        results.append([t.to_host() for t in (o, *grads)])
    arrays = np.moveaxis(packed, 2, 0).swapaxes(2, 3)
    expected = written_out(*arrays, g, True, None, None)
    for first, again, e in zip(*results, (expected[0], *expected[2:])):
        np.testing.assert_array_equal(first, again)
        np.testing.assert_allclose(first.astype("f8"), e, rtol=0, atol=4e-3 * np.abs(e).max())
