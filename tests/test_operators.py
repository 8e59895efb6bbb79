"""The records of ops: what is written from them shows what each op takes (tests/test_docs.py: it is up to date)."""

import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels.primitives import ROWS, TABLE
from netcl.core.methods import Methods
from netcl.core.tensor import Tensor
from netcl.nn import init
from netcl.ops import record

EXAMPLE = r"## Adding any other op\n.*?```python\n(.*?)```"
REPO = Path(__file__).resolve().parents[1]
PARTS = {"gelu_tanh", "gemm", "weighted_bce_smooth_l1_loss"}  # ops that only others use


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_ops", REPO / "tools" / "generate_ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAMILIAR = ("dim", "dims", "keepdim", "start_dim", "end_dim")


def public():
    return {name: op for name, op in ours().items() if name not in PARTS}


def ours():
    """The records of netcl itself, and not of other tests in this process."""
    rows = {row.name for row in ROWS}
    found = {n: op for n, op in record.every().items() if n in rows or n not in TABLE}
    return {name: op for name, op in found.items() if op.public.__module__.startswith(("netcl.ops.", "netcl.core."))}


def test_every_op_is_a_function_with_its_arguments_and_a_docstring():
    for name, op in public().items():
        function = getattr(ag, name)
        assert inspect.getdoc(function), name
        taken = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        assert taken[0].annotation in ("Value", "Operand", "Sequence[Value]", "Any"), name
        given = [p for p in inspect.signature(op.public).parameters.values() if p.kind is not p.VAR_KEYWORD]
        asked = [p for p in given if p.name not in ("recorded", "room", *FAMILIAR)]
        ours_ = [p for p in taken if p.name not in FAMILIAR]
        optional = {("axis", p.empty): None for p in asked}  # where PyTorch's word may stand in its place
        if name != "dropout":  # with a choice of its own
            expected = [(p.kind, optional.get((p.name, p.default), p.default)) for p in asked]
            assert [(p.kind, p.default) for p in ours_] == expected, name


def test_help_shows_names_types_and_defaults():
    words = "*, dim: 'int | None' = None"
    assert str(inspect.signature(ag.softmax)) == f"(x: 'Value', axis: 'int' = -1, {words}) -> 'Node'"
    assert list(inspect.signature(ag.add).parameters) == ["a", "b", "unknown"]
    assert str(inspect.signature(ag.split)).endswith("-> 'tuple[Node, ...]'")


VALUES = np.float32([[0.5, -0.25, 0.75], [0.1, 0.9, -0.6]])


