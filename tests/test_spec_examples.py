"""The two documented examples, line by line as they are printed: names, signatures and shapes are a promise."""

import os

import numpy as np
import pytest

from netcl.core.device import manager
from netcl.io import load_model
from netcl.ops.create import random

HOME = """
import numpy as np
import netcl.autograd as ag
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import Linear, ReLU, Sequential
from netcl.optim import AdamW

# 1. Connect to the hardware (auto-detects GPU, falls back to CPU)
dev = manager.default("auto")
q = dev.queue
print(f"Active Device: {dev.device_name} ({dev.backend})")

# 2. Build a neural network
model = Sequential(
    Linear(q, 784, 256), ReLU(),
    Linear(q, 256, 128), ReLU(),
    Linear(q, 128, 10),
)
opt = AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)

# 3. Create raw device tensors (synthetic batch: 32 samples, 10 classes)
x_raw = Tensor.from_host(q, np.random.randn(32, 784).astype(np.float32))
y_raw = Tensor.from_host(q, np.random.randint(0, 10, size=(32,)).astype(np.int32))

# 4. Record forward operations on the Autograd Tape
with ag.Tape() as tape:
    # ag.tensor() wraps raw Tensors into Autograd Nodes
    x_node = ag.tensor(x_raw)
    y_node = ag.tensor(y_raw)
    logits = model(x_node)
    loss = ag.cross_entropy(logits, y_node)

# 5. Reverse-mode automatic differentiation and optimizer step
tape.backward(loss)
opt.step()
opt.zero_grad()

print("Step completed. Batch loss:", loss.value.to_host()[0])
"""

OVERVIEW = """
import netcl.autograd as ag
from netcl.core.tensor import Tensor
from netcl.io import save_model

# 1. DataLoader yields host data
for x_batch, y_batch in loader:
    # 2. Transfer raw batch to GPU
    x_dev = Tensor.from_host(queue, x_batch)
    y_dev = Tensor.from_host(queue, y_batch)

    # 3. Record forward pass on the Tape
    with ag.Tape() as tape:
        # Wrap raw tensors into autograd nodes
        x_node = ag.tensor(x_dev)
        y_node = ag.tensor(y_dev)
        logits = model(x_node)
        loss = ag.cross_entropy(logits, y_node)

    # 4. Reverse-mode automatic differentiation
    tape.backward(loss)

    # 5. Fused GPU parameter update
    opt.step()
    opt.zero_grad()

    # 6. Save checkpoint
    save_model(model, "checkpoint.netcl")
"""


def run_home(device, monkeypatch):
    """The home page's example on a device of our choice; its loss."""
    monkeypatch.setattr(manager, "default", lambda request="auto", real=manager.default: real(device))
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the example draws from it)
    space = {}
    exec(HOME, space)
    return space


def test_the_home_page_example(monkeypatch, capsys):
    losses = []
    for device in ["cpu", *range(len(manager.devices))]:
        with monkeypatch.context() as patch:
            space = run_home(device, patch)
        loss = space["loss"]
        assert loss.value.shape == (1,)
        assert isinstance(loss.value.to_host()[0], np.floating)
        assert all(p.grad is None for p in space["model"].parameters())
        losses.append(float(loss.value.to_host()[0]))
    text = capsys.readouterr().out
    assert text.count("Active Device: ") == text.count("Step completed. Batch loss: ") == len(losses)
    assert losses[0] == pytest.approx(np.log(10), abs=0.1)
    assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-5)


def test_the_home_page_example_as_it_stands(capsys):
    exec(HOME, {})
    assert "Active Device: " in capsys.readouterr().out


def test_the_module_overview_example(queue, tmp_path, monkeypatch):
    from netcl.data import DataLoader, datasets
    from netcl.nn import Flatten, Linear, ReLU, Sequential
    from netcl.optim import AdamW

    monkeypatch.chdir(tmp_path)
    random.seed(0)
    model = Sequential(Flatten(), Linear(queue, 64, 32), ReLU(), Linear(queue, 32, 10))
    loader = DataLoader(datasets.digits("train"), batch_size=256, shuffle=True)
    space = {"queue": queue, "model": model, "loader": loader, "opt": AdamW(model.parameters(), lr=1e-2)}
    exec(OVERVIEW, space)
    first = space["loss"].value.to_host()[0]
    exec(OVERVIEW, space)
    assert space["loss"].value.to_host()[0] < first < 2.4
    assert os.listdir(tmp_path) == ["checkpoint.netcl"]
    saved = load_model("checkpoint.netcl", queue)
    for a, b in zip(saved.parameters(), model.parameters()):
        np.testing.assert_array_equal(a.value.to_host(), b.value.to_host())
