"""jit_compile: the specification's examples, the cache, devices and threads."""

import threading

import numpy as np
import pyopencl as cl
import pytest
from compiled import agree, gradients, leaf, normal

import netcl.autograd as ag
from netcl.autograd.compiler import (
    PRIMITIVE_PREAMBLE,
    AutogradPrimitive,
    TraceNode,
    TracingContext,
    jit_compile,
    register_primitive,
    tracing_context,
)
from netcl.core.errors import BuildError, NetclError
from netcl.core.kernels import dialect
from netcl.core.tensor import Tensor
from netcl.runtime.cache import cacher

# -- the specification's page ------------------------------------------------------------------------------------------


def test_fused_mlp_block_of_the_page(queue):
    @jit_compile
    def fused_mlp_block(x, w, b):
        h = ag.add(ag.matmul(x, w), b)
        h = ag.relu(h)
        return ag.add(h, 1.0)

    x, w, b = normal(16, 8), normal(8, 4), normal(4)
    value, grads = gradients(fused_mlp_block, queue, [x, w, b])
    np.testing.assert_allclose(value, np.maximum(x @ w + b, 0) + 1, rtol=1e-5, atol=1e-5)
    g = np.cos(np.arange(64)).reshape(16, 4).astype(np.float32) * (x @ w + b > 0)
    for found, wanted in zip(grads, (g @ w.T, x.T @ g, g.sum(0)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert fused_mlp_block.cache_info().unfused == 0


def test_matmul_is_a_boundary_and_the_rest_one_kernel(cl_queue, launches):
    @jit_compile
    def block(x, w, b):
        return ag.add(ag.relu(ag.add(ag.matmul(x, w), b)), 1.0)

    args = [Tensor.from_host(cl_queue, a) for a in (normal(16, 8), normal(8, 4), normal(4))]
    block(*args)
    launches.clear()
    block(*args)
    assert [name for name, _ in launches if name.startswith("fused")] == ["fused_0"]
    assert "matmul: its own kernel, a boundary" in block.explain()


def test_register_primitive_of_the_page(queue):
    dialect.define_function("MY_OP", ("a", "b"), "MUL(a, b)")
    register_primitive(
        name="my_op",
        forward=lambda args, attrs: f"MY_OP({args[0]}, {args[1]})",
        backward=lambda args, grad_var, attrs, out_var: [
            f"MUL({grad_var}, {args[1]})",
            f"MUL({grad_var}, {args[0]})",
        ],
        arity=2,
        fusible=True,
    )
    a, b = normal(5, 7), normal(7)
    compiled = agree(lambda x, y: ag.relu(ag.apply_op("my_op", x, y)) + 1.0, queue, a, b)
    np.testing.assert_allclose(compiled(*(Tensor.from_host(queue, t) for t in (a, b))).value.to_host(),
                               np.maximum(a * b, 0) + 1, rtol=1e-6)  # fmt: skip
    assert "MY_OP(v0, v1)" in compiled.sources()[0]


def test_an_undefined_function_says_how_to_define_it(queue):
    register_primitive("page_op", lambda args, attrs: f"NO_SUCH({args[0]})", lambda args, g, attrs, out: [g], arity=1)
    x = Tensor.from_host(queue, normal(3))
    for run in (lambda: ag.apply_op("page_op", x), lambda: jit_compile(lambda t: ag.apply_op("page_op", t))(x)):
        with pytest.raises(BuildError, match=r"dialect.define_function.'NO_SUCH'"):
            run()


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("v * 0.5f + 1.5e0f", lambda x: x * 0.5 + 1.5),
        ("-(v) / 2.0", lambda x: -x / 2),
        ("(v > 0.0f) ? v : (v < -1 ? -1.0f : exp(v))", lambda x: np.where(x > 0, x, np.where(x < -1, -1, np.exp(x)))),
        ("where(v >= 0.25f, TANH(v), MUL(v, v))", lambda x: np.where(x >= 0.25, np.tanh(x), x * x)),
    ],
)
def test_expressions_as_c_writes_them(queue, text, reference):
    register_primitive("written", lambda args, attrs: text.replace("v", args[0]).replace(f"{args[0]}0", args[0]),
                       lambda args, g, attrs, out: [g], arity=1)  # fmt: skip
    x = normal(9)
    y = jit_compile(lambda t: ag.apply_op("written", t))(Tensor.from_host(queue, x))
    np.testing.assert_allclose(y.value.to_host(), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "what"), [("v * 0.5f", "0.5"), ("v / 2", "DIV"), ("exp(v) + 1", "EXP"), ("SIGMOID(v)", "SIGMOID")]
)
def test_expressions_that_integers_have_no_values_for_are_refused(queue, text, what):
    """C would cut 0.5 to 0 and take exp for the identity."""
    register_primitive("fraction", lambda args, attrs: text.replace("v", args[0]), lambda args, g, attrs, out: [g], 1)
    x = Tensor.from_host(queue, np.array([1, 2], np.int32))
    for run in (lambda t: ag.apply_op("fraction", t), jit_compile(lambda t: ag.apply_op("fraction", t))):
        with pytest.raises(BuildError, match=f"expected a floating operand for {what}, got int32; use astype"):
            run(x)