@pytest.mark.parametrize("wrap", [lambda x: x, ag.tensor], ids=["tensor", "node"])
def test_every_method_is_the_op_of_its_record(queue, wrap):
    """Of one operand as it is, of two with itself: the same numbers as the function gives."""
    whole, floats = Tensor.from_host(queue, np.int32([[1, 2, 3], [4, 5, 6]])), Tensor.from_host(queue, VALUES)
    seen = 0
    for name, op in ours().items():
        if name not in op.methods or name in ("matmul", "permute", "expand", "reshape", "to"):
            continue
        needed = [p for p in inspect.signature(op.public).parameters.values() if p.default is p.empty]
        operands = [p for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(operands) > 2 or (len(operands) == 2 and name not in TABLE) or name == "unsqueeze":
            continue
        x = whole if op.dtypes == "integers" else floats
        more = [wrap(x)] * (len(operands) - 1)
        found, wanted = getattr(wrap(x), name)(*more), op.public(x, *[x] * (len(operands) - 1))
        for y, z in zip(*((found, wanted) if isinstance(wanted, tuple) else ((found,), (wanted,)))):
            np.testing.assert_array_equal(y.numpy(), z.to_host(), err_msg=name)
        seen += 1
    assert seen > 70


def test_methods_with_arguments(queue):
    x = Tensor.from_host(queue, VALUES)
    assert [y.shape for y in x.split(1, axis=1)] == [(2, 1)] * 3 and len(x.chunk(2)) == 2
    assert x.flip(1).tolist() == VALUES[:, ::-1].tolist() and x.roll(1, 1).shape == (2, 3)
    assert x.sort(axis=1).tolist() == np.sort(VALUES, 1).tolist()
    assert x.argsort(axis=1).tolist() == np.argsort(VALUES, 1).tolist()
    assert x.topk(2)[0].shape == (2, 2)
    mask = x > 0
    assert x.masked_select(mask).tolist() == VALUES[VALUES > 0].tolist()
    assert x.masked_fill(mask, 0.0).max().item() == 0 and x.nonzero().shape == (6, 2)
    node = ag.tensor(x, requires_grad=True)
    with ag.Tape() as tape:
        loss = node.sin().mul(2.0).masked_fill(mask, 0.0).sum()
    tape.backward(loss)
    np.testing.assert_allclose(node.grad.to_host(), np.where(VALUES > 0, 0, 2 * np.cos(VALUES)), rtol=1e-6)


def test_rows_of_the_table_are_records_like_the_others():
    every = record.every()
    assert {*TABLE, *record.OPS, *record.COMPOSED} == {*every}
    add, total = record.find("add"), record.find("sum")
    assert (add.dtypes, add.onnx, add.array_api, add.cast) == ("any", "Add", "add", "")
    assert (total.dtypes, total.onnx, total.array_api, total.cast) == ("any", "ReduceSum", "sum", "float32")
    assert record.find("sub").dtypes == "numbers" and record.find("bitwise_and").dtypes == "integers"
    assert record.find("nosuch") is None


@pytest.mark.parametrize("wrap", [lambda x: x, ag.tensor], ids=["tensor", "node"])
def test_methods_take_what_the_ops_take(queue, wrap):
    x = wrap(Tensor.from_host(queue, np.float32([[1, -2], [3, 4]])))
    names = {name for op in ours().values() for name in op.methods}
    assert {n for n in vars(Methods) if callable(getattr(Methods, n))} - {"_refuse", "__hash__"} == names
    words = "*, dim: 'Axis' = None, keepdim: 'bool' = False"
    assert str(inspect.signature(x.max)) == f"(axis: 'Axis' = None, keepdims: 'bool' = False, {words}) -> 'Self'"
    assert x.sum(axis=1, keepdims=True).shape == (2, 1) and x.flatten(1).shape == (2, 2)
    for y in (x.relu(), x.clip(lo=0), abs(x), -x, 2 - x, x.softmax(0), x.cumsum(1), x.any(), x @ x, x.tanh()):
        assert type(y) is type(x)
    assert (x == 3).numpy().tolist() == [[False, False], [True, False]]
    with pytest.raises(TypeError, match="unexpected keyword argument 'inplace'"):
        x.relu(inplace=True)


def test_operators_leave_what_they_do_not_take_to_python(queue):
    x = Tensor.from_host(queue, np.float32([1, 2]))
    assert type(x + ag.tensor(x)) is type(ag.tensor(x) + x) is ag.Node
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "one"
    with pytest.raises(DTypeError, match="add: expected a tensor or a number, got a NumPy array"):
        x + np.ones(2)


@pytest.fixture
def cross(generator):
    """`ag.cross` of the example in CONTRIBUTING.md, as it would be written."""
    (example,) = re.findall(EXAMPLE, (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    space = {"apply_one": ag.apply_op}
    exec("from __future__ import annotations\n" + generator.function_text(record.OPS["cross"]), space)
    yield space["cross"]
    del record.OPS["cross"]


def test_the_example_of_an_op_with_a_kernel(queue, cross):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    assert str(inspect.signature(cross)) == "(a: 'Value', b: 'Value') -> 'Node'"
    assert inspect.getdoc(cross).startswith("The cross product of vectors")
    x, y = (ag.Parameter(Tensor.from_host(queue, v)) for v in (a, b))
    np.testing.assert_allclose(cross(x, y).numpy(), np.cross(a, b), rtol=1e-5, atol=1e-6)
    assert cross(x[::2], y[1::2]).shape == (2, 3)
    compiled = ag.jit_compile(lambda x, y: ag.sum(cross(x, y) * 2.0))
    grads = []
    for function in (compiled, lambda x, y: ag.sum(cross(x, y) * 2.0)):
        with ag.Tape() as tape:
            loss = function(x, y)
        tape.backward(loss)
        grads.append(x.grad.numpy())
        x.grad = y.grad = None
    assert compiled.cache_info().unfused == 0 and "cross: its own kernel" in compiled.explain()
    for found in grads:
        np.testing.assert_allclose(found, np.cross(b, np.full((4, 3), 2)), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match=r"cross: expected a and b \(..., 3\)"):
        cross(x, y[:2])


def test_functions_that_fill_in_place_show_what_they_take():
    for name in ("zeros", "uniform", "trunc_normal", "xavier_uniform", "kaiming_normal", "orthogonal"):
        made, fill = (inspect.signature(getattr(init, n)).parameters for n in (name, f"{name}_"))
        given = [str(p) for n, p in made.items() if n not in ("queue", "shape", "dtype")]
        assert ["target: 'Target'", *given] == [str(p) for p in fill.values()]
