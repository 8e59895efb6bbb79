"""The tuning table: fallback chain, overlay, clamping to device limits, the documented records."""

import dataclasses
import json

import numpy as np
import pytest

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import BuildError, DeviceError
from netcl.core.tensor import Tensor
from netcl.kernels import tuning
from netcl.ops.convolution.op import conv2d
from netcl.ops.pooling.op import max_pool2d
from netcl.ops.product.op import linear, matmul


@pytest.fixture
def profile(cl_queue):
    return dataclasses.replace(
        profile_of(cl_queue),
        name="Acme 9",
        architecture="a9",
        vendor="Acme",
        kind="gpu",
        max_work_group=256,
        local_mem=1 << 15,
    )


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    """A writer of the user's table, which is read afresh for each test."""
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("NETCL_TUNING", str(path))

    def write(content):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        tuning.tables.cache_clear()

    tuning.tables.cache_clear()
    yield write
    monkeypatch.undo()
    tuning.tables.cache_clear()


def test_the_most_specific_row_wins(overlay, profile):
    rows = {"default": {"WG": 1}, "gpu": {"WG": 2}, "Acme gpu": {"WG": 4}, "a9": {"WG": 8}, "Acme 9": {"WG": 16}}
    for known in range(1, len(rows) + 1):
        table = dict(list(rows.items())[:known])
        overlay({"demo": table})
        assert tuning.parameters("demo", profile) == list(table.values())[-1]


def test_the_overlay_wins_over_the_packaged_row_for_the_same_key(overlay, profile):
    packaged = tuning.parameters("matmul_gpu", profile)
    overlay({"matmul_gpu": {"default": packaged | {"BK": 8}}})
    assert tuning.parameters("matmul_gpu", profile)["BK"] == 8


def test_sizes_that_an_overlay_does_not_name_are_the_packaged_ones(overlay, profile):
    """Tables written before a kernel got another size stay valid."""
    profile = dataclasses.replace(profile, local_mem=1 << 20)
    packaged = tuning.parameters("matmul_cpu", profile), tuning.parameters("matmul_gpu", profile)
    overlay({"matmul_cpu": {"default": {"MC": 96}}, "matmul_gpu": {"default": {"BM": 32}}})
    assert tuning.parameters("matmul_cpu", profile) == packaged[0] | {"MC": 96}
    expected = {name: size for name, size in packaged[1].items() if name not in tuning.COSTS}
    assert tuning.parameters("matmul_gpu", profile) == expected | {"BM": 32}


def test_without_an_overlay_every_kernel_has_a_row_for_any_device(overlay, profile):
    for kernel in tuning.tables()[-1]:
        assert "default" in tuning.tables()[-1][kernel]
        assert tuning.parameters(kernel, profile)


@pytest.mark.parametrize(
    "content", ["{", '{"matmul_cpu": {"cpu": {"MC": "big"}}}', '{"matmul_cpu": {"cpu": {"MC": 0}}}', "[1]"]
)
def test_a_broken_overlay_is_named(overlay, profile, content):
    overlay(content)
    with pytest.raises(DeviceError, match=r"tuning: expected .*tuning\.json"):
        tuning.parameters("matmul_cpu", profile)


def test_unknown_kernels_are_named(overlay, profile):
    with pytest.raises(DeviceError, match="matmul_cpu"):
        tuning.parameters("frobnicate", profile)


@pytest.mark.parametrize("kernel", list(tuning.FOOTPRINTS))
@pytest.mark.parametrize(
    ("items", "local"), [(1, 1 << 15), (16, 1 << 15), (64, 1 << 14), (256, 1 << 18), (1024, 3 << 14)]
)
def test_fit_makes_any_row_legal(profile, kernel, items, local):
    if kernel == "matmul_cpu" or items >= 16:
        limits = dataclasses.replace(profile, max_work_group=items, local_mem=local)
        row = tuning.tables()[-1][kernel]["default"]
        fitted, cost = tuning.fit(kernel, row, limits), tuning.FOOTPRINTS[kernel]
        assert all(need <= limit for need, limit in zip(cost.needs(fitted), (items, local), strict=True))
        assert all(fitted[name] % least == 0 for name, least in cost.shrink)
        assert fitted.keys() == row.keys()


