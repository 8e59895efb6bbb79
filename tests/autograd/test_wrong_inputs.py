"""What is given wrongly to an op or a layer is refused in one sentence that begins with the op's name."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn, ops
from netcl.core.device import manager
from netcl.core.errors import DTypeError, NetclError, ShapeError
from netcl.core.tensor import Tensor

INDEX = object()  # stands for an index tensor
MASK = object()
# Valid arguments: tuples are shapes of tensors; what else may be wrong about an argument is said by its letter:
# t tensor, i index, a axis, s size or sizes, n number.
OPS = {
    "matmul": ([(3, 4), (4, 2)], "tt"), "linear": ([(3, 4), (2, 4), (2,)], "ttt"),
    "conv2d": ([(1, 3, 5, 5), (2, 3, 3, 3), (2,), 1, 1, 1, 1], "tttssss"),
    "max_pool2d": ([(1, 3, 5, 5), 2, 2, 0], "tsss"), "avg_pool2d": ([(1, 3, 5, 5), 2, 2, 0], "tsss"),
    "adaptive_avg_pool2d": ([(1, 3, 5, 5), 2], "ts"),
    "attention": ([(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], "ttt"),
    "layer_norm": ([(3, 4), (4,), (4,), -1], "ttta"), "rms_norm": ([(3, 4), (4,), -1], "tta"),
    "group_norm": ([(2, 4, 3), 2, (4,), (4,)], "tstt"), "batch_norm": ([(5, 3), (3,), (3,)], "ttt"),
    **{name: ([(3, 4), 1], "ta") for name in (
        "softmax", "log_softmax", "sum", "mean", "prod", "max", "min", "var", "std", "argmax", "argmin", "logsumexp",
        "any", "all", "cumsum", "argsort", "sort", "unsqueeze", "flip",
    )},
    "cross_entropy": ([(3, 4), INDEX], "ti"), "nll_loss": ([(3, 4), INDEX], "ti"),
    **{name: ([(3,), (3,)], "tt") for name in (
        "mse_loss", "l1_loss", "kl_div", "hinge_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    )},
    "huber_loss": ([(3,), (3,), 1.0], "ttn"), "smooth_l1_loss": ([(3,), (3,), 1.0], "ttn"),
    "take": ([(3, 4), INDEX, 0], "tia"), "index_select": ([(3, 4), INDEX, 0], "tia"),
    "embedding": ([(3, 4), INDEX], "ti"), "topk": ([(3, 4), 2, 1], "tsa"), "tril": ([(3, 4), 0], "ts"),
    "triu": ([(3, 4), 0], "ts"), "one_hot": ([INDEX, 3], "is"), "masked_select": ([(3, 4), MASK], "tt"),
    "masked_fill": ([(3, 4), MASK, (3, 4)], "ttt"), "nonzero": ([(3, 4)], "t"),
    "index_copy": ([(3, 4), INDEX, (3, 4), 0], "tita"), "index_add": ([(3, 4), INDEX, (3, 4), 0], "tita"),
    "argwhere": ([(3, 4)], "t"),
    "reshape": ([(3, 4), 12], "ts"), "permute": ([(3, 4), 1, 0], "taa"), "transpose": ([(3, 4), 0, 1], "taa"),
    "expand": ([(3, 1), 3, 4], "tss"), "squeeze": ([(3, 1), 1], "ta"), "split": ([(3, 4), 2, 1], "tsa"),
    "chunk": ([(3, 4), 2, 1], "tsa"), "roll": ([(3, 4), 1, 1], "tsa"), "repeat": ([(3, 4), 2, 1], "tsa"),
    "tile": ([(3, 4), 2], "ts"), "pad": ([(3, 4), 1], "ts"), "dropout": ([(3, 4), 0.5], "tn"),
}  # fmt: skip
LAYERS = {
    "Linear": (lambda q: nn.Linear(q, 4, 2), (3, 4), "linear"),
    "Conv2d": (lambda q: nn.Conv2d(q, 3, 2, 3), (1, 3, 5, 5), "conv2d"),
    "BatchNorm1d": (lambda q: nn.BatchNorm1d(q, 4), (3, 4), "batch_norm"),
    "BatchNorm2d": (lambda q: nn.BatchNorm2d(q, 3), (2, 3, 5, 5), "batch_norm"),
    "LayerNorm": (lambda q: nn.LayerNorm(q, 4), (3, 4), "layer_norm"),
    "RMSNorm": (lambda q: nn.RMSNorm(q, 4), (3, 4), "rms_norm"),
    "GroupNorm": (lambda q: nn.GroupNorm(q, 2, 4), (3, 4, 2), "group_norm"),
    "Embedding": (lambda q: nn.Embedding(q, 5, 4), INDEX, "embedding"),
    "MaxPool2d": (lambda q: nn.MaxPool2d(2), (1, 3, 5, 5), "max_pool2d"),
    "AvgPool2d": (lambda q: nn.AvgPool2d(2), (1, 3, 5, 5), "avg_pool2d"),
    "AdaptiveAvgPool2d": (lambda q: nn.AdaptiveAvgPool2d(5), (1, 3, 5, 5), "adaptive_avg_pool2d"),
    "Flatten": (lambda q: nn.Flatten(), (3, 4), "flatten"),
    "Dropout": (lambda q: nn.Dropout(0.5), (3, 4), "dropout"),
    "Softmax": (lambda q: nn.Softmax(), (3, 4), "softmax"),
    "SwiGLU": (lambda q: nn.SwiGLU(), (3, 4), "SwiGLU"),
    "ReLU": (lambda q: nn.ReLU(), (3, 4), "relu"),
    "GELU": (lambda q: nn.GELU(), (3, 4), "gelu"),
}
NEVER = [None, "x", [1.0, 2.0], {}, np.ones(3, np.float32)]  # instead of a tensor


def argument(queue, kind, value):
    if value is INDEX:
        return Tensor.from_host(queue, np.array([0, 1, 2], np.int32))
    if value is MASK:
        return Tensor.ones(queue, (3, 4), "bool")
    return Tensor.ones(queue, value) if kind == "t" else value


def shapes_beside(shape):
    return [(2, 2, 2, 2, 2), (), (0,), (7, 9), (*shape[:-1], shape[-1] + 1)]


def wrong(queue, kind, value):
    """(a wrong argument, whether it must be refused: others may fit by chance)."""
    if kind in "ti":
        yield from ((x, True) for x in NEVER)
        shape = (3,) if value is INDEX else (3, 4) if value is MASK else value
        yield from ((Tensor.ones(queue, s), False) for s in shapes_beside(shape))
        yield from ((Tensor.ones(queue, shape, t), kind == "i" and t != "int64") for t in ("int64", "bool", "float32")
                    if kind == "i" or t != "float32")  # fmt: skip
    elif kind == "a":
        yield from ((x, True) for x in (7, -9, 1.5, "x", [0, None], Tensor.ones(queue, (2,))))
        yield from ((x, False) for x in ((0, 0), (0, 7), None))
    elif kind == "s":
        yield from ((x, True) for x in ("x", 1.5, (None, 4), Tensor.ones(queue, (2,))))
        yield from ((x, False) for x in (None, -1, 0, (1, 2, 3), (-3, 2), [], 100))
    else:
        yield from ((x, True) for x in (None, "x", -1.0, float("nan"), Tensor.ones(queue, (2,))))


def refused(call, names, must, shown):
    """The call works (unless it must not), or raises one sentence in the words of `names`."""
    error = None
    try:
        found = call()
        for y in found if isinstance(found, tuple) else (found,):
            y.to_host()
    except Exception as raised:
        error = raised
    if error is None:
        assert not must, f"{shown}: accepted"
        return
    text = str(error)
    assert text.startswith(tuple(f"{n}: expected" for n in names)) and "\n" not in text, f"{shown}: {error!r}"
    assert isinstance(error, (NetclError, ValueError)), f"{shown}: {error!r}"


@pytest.mark.parametrize("name", OPS)
def test_an_op_refuses_wrong_arguments_in_its_words(queue, name):
    values, kinds = OPS[name]
    right = [argument(queue, k, v) for k, v in zip(kinds, values, strict=True)]
    op = getattr(ag, name)
    op(*right)
    for i, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        for x, must in wrong(queue, kind, value):
            must = must and not (x is None and i >= 2)  # an optional argument
            must = must and not (i == 1 and name.endswith("_norm") and x is None)
            refused(lambda x=x, i=i: op(*right[:i], x, *right[i + 1 :]), (name,), must, f"{name}, argument {i}: {x!r}")


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_refuses_wrong_inputs_in_its_words(queue, name):
    make, shape, op = LAYERS[name]
    layer, kind = make(queue), "i" if shape is INDEX else "t"
    layer(argument(queue, kind, shape))
    for x, must in wrong(queue, kind, shape):
        refused(lambda x=x: layer(x), (name, op), must, f"{name}: {x!r}")


@pytest.mark.parametrize("name", ["matmul", "linear", "conv2d", "attention", "mse_loss", "masked_select", "embedding"])
def test_operands_of_two_queues_are_refused_by_the_op(cl_queue, name):
    values, kinds = OPS[name]
    here, there = ([argument(q, k, v) for k, v in zip(kinds, values, strict=True)]
                   for q in (cl_queue, manager.default("cpu").queue))  # fmt: skip
    refused(lambda: getattr(ag, name)(here[0], there[1], *here[2:]), (name,), True, name)


def test_axes_are_refused_in_the_words_of_the_op(queue):
    x = Tensor.ones(queue, (3, 4))
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "logsumexp", "argmax", "argmin"):
        for op in (getattr(ops, name), getattr(ag, name)):
            with pytest.raises(ShapeError, match=rf"^{name}: expected an axis in \[-2, 2\) for 2 axes, got 7\.$"):
                op(x, 7)
            with pytest.raises(DTypeError, match=rf"^{name}: expected an axis as a whole number \(int\), got 1\.5\.$"):
                op(x, 1.5)
    with pytest.raises(ShapeError, match=r"^norm: expected an axis in \[-2, 2\) for 2 axes, got 7\.$"):
        ag.norm(x, axis=7)


def test_none_in_an_output_size_is_refused_with_the_right_advice(queue):
    x = Tensor.ones(queue, (1, 2, 5, 6))
    message = r"adaptive_avg_pool2d: expected output_size as an int .*, got \(None, 4\); write .* here one of \(5, 6\)"
    for form in (lambda: ag.adaptive_avg_pool2d(x, (None, 4)), lambda: nn.AdaptiveAvgPool2d((None, 4))(x)):
        with pytest.raises(ShapeError, match=message):
            form()


def test_arrays_are_refused_where_tensors_belong(queue):
    with pytest.raises(DTypeError, match=r"^sum: expected tensors, got ndarray; make one with Tensor\.from_host\.$"):
        ag.sum(np.ones(3))
    with pytest.raises(
        DTypeError, match=r"^reshape: expected tensors, got ndarray; make one with Tensor\.from_host\.$"
    ):
        ag.reshape(np.ones(4), 2, 2)
