"""What attention takes beside q, k and v: masks, cap, sinks, slopes, alignments and heads of v of another size.

Results and gradients on every queue and kernel family against the whole map in float64.
"""

import numpy as np
import pytest
from attention_reference import Case, check_scores, upload
from families import FAMILIES, POSING, queue_of

from netcl import autograd as ag
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.attend.op import attention, attention_grad
from netcl.ops.create.random import Generator


@pytest.fixture(params=FAMILIES, scope="session")
def queue(request):
    """A queue of every backend, device and kernel family."""
    return queue_of(request.param)


FULL = (2, 4, 37, 70)
SOME = {"dropout": 0.25}
UPPER_LEFT = {"causal": True, "align": "upper_left"}
CASES = [
    Case("mask", mask=FULL),
    Case("mask of all samples", mask=(1, 4, 37, 70), options={"causal": True}),
    Case("mask of all heads", mask=(2, 1, 37, 70), kind="bool"),
    Case("mask of the lengths", mask=(37, 70), kind="hide", padding=True),
    Case("mask of keys", mask=(2, 1, 1, 70), kind="add", options={"window": 20}),
    Case("mask of keys alone", mask=(70,), kind="bool", options={"causal": True, "scale": 0.3}),
    Case("mask of queries", mask=(4, 37, 1)),
    Case("mask of heads", mask=(2, 4, 1, 1)),
    Case("lowest floats", mask=(2, 1, 1, 70), kind="lowest"),
    Case("upper left", options=UPPER_LEFT),
    Case("upper left, fewer keys", (1, 2, 1, 90, 41, 16, 16), options=UPPER_LEFT | {"window": 9}),
    Case("cap", options={"softcap": 1.5}),
    Case("cap and mask", mask=(2, 4, 37, 70), options={"softcap": 2.0, "causal": True}),
    Case("sinks", sinks=True, options={"causal": True}),
    Case("sinks without keys", (1, 2, 2, 50, 20, 8, 8), sinks=True, options={"causal": True}, padding=True),
    Case("slopes", slopes=(4,), options={"causal": True}),
    Case("slopes of samples", slopes=(2, 4), options={"align": "upper_left"}),
    Case("wide values", (2, 4, 2, 37, 70, 16, 40)),
    Case("narrow values", (2, 4, 2, 70, 70, 40, 7), options={"causal": True}),
    Case("all at once", (2, 4, 2, 70, 37, 24, 33), (2, 1, 70, 37), "hide", {"softcap": 3.0, "window": 30}, True, (2, 4),
         True),
    Case("few queries", (2, 4, 2, 3, 150, 24, 33), (2, 4, 3, 150), "hide", {"softcap": 3.0, "causal": True}, True, (4,),
         True),
    Case("one query", (2, 4, 1, 1, 70, 16, 24), (2, 1, 1, 70), "bool", {"causal": True}, True),
    Case("dropout", options={"dropout": 0.4}),
    Case("dropout in a window", (1, 2, 1, 50, 61, 16, 16), options={"dropout": 0.3, "causal": True, "window": 11}),
    Case("dropout of few", (1, 4, 2, 3, 150, 24, 33), (4, 1, 150), options=SOME | {"window": 77}, slopes=(4,)),
    Case("dropout and all", (2, 4, 2, 37, 70, 24, 33), (2, 1, 37, 70), "hide", SOME | {"softcap": 3.0}, True, (2, 4),
         True),
    *(Case(f"{t} dropout", (1, 4, 2, 40, 70, 16, 16), (40, 70), "add", SOME, dtype=t)
      for t in ("float16", "bfloat16", "float64")),
    *(Case(f"{t} all", (1, 4, 2, 40, 70, 24, 33), (4, 40, 70), k, {"softcap": 3.0, "causal": True}, True, (4,), dtype=t)
      for t, k in (("float16", "add"), ("bfloat16", "float32"), ("float64", "add"))),
    *(Case(f"{t} few", (1, 4, 2, 3, 70, 24, 33), (4, 3, 70), "add", {"softcap": 3.0}, True, (4,), dtype=t)
      for t in ("float16", "bfloat16", "float64")),
]  # fmt: skip
POSED = [c for c in CASES if c.name in ("mask of keys", "all at once", "dropout and all")]
ALL = [(f, c) for f in FAMILIES for c in (POSED if f.startswith(POSING) else CASES)]


