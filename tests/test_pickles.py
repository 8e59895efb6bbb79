"""What travels to other processes by way of host memory: tensors, nodes, modules, optimizers."""

import copy
import multiprocessing
import operator
import pickle

import numpy as np
import pyopencl as cl
import pytest

import netcl.autograd as ag
from netcl import nn
from netcl.core.device import manager, transfer
from netcl.core.dtypes import SUPPORTED, as_dtype
from netcl.core.tensor import Tensor
from netcl.ops.create.random import Generator
from netcl.optim import SGD, Adam, AdamW, RMSprop
from netcl.optim.lr_scheduler import CosineAnnealingLR


def again(value, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("dtype", SUPPORTED, ids=str)
def test_tensors_come_back_on_their_device_bit_for_bit(queue, dtype):
    bits = np.random.default_rng(0).integers(0, 256, 24 * dtype.itemsize, dtype=np.uint8)
    array = (bits % 2 if dtype == np.bool_ else bits).view(dtype)[:24].reshape(4, 6)
    x = Tensor.from_host(queue, array)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        y = again(x, protocol)
        assert y.queue is queue and y.dtype == dtype and y.shape == (4, 6)
        assert y.to_host().tobytes() == x.to_host().tobytes()
    for view in (x.T, x[1:3, ::2], x[:, None, 1], x[0, 0], x[:0]):
        y = again(view)
        assert y.shape == view.shape and y.is_contiguous and y.to_host().tobytes() == view.to_host().tobytes()


def test_large_tensors_travel_out_of_band(queue):
    x, buffers = Tensor.ones(queue, (1000,)), []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1 and len(data) < 1000
    assert pickle.loads(data, buffers=buffers).to_host().sum() == 1000


def test_nodes_and_parameters(queue):
    p = ag.Parameter(Tensor.from_host(queue, np.arange(3, dtype="f4")), name="p")
    frozen = ag.Parameter(Tensor.ones(queue, (2,)), requires_grad=False)
    with ag.Tape() as tape:
        loss = ag.sum(p * p)
    tape.backward(loss)
    q, r, value = again([p, frozen, loss])
    assert type(q) is ag.Parameter and q.name == "p" and q.requires_grad and not r.requires_grad
    assert q.value.to_host().tolist() == [0, 1, 2] and q.grad.to_host().tolist() == [0, 2, 4] and q.key != p.key
    assert value.item() == 5 and value.is_leaf and not value.requires_grad  # the graph stays behind
    for twin in (copy.deepcopy(p), again(p)):
        twin.value.fill_(7)
    assert p.value.to_host().tolist() == [0, 1, 2]
    assert copy.copy(loss).tape is loss.tape and copy.copy(p.value).buffer is p.value.buffer


def test_modules_keep_ties_buffers_hooks_and_modes(queue):
    net = nn.Sequential(nn.Linear(queue, 4, 4), nn.BatchNorm1d(queue, 4), nn.Dropout(0.5), nn.Linear(queue, 4, 4))
    net[3].weight = net[0].weight
    net[1].eval()
    net.queue = queue
    net(ag.tensor(Tensor.ones(queue, (8, 4))))
    modes = [m.training for m in net.modules()]
    for twin in (again(net), copy.deepcopy(net)):
        assert twin[3].weight is twin[0].weight and twin[0].weight is not net[0].weight
        assert twin.queue is queue and [m.training for m in twin.modules()] == modes
        mine, theirs = net.state_dict(), twin.state_dict()
        assert list(mine) == list(theirs)
        assert all(np.array_equal(mine[k].to_host(), theirs[k].to_host()) for k in mine)
        x = Tensor.ones(queue, (8, 4))
        net.eval(), twin.eval()
        assert np.array_equal(net(ag.tensor(x)).to_host(), twin(ag.tensor(x)).to_host())


def train(model, opt, steps, queue):
    x = Tensor.from_host(queue, np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4))
    for _ in range(steps):
        with ag.Tape() as tape:
            loss = ag.mean(ag.square(model(ag.tensor(x))))
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
    return [p.value.to_host() for p in model.parameters()]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "make",
    [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.01, amsgrad=True), lambda p: AdamW(p, lr=0.01),
     lambda p: RMSprop(p, lr=0.01, momentum=0.5)],
    ids=["SGD", "Adam", "AdamW", "RMSprop"],
)  # fmt: skip
def test_training_goes_on_as_if_nothing_happened(queue, make, dtype):
    """Model, optimizer and schedule together, as one pickle; states go with the parameters they belong to."""
    model = nn.Linear(queue, 4, 2).to(dtype)
    opt = make(model.parameters())
    schedule = CosineAnnealingLR(opt, 10)
    train(model, opt, 3, queue)
    schedule.step()
    copies = [again((model, opt, schedule)), copy.deepcopy((model, opt, schedule))]
    expected = train(model, opt, 3, queue)
    for twin, twin_opt, twin_schedule in copies:
        assert twin_schedule.optimizer is twin_opt and twin_opt.param_groups[0]["params"][0] is twin.weight
        got = train(twin, twin_opt, 3, queue)
        assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))


def test_handles_queues_and_generators(queue):
    handle = next(h for h in (manager.default("cpu"), *manager.handles) if h.queue is queue)
    assert again(handle) is handle and again(queue) is queue
    generator = Generator(7)
    generator.take(5)
    twin = again(generator)
    assert twin.state_dict() == generator.state_dict() and twin.take(3) == generator.take(3)


def test_a_queue_of_one_s_own_arrives_as_that_of_its_device(cl_queue):
    queue = cl.CommandQueue(cl_queue.context, cl_queue.device)
    assert again(Tensor.ones(queue, (2,))).queue is cl_queue


def test_a_device_that_is_not_there_gives_the_default_one():
    assert transfer.queue_at(("No Platform", "No Device", 0)) is manager.default("auto").queue
    for i, profile in enumerate(manager.profiles):  # the seventh of fewer alike: one of them
        found = transfer.handle_at((profile.platform, profile.name, 7))
        assert (found.profile.platform, found.profile.name) == (profile.platform, profile.name), i


def test_other_processes_compute_with_them(queue):
    """Spawned ones, which share nothing: arguments and results travel."""
    x = Tensor.from_host(queue, np.arange(4, dtype="f4"))
    model = nn.Linear(queue, 4, 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(operator.methodcaller("to_host"), (x,)).tolist() == [0, 1, 2, 3]
        y = pool.apply(operator.mul, (x, 2.0))
        assert y.queue is queue and y.to_host().tolist() == [0, 2, 4, 6]
        state = pool.apply(operator.methodcaller("state_dict"), (model,))
        z = pool.apply(operator.methodcaller("forward", ag.tensor(x)), (model,))
    assert np.array_equal(state["weight"].to_host(), model.weight.to_host())
    np.testing.assert_allclose(z.to_host(), model(ag.tensor(x)).to_host(), rtol=1e-6)
    assert as_dtype(z.dtype) == np.float32
