"""The records of ops: what is written from them is up to date, and shows what each op takes."""

import importlib.util
import inspect
from pathlib import Path

import pytest

import netcl.autograd as ag
from netcl.core.kernels.primitives import TABLE
from netcl.ops import record

REPO = Path(__file__).resolve().parents[1]
PARTS = {"gelu_tanh", "gemm", "weighted_bce_smooth_l1_loss"}  # ops that only others use


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_ops", REPO / "tools" / "generate_ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public():
    every = {name: op for name, op in record.every().items() if name not in PARTS}
    return {name: op for name, op in every.items() if op.public.__module__.startswith("netcl.")}  # and not of tests


def test_what_is_written_from_the_records_is_up_to_date(generator):
    assert generator.stale() == [], "run python tools/generate_ops.py"


def test_every_op_is_a_function_with_its_arguments_and_a_docstring():
    for name, op in public().items():
        function = getattr(ag, name)
        assert inspect.getdoc(function), name
        taken = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        assert taken[0].annotation in ("Value", "Operand", "Sequence[Value]", "Any"), name
        given = [p for p in inspect.signature(op.public).parameters.values() if p.kind is not p.VAR_KEYWORD]
        asked = [p for p in given if p.name not in ("recorded", "room")]
        if name not in ("dropout", "flatten"):  # with a choice of their own
            assert [(p.kind, p.default) for p in taken] == [(p.kind, p.default) for p in asked], name


def test_help_shows_names_types_and_defaults():
    assert str(inspect.signature(ag.softmax)) == "(x: 'Value', axis: 'int' = -1) -> 'Node'"
    assert list(inspect.signature(ag.add).parameters) == ["a", "b", "unknown"]
    assert str(inspect.signature(ag.split)).endswith("-> 'tuple[Node, ...]'")


def test_rows_of_the_table_are_records_like_the_others():
    every = record.every()
    assert {*TABLE, *record.OPS, *record.COMPOSED} == {*every}
    add, total = record.find("add"), record.find("sum")
    assert (add.dtypes, add.onnx, add.array_api, add.cast) == ("any", "Add", "add", "")
    assert (total.dtypes, total.onnx, total.array_api, total.cast) == ("any", "ReduceSum", "sum", "float32")
    assert record.find("sub").dtypes == "numbers" and record.find("bitwise_and").dtypes == "integers"
    assert record.find("nosuch") is None