@pytest.mark.parametrize(("queue", "case"), ALL, ids=str, indirect=["queue"])
def test_scores(queue, case):
    check_scores(queue, case)


def test_views(queue):
    """Tensors and a mask whose axes were swapped: strides in the place of copies."""
    check_scores(
        queue,
        Case("views", (2, 4, 2, 9, 21, 16, 24), mask=(1, 4, 9, 21)),
        through=lambda t: t.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2),
    )


def test_no_keys_and_no_queries(queue):
    for sizes in ((1, 2, 2, 3, 0, 8, 4), (1, 2, 2, 0, 5, 8, 4), (0, 2, 2, 3, 5, 8, 4)):
        b, h, _, tq, tk, *_ = sizes
        check_scores(queue, Case("empty", sizes, mask=(b, h, tq, tk), sinks=True, slopes=(h,)))


def test_a_boolean_mask_is_true_where_a_key_is_seen(queue):
    """As in PyTorch's scaled_dot_product_attention; `key_padding_mask` is the other way round. Rows of false give 0."""
    q, k, v, _ = upload(queue, *Case("rule", (1, 1, 1, 3, 5, 8, 8)).arrays()[0])
    mask = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
    o, lse = attention(q, k, v, Tensor.from_host(queue, mask))
    np.testing.assert_allclose(o.to_host()[0, 0, 1], v.to_host()[0, 0, 3], rtol=1e-6)
    assert (o.to_host()[0, 0, 2] == 0).all() and lse.to_host()[0, 0, 2] == -np.inf
    few = k[:, :, ::2][:, :, :2], v[:, :, ::2][:, :, :2]
    np.testing.assert_allclose(o.to_host()[0, 0, 0], attention(q[:, :, :1], *few)[0].to_host()[0, 0, 0], rtol=1e-5)


def test_rows_of_the_lowest_float_are_finite(queue):
    """Such a row is even over all keys, as in plain arithmetic; no gradient without an upstream one."""
    (q, k, v, g), *_ = Case("low", (1, 1, 1, 4, 9, 8, 8)).arrays()
    mask = np.zeros((4, 9), np.float32)
    mask[1] = np.finfo(np.float32).min
    g[0, 0, 1] = 0
    q, k, v, g, mask = upload(queue, q, k, v, g, mask)
    o, lse = attention(q, k, v, mask)
    np.testing.assert_allclose(o.to_host()[0, 0, 1], v.to_host().mean((0, 1, 2)), rtol=1e-5, atol=1e-6)
    rows = [0, 2, 3]
    few = attention(q[:, :, 2:], k, v, align="upper_left")[0]
    np.testing.assert_allclose(o.to_host()[0, 0, 2:], few.to_host()[0, 0], rtol=1e-5, atol=1e-6)
    for t in attention_grad(g, q, k, v, o, lse, mask, needs=(True,) * 4):
        assert np.isfinite(t.to_host()).all()
    assert np.isfinite(lse.to_host()[0, 0, rows]).all()


