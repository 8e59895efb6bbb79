"""Every route of every op, forced by its name, gives the right values on each kind of device that has it."""

import dataclasses

import numpy as np
import pytest
from families import FAMILIES, queue_of

import netcl.autograd as ag
from netcl import ops
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import RouteError
from netcl.core.tensor import Tensor
from netcl.kernels import route
from netcl.ops.attend.op import attention, attention_grad
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.index import scatter, sort
from netcl.ops.normalization.batch_norm import batch_norm, batch_norm_grad
from netcl.ops.normalization.norm import layer_norm, layer_norm_grad
from netcl.ops.normalization.softmax import softmax, softmax_grad
from netcl.ops.nvidia.precision import set_matmul_precision
from netcl.ops.product.linear_grad import gradients

HOST = "numpy"
WAYS = {  # op: a call of tensors, which are made of these shapes
    "matmul": (lambda a, b: ops.matmul(a, b), (33, 40), (40, 29)),
    "matmul of integers": (lambda a, b: ops.matmul(a.astype("int32"), b.astype("int32")), (9, 7), (7, 5)),
    "linear": (lambda x, w, b: ops.linear(x, w, b, "relu"), (33, 40), (29, 40), (29,)),
    "linear_grad": (lambda g, x, w, y: gradients(g, x, w, y), (33, 29), (33, 40), (29, 40), (33, 29)),
    "conv2d": (lambda x, w, b: conv2d(x, w, b, padding=1), (2, 16, 9, 12), (16, 16, 3, 3), (16,)),
    "conv2d of three channels": (lambda x, w: conv2d(x, w, stride=2), (2, 3, 9, 11), (20, 3, 3, 3)),
    "conv2d of groups": (lambda x, w: conv2d(x, w, padding=1, groups=4), (2, 4, 9, 12), (4, 1, 3, 3)),
    "conv2d_input_grad": (
        lambda g, w: conv2d_input_grad(g, w, (2, 16, 9, 12), padding=1), (2, 16, 9, 12), (16, 16, 3, 3)
    ),
    "conv2d_input_grad of groups": (
        lambda g, w: conv2d_input_grad(g, w, (2, 4, 9, 12), padding=1, groups=4), (2, 4, 9, 12), (4, 1, 3, 3)
    ),
    "conv2d_weight_grad": (
        lambda g, x: conv2d_weight_grad(g, x, (16, 16, 3, 3), padding=1), (2, 16, 9, 12), (2, 16, 9, 12)
    ),
    "conv2d_weight_grad of groups": (
        lambda g, x: conv2d_weight_grad(g, x, (4, 1, 3, 3), padding=1, groups=4), (2, 4, 9, 12), (2, 4, 9, 12)
    ),
    "attention": (lambda q, k: attention(q, k, k, causal=True), (2, 3, 9, 16), (2, 3, 11, 16)),
    "attention of one query": (lambda q, k: attention(q, k, k), (2, 3, 1, 16), (2, 3, 11, 16)),
    "attention_grad": (
        lambda q, g: attention_grad(g, q, q, q, *attention(q, q, q, causal=True), causal=True),
        (2, 3, 9, 16), (2, 3, 9, 16),
    ),
    "rows": (lambda x: softmax(x), (21, 70)),
    "rows of two": (lambda g, y: softmax_grad(g, y), (5, 300), (5, 300)),
    "norm": (lambda x, w: layer_norm(x, w), (21, 70), (70,)),
    "norm and its gradient": (lambda g, x, w: layer_norm_grad(g, x, *layer_norm(x)[1:], w), (21, 70), (21, 70), (70,)),
    "batch_norm": (lambda x, w: batch_norm(x, w), (5, 6, 7, 9), (6,)),
    "batch_norm and its gradient": (
        lambda g, x: batch_norm_grad(g, x, *batch_norm(x)[1:]), (5, 6, 7, 9), (5, 6, 7, 9)
    ),
    "fold": (lambda x: (ops.sum(x, 0), ops.max(x, 1), ops.mean(x), ops.sum(x, (0, 2))), (21, 35, 12)),
    "fold of positions": (lambda x: (ops.argmax(x, 0), ops.argmin(x, 1), ops.argmax(x)), (21, 35)),
    "var": (lambda x: (ops.var(x, -1), ops.var(x, (1, 2), keepdims=True)), (21, 35, 12)),
    "std": (lambda x: ops.std(x, -1, correction=1), (21, 35)),
    "logsumexp": (lambda x: ops.logsumexp(x, -1), (21, 35)),
    "scatter_add": (
        lambda x, s: scatter.scatter_add(x, ops.remainder(ops.abs(ops.mul(s, 7)).astype("int32"), 6), s, 0),
        (6, 5), (50, 5),
    ),
    "sort": (lambda x: (sort.argsort(x, -1), sort.sort(x, 0, True)), (21, 35)),
}  # fmt: skip
DEVICES = [name for name in FAMILIES if name != HOST]


def op_of(way):
    return way.split()[0].replace("linear_grad", "matmul").replace("linear", "matmul")


def inputs(queue, shapes):
    return [
        Tensor.from_host(queue, np.random.default_rng([7, i]).standard_normal(s, "f4")) for i, s in enumerate(shapes)
    ]


