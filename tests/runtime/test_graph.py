"""Graphs: order, memory by lifetime, errors."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netcl.core.errors import DeviceError, ShapeError
from netcl.core.memory import BufferPool
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.runtime.graph import Graph, GraphExecutor, TensorRef


def total(inputs, out):
    result = inputs[0]
    for x in inputs[1:]:
        result = E.add(result, x)
    E.assign(out, result)


def plus_one(inputs, out):
    E.assign(out, E.add(inputs[0], 1.0))


def active(pool):
    gc.collect()
    return pool.stats.active_bytes


def test_the_documented_example(queue):
    tensor_x, tensor_y = (Tensor.from_host(queue, np.array(v, np.float32)) for v in ([-4, 2, 3, 4], [1, 2, -3.5, 4]))
    pool = BufferPool(queue)
    graph = Graph()

    def add_fn(inputs, out):
        E.assign(out, E.add(*inputs))

    ref_a = graph.add_op("add", add_fn, [tensor_x, tensor_y], shape=(4,), dtype="float32")

    def relu_fn(inputs, out):
        E.assign(out, E.relu(inputs[0]))

    ref_b = graph.add_op("relu", relu_fn, [ref_a], shape=(4,), dtype="float32")
    executor = GraphExecutor(pool)
    for _ in range(3):
        result = executor.run(graph)
        np.testing.assert_array_equal(result.to_host(), [0, 4, 0, 8])
    assert isinstance(ref_b, TensorRef) and (ref_b.name, ref_b.shape, ref_b.dtype) == ("relu", (4,), np.float32)
    del result
    assert active(pool) == 0


def test_a_chain_needs_two_buffers(queue):
    pool, graph = BufferPool(queue), Graph()
    ref = Tensor.zeros(queue, (1000,))
    for i in range(30):
        ref = graph.add_op(f"step {i}", plus_one, [ref], shape=(1000,))
    executor = GraphExecutor(pool)
    result = executor.run(graph)
    assert (result.to_host() == 30).all() and executor.peak_bytes == 2 * 4000
    queue.finish()
    assert active(pool) == 4000
    if not isinstance(queue, CPUQueue):
        assert pool.stats.misses <= 3


def test_one_output_for_many_steps_and_one_step_twice_the_same(queue):
    pool, graph = BufferPool(queue), Graph()
    x = Tensor.ones(queue, (3,))
    a = graph.add_op("a", plus_one, [x])
    b = graph.add_op("b", total, [a, a])
    graph.add_op("unused", plus_one, [a])
    c = graph.add_op("c", plus_one, [a])
    graph.add_op("d", total, [a, b, c])
    executor = GraphExecutor(pool)
    assert (executor.run(graph).to_host() == 2 + 4 + 3).all()
    assert executor.peak_bytes == 4 * 12 and active(pool) == 0


def test_the_last_step_added_gives_the_result_whatever_the_order(queue):
    graph = Graph()
    x = Tensor.ones(queue, (2,))
    first = graph.add_op("first", plus_one, [x])
    second = graph.add_op("second", plus_one, [x])
    third = graph.add_op("third", plus_one, [first])
    graph.set_inputs(first, [second])
    assert [s.name for s in graph.order()] == ["second", "first", "third"]
    assert (GraphExecutor(BufferPool(queue)).run(graph).to_host() == 4).all() and third.name == "third"


def test_cycles_are_named(cpu_queue):
    graph, x = Graph(), Tensor.ones(cpu_queue, (2,))
    a = graph.add_op("a", plus_one, [x])
    b = graph.add_op("b", plus_one, [a])
    c = graph.add_op("c", plus_one, [b])
    graph.set_inputs(a, [c])
    with pytest.raises(ValueError, match="a -> c -> b -> a"):
        GraphExecutor(BufferPool(cpu_queue)).run(graph)
    graph.set_inputs(a, [a])
    with pytest.raises(ValueError, match="a -> a"):
        graph.order()


def test_misuse_is_explained(cpu_queue):
    graph, executor = Graph(), GraphExecutor(BufferPool(cpu_queue))
    with pytest.raises(ValueError, match="at least one step"):
        executor.run(graph)
    with pytest.raises(ShapeError, match="expected a shape"):
        graph.add_op("a", plus_one, [])
    foreign = Graph().add_op("elsewhere", plus_one, [], shape=(1,))
    with pytest.raises(ValueError, match="of this graph"):
        graph.set_inputs(foreign, [])
    graph.add_op("b", plus_one, [foreign])
    with pytest.raises(ValueError, match="'elsewhere' of another"):
        executor.run(graph)


def test_wrong_steps_are_named(queue):
    x, graph = Tensor.ones(queue, (2,)), Graph()
    with pytest.raises(TypeError, match="tensors or refs as inputs of 'a', got float"):
        graph.add_op("a", plus_one, [x, 1.0])
    with pytest.raises(TypeError, match=r"fn\(inputs, out\) for 'a', got NoneType"):
        graph.add_op("a", None, [x])
    ref = graph.add_op("returns", lambda inputs, out: inputs[0] + 1.0, [x])
    with pytest.raises(TypeError, match="set_inputs: expected tensors or refs"):
        graph.set_inputs(ref, [None])
    with pytest.raises(TypeError, match="to fill `out`") as caught:
        GraphExecutor(BufferPool(queue)).run(graph)
    said = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "in step 'returns' of the graph" in said


def test_a_pool_of_a_context_takes_the_queue_of_the_inputs(cl_queue):
    graph, executor = Graph(), GraphExecutor(BufferPool(cl_queue.context))
    a = graph.add_op("a", plus_one, [Tensor.ones(cl_queue, (2,))])
    graph.add_op("b", plus_one, [a])
    assert (executor.run(graph).to_host() == 3).all()
    graph = Graph()
    graph.add_op("nothing", lambda inputs, out: None, [], shape=(1,))
    with pytest.raises(DeviceError, match="a pool made from a queue"):
        executor.run(graph)


def test_an_exception_returns_every_buffer(queue):
    pool, graph = BufferPool(queue), Graph()
    a = graph.add_op("a", plus_one, [Tensor.ones(queue, (100,))])
    b = graph.add_op("b", plus_one, [a])
    graph.add_op("c", lambda inputs, out: 1 / 0, [a, b])
    with pytest.raises(ZeroDivisionError):
        GraphExecutor(pool).run(graph)
    assert active(pool) == 0


def test_a_deep_graph_does_not_exhaust_the_stack(cpu_queue):
    graph, ref = Graph(), Tensor.zeros(cpu_queue, (1,))
    for _ in range(3000):
        ref = graph.add_op("step", plus_one, [ref])
    graph.steps.reverse()
    graph.steps.append(graph.steps.pop(0))
    assert GraphExecutor(BufferPool(cpu_queue)).run(graph).item() == 3000


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=12))
def test_random_graphs_match_a_direct_evaluation(cpu_queue, wiring):
    x = Tensor.from_host(cpu_queue, np.arange(3, dtype=np.float64))
    graph, refs, values = Graph(), [x], [np.arange(3.0)]
    for i, picks in enumerate(wiring):
        chosen = [p % len(refs) for p in picks]
        refs.append(graph.add_op(f"n{i}", total, [refs[c] for c in chosen], shape=(3,), dtype="float64"))
        values.append(sum(values[c] for c in chosen))
    pool = BufferPool(cpu_queue)
    np.testing.assert_array_equal(GraphExecutor(pool).run(graph).to_host(), values[-1])