@pytest.mark.parametrize("form", [lambda fn: fn, ag.jit_compile])
def test_gradients_of_nodes(queue, form):
    """By random directions: mask, sinks and slopes with and without the others."""
    (q, k, v, _), mask, sinks, slopes, _ = Case(
        "nodes", (1, 2, 1, 5, 7, 8, 4), (2, 1, 7), sinks=True, slopes=(2,)
    ).arrays()
    q, k, v, mask, sinks, slopes = upload(queue, *(a.astype("float64") for a in (q, k, v, mask, sinks, slopes)))
    hidden = Tensor.from_host(queue, np.random.default_rng(2).random((5, 7)) < 0.6)
    one = lambda *o, **s: ag.attention(*o, causal=True, softcap=2.0, **s)  # noqa: E731
    every = lambda q, k, v, m, s, a: one(q, k, v, m, sinks=s, alibi_slopes=a)  # noqa: E731
    assert ag.gradcheck(form(every), [q, k, v, mask, sinks, slopes])
    assert ag.gradcheck(form(lambda m: one(q, k, v, m)), mask)
    assert ag.gradcheck(form(lambda q, s: one(q, k, v, hidden, sinks=s)), [q, sinks])
    assert ag.gradcheck(form(lambda v, a: ag.attention(q, k, v, alibi_slopes=a, align="upper_left")), [v, slopes])


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_draws_anew_and_backward_the_same(queue, compiled):
    """Plain and in a recorded step; the gradient of the sum is what each value got, 0 where none."""
    q = Tensor.zeros(queue, (1, 2, 6, 4))
    v = ag.tensor(Tensor.ones(queue, (1, 2, 6, 1)), requires_grad=True)
    generator = Generator(3)

    def step(q):
        with ag.Tape() as tape:
            o = ag.attention(q, q, v, dropout=0.5, generator=generator)
            tape.backward(ag.sum(o))
        grad, v.grad = v.grad, None
        return o.value, grad

    run, seen = ag.CompiledStep(step) if compiled else step, set()
    for _ in range(5):
        o, grad = (t.to_host() for t in run(q))
        np.testing.assert_allclose(o.sum(), grad.sum(), rtol=1e-5)
        seen.add(o.tobytes())
    assert len(seen) == 5 and generator.offset == (5 if not compiled else generator.offset // 24) * 24


def test_dropout_at_its_ends(queue):
    q = Tensor.from_host(queue, np.random.default_rng(1).standard_normal((1, 2, 5, 4)).astype("float32"))
    np.testing.assert_array_equal(attention(q, q, q, dropout=0.0)[0].to_host(), attention(q, q, q)[0].to_host())
    assert (attention(q, q, q, dropout=1.0)[0].to_host() == 0).all()
    o, lse = attention(q, q, q, dropout=0.5)
    np.testing.assert_allclose(lse.to_host(), attention(q, q, q)[1].to_host(), rtol=1e-5)
    with pytest.raises(
        ValueError, match="attention_grad: expected the draw of the forward pass with dropout, got None"
    ):
        attention_grad(q, q, q, q, o, lse, dropout=0.5)
    with pytest.raises(ValueError, match=r"attention: expected a probability in \[0, 1\], got 1.5"):
        attention(q, q, q, dropout=1.5)


def test_errors(queue):
    q, k, v, _ = upload(queue, *Case("errors", (2, 4, 2, 5, 6, 8, 8)).arrays()[0])
    ones = lambda *shape, dtype="float32": Tensor.ones(queue, shape, dtype)  # noqa: E731
    for mask in (ones(2, 4, 5, 5), ones(3, 1, 5, 6), ones(1, 2, 4, 5, 6)):
        with pytest.raises(
            ShapeError, match=r"attention: expected a mask that broadcasts to \(B, H, Tq, Tk\) = \(2, 4, 5, 6\)"
        ):
            attention(q, k, v, mask)
    with pytest.raises(DTypeError, match="attention: expected a mask of bools, true where a key is seen, or of floats"):
        attention(q, k, v, ones(5, 6, dtype="int32"))
    with pytest.raises(ShapeError, match=r"expected sinks of shape \(4,\), got \(2,\)"):
        attention(q, k, v, sinks=ones(2))
    with pytest.raises(ShapeError, match=r"expected alibi_slopes of shape \(4,\) or \(2, 4\), got \(2,\)"):
        attention(q, k, v, alibi_slopes=ones(2))
    with pytest.raises(DTypeError, match="expected floating sinks, got int32"):
        attention(q, k, v, sinks=ones(4, dtype="int32"))
    with pytest.raises(ValueError, match="expected align 'lower_right' or 'upper_left', got 'left'"):
        attention(q, k, v, align="left")
    with pytest.raises(ValueError, match="expected a softcap above 0, got 0"):
        attention(q, k, v, softcap=0)
    with pytest.raises(ShapeError, match=r"expected k \(2, H, T, 8\) and v \(2, H, T, Dv\) of one H and T"):
        attention(q, k, v[:, :, :5])
