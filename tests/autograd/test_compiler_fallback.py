"""Decorating is always safe: what is traced computes the same, and what fails runs as it is and is counted."""

import random
from typing import NamedTuple

import numpy as np
import pytest
from compiled import gradients, leaf, normal
from scipy import special

import netcl.autograd as ag
from netcl import nn
from netcl.autograd.compiler import jit_compile
from netcl.core import debug
from netcl.core.errors import IndexOutOfRange, OutOfMemoryError
from netcl.core.tensor import Tensor

IMAGE, ROWS, MASK = normal(1, 2, 6, 7), normal(4, 3), np.array([[False, False, True, False]])
LABELS, WEIGHTS, QKV = np.int32([0, 1, 2, 0]), np.float32([1, 2, 3]), [normal(1, 2, 4, 8) for _ in range(3)]


def cross_entropy(weights=None):
    weight = np.ones(3) if weights is None else weights
    lost = -special.log_softmax(ROWS.astype(np.float64), axis=1)[range(4), LABELS] * weight[LABELS]
    return [lost.sum() / weight[LABELS].sum()]


def pooled(x, reduce, pad=0):
    """Windows of 3 with stride 2, the last of which may be cut; padding is left out of `reduce`."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=np.nan)
    rows, columns = (range(0, -(-(n - 3) // 2) * 2 + 1, 2) for n in x.shape[2:])
    return np.array([[[[reduce(image[i : i + 3, j : j + 3]) for j in columns] for i in rows] for image in x[0]]])


def attention():
    q, k, v = QKV
    scores = np.where(MASK[:, None, None, :], -np.inf, q @ k.transpose(0, 1, 3, 2) / np.sqrt(8))
    return special.softmax(scores, axis=-1) @ v


def adaptive(x):
    rows, columns = [(0, 3), (3, 6)], [(0, 3), (2, 5), (4, 7)]
    return np.array([[[[image[a:b, c:d].mean() for c, d in columns] for a, b in rows] for image in x[0]]])


CASES = {  # function, arrays, right value, dtype
    "cross_entropy of half": (lambda x, t: ag.cross_entropy(ag.astype(x, "float16"), t), [ROWS, LABELS],
                              cross_entropy()),
    "cross_entropy of bfloat16": (lambda x, t: ag.cross_entropy(ag.astype(x, "bfloat16"), t), [ROWS, LABELS],
                                  cross_entropy()),
    "cross_entropy weighted": (lambda x, t, w: ag.cross_entropy(x, t, weight=w), [ROWS, LABELS, WEIGHTS],
                               cross_entropy(WEIGHTS)),
    "nll_loss weighted": (lambda x, t, w: ag.nll_loss(ag.log_softmax(x), t, weight=w), [ROWS, LABELS, WEIGHTS],
                          cross_entropy(WEIGHTS)),
    "matmul of vectors": (lambda a, b: ag.matmul(a, b) * 2.0, [ROWS[:, 0], ROWS[:, 1]], 2 * ROWS[:, 0] @ ROWS[:, 1]),
    "matmul with a vector": (lambda a, b: ag.matmul(a, b) * 2.0, [ROWS, ROWS[0]], 2 * ROWS @ ROWS[0]),
    "attention with a mask": (lambda q, k, v, m: ag.attention(q, k, v, key_padding_mask=m), [*QKV, MASK], attention()),
    "batch_norm with statistics": (lambda x, m, v: ag.batch_norm(x, None, None, m, v, training=False, eps=0.0) * 1.0,
                                   [ROWS, WEIGHTS, WEIGHTS], (ROWS - WEIGHTS) / np.sqrt(WEIGHTS)),
    "pad": (lambda x: ag.pad(x * 2.0, ((1, 2), (-1, 1)), value=3.0), [ROWS],
            np.pad(2 * ROWS[:, 1:], ((1, 2), (0, 1)), constant_values=3)),
    "reflected pad": (lambda x: ag.pad(x * 2.0, ((1, 2),), "reflect"), [ROWS],
                      np.pad(2 * ROWS, ((0, 0), (1, 2)), "reflect")),
    "adaptive_avg_pool2d": (lambda x: ag.adaptive_avg_pool2d(x * 2.0, (2, 3)), [IMAGE], 2 * adaptive(IMAGE)),
    "global_avg_pool2d": (lambda x: ag.global_avg_pool2d(x * 2.0), [IMAGE], 2 * IMAGE.mean((2, 3), keepdims=True)),
    "max_pool2d up": (lambda x: ag.max_pool2d(x * 2.0, 3, 2, ceil_mode=True), [IMAGE], 2 * pooled(IMAGE, np.nanmax)),
    "avg_pool2d up": (lambda x: ag.avg_pool2d(x * 2.0, 3, 2, 1, ceil_mode=True, count_include_pad=False), [IMAGE],
                      2 * pooled(IMAGE, np.nanmean, 1)),
    "argmax": (lambda x: ag.argmax(x * 2.0, axis=1), [ROWS], ROWS.argmax(1)),
    "argmin, axes kept": (lambda x: ag.argmin(x * 2.0, axis=0, keepdims=True), [ROWS], ROWS.argmin(0, keepdims=True)),
    "argmax of all": (lambda x: ag.argmax(x), [ROWS], [ROWS.argmax()]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_traced_is_as_without_the_compiler(queue, name):
    fn, arrays, wanted = CASES[name]
    compiled = jit_compile(fn)
    tensors = [Tensor.from_host(queue, np.ascontiguousarray(a)) for a in arrays]
    plain = fn(*[ag.tensor(t) for t in tensors])
    for _ in range(2):
        got = compiled(*tensors)
        assert (got.shape, got.dtype) == (plain.shape, plain.dtype)
        np.testing.assert_allclose(got.to_host(), wanted, rtol=2e-2 if "of half" in name or "bfloat" in name else 2e-4,
                                   atol=1e-5)  # fmt: skip
    assert compiled.cache_info().unfused == 0, compiled.reasons
    if plain.dtype.kind == "f":
        floats = [a for a in arrays if a.dtype == np.float32]
        rest = [Tensor.from_host(queue, a) for a in arrays if a.dtype != np.float32]
        if name not in ("cross_entropy weighted", "nll_loss weighted", "batch_norm with statistics"):
            pairs = zip(gradients(lambda *x: fn(*x, *rest), queue, floats)[1],
                        gradients(lambda *x: compiled(*x, *rest), queue, floats)[1], strict=True)  # fmt: skip
            for a, b in pairs:
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_a_length_that_depends_on_the_data_is_named(queue):
    fn = jit_compile(lambda x, m: ag.masked_select(x, m) * 2.0)
    x, m = Tensor.from_host(queue, ROWS), Tensor.from_host(queue, ROWS > 0)
    for _ in range(2):
        np.testing.assert_allclose(fn(ag.tensor(x), m).to_host(), 2 * ROWS[ROWS > 0], rtol=1e-6)
    assert fn.cache_info().unfused == 2 and "masked_select's result depends on the data" in fn.reasons[0]


@pytest.mark.parametrize("name", ["nonzero", "argwhere"])
def test_positions_of_what_is_not_zero_run_unfused(queue, name):
    fn, x = jit_compile(getattr(ag, name)), Tensor.from_host(queue, ROWS)
    np.testing.assert_array_equal(fn(ag.tensor(x)).to_host(), np.argwhere(ROWS))
    assert f"{name}'s result depends on the data" in fn.reasons[0]


def test_counts_of_positions_run_unfused(queue):
    fn, x = jit_compile(lambda x: ag.bincount(x)), Tensor.from_host(queue, np.array([3, 1, 3]))
    assert fn(ag.tensor(x)).to_host().tolist() == [0, 1, 0, 2] and "bincount's result depends on" in fn.reasons[0]


class Pair(NamedTuple):
    """Two results."""

    twice: object
    same: object


def test_named_tuples_go_in_and_out(queue):
    fn = jit_compile(lambda pair: Pair(pair.twice * 2.0, [pair.same]))
    x, y = (leaf(queue, normal(3)) for _ in range(2))
    for _ in range(2):
        found = fn(Pair(x, y))
        assert type(found) is Pair and found.same[0] is y
        np.testing.assert_allclose(found.twice.to_host(), 2 * x.to_host(), rtol=1e-6)
    assert fn.cache_info() == (1, 1, 0, 1)


def _own_pass(x, w):
    with ag.Tape() as tape:
        y = (x * w).sum()
    tape.backward(y)
    return w.grad


def _retained(x, w):
    h = x * w
    h.retain_grad()
    return (h * 2.0).sum(), h


def _hooked(x, w):
    h = x * w
    h.register_hook(lambda g: g * 10.0)
    return (h * 2.0).sum()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_own_pass, "opens a tape"),
        (_retained, "calls retain_grad"),
        (_hooked, "calls register_hook"),
        (lambda x, w: ag.grad((x * w).sum(), w, allow_unused=True)[0], "calls grad"),
        (lambda x, w: ag.checkpoint(lambda v: (v * w).sum(), x), "calls checkpoint"),
    ],
    ids=["backward", "retain_grad", "register_hook", "grad", "checkpoint"],
)
def test_work_on_the_graph_runs_unfused(queue, function, reason):
    """A trace has no graph: it would lose gradients without a word."""
    x, found = ag.tensor(Tensor.from_host(queue, np.array([3.0, 4.0]))), []
    compiled = jit_compile(function)
    for call in (function, compiled):
        w = ag.tensor(Tensor.from_host(queue, np.array([1.0, 2.0])), requires_grad=True)
        with ag.Tape() as tape:
            result = call(x, w)
        several = result if isinstance(result, tuple) else (result,)
        if isinstance(several[0], ag.Node):
            tape.backward(several[0])
        found.append([several[0].to_host(), w.grad is not None and w.grad.to_host()])
        assert len(several) == 1 or several[1].grad.to_host().tolist() == [2, 2]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(b, a)
    assert compiled.cache_info().unfused == 1 and reason in compiled.reasons[0]


def test_results_inside_other_objects_run_unfused(queue):
    class Box:
        def __init__(self, held):
            self.held = held

    fn = jit_compile(lambda x: Box(x * 2.0))
    assert fn(leaf(queue, np.float32([3]))).held.to_host().tolist() == [6]
    assert "returns a Box" in fn.reasons[0]


def broken(queue, result):
    """An operation with a wrong shape rule, so that a program of it fails when it runs."""
    name = f"broken_{random.random()}"
    ag.register_op(name, lambda x: x * 2.0, lambda g, y, x: g * 2.0, shape=lambda x: result(x))
    return name


def test_a_program_that_fails_at_its_first_run_is_undone(queue, capsys):
    name = broken(queue, lambda x: ((7, 7), x.dtype))
    norms = [nn.BatchNorm1d(queue, 3) for _ in range(2)]

    def forward(norm, x):
        return ag.apply_op(name, norm(x * 1.5)) + 1.0

    fn, before = jit_compile(forward), debug.set_level(1)
    try:
        for _ in range(3):
            nodes = [leaf(queue, ROWS) for _ in range(2)]
            grads = []
            for call, norm, node in ((fn, norms[0], nodes[0]), (forward, norms[1], nodes[1])):
                with ag.Tape() as tape:
                    y = ag.sum(ag.square(call(norm, node)))
                tape.backward(y)
                grads.append(node.grad.to_host())
            np.testing.assert_allclose(grads[0], grads[1], rtol=1e-5, atol=1e-6)
            for buffer in ("running_mean", "running_var"):
                pair = [getattr(norm, buffer).to_host() for norm in norms]
                np.testing.assert_allclose(*pair, rtol=1e-6)
    finally:
        debug.set_level(before)
    assert fn.cache_info()[:3] == (0, 1, 3)
    assert capsys.readouterr().err.count("running unfused") == 1


def test_without_fall_back_the_reason_is_raised(queue):
    name = broken(queue, lambda x: ((7, 7), x.dtype))
    with pytest.raises(Exception, match="as traced"):
        jit_compile(lambda x: ag.apply_op(name, x), fallback=False)(leaf(queue, ROWS))


def test_a_rule_that_breaks_runs_unfused(queue):
    name = broken(queue, lambda x: 1 / 0)
    fn = jit_compile(lambda x: ag.apply_op(name, x))
    np.testing.assert_allclose(fn(leaf(queue, ROWS)).to_host(), 2 * ROWS)
    assert fn.cache_info().unfused == 1


def test_the_functions_own_errors_come_as_without_the_compiler(queue):
    class Mine(Exception):
        pass

    def fails(x):
        if x.shape[0] > 2:
            raise Mine("too long")
        return x * 2.0

    def deep(x):
        return deep(x)

    fn = jit_compile(fails)
    for _ in range(2):
        with pytest.raises(Mine, match="too long"):
            fn(leaf(queue, normal(3)))
        assert fn(leaf(queue, normal(2))).shape == (2,)
    with pytest.raises(RecursionError):
        jit_compile(deep)(leaf(queue, normal(3)))
    lookup = jit_compile(lambda t, i: ag.take(t, i) * 2.0)
    table = Tensor.from_host(queue, ROWS)
    for _ in range(2):
        with pytest.raises(IndexOutOfRange):
            lookup(table, Tensor.from_host(queue, np.int32([7]))).to_host()
    np.testing.assert_allclose(lookup(table, Tensor.from_host(queue, np.int32([1]))).to_host(), 2 * ROWS[[1]])
    assert lookup.cache_info().currsize == 1


def test_missing_memory_is_no_reason_to_run_unfused(queue, monkeypatch):
    from netcl.autograd.jit.program import Program

    fn, run = jit_compile(lambda x: x * 2.0), Program.run

    def full(self, *args):
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(Program, "run", full)
    with pytest.raises(OutOfMemoryError):
        fn(leaf(queue, ROWS))
    monkeypatch.setattr(Program, "run", run)
    np.testing.assert_allclose(fn(leaf(queue, ROWS)).to_host(), 2 * ROWS)
    assert fn.cache_info().unfused == 0


def test_numbers_of_another_class_give_another_step(queue):
    name = f"scale_{random.randrange(10**9)}"
    ag.compiler.register_primitive(name, lambda a, k: f"MUL({a[0]}, {a[1]})", lambda a, g, k, o: ["", ""], 2)
    x = Tensor.from_host(queue, np.int32([1, 2]))
    assert ag.apply_op(name, x, 1).dtype == np.int32
    assert ag.apply_op(name, x, 1.0).dtype == np.result_type(np.int32, np.float64)
