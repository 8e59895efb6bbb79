"""jit_compile: dtypes, views, numbers, structures, captured parameters and methods."""

import numpy as np
import pytest
from compiled import RNG, agree, leaf, normal

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.tensor import Tensor
from netcl.runtime.cache import cacher


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_dtypes(queue, dtype):
    agree(lambda x, y: ag.silu(x * y) - ag.maximum(x, 0.25), queue, normal(9, 17, dtype=dtype), normal(17, dtype=dtype),
          tolerance={"bfloat16": 3.2e-2, "float16": 4e-3}.get(dtype, 1e-5))  # fmt: skip


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
