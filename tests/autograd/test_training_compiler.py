"""Training patterns: the registry, the detection loss and its three kernels, and the other shipped plans."""

import dataclasses

import numpy as np
import pytest
from scipy import special

import netcl.autograd as ag
from netcl.autograd.training_compiler import (
    FusedDetectionLossPlan,
    TrainingGraphCompiler,
    TrainingPattern,
    fused_norm_activation,
    fused_softmax_cross_entropy,
    fused_weighted_bce_smooth_l1_loss,
)
from netcl.core.backend import opencl
from netcl.core.backend.opencl import Kernel
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import DTypeError, NetclError, ShapeError
from netcl.core.tensor import Tensor

RNG = np.random.default_rng(5)


def inputs(*shape):
    def uniform():
        return RNG.uniform(0, 1, shape).astype(np.float32)

    return [2 * RNG.normal(size=shape).astype(np.float32), uniform(), uniform(), np.round(uniform())]


def reference(p, t, h, r):
    p, t, h, r = (a.astype(np.float64) for a in (p, t, h, r))
    d = p - t
    bce = np.logaddexp(0, p) - p * t
    smooth = np.where(np.abs(d) < 1, 0.5 * d * d, np.abs(d) - 0.5)
    slope = np.clip(d, -1, 1)
    return (h * bce + r * smooth).sum(), [h * (special.expit(p) - t) + r * slope, -h * p - r * slope, bce, smooth]


@pytest.mark.parametrize("shape", [(1,), (7, 9), (2, 3, 33, 35), (100003,)], ids=str)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_detection_loss_and_its_gradients(queue, shape, reduction):
    arrays = inputs(*shape)
    leaves = [ag.tensor(Tensor.from_host(queue, a), requires_grad=True) for a in arrays]
    with ag.Tape() as tape:
        loss = fused_weighted_bce_smooth_l1_loss(*leaves, reduction=reduction)
        total = loss * 2.0
    tape.backward(total)
    wanted, grads = reference(*arrays)
    scale = 1 / arrays[0].size if reduction == "mean" else 1
    assert loss.shape == (1,)
    np.testing.assert_allclose(loss.value.to_host()[0], wanted * scale, rtol=1e-5)
    for leaf, grad in zip(leaves, grads, strict=True):
        np.testing.assert_allclose(leaf.grad.to_host(), 2 * scale * grad, rtol=1e-4, atol=1e-5 * scale)


def test_only_what_is_wanted_gets_a_gradient_and_views_work(queue):
    arrays = inputs(20, 30)
    leaves = [ag.tensor(Tensor.from_host(queue, a).T[::2], requires_grad=i == 0) for i, a in enumerate(arrays)]
    with ag.Tape() as tape:
        loss = fused_weighted_bce_smooth_l1_loss(*leaves)
    tape.backward(loss)
    wanted, grads = reference(*(a.T[::2] for a in arrays))
    np.testing.assert_allclose(loss.value.item(), wanted, rtol=1e-5)
    np.testing.assert_allclose(leaves[0].grad.to_host(), grads[0], rtol=1e-4, atol=1e-5)
    assert all(leaf.grad is None for leaf in leaves[1:])


def test_a_zero_weight_masks_even_nan(queue):
    p, t = np.float32([np.nan, 1, 800]), np.float32([0, 1, 0])
    h, r = np.float32([0, 1, 1]), np.float32([0, 1, 0])
    leaves = [ag.tensor(Tensor.from_host(queue, a), requires_grad=i == 0) for i, a in enumerate((p, t, h, r))]
    with ag.Tape() as tape:
        loss = fused_weighted_bce_smooth_l1_loss(*leaves)
    tape.backward(loss)
    np.testing.assert_allclose(loss.value.item(), np.log1p(np.exp(-1)) + 800, rtol=1e-6)
    np.testing.assert_allclose(leaves[0].grad.to_host(), [0, special.expit(1) - 1, 1], rtol=1e-5, atol=1e-7)


