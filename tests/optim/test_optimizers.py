"""Optimizers against separately written float64 references, and the field cases OPT-*."""

import numpy as np
import pytest

from netcl.autograd.node import Parameter
from netcl.core.backend import opencl
from netcl.core.errors import CheckpointError, DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops import update as updates
from netcl.optim import SGD, Adam, AdamW, Momentum, RMSProp, RMSprop


def parameter(queue, values, dtype=np.float32, name=None):
    return Parameter(Tensor.from_host(queue, np.asarray(values, dtype)), name)


def give(p, gradient):
    p.grad = Tensor.from_host(p.value.queue, np.asarray(gradient, p.dtype).reshape(p.shape))


def walk(queue, make, gradients, start=1.0):
    """The value of one weight after each step."""
    p, found = parameter(queue, [start]), []
    opt = make([p])
    for g in gradients:
        give(p, [g])
        opt.step()
        found.append(float(p.value.to_host()[0]))
    return found


# -- field cases -------------------------------------------------------------------------------------------------------


def test_adam_adds_eps_outside_the_root_after_correction(queue):
    [value] = walk(queue, lambda p: Adam(p, lr=0.1), [1e-6], start=0.0)
    assert -value == pytest.approx(0.0990099, rel=1e-5)


@pytest.mark.parametrize(
    ("amsgrad", "expected"),
    [(True, [0.9, 0.8274524, 0.7667067]), (False, [0.9, 0.8239494, 0.7572322])],
)
def test_amsgrad_takes_the_largest_raw_second_moment(queue, amsgrad, expected):
    found = walk(queue, lambda p: Adam(p, lr=0.1, betas=(0.9, 0.9), amsgrad=amsgrad), [1, 0.1, 0.1])
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("gradient", "expected"), [(0.0, 0.999), (1.0, 0.899)])
def test_adamw_decays_the_weight_directly(queue, gradient, expected):
    assert walk(queue, lambda p: AdamW(p, lr=0.1, weight_decay=0.01), [gradient]) == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "gradient", "expected"),
    [
        ({"momentum": 0.9, "dampening": 0.5}, 1.0, [0.9, 0.76, 0.584]),
        ({"momentum": 0.9, "nesterov": True}, 1.0, [0.81, 0.539, 0.1951]),
        ({"weight_decay": 0.1}, 0.0, [0.99, 0.9801, 0.970299]),
    ],
)
def test_sgd_conventions(queue, options, gradient, expected):
    assert walk(queue, lambda p: SGD(p, lr=0.1, **options), [gradient] * 3) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", [{"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.5}])
def test_nesterov_without_momentum_or_with_dampening_is_refused(cpu_queue, options):
    with pytest.raises(ValueError, match="SGD: expected momentum"):
        SGD([parameter(cpu_queue, [1.0])], nesterov=True, **options)


def test_a_shared_parameter_is_stepped_once(queue):
    p = parameter(queue, [1.0])
    opt = SGD([p, p], lr=0.1)
    assert len(opt.param_groups[0]["params"]) == 1
    give(p, [3.0])
    opt.step()
    assert p.value.to_host() == pytest.approx([0.7])


# -- references --------------------------------------------------------------------------------------------------------


def reference(kind, o, p, grads):
    """Textbook updates in float64."""
    m, v, top, avg, buf = (np.zeros_like(p) for _ in range(5))
    for t, g in enumerate(grads, 1):
        if kind in ("adam", "adamw"):
            b1, b2 = o["betas"]
            if kind == "adam":
                g = g + o["weight_decay"] * p
            else:
                p = p - o["lr"] * o["weight_decay"] * p
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            top = np.maximum(top, v) if o.get("amsgrad") else v
            p = p - o["lr"] * (m / (1 - b1**t)) / (np.sqrt(top / (1 - b2**t)) + o["eps"])
            continue
        g = g + o["weight_decay"] * p
        if kind == "sgd":
            keep = 1.0 if t == 1 else 1 - o.get("dampening", 0)
            buf = o["momentum"] * buf + keep * g
            p = p - o["lr"] * (g + o["momentum"] * buf if o.get("nesterov") else buf)
        else:
            v = o["alpha"] * v + (1 - o["alpha"]) * g**2
            avg = o["alpha"] * avg + (1 - o["alpha"]) * g
            step = g / (np.sqrt(v - avg**2 if o.get("centered") else v) + o["eps"])
            buf = o["momentum"] * buf + step
            p = p - o["lr"] * buf
    return p


