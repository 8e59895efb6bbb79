"""jit_compile: the specification's examples, launches and bytes, arguments, fallbacks, cache, devices and threads."""

import threading

import numpy as np
import pyopencl as cl
import pytest

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
from netcl.core import debug
from netcl.core.backend import opencl
from netcl.core.errors import BuildError, NetclError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.tensor import Tensor
from netcl.runtime.cache import cacher

RNG = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def leaf(queue, array):
    return ag.tensor(Tensor.from_host(queue, array), requires_grad=array.dtype.kind == "f")


def gradients(fn, queue, arrays, **kwargs):
    """Value and gradients of sum(fn * weights) with fixed weights."""
    nodes = [leaf(queue, a) for a in arrays]
    with ag.Tape() as tape:
        y = fn(*nodes, **kwargs)
    weights = np.cos(np.arange(y.value.size)).reshape(y.shape).astype(y.dtype)
    tape.backward(y, Tensor.from_host(queue, weights))
    return y.value.to_host(), [None if n.grad is None else n.grad.to_host() for n in nodes]


def agree(fn, queue, *arrays, tolerance=1e-5, **kwargs):
    """The compiled function fuses, and equals the eager one in value and gradients."""
    compiled = jit_compile(fn)
    wanted, wanted_grads = gradients(fn, queue, arrays, **kwargs)
    found, grads = gradients(compiled, queue, arrays, **kwargs)
    assert compiled.cache_info().unfused == 0, compiled.reasons
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    for a, b in zip(grads, wanted_grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=10 * tolerance)
    return compiled


@pytest.fixture
def launches(cl_queue):
    """(kernel name, bytes of the buffers it names) of every launch, in blocks of 64 x 64 float32."""
    log, block = [], Tensor.empty(cl_queue, (64, 64))

    def hook(kernel, queue, size, local, args, event):
        log.append((kernel.name, sum(debug.memory_of(args).values()) / block.buffer.size))

    opencl.hooks.append(hook)
    yield log
    opencl.hooks.remove(hook)


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


def test_a_primitive_that_is_not_fusible_is_a_boundary(queue):
    register_primitive("alone", lambda args, attrs: f"EXP({args[0]})", lambda args, g, attrs, out: [f"MUL({g}, {out})"],
                       arity=1, fusible=False)  # fmt: skip
    compiled = jit_compile(lambda t: ag.apply_op("alone", t * 2.0) + 1.0)
    x = normal(4)
    np.testing.assert_allclose(compiled(Tensor.from_host(queue, x)).value.to_host(), np.exp(2 * x) + 1, rtol=1e-5)
    assert compiled.cache_info().unfused == 0
    text = compiled.explain()
    assert "alone: its own kernel, a boundary: registered as not fusible" in text
    assert "fused_0: map of mul_scalar_right" in text
    assert "fused_1: map of add_scalar_right" in text


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
    from netcl.autograd.primitive import PRIMITIVES

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
    assert seen == [("relu", "mul_scalar_right", (4, 8), np.float32)]
    assert not tracing_context.active
    assert [name for name, _ in launches] == ["fused_0"]


# -- launches and bytes ------------------------------------------------------------------------------------------------


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


# -- what comes in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(queue, dtype):
    agree(lambda x, y: ag.silu(x * y) - ag.maximum(x, 0.25), queue, normal(9, 17, dtype=dtype), normal(17, dtype=dtype),
          tolerance=4e-3 if dtype == "float16" else 1e-5)  # fmt: skip


def test_mixed_dtypes_keep_their_compute_types(queue):
    x, k = normal(6, 5), RNG.integers(-4, 5, (6, 5)).astype(np.int32)
    agree(lambda a, b: a * (b + 1) + (b > 0) * a, queue, x, k, tolerance=1e-5)
    big = np.array([2**40, -(2**40), 3], np.int64)
    y = jit_compile(lambda t: t * 3 + 1)(Tensor.from_host(queue, big))
    np.testing.assert_array_equal(y.value.to_host(), big * 3 + 1)
    small = np.array([100, 100, -100], np.int8)
    y = jit_compile(lambda t: t + t)(Tensor.from_host(queue, small))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y.value.to_host(), small + small)
    flags = np.array([True, False, True])
    y = jit_compile(lambda t, u: ag.where(t, u, 0.0))(
        Tensor.from_host(queue, flags), Tensor.from_host(queue, normal(3))
    )
    assert y.value.dtype == np.float32


