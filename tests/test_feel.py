"""Tensors and nodes feel as PyTorch users are used to: names, formats, operations in place."""

import numpy as np
import pytest

import netcl as nc
from netcl import ag
from netcl.core.errors import DTypeError, GradientError, NumberOutOfRange, ShapeError

VALUES = np.float32([[1.5, -2.0, 3.0], [4.0, 5.0, -6.0]])
BOTH = pytest.mark.parametrize("wrap", [lambda x: x, ag.tensor], ids=["tensor", "node"])


@BOTH
def test_names(queue, wrap):
    x = wrap(nc.tensor(VALUES, queue=queue))
    assert (x.numel(), x.dim(), x.shape, x.ndim, x.size) == (6, 2, (2, 3), 2, 6)
    assert x.tolist() == VALUES.tolist() and x.view(3, 2).shape == (3, 2) and x.view(-1).shape == (6,)
    assert x.clamp(min=0).tolist() == VALUES.clip(min=0).tolist() and x.clamp(-1, 2).max().item() == 2
    assert x.cpu().queue.device is None and type(x.cpu()) is type(x)
    assert "<pre>" in x._repr_html_() and "&lt;" not in x._repr_html_()


@BOTH
def test_formats_and_numbers(queue, wrap):
    x = wrap(nc.tensor([2.6], queue=queue))
    assert f"{x:.3f}" == "2.600" and f"{x}" == str(x) and int(x) == 2 and float(x) == pytest.approx(2.6)
    with pytest.raises(ShapeError, match=r"format: expected a tensor with one element for '\.2f', got shape \(2, 3\)"):
        f"{wrap(nc.tensor(VALUES, queue=queue)):.2f}"


IN_PLACE = {
    "add_": (lambda x: x.add_(2.0), lambda a: a + 2),
    "sub_": (lambda x: x.sub_(x), lambda a: a - a),
    "mul_": (lambda x: x.mul_(-3), lambda a: a * -3),
    "div_": (lambda x: x.div_(2.0), lambda a: a / 2),
    "clamp_": (lambda x: x.clamp_(-1, 2), lambda a: a.clip(-1, 2)),
    "zero_": (lambda x: x.zero_(), lambda a: a * 0),
    "fill_": (lambda x: x.fill_(7), lambda a: a * 0 + 7),
    "copy_": (lambda x: x.copy_(nc.arange(3, queue=x.queue)), lambda a: a * 0 + np.arange(3)),
}


@BOTH
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(queue, wrap, name):
    change, expected = IN_PLACE[name]
    tensor = nc.tensor(VALUES, queue=queue)
    view, x = tensor[:, 1:], wrap(tensor)
    assert change(x) is x
    np.testing.assert_allclose(tensor.to_host(), expected(VALUES), rtol=1e-6)
    np.testing.assert_allclose(view.to_host(), expected(VALUES)[:, 1:], rtol=1e-6)


def test_in_place_on_a_view_changes_only_that(queue):
    x = nc.tensor(VALUES, queue=queue)
    x[:, 1].add_(10)
    assert x.tolist() == [[1.5, 8, 3], [4, 15, -6]]


def test_in_place_is_refused_where_a_gradient_would_be_lost(queue):
    leaf = ag.tensor(nc.tensor(VALUES, queue=queue), requires_grad=True)
    with pytest.raises(GradientError, match="add_: expected a value that no gradient goes through, got a leaf"):
        leaf.add_(1)
    with nc.no_grad():
        assert leaf.mul_(2.0) is leaf
    assert leaf.tolist() == (VALUES * 2).tolist()
    with ag.Tape() as tape:
        made = leaf * 2.0
        loss = ag.sum(made * made)
    with pytest.raises(GradientError, match="got a result on a tape"):
        made.zero_()
    made.value.zero_()
    with pytest.raises(GradientError, match="as forward read it"):
        tape.backward(loss)


def test_wrong_use_in_place(queue):
    whole, x = nc.arange(3, queue=queue), nc.ones(queue, (1, 3))
    with pytest.raises(DTypeError, match=r"add_: expected a result that int64 holds, got float64"):
        whole.add_(1.5)
    with pytest.raises(ShapeError, match=r"mul_: expected a result of the shape \(1, 3\), got \(2, 3\)"):
        x.mul_(nc.ones(queue, (2, 3)))
    with pytest.raises(DTypeError, match="copy_: expected a Tensor, got list"):
        x.copy_([1, 2, 3])
    with pytest.raises(NumberOutOfRange):
        nc.zeros(queue, 2, dtype="int8").fill_(300)
    assert whole.tolist() == [0, 1, 2] and x.tolist() == [[1, 1, 1]]
