"""jit_compile: how many kernels run and how many bytes they touch."""

import numpy as np
import pytest
from compiled import agree, gradients, leaf, normal

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.tensor import Tensor


def test_one_launch_each_way_and_each_byte_once(cl_queue, launches):
    fn = jit_compile(lambda x: ag.relu(x * 0.5) + 1.0)
    x = leaf(cl_queue, normal(64, 64))
    for _ in range(2):
        launches.clear()
        with ag.Tape() as tape:
            y = fn(x)
        assert launches == [("fused_0", 2)]  # x read, y written
        launches.clear()
        tape.backward(y, Tensor.from_host(cl_queue, normal(64, 64)))
        assert launches[0] == ("fused_0_backward", 3)  # x and g read, dx written
        assert len(launches) == 1
        x.grad = None


def test_the_source_is_that_of_the_page(cl_queue):
    fn = jit_compile(lambda x: ag.relu(x * 0.5) + 1.0)
    fn(Tensor.from_host(cl_queue, normal(64)))
    source = fn.sources()[0]
    for text in ("__kernel void fused_0(", "__global const float* restrict in_0", "__global float* restrict out_0",
                 "MUL(v0, (T)(0.5f))", "RELU(v1)", "ADD(v2, (T)(1.0f))"):  # fmt: skip
        assert text in source


@pytest.mark.parametrize(("name", "activation"), [("swiglu", ag.silu), ("geglu", ag.gelu)])
def test_gated_activations_are_one_launch(cl_queue, launches, name, activation):
    a, b = normal(64, 64), normal(64, 64)
    agree(lambda x, y: activation(x) * y, cl_queue, a, b)
    launches.clear()
    gradients(getattr(ag, name), cl_queue, [a, b])
    assert [n for n, _ in launches] == ["fused_0", "fused_0_backward"]


def test_several_outputs_in_one_kernel(cl_queue, launches):
    fn = jit_compile(lambda x, y: {"a": ag.sin(x) * y, "b": [x - y, ag.exp(x)]})
    x, y = normal(64, 64), normal(64, 64)
    nodes = [leaf(cl_queue, a) for a in (x, y)]
    with ag.Tape() as tape:
        found = fn(*nodes)
    assert launches == [("fused_0", 5)]
    np.testing.assert_allclose(found["a"].value.to_host(), np.sin(x) * y, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["b"][1].value.to_host(), np.exp(x), rtol=1e-5)
    with tape:
        total = found["b"][0] + found["b"][1]
    launches.clear()
    tape.backward(total)
    assert [name for name, _ in launches if name.startswith("fused")] == ["fused_0_backward"]
    np.testing.assert_allclose(nodes[0].grad.to_host(), 1 + np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(nodes[1].grad.to_host(), -np.ones_like(y))


def test_a_gradient_of_a_broadcast_input_is_summed_where_the_others_are_written(cl_queue, launches):
    fn = jit_compile(lambda x, s: ag.tanh(x * s) * 2.0)
    x, s = leaf(cl_queue, normal(64, 64)), leaf(cl_queue, normal(64, 1))
    with ag.Tape() as tape:
        y = fn(x, s)
    g = Tensor.from_host(cl_queue, normal(64, 64))
    launches.clear()
    tape.backward(y, g)
    assert len(launches) == 1 and 3 < launches[0][1] < 3.1  # x and g read, dx written, and little for s