CASES = [
    (SGD, "sgd", {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.01}),
    (SGD, "sgd", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01}),
    (SGD, "sgd", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    (Momentum, "sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}),
    (Adam, "adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-8, "weight_decay": 0.1}),
    (Adam, "adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}),
    (AdamW, "adamw", {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}),
    (AdamW, "adamw", {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": True}),
    (RMSprop, "rmsprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.1, "momentum": 0.0}),
    (RMSprop, "rmsprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.7}),
    (
        RMSprop,
        "rmsprop",
        {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.0, "momentum": 0.0, "centered": True},
    ),
    (
        RMSprop,
        "rmsprop",
        {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.0, "momentum": 0.7, "centered": True},
    ),
]
SHAPES = [(1,), (7,), (8, 9), (63,), (8193,), (3, 1, 5), (130, 127)]  # they cross vectors and chunks


@pytest.mark.parametrize(("kind", "name", "options"), CASES, ids=lambda x: getattr(x, "__name__", None))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_the_textbook(queue, kind, name, options, dtype):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s) for s in SHAPES]
    grads = [[rng.standard_normal(s) for s in SHAPES] for _ in range(3)]
    params = [parameter(queue, v, dtype) for v in values]
    opt = kind(params, **options)
    for step in grads:
        for p, g in zip(params, step):
            give(p, g)
        opt.step()
    rtol = 2e-5 if dtype == np.float32 else 1e-9
    for i, (p, v) in enumerate(zip(params, values)):
        expected = reference(
            name, options, v.astype(dtype).astype(float), [g[i].astype(dtype).astype(float) for g in grads]
        )
        np.testing.assert_allclose(p.value.to_host(), expected, rtol=rtol, atol=rtol)


NARROW = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@NARROW
def test_narrow_parameters_follow_a_float32_master(queue, dtype):
    p = parameter(queue, np.ones(20), dtype)
    opt = SGD([p], lr=1e-4)
    for _ in range(50):  # each step alone is below half of the spacing at 1
        give(p, np.ones(20))
        opt.step()
    np.testing.assert_array_equal(p.value.to_host(), np.full(20, 0.995).astype(dtype))
    np.testing.assert_allclose(opt.state[p]["master"].to_host(), 0.995, rtol=1e-6)


@NARROW
def test_a_narrow_parameter_written_from_outside_wins_over_its_master(queue, dtype):
    p = parameter(queue, np.ones(9), dtype)
    opt = SGD([p], lr=1e-4)
    give(p, np.ones(9))
    opt.step()
    p.value.fill_(2)
    give(p, np.zeros(9))
    opt.step()
    np.testing.assert_array_equal(p.value.to_host(), np.full(9, 2, dtype))


# -- launches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "most"), [([(784, 256), (256,), (256, 128), (128,), (128, 10), (10,)], 1), ([(65,)] * 62, 2)]
)
def test_many_tensors_take_few_launches(cl_queue, shapes, most):
    params = [parameter(cl_queue, np.ones(s)) for s in shapes]
    opt = AdamW(params)
    for p in params:
        give(p, np.ones(p.shape))
    opt.step()
    launches = []
    hook = lambda *args: launches.append(args[0].name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        opt.step()
    finally:
        opencl.hooks.remove(hook)
    assert launches == ["netcl_adamw"] * most


def test_views_are_updated_in_place(queue):
    base = Tensor.from_host(queue, np.ones((6, 4), np.float32))
    p, q = Parameter(base[2:4]), Parameter(base[4:].T)
    give(p, np.ones((2, 4)))
    give(q, np.full((4, 2), 2.0))
    SGD([p, q], lr=0.5).step()
    np.testing.assert_allclose(base.to_host()[:, 0], [1, 1, 0.5, 0.5, 0, 0])


def test_parameters_without_gradient_keep_their_value_and_count(queue):
    a, b = parameter(queue, [1.0]), parameter(queue, [1.0])
    opt = Adam([a, b], lr=0.1)
    give(a, [1.0])
    opt.step()
    assert b.value.to_host() == 1
    assert b not in opt.state
    give(b, [1.0])
    opt.step()  # a at its second step, b at its first: one group, different bias corrections
    assert (opt.state[a]["step"], opt.state[b]["step"]) == (2, 1)
    np.testing.assert_allclose(b.value.to_host(), 0.9, rtol=1e-6)
    np.testing.assert_allclose(a.value.to_host(), 0.8, rtol=1e-6)


def test_a_frozen_parameter_is_left_alone(queue):
    p = parameter(queue, [1.0])
    opt = SGD([p], lr=0.1)
    give(p, [1.0])
    p.requires_grad_(False)
    opt.step()
    assert p.value.to_host() == 1


# -- the gate ----------------------------------------------------------------------------------------------------------


def test_a_gate_scales_gradients_or_stops_the_step_on_the_device(queue):
    p = parameter(queue, np.ones(20))
    opt = Adam([p], lr=0.1)
    give(p, np.ones(20))
    opt.step(gate=Tensor.from_host(queue, [0.5]))
    np.testing.assert_allclose(opt.state[p]["m"].to_host(), 0.05, rtol=1e-6)
    before = p.value.to_host()
    for bad in (np.inf, np.nan):
        opt.step(gate=Tensor.from_host(queue, [bad]))
        opt.skip_last()
    np.testing.assert_array_equal(p.value.to_host(), before)
    np.testing.assert_allclose(opt.state[p]["m"].to_host(), 0.05, rtol=1e-6)
    assert opt.state[p]["step"] == 1


# -- state dicts -------------------------------------------------------------------------------------------------------


def train(opt, params, steps, seed):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        for p in params:
            give(p, rng.standard_normal(p.shape))
        opt.step()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("named", [True, False])
def test_a_resumed_run_equals_the_uninterrupted_one(queue, named, dtype):
    def fresh():
        params = [parameter(queue, np.ones(s), dtype, f"p{i}" if named else None) for i, s in enumerate(SHAPES)]
        return params, AdamW(params, lr=0.01)

    straight, opt = fresh()
    train(opt, straight, 3, 0)
    saved, values = opt.state_dict(), [p.value.to_host() for p in straight]
    train(opt, straight, 3, 1)
    resumed, other = fresh()
    for p, v in zip(resumed, values):
        p.value = Tensor.from_host(queue, v)
    other.load_state_dict(saved)
    assert set(other.state_dict()["state"]) == {f"p{i}" if named else str(i) for i in range(len(SHAPES))}
    train(other, resumed, 3, 1)
    for a, b in zip(straight, resumed):
        np.testing.assert_array_equal(a.value.to_host(), b.value.to_host())


def test_loading_writes_states_in_place(queue):
    """A recorded step keeps using the memory it was recorded with."""
    p = parameter(queue, [1.0, 2.0])
    opt = Adam([p])
    train(opt, [p], 2, 0)
    saved, views, counts = opt.state_dict(), dict(opt.state[p]), opt.state[p]
    train(opt, [p], 3, 1)
    opt.load_state_dict(saved)
    assert opt.state[p] is counts and counts["step"] == 2
    assert all(counts[name] is views[name] for name in ("m", "v"))
    np.testing.assert_array_equal(views["m"].to_host(), saved["state"]["0"]["m"].to_host())
    opt.load_state_dict(Adam([p]).state_dict())  # of an optimizer that never stepped
    assert counts["step"] == 0 and not views["v"].to_host().any()


def test_a_state_dict_is_a_snapshot(queue):
    p = parameter(queue, [1.0])
    opt = SGD([p], momentum=0.9)
    train(opt, [p], 1, 0)
    saved = opt.state_dict()
    before = saved["state"]["0"]["b"].to_host()
    train(opt, [p], 1, 1)
    np.testing.assert_array_equal(saved["state"]["0"]["b"].to_host(), before)
    assert saved["state"]["0"]["step"] == 1


def test_a_state_that_does_not_fit_changes_nothing(queue):
    p, q = parameter(queue, [1.0]), parameter(queue, [1.0, 2.0])
    opt, other = Adam([p]), Adam([q], lr=0.5)
    train(opt, [p], 1, 0)
    with pytest.raises(CheckpointError, match=r"expected 0\.m as floats of shape \(2,\), .* got \(1,\)"):
        other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["lr"] == 0.5 and not other.state
    with pytest.raises(CheckpointError, match="groups of"):
        Adam([p, q]).load_state_dict(opt.state_dict())


def test_changing_the_settings_keeps_the_states_that_stay(queue):
    p = parameter(queue, [1.0])
    opt = Adam([p], lr=0.1)
    train(opt, [p], 2, 0)
    m = opt.state[p]["m"].to_host()
    opt.param_groups[0]["amsgrad"] = True
    give(p, [0.0])
    opt.step()
    np.testing.assert_allclose(opt.state[p]["m"].to_host(), 0.9 * m, rtol=1e-6)
    assert opt.state[p]["step"] == 3


@pytest.mark.parametrize("before", [(3,), (1,)])
def test_a_parameter_of_another_shape_is_refused(queue, before):
    p = parameter(queue, np.ones(before), name="w")
    opt = Adam([p])
    train(opt, [p], 1, 0)
    p.value = Tensor.ones(queue, (4,))
    give(p, np.ones(4))
    with pytest.raises(ShapeError, match=r"Adam: expected w to keep the shape \(.,\) of its states, got \(4,\)"):
        opt.step()
    assert opt.state[p]["step"] == 1 and p.value.to_host().tolist() == [1] * 4


# -- groups and errors -------------------------------------------------------------------------------------------------


def test_groups_have_settings_of_their_own(queue):
    a, b = parameter(queue, [1.0]), parameter(queue, [1.0])
    opt = SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    give(a, [1.0])
    give(b, [1.0])
    opt.step()
    assert (a.value.item(), b.value.item()) == pytest.approx((0.9, 0.5))
    assert repr(opt).count("lr=0.1") == 1


def test_named_parameters_are_accepted(cpu_queue):
    p = parameter(cpu_queue, [1.0])
    assert SGD([("weight", p)]).names() == ["weight"]


def test_zero_grad(queue):
    p = parameter(queue, [1.0])
    opt = SGD([p])
    give(p, [3.0])
    opt.zero_grad(set_to_none=False)
    assert p.grad.to_host() == 0
    opt.zero_grad()
    assert p.grad is None
    opt.step()  # nothing to do


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD([]), "at least one parameter"),
        (lambda p: SGD([p], lr=-1), "lr at least 0"),
        (lambda p: Adam([p], betas=(0.9, 1.0)), r"betas in \[0, 1\)"),
        (lambda p: Adam([p], eps=-1), "eps at least 0"),
        (lambda p: RMSProp([p], alpha=1.5), "alpha in"),
        (lambda p: SGD([{"params": [p], "beta": 1}]), "expected settings among"),
        (lambda p: SGD([{"params": [p]}, {"params": [p]}]), "in one group"),
    ],
)
def test_bad_settings_are_refused(cpu_queue, make, message):
    with pytest.raises(ValueError, match=message):
        make(parameter(cpu_queue, [1.0]))


def test_wrong_parameters_and_gradients_are_refused(queue):
    with pytest.raises(DTypeError, match="expected Parameters, got"):
        SGD([np.ones(3)])
    p = parameter(queue, [1.0, 2.0])
    p.grad = Tensor.from_host(queue, np.ones(3, np.float32))
    with pytest.raises(ShapeError, match=r"SGD: gradient of a parameter: expected shape \(2,\), got \(3,\)"):
        SGD([p]).step()


# -- rows --------------------------------------------------------------------------------------------------------------


def test_every_row_is_in_the_dialect():
    for row in updates.UPDATES.values():
        row.check()


def test_a_row_of_ones_own(queue):
    if "signed" not in updates.UPDATES:
        updates.add_update(
            updates.Update("signed", (), ("lr",), ("p = p - lr * where(g > 0, 1, where(g < 0, -1, 0))",))
        )
    p = Tensor.from_host(queue, np.zeros(20, np.float32))
    updates.update("signed", [p], [Tensor.from_host(queue, np.linspace(-1, 1, 20, dtype=np.float32))], lr=0.1)
    np.testing.assert_allclose(p.to_host(), [0.1] * 10 + [-0.1] * 10, rtol=1e-6)
    with pytest.raises(ValueError, match="unknown name"):
        updates.add_update(updates.Update("wrong", (), (), ("p = p + q",)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_moving_averages_over_many_tensors(queue, dtype):
    rng = np.random.default_rng(0)
    a, b = ([rng.standard_normal(s).astype(dtype) for s in SHAPES] for _ in range(2))
    targets = [Tensor.from_host(queue, x) for x in a]
    updates.update("ema", targets, [Tensor.from_host(queue, x) for x in b], keep=0.75)
    rtol = {"bfloat16": 4e-3, "float16": 2e-3}.get(dtype, 1e-5)
    for t, x, y in zip(targets, a, b):
        np.testing.assert_allclose(t.to_host(), 0.75 * x.astype(float) + 0.25 * y.astype(float), rtol=rtol, atol=1e-3)