def test_the_plan_holds_three_kernels_and_is_kept(cl_queue):
    tensors = [Tensor.from_host(cl_queue, a) for a in inputs(64, 64)]
    fused_weighted_bce_smooth_l1_loss(*tensors)
    compiler = ag.TrainingGraphCompiler()
    plan = compiler.plan("weighted_bce_smooth_l1_loss", *tensors)
    assert isinstance(plan, FusedDetectionLossPlan)
    assert plan is compiler.plan("weighted_bce_smooth_l1_loss", *tensors)
    kernels = (plan.partial_kernel, plan.reduce_kernel, plan.backward_kernel)
    assert all(isinstance(k, Kernel) for k in kernels)
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    leaf = ag.tensor(tensors[0], requires_grad=True)
    with ag.Tape() as tape:
        opencl.hooks.append(hook)
        loss = fused_weighted_bce_smooth_l1_loss(leaf, *tensors[1:])
    tape.backward(loss)
    opencl.hooks.remove(hook)
    assert names == [k.name for k in kernels]


def test_detection_loss_with_groups(cl_queue):
    profile = dataclasses.replace(profile_of(cl_queue), kind="gpu", vendor="another", max_work_group=64)
    arrays = inputs(10007)
    with override_profile(cl_queue, profile):
        cl_queue.netcl_state.plans.clear()
        loss = fused_weighted_bce_smooth_l1_loss(*(Tensor.from_host(cl_queue, a) for a in arrays))
        np.testing.assert_allclose(loss.value.item(), reference(*arrays)[0], rtol=1e-5)
    cl_queue.netcl_state.plans.clear()


def test_inputs_are_validated(queue):
    a, b = Tensor.from_host(queue, np.zeros((2, 3), np.float32)), Tensor.from_host(queue, np.zeros((3,), np.float32))
    with pytest.raises(ShapeError, match=r"target \(3,\)"):
        fused_weighted_bce_smooth_l1_loss(a, b, a, a)
    with pytest.raises(DTypeError, match="reg_weight in float32, got float64"):
        fused_weighted_bce_smooth_l1_loss(a, a, a, Tensor.from_host(queue, np.zeros((2, 3))))
    with pytest.raises(DTypeError, match="heat_weight"):
        fused_weighted_bce_smooth_l1_loss(a, a, 1.0, a)
    with pytest.raises(ValueError, match="reduction"):
        fused_weighted_bce_smooth_l1_loss(a, a, a, a, reduction="none")


def test_the_registry_is_one_and_takes_user_patterns():
    compiler = ag.TrainingGraphCompiler()
    assert compiler is TrainingGraphCompiler()
    pattern = TrainingPattern(
        name="mine", matcher=lambda *call, **_: call == ("mine",), planner=lambda *call: "planned"
    )
    compiler.register(pattern)
    try:
        assert compiler.match("mine") is pattern
        assert compiler.plan("mine") == "planned"
        compiler.register(TrainingPattern("mine", pattern.matcher, lambda *call: "replaced"))
        assert compiler.plan("mine") == "replaced"
        assert [p.name for p in compiler.patterns].count("mine") == 1
        with pytest.raises(NetclError, match="registered are weighted_bce"):
            compiler.plan("nobody's")
        with pytest.raises(NetclError, match="TrainingPattern"):
            compiler.register("mine")
    finally:
        compiler._patterns = [p for p in compiler._patterns if p.name != "mine"]
    with pytest.raises(AttributeError):
        pattern.name = "other"


