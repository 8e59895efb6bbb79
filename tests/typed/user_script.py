"""A user's script: trains, evaluates, saves and resumes; mypy --strict passes on it (tests/test_typed.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import netcl as nc
from netcl import ag, nn, optim
from netcl.autograd import Node
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two layers."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        self.first = nn.Linear(inputs, width)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor | Node) -> Node:
        """Scores of the classes."""
        hidden: Node = ag.relu(self.first(x))
        scores: Node = self.last(hidden)
        return scores


def train_step(model: Net, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> Node:
    """One step of training."""
    with ag.Tape() as tape:
        loss = ag.cross_entropy(model(x), y)
    tape.backward(loss)
    optim.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def accuracy(model: Net, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images whose class is found."""
    model.eval()
    with nc.no_grad():
        predicted = model(nc.tensor(images)).argmax(dim=1)
    model.train()
    return float((predicted.numpy() == labels).mean())


def main(folder: Path, epochs: int = 3) -> tuple[float, float]:
    """The accuracy of a run, and that of its file when it is loaded again."""
    nc.seed(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90).astype(np.int32)
    images = (rng.standard_normal((90, 8)) + 2.0 * np.eye(3, 8)[labels]).astype(np.float32)
    loader = DataLoader(TensorDataset(images, labels), batch_size=30, shuffle=True, device_queue=nc.default_queue())
    model = Net(8, 16, 3)
    optimizer = optim.AdamW(model.parameters(), lr=5e-2)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            loss = train_step(model, optimizer, x, y)
        schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, rate {schedule.get_last_lr()[0]:.4f}")
    nc.io.save_checkpoint(model, folder / "run.netcl", optimizer=optimizer, schedule=schedule, epoch=epochs)
    again = Net(8, 16, 3)
    nc.io.load_checkpoint(again, folder / "run.netcl", optimizer=optim.AdamW(again.parameters()))
    return accuracy(model, images, labels), accuracy(again, images, labels)