def test_views_are_read_where_they_are(cl_queue, launches):
    x, w = normal(40, 64), normal(64, 1)
    fn = jit_compile(lambda a, b: ag.relu(a * b) + 1.0)
    for view in (lambda t: t[::2, 3:35], lambda t: t.T[3:35, ::2], lambda t: t[7:8].expand(20, 64)[:, :32]):
        t = view(Tensor.from_host(cl_queue, x))
        array = t.to_host()
        s = Tensor.from_host(cl_queue, w)[: t.shape[0]]
        fn(t, s)
        launches.clear()
        y = fn(t, s)
        assert [name for name, _ in launches] == ["fused_0"]
        np.testing.assert_allclose(y.value.to_host(), np.maximum(array * w[: t.shape[0]], 0) + 1, rtol=1e-6)


def test_a_changed_float_changes_the_result_and_builds_nothing(queue):
    fn = jit_compile(lambda x, alpha, *, beta=1.0: ag.leaky_relu(x * (2 * alpha - 1), slope=beta) + alpha)
    x = normal(33)
    t = Tensor.from_host(queue, x)
    fn(t, 0.5, beta=0.1)
    builds = cacher.stats.builds
    for alpha, beta in ((0.25, 0.3), (1.5, 0.1), (-2.0, 7.0)):
        z = x * (2 * alpha - 1)
        wanted = np.where(z < 0, beta * z, z) + alpha
        np.testing.assert_allclose(fn(t, alpha, beta=beta).value.to_host(), wanted, rtol=1e-5, atol=1e-6)
    assert cacher.stats.builds == builds
    assert fn.cache_info()[:2] == (3, 1)


def test_a_float_that_decides_or_is_an_int_joins_the_key(queue):
    def fn(x, alpha, n):
        return x * alpha if alpha > 1.0 else x + n * np.sqrt(alpha)

    compiled, x = jit_compile(fn), normal(5)
    t = Tensor.from_host(queue, x)
    compiled(t, 2.0, 1), compiled(t, 0.25, 1)
    builds = cacher.stats.builds
    for alpha, n in ((3.0, 1), (0.5, 1), (0.5, 4), (0.75, 2)):
        np.testing.assert_allclose(compiled(t, alpha, n).value.to_host(), fn(x, alpha, n), rtol=1e-6)
    assert cacher.stats.builds == builds
    assert compiled.cache_info().unfused == 0


def test_gradients_follow_the_float_of_their_call(queue):
    fn = jit_compile(lambda x, alpha: x * x * alpha)
    x = leaf(queue, normal(6))
    with ag.Tape() as tape:
        first = fn(x, 2.0)
        second = fn(x, 5.0)
        total = first + second
    tape.backward(total)
    np.testing.assert_allclose(x.grad.to_host(), 14 * x.value.to_host(), rtol=1e-5)


def test_keyword_tensors_and_structures(queue):
    fn = jit_compile(lambda pair, *, other, mode: pair[0] * pair[1]["w"] + (other if mode == "plus" else -other))
    a, b, c = (Tensor.from_host(queue, normal(4)) for _ in range(3))
    for mode, sign in (("plus", 1), ("minus", -1)):
        y = fn((a, {"w": b}), other=c, mode=mode).value.to_host()
        np.testing.assert_allclose(y, a.to_host() * b.to_host() + sign * c.to_host(), rtol=1e-5, atol=1e-6)
    assert fn.cache_info().misses == 2


def test_captured_parameters_are_read_at_each_call_and_get_gradients(queue):
    w = ag.Parameter(Tensor.from_host(queue, np.float32([1, 2, 3])))
    fn = jit_compile(lambda x: x * w)
    x = Tensor.from_host(queue, np.float32([1, 1, 2]))
    fn(x)
    w.value = Tensor.from_host(queue, np.float32([5, 6, 7]))
    with ag.Tape() as tape:
        y = fn(x)
    np.testing.assert_array_equal(y.value.to_host(), [5, 6, 14])
    tape.backward(y)
    np.testing.assert_array_equal(w.grad.to_host(), [1, 1, 2])


def test_detach_and_no_grad_inside(queue):
    def fn(x):
        with ag.no_grad():
            scale = ag.exp(x)
        return x * scale + ag.square(x.detach())

    agree(fn, queue, normal(5, 3))


