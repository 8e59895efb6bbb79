"""Train a small convolutional network on handwritten digits that come with the package, and say what it did.

A checkpoint is written after every epoch. An interrupted run (Ctrl-C) goes on from it when the same command is given
again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from netcl.cli.values import new_file, whole

EPOCHS, BATCH_SIZE, RATE, DECAY = 25, 64, 3e-3, 1e-2
BUILDING = 2  # steps that build kernels and make the recording that later steps replay
LOOK = 10  # steps between two looks at the loss: reading it waits for the device

HELP = "train a network on handwritten digits, save it, and report"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, where, how long, and where the result goes."""
    parser.add_argument("what", choices=["digits"], help="the data set")
    parser.add_argument("--device", default="auto", help='"auto", "gpu", "cpu" (NumPy), "cl:cpu", ... (netcl devices)')
    parser.add_argument("--epochs", type=whole(1), default=EPOCHS, help="passes over the data (default %(default)s)")
    parser.add_argument("--batch-size", type=whole(1), default=BATCH_SIZE, help="images a step (default %(default)s)")
    parser.add_argument("--seed", type=whole(), default=0, help="of weights, order and dropout (default %(default)s)")
    parser.add_argument(
        "--out", type=new_file, default=Path("digits.netcl"), help="the model's file (default %(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="start over even when there is a checkpoint")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")


def network(queue: Any) -> Any:
    """Three convolutions and two linear layers, 40,394 parameters: (N, 1, 8, 8) -> (N, 10)."""
    import netcl.nn as nn

    first, second, third = (nn.Conv2d(queue, n, m, 3, padding=1) for n, m in ((1, 16), (16, 32), (32, 64)))
    features = [first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), third, nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Dropout(0.3), nn.Linear(queue, 256, 64), nn.ReLU(), nn.Linear(queue, 64, 10)]
    return nn.Sequential(*features, *head)