def test_a_primitive_that_is_not_fusible_is_a_boundary(queue):
    register_primitive("alone", lambda args, attrs: f"EXP({args[0]})", lambda args, g, attrs, out: [f"MUL({g}, {out})"],
                       arity=1, fusible=False)  # fmt: skip
    compiled = jit_compile(lambda t: ag.apply_op("alone", t * 2.0) + 1.0)
    x = normal(4)
    np.testing.assert_allclose(compiled(Tensor.from_host(queue, x)).value.to_host(), np.exp(2 * x) + 1, rtol=1e-5)
    assert compiled.cache_info().unfused == 0
    text = compiled.explain()
    assert "alone: its own kernel, a boundary: registered as not fusible" in text
    assert "fused_0: map of mul" in text
    assert "fused_1: map of add" in text


def test_records_of_the_page():
    node = TraceNode("mul", [], (2, 3), "float32", attrs={"scalar": 0.5})
    assert (node.op_name, node.inputs, node.shape, node.dtype, node.attrs) == (
        "mul",
        (),
        (2, 3),
        np.float32,
        {"scalar": 0.5},
    )
    context = TracingContext()
    assert (context.active, context.nodes) == (False, [])
    assert tracing_context.active is False
    primitive = AutogradPrimitive("n", lambda a, k: a[0], lambda a, g, k, o: [g])
    assert (primitive.arity, primitive.fusible) == (None, True)
    with pytest.raises(AttributeError):
        primitive.name = "other"
    assert "static inline T MUL(" in PRIMITIVE_PREAMBLE
    with pytest.raises(NetclError, match="arity"):
        register_primitive("bad", lambda a, k: a[0], lambda a, g, k, o: [g], arity=0)


def test_builtin_primitives_and_their_forms_with_a_number():
    from netcl.autograd.jit.primitive import PRIMITIVES

    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "gt", "ge"):
        assert PRIMITIVES[name].arity == 2
        assert PRIMITIVES[name].forward(["v0", "v1"], {}) == f"{name.upper()}(v0, v1)"
        assert PRIMITIVES[f"{name}_scalar_right"].forward(["v0"], {"scalar": 2.0}) == f"{name.upper()}(v0, 2.0)"
        assert PRIMITIVES[f"{name}_scalar_left"].forward(["v0"], {"scalar": 2.0}) == f"{name.upper()}(2.0, v0)"
    assert PRIMITIVES["where"].arity == 3
    assert PRIMITIVES["mul"].backward(["v0", "v1"], "g", {}, "y") == ["MUL_D0(g, y, v0, v1)", "MUL_D1(g, y, v0, v1)"]