def test_methods_and_nested_compiled_functions(cl_queue, launches):
    class Scale:
        def __init__(self):
            self.training = True

        @jit_compile
        def run(self, x):
            return inner(x) * (2.0 if self.training else 3.0)

    inner = jit_compile(lambda x: ag.exp(x) + 1.0)
    scale, x = Scale(), Tensor.from_host(cl_queue, np.zeros(64, np.float32))
    assert scale.run(x).value.to_host()[0] == 4
    scale.training = False
    launches.clear()
    assert scale.run(x).value.to_host()[0] == 6
    assert [name for name, _ in launches] == ["fused_0"]


def test_an_input_may_come_back(queue):
    x = leaf(queue, normal(3))
    same, twice, number = jit_compile(lambda t: (t, t * 2.0, 3))(x)
    assert same is x
    assert number == 3
    np.testing.assert_allclose(twice.value.to_host(), 2 * x.value.to_host())


# -- fallbacks and errors ----------------------------------------------------------------------------------------------


def branch(x):
    return x * 2.0 if (x > 0).value.to_host().all() else x


def truth(x):
    if ag.mean(x) > 0:
        return x * 2.0
    return x


def host(x):
    return x * float(x.sum())


def test_what_cannot_be_traced_runs_as_it_is_and_names_the_line(queue, capsys):
    before = debug.set_level(1)
    try:
        for fn, reason in ((branch, "host"), (truth, "branches on a result"), (host, "host")):
            compiled = jit_compile(fn)
            x = np.float32([1, 2, 3])
            for _ in range(2):
                np.testing.assert_allclose(compiled(leaf(queue, x)).value.to_host(), fn(leaf(queue, x)).value.to_host())
            assert compiled.cache_info().unfused == 2
            assert reason in compiled.reasons[0]
            assert f"{__file__}:{fn.__code__.co_firstlineno + 1}" in compiled.reasons[0]
            assert f"{fn.__name__}: " in capsys.readouterr().err
            assert "ran unfused" in compiled.explain()
            capsys.readouterr()
    finally:
        debug.set_level(before)


def test_an_unknown_operation_runs_unfused(queue):
    ag.register_op("cube", lambda x: x * x * x, lambda g, y, x: g * x * x * 3)
    compiled = jit_compile(lambda x: ag.apply_op("cube", x) + 1.0)
    x = normal(4)
    value, grads = gradients(compiled, queue, [x])
    np.testing.assert_allclose(value, x**3 + 1, rtol=1e-5)
    np.testing.assert_allclose(grads[0], 3 * x * x * np.cos(np.arange(4)), rtol=1e-4, atol=1e-6)
    assert compiled.cache_info().unfused == 1
    assert "'cube'" in compiled.reasons[0]
    with pytest.raises(NetclError, match="cube"):
        jit_compile(lambda x: ag.apply_op("cube", x), fallback=False)(leaf(queue, x))


def test_the_users_own_errors_come_through(queue):
    with pytest.raises(ShapeError, match="broadcast"):
        jit_compile(lambda x, y: x + y)(leaf(queue, normal(3)), leaf(queue, normal(4)))
    with pytest.raises(ZeroDivisionError):
        jit_compile(lambda x: x * (1 / 0))(leaf(queue, normal(3)))
    assert not tracing_context.active
    assert jit_compile(lambda: 3)() == 3


def test_a_result_from_outside_must_be_an_argument(queue):
    x = leaf(queue, normal(3))
    with ag.Tape() as tape:
        y = ag.exp(x)
        compiled = jit_compile(lambda t: t * y)
        z = compiled(x)
    tape.backward(z)
    assert "pass it as an argument" in compiled.reasons[0]
    value = x.value.to_host()
    np.testing.assert_allclose(x.grad.to_host(), np.exp(value) * (1 + value), rtol=1e-5)


def test_empty_tensors(queue):
    y = jit_compile(lambda x: ag.relu(x) + 1.0)(Tensor.from_host(queue, np.zeros((0, 3), np.float32)))
    assert y.shape == (0, 3)


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
    assert "fused_0: map of tanh mul_scalar_right; reads 1, writes 1, 512 bytes" in text
    assert "fused_1: map of add_scalar_right relu" in text
    assert "matmul: its own kernel, a boundary: not an elementwise primitive" in text
    assert "least possible 768" in text


# -- devices and threads -----------------------------------------------------------------------------------------------


def test_sub_devices_and_numpy_share_a_function(cl_queue, cpu_queue):
    device = cl_queue.device
    if device.max_compute_units < 2:
        pytest.skip("one compute unit cannot be split")
    parts = device.create_sub_devices([cl.device_partition_property.EQUALLY, 1])[:2]
    context = cl.Context(parts)
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