class Run:
    """One training run: the parts that make it, its step, and where its time went."""

    def __init__(self, queue: Any, epochs: int, batch_size: int, seed: int) -> None:
        import netcl.autograd as ag
        from netcl.core.errors import NetclError
        from netcl.data import DataLoader, datasets
        from netcl.ops.create import random
        from netcl.optim import AdamW, WarmupCosine

        random.seed(seed)
        self.queue, self.rng, self.epoch = queue, random.default_generator, 0
        self.settings = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
        train = datasets.digits("train")
        if batch_size > len(train):
            raise NetclError(
                f"train: expected --batch-size of at most {len(train)}, all training images, got {batch_size}."
            )
        self.loader = DataLoader(train, batch_size, shuffle=True, drop_last=True, seed=seed)
        self.images, self.labels = datasets.digits("test").arrays
        self.model = network(queue)
        self.optimizer = AdamW(self.model.parameters(), lr=RATE, weight_decay=DECAY)
        self.schedule = WarmupCosine(self.optimizer, len(self.loader), max(2, epochs) * len(self.loader))
        self.step = ag.CompiledStep(self._step)
        self.seconds = {"compile": 0.0, "transfer": 0.0}
        self.steps = 0

    def _step(self, x: Any, y: Any) -> Any:
        import netcl.autograd as ag

        with ag.Tape() as tape:
            loss = ag.cross_entropy(self.model(ag.tensor(x)), ag.tensor(y))
        tape.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def train_epoch(self, look: Any) -> None:
        """One pass over the training data; `look(loss, images done)` is called every LOOK steps."""
        from netcl.core.tensor import Tensor

        self.model.train()
        for i, (images, labels) in enumerate(self.loader):
            start = time.perf_counter()
            x, y = (Tensor.from_host(self.queue, a) for a in (images, labels))
            sent = time.perf_counter()
            loss = self.step(x, y)
            self.schedule.step()
            self.steps += 1
            if self.steps <= BUILDING:
                self.queue.finish()
                self.seconds["compile"] += time.perf_counter() - sent
            if (i + 1) % LOOK == 0 or i + 1 == len(self.loader):
                self.queue.finish()
                done = time.perf_counter()
                look(loss.item(), (i + 1) * len(images))
                self.seconds["transfer"] += time.perf_counter() - done
            self.seconds["transfer"] += sent - start
        self.epoch += 1

    def predict(self) -> np.ndarray:
        """The digit seen in each test image."""
        import netcl.autograd as ag
        from netcl.core.tensor import Tensor

        self.model.eval()
        with ag.no_grad():
            logits = self.model(ag.tensor(Tensor.from_host(self.queue, self.images)))
        found: np.ndarray = logits.to_host().argmax(axis=1)
        return found

    def save(self, path: Path) -> None:
        """Write the checkpoint."""
        from netcl.io import save_checkpoint

        save_checkpoint(self.model, path, **self._parts(), epoch=self.epoch, extra=self.settings)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same settings."""
        from netcl.core.errors import CheckpointError
        from netcl.io import load_checkpoint

        found = load_checkpoint(self.model, path, **self._parts())
        if found["extra"] != self.settings:
            raise CheckpointError(
                f"train: expected {path} to be of a run with {self.settings}, got {found['extra']}; "
                "give the same settings, or --fresh to start over."
            )
        self.epoch = found["epoch"]

    def _parts(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "schedule": self.schedule, "loader": self.loader, "rng": self.rng}


class Display:
    """A progress bar, or one line an epoch where there is no terminal."""

    def __init__(self, console: Any, work: Run, epochs: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console, self.work, self.epochs = console, work, epochs
        text = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self.bar = Progress(*text, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("epoch", total=epochs * len(work.loader), text="")
        self.loss = self.accuracy = self.rate = 0.0
        self.start = time.perf_counter()

    def begin(self) -> None:
        """An epoch starts."""
        self.start = time.perf_counter()

    def look(self, loss: float, images: int) -> None:
        """Some steps of the epoch are done."""
        self.loss, self.rate = loss, images / (time.perf_counter() - self.start)
        done = self.work.epoch * len(self.work.loader) + images // self.work.loader.batch_size
        description = f"epoch {self.work.epoch + 1}/{self.epochs}"
        self.bar.update(self.task, completed=done, text=self._text(), description=description)

    def end(self, accuracy: float) -> None:
        """The epoch is done and tested."""
        self.accuracy = accuracy
        if not self.console.is_terminal:
            self.console.print(f"epoch {self.work.epoch:3}/{self.epochs}  {self._text()}")

    def _text(self) -> str:
        return f"loss {self.loss:.3f}  test accuracy {self.accuracy:.1%}  {self.rate:,.0f} images/s"


def run(args: argparse.Namespace) -> int:
    """Train, save and report; 130 when interrupted."""
    from rich.console import Console

    from netcl.core.device import manager

    handle = manager.default(args.device)
    console, result = Console(highlight=False, quiet=args.quiet), Console(highlight=False)
    work = Run(handle.queue, args.epochs, args.batch_size, args.seed)
    checkpoint = args.out.with_name(args.out.name + ".checkpoint")
    console.print(f"device: {handle.device_name} ({handle.backend})")
    images, count = len(work.loader.dataset), sum(p.size for p in work.model.parameters())
    console.print(f"data:   {images:,} training and {len(work.labels):,} test images; {count:,} weights")
    if checkpoint.exists() and not args.fresh:
        work.resume(checkpoint)
        console.print(f"resume: {checkpoint}, {work.epoch} of {args.epochs} epochs done")
    start = time.perf_counter()
    try:
        predicted = _train(work, checkpoint, console, args.epochs)
    except KeyboardInterrupt:
        done = f"interrupted after {work.epoch} of {args.epochs} epochs"
        result.print(f"{done}; the same command goes on from {checkpoint}", soft_wrap=True)
        return 130
    _report(work, predicted, time.perf_counter() - start, console)
    _save(work, args.out, checkpoint)
    right = int((predicted == work.labels).sum())
    line = f"test accuracy {right / len(predicted):.2%} ({right} of {len(predicted)}); saved {args.out}"
    result.print(line, soft_wrap=True)
    return 0


def _train(work: Run, checkpoint: Path, console: Any, epochs: int) -> np.ndarray:
    """All epochs; the last predictions."""
    start = time.perf_counter()
    work.save(checkpoint)
    predicted = work.predict()
    work.seconds["compile"] += time.perf_counter() - start
    display = Display(console, work, epochs)
    with display.bar:
        while work.epoch < epochs:
            display.begin()
            work.train_epoch(display.look)
            work.save(checkpoint)
            predicted = work.predict()
            display.end(float((predicted == work.labels).mean()))
    return predicted


def _save(work: Run, out: Path, checkpoint: Path) -> None:
    """The model takes the checkpoint's place."""
    from netcl.io import save_model

    save_model(work.model, out)
    checkpoint.unlink(missing_ok=True)


def _report(work: Run, predicted: np.ndarray, total: float, console: Any) -> None:
    """Print how often each digit (rows) was seen as each other one (columns), and where the time went."""
    from rich.table import Table

    counts = np.zeros((10, 10), int)
    np.add.at(counts, (work.labels, predicted), 1)
    table = Table("digit", *map(str, range(10)), title="seen as", title_justify="left")
    for digit, row in enumerate(counts):
        table.add_row(str(digit), *(str(n) if n else "." for n in row))
    console.print(table)
    seconds = {**work.seconds, "compute": max(0.0, total - work.seconds["compile"] - work.seconds["transfer"])}
    split = ", ".join(f"{name} {seconds[name]:.1f} s" for name in ("compile", "compute", "transfer"))
    console.print(f"time:   {total:.1f} s ({split})")