def test_fit_clamps_a_plain_work_group(profile):
    small = dataclasses.replace(profile, max_work_group=48)
    assert tuning.fit("anything", {"WG": 256, "VEC": 4}, small) == {"WG": 32, "VEC": 4}


def test_what_cannot_fit_is_refused(profile):
    with pytest.raises(DeviceError, match="local memory"):
        tuning.fit(
            "matmul_cpu", {"MC": 192, "KC": 256, "NP": 4, "MR": 6, "VW": 8}, dataclasses.replace(profile, local_mem=64)
        )


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_small_limits_still_give_right_results(cl_queue, kind):
    """16 work-items a group and 32 KB of local memory."""
    small = dataclasses.replace(profile_of(cl_queue), kind=kind, max_work_group=16, local_mem=1 << 15)
    rng = np.random.default_rng(0)
    a, b, w, bias = (rng.standard_normal(s).astype("f4") for s in ((70, 300), (300, 65), (65, 300), (65,)))
    x, f = rng.standard_normal((2, 5, 17, 19)).astype("f4"), rng.standard_normal((7, 5, 3, 3)).astype("f4")
    with override_profile(cl_queue, small):
        left, right, weights, images, filters = (Tensor.from_host(cl_queue, t) for t in (a, b, w, x, f))
        np.testing.assert_allclose(matmul(left, right).to_host(), a @ b, rtol=1e-4, atol=1e-4)
        y = linear(left, weights, Tensor.from_host(cl_queue, bias), "relu").to_host()
        np.testing.assert_allclose(y, np.maximum(a @ w.T + bias, 0), rtol=1e-4, atol=1e-4)
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        expected = np.einsum("nchwuv,ocuv->nohw", windows, f)
        np.testing.assert_allclose(conv2d(images, filters, padding=1).to_host(), expected, rtol=1e-4, atol=1e-4)
        assert max_pool2d(images, 2).to_host().shape == (2, 5, 8, 9)


SOURCE = """
__kernel void scale(__global float* y, const __global float* x, __local float* unused, float factor, const int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = RELU(x[i]) * factor;
}
"""


def test_argument_types_are_read_off_the_signature(cl_queue):
    types = tuning.KernelSpec("scale", SOURCE).build(cl_queue).types
    assert types == (None, None, None, np.dtype("f4"), np.dtype("i4"))
    with pytest.raises(BuildError, match="expected a kernel 'other', got a program with: scale"):
        tuning.KernelSpec("other", SOURCE).build(cl_queue)


@pytest.mark.parametrize("group", [None, (16,), (1 << 20,)])
def test_kernel_spec_runs_with_the_primitive_functions(cl_queue, group):
    import pyopencl as cl

    spec = tuning.KernelSpec("scale", SOURCE)
    x = Tensor.from_host(cl_queue, np.arange(-50, 50, dtype="f4"))
    y = Tensor.zeros(cl_queue, (100,))
    spec.run(cl_queue, (100,), group, y.buffer, x.buffer, cl.LocalMemory(4), 0.5, 100)
    np.testing.assert_array_equal(y.to_host(), np.maximum(np.arange(-50, 50), 0) * 0.5)


def test_kernel_selector_takes_the_first_rule_that_holds(profile):
    selector = tuning.KernelSelector()
    selector.register("conv2d", lambda shapes, device: device.vendor == "Apple", "winograd")
    selector.register("conv2d", lambda shapes, device: shapes[1][-1] == 1, "im2col")
    selector.register("conv2d", lambda shapes, device: True, "implicit")
    shapes = ((1, 3, 8, 8), (4, 3, 1, 1))
    assert selector.select("conv2d", shapes, profile) == "im2col"
    assert selector.select("conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), profile) == "implicit"
    assert selector.select("conv2d", shapes, dataclasses.replace(profile, vendor="Apple")) == "winograd"
    with pytest.raises(DeviceError, match="no rule"):
        selector.select("matmul", shapes, profile)