def found(result):
    return [t.to_host() for t in (result if isinstance(result, tuple) else (result,)) if t is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", list(WAYS))
def test_every_route_gives_the_right_values(device, way):
    call, *shapes = WAYS[way]
    queue, op = queue_of(device), op_of(way)
    expected = found(call(*inputs(queue_of(HOST), shapes)))
    with route.watch(queue) as seen:
        call(*inputs(queue, shapes))
    decision = next((d for d in seen if d.op == op), None)  # none for gradients of a layer in one launch
    forced = []
    for name in route.ROUTES[op]:
        with route.force(f"{op}.{name}"):
            try:
                got = found(call(*inputs(queue, shapes)))
            except RouteError:
                continue
            forced.append(name)
            for mine, right in zip(got, expected, strict=True):
                np.testing.assert_allclose(mine, right, rtol=2e-4, atol=2e-4, err_msg=f"{op}.{name}")
    assert forced and (decision is None or decision.chosen in forced)


def test_every_route_of_every_op_is_tried_somewhere():
    """But those of matrix units, whose tests need them."""
    tried = set()
    for way, (call, *shapes) in WAYS.items():
        for device in DEVICES:
            with route.watch(queue_of(device)) as seen:
                call(*inputs(queue_of(device), shapes))
            can = [d for d in seen if d.op == op_of(way)]
            tried |= {(d.op, name) for d in can for name, _, why in d.routes}
    known = {(op, name) for op, names in route.ROUTES.items() for name in names}
    assert {op for op, _ in known} == {op for op, _ in tried}
    cpus = any(profile_of(queue_of(device)).kind == "cpu" for device in DEVICES)
    of_others = ("wgmma", "mma", "host", *(() if cpus else ("direct",)))  # direct: attention of CPU devices
    assert known - tried <= {(op, name) for op, name in known if name in of_others}


def test_numpy_refuses_the_routes_of_devices():
    for way, (call, *shapes) in WAYS.items():
        op = op_of(way)
        with (
            route.force(f"{op}.{route.ROUTES[op][0]}"),
            pytest.raises(RouteError, match=f"{op}: .*it is no route here"),
        ):
            call(*inputs(queue_of(HOST), shapes))
        with route.force("host"):
            call(*inputs(queue_of(HOST), shapes))


def small_convolution(queue):
    return inputs(queue, [(2, 16, 9, 12), (16, 16, 3, 3)])


def test_a_call_is_explained(cl_queue, capsys):
    x, w = small_convolution(cl_queue)
    found = ops.explain(conv2d, x, w, padding=1)
    (decision,) = found.decisions
    assert decision.op == "conv2d" and found.chosen == {"conv2d": decision.chosen}
    names = {name for name, _, _ in decision.routes}
    assert {"depthwise", "winograd", "implicit_gemm"} <= names <= {*route.ROUTES["conv2d"]}
    assert f"> {decision.chosen}" in str(found) and "depthwise" in str(found)
    assert capsys.readouterr().out == ""  # not a terminal
    with ops.force("implicit_gemm"):
        assert ops.explain(conv2d, x, w, padding=1).chosen == {"conv2d": "implicit_gemm"}
    assert ops.explain(ops.exp, x).decisions == ()
    with pytest.raises(RouteError, match="explain: expected an op and its arguments, with a tensor"):
        ops.explain(ops.exp)


def test_numpy_is_explained(cpu_queue):
    x, w = small_convolution(cpu_queue)
    assert ops.explain(conv2d, x, w, padding=1).chosen == {"conv2d": "host"}


def test_a_terminal_gets_a_table(cl_queue, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    ops.explain(conv2d, *small_convolution(cl_queue), padding=1)
    assert "winograd" in capsys.readouterr().out


def test_compiled_functions_and_steps_keep_a_program_for_each_route(cl_queue):
    """A program or a recording that was made under another route is not run."""
    x, w = small_convolution(cl_queue)
    run = ag.jit_compile(lambda x, w: ag.relu(ag.conv2d(x, w, padding=1)))
    step = ag.CompiledStep(lambda x, w: conv2d(x, w, padding=1))
    results = {}
    for name in ("winograd", "implicit_gemm", "winograd", "implicit_gemm"):
        with ops.force(name):
            results.setdefault(name, []).append(run(x, w).value.to_host())
            for _ in range(3):
                kept = step(x, w).to_host()
            np.testing.assert_array_equal(kept, conv2d(x, w, padding=1).to_host())
    assert run.cache_info().misses == 2 and len(step.captures) == 2
    for first, again in results.values():
        np.testing.assert_array_equal(first, again)
    assert (results["winograd"][0] != results["implicit_gemm"][0]).any()
    for text in (run.explain(), step.explain()):
        assert "> implicit_gemm" in text and "> winograd" in text and "forced" in text


def test_a_step_is_recorded_anew_for_another_precision(cl_queue):
    x, w = small_convolution(cl_queue)
    step = ag.CompiledStep(lambda x, w: conv2d(x, w, padding=1))
    try:
        for level in ("high", "highest"):
            set_matmul_precision(level)
            for _ in range(3):
                kept = step(x, w).to_host()
            np.testing.assert_array_equal(kept, conv2d(x, w, padding=1).to_host())
    finally:
        set_matmul_precision("high")
    assert len(step.captures) == 2


def test_forced_and_free_plans_are_kept_apart(cl_queue):
    """The plan of a forced route is not taken for a call that forces none, nor the other way round."""
    call, *shapes = WAYS["sort"]
    x = inputs(cl_queue, shapes)
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue))):
        plans = cl_queue.netcl_state.plans
        call(*x)
        free = len(plans)
        with route.force("merge" if profile_of(cl_queue).kind == "cpu" else "serial"):
            call(*x)
        assert len(plans) > free
        both = len(plans)
        call(*x)
        assert len(plans) == both