def test_tracing_records_and_launches_nothing(cl_queue, launches):
    seen = []

    @jit_compile
    def fn(x):
        assert tracing_context.active
        y = ag.relu(x * 0.5)
        seen.append((y.value.op_name, y.value.inputs[0].op_name, y.shape, y.dtype))
        return y

    x = Tensor.from_host(cl_queue, normal(4, 8))
    fn(x)
    assert seen == [("relu", "mul", (4, 8), np.float32)]
    assert not tracing_context.active
    assert [name for name, _ in launches] == ["fused_0"]


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_a_new_batch_size_builds_nothing(cl_queue):
    fn = jit_compile(lambda x, w, b: ag.gelu(x * w + b) * 0.5)
    row = jit_compile(lambda x: ag.exp(x - x.max(-1, keepdims=True)))

    def step(n):
        nodes = [leaf(cl_queue, a) for a in (normal(n, 48), normal(48), normal(48))]
        with ag.Tape() as tape:
            y = row(fn(*nodes))
        tape.backward(y)

    step(600)
    builds, misses = cacher.stats.builds, fn.cache_info().misses
    for n in (601, 640, 777):
        step(n)
    assert cacher.stats.builds == builds
    assert fn.cache_info().misses == misses + 3


def test_cache_info_and_clear(queue):
    scale = [2.0]
    fn = jit_compile(lambda x: x * scale[0])
    t = Tensor.from_host(queue, np.float32([1]))
    assert fn.cache_info() == (0, 0, 0, 0)
    fn(t), fn(t)
    scale[0] = 3.0
    assert fn(t).value.item() == 2  # closed-over numbers are those of the trace, as documented
    assert fn.cache_info() == (2, 1, 0, 1)
    fn.cache_clear()
    assert fn(t).value.item() == 3
    assert fn.cache_info() == (0, 1, 0, 1)


def test_forms_of_the_decorator(queue):
    @jit_compile()
    def fn(x):
        """Doubles."""
        return x * 2.0

    assert (fn.__name__, fn.__doc__) == ("fn", "Doubles.")
    assert fn(Tensor.from_host(queue, np.float32([4]))).value.item() == 8
    assert "jit_compile fn" in repr(fn)


def test_explain_prints_the_plan(queue, capsys):
    @jit_compile
    def fn(x, w):
        return ag.relu(ag.matmul(ag.tanh(x) * 2.0, w) + 1.0)

    fn(*(Tensor.from_host(queue, a) for a in (normal(8, 8), normal(8, 8))))
    text = fn.explain()
    assert text in capsys.readouterr().out
    assert "fused_0: map of tanh mul; reads 1, writes 1, 512 bytes" in text
    assert "fused_1: map of add relu" in text
    assert "matmul: its own kernel, a boundary: not an elementwise primitive" in text
    assert "least possible 768" in text


# -- devices and threads -----------------------------------------------------------------------------------------------


def test_sub_devices_and_numpy_share_a_function(cl_queue, cpu_queue):
    device = cl_queue.device
    if device.max_compute_units < 2:
        pytest.skip("one compute unit cannot be split")
    try:
        parts = device.create_sub_devices([cl.device_partition_property.EQUALLY, 1])[:2]
    except cl.Error:  # GPUs rarely split: two queues
        parts = [device] * 2
    context = cl.Context(list(dict.fromkeys(parts)))
    queues = [cl.CommandQueue(context, d) for d in parts]
    fn = jit_compile(lambda x, w: ag.relu(x * w) + 1.0)
    x, w = normal(50, 20), normal(20)
    for q in (*queues, cpu_queue, cl_queue, *queues):
        value, _ = gradients(fn, q, [x, w])
        np.testing.assert_allclose(value, np.maximum(x * w, 0) + 1, rtol=1e-6)
    assert fn.cache_info().misses == 4
    with pytest.raises(NetclError, match="queue"):
        fn(leaf(queues[0], x), leaf(cpu_queue, w))


def test_two_threads(queue):
    fn = jit_compile(lambda x, alpha: ag.exp(x * alpha) - 1.0)
    errors = []

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            for n in range(1, 25):
                a, alpha = rng.normal(size=(n % 5 + 1, 7)).astype(np.float32), float(rng.uniform(0.1, 1))
                value, grads = gradients(lambda t, s=alpha: fn(t, s), queue, [a])
                np.testing.assert_allclose(value, np.expm1(a * alpha), rtol=1e-4, atol=1e-5)
                g = np.cos(np.arange(a.size)).reshape(a.shape)
                np.testing.assert_allclose(grads[0], g * alpha * np.exp(a * alpha), rtol=1e-4, atol=1e-5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