def test_a_pattern_that_fits_everything_is_asked_for_its_own_kind_alone(queue):
    compiler, before = ag.TrainingGraphCompiler(), ag.TrainingGraphCompiler()._patterns
    arrays = inputs(7, 9)
    tensors = [Tensor.from_host(queue, a) for a in arrays]
    wanted = reference(*arrays)[0]
    try:
        compiler.register(TrainingPattern("greedy", lambda *call, **_: True, lambda *call, **_: "greedy"))
        compiler.register(TrainingPattern("late", lambda *call, **_: True, lambda *call, **_: "late", kind="greedy"))
        loss = fused_weighted_bce_smooth_l1_loss(*tensors)
        np.testing.assert_allclose(loss.value.item(), wanted, rtol=1e-5)
        fused_softmax_cross_entropy(tensors[0], Tensor.zeros(queue, (7,), "int32"))
        fused_norm_activation(tensors[0], Tensor.ones(queue, (9,)))
        with pytest.raises(NetclError, match="pattern fits"):
            fused_norm_activation(tensors[0], Tensor.ones(queue, (9,)), norm="batch")
        assert compiler.plan("greedy") == "greedy"  # the first registered of its kind
        assert compiler.plan("something else", 3) == "greedy"
        compiler.register(TrainingPattern("greedy", lambda *call: False, lambda *call: "greedy"))
        assert compiler.plan("greedy") == "late"
    finally:
        compiler._patterns = before


def test_the_detection_loss_is_traced(queue):
    arrays = inputs(7, 9)
    tensors = [ag.tensor(Tensor.from_host(queue, a)) for a in arrays]
    fn = ag.jit_compile(lambda *call: fused_weighted_bce_smooth_l1_loss(*call) * 2.0)
    np.testing.assert_allclose(fn(*tensors).value.item(), 2 * reference(*arrays)[0], rtol=1e-5)
    assert fn.cache_info().unfused == 0


def test_softmax_cross_entropy_with_label_smoothing(queue):
    z, labels = RNG.normal(size=(9, 5)).astype(np.float32), RNG.integers(0, 5, 9).astype(np.int32)
    leaf = ag.tensor(Tensor.from_host(queue, z), requires_grad=True)
    with ag.Tape() as tape:
        loss = fused_softmax_cross_entropy(leaf, Tensor.from_host(queue, labels), label_smoothing=0.1)
    tape.backward(loss)
    q = 0.9 * np.eye(5)[labels] + 0.02
    np.testing.assert_allclose(loss.value.item(), -(q * special.log_softmax(z, axis=1)).sum(1).mean(), rtol=1e-5)
    np.testing.assert_allclose(leaf.grad.to_host(), (special.softmax(z, axis=1) - q) / 9, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_norm_and_activation_are_one_kernel(queue, norm):
    x, w, b = (RNG.normal(size=s).astype(np.float32) for s in ((6, 40), (40,), (40,)))
    leaves = [ag.tensor(Tensor.from_host(queue, a), requires_grad=True) for a in (x, w, b)]
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    with ag.Tape() as tape:
        y = fused_norm_activation(*leaves, norm=norm, activation="silu", eps=1e-3)
    opencl.hooks.remove(hook)
    assert len(names) <= 1
    centred = x - x.mean(-1, keepdims=True) if norm == "layer_norm" else x
    z = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * w + b
    np.testing.assert_allclose(y.value.to_host(), z * special.expit(z), rtol=1e-4, atol=1e-5)
    tape.backward(y)
    s = special.expit(z)
    np.testing.assert_allclose(leaves[2].grad.to_host(), (s * (1 + z * (1 - s))).sum(0), rtol=1e-3, atol=1e-4)
    with pytest.raises(NetclError, match="pattern fits"):
        fused_norm_activation(*leaves, norm="batch", activation="silu")


def test_an_optimizer_step_of_many_tensors_is_one_launch(queue):
    arrays = [RNG.normal(size=s).astype(np.float32) for s in ((5, 3), (7,), (2, 2, 2))]
    params = [Tensor.from_host(queue, a) for a in arrays]
    grads = [Tensor.from_host(queue, np.ones_like(a)) for a in arrays]
    plan = ag.TrainingGraphCompiler().plan("optimizer_step", "sgd", params)
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    plan(params, grads, lr=0.1, decay=0.0)
    opencl.hooks.remove(hook)
    assert len(names) <= 1
    for p, a in zip(params, arrays, strict=True):
        np.testing.assert_allclose(p.to_host(), a - 0.1, rtol=1e-5, atol=1e-6)
