"""Runs a program of training (tests/training_programs.py) with netcl, each step in the way that the program names."""

from __future__ import annotations

from typing import Any

import numpy as np
import training_programs as programs

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.tensor import Tensor
from netcl.io import load_checkpoint, save_checkpoint
from netcl.nn import BatchNorm1d, Linear, Module, Parameter
from netcl.optim import SGD, AdamW


class Gate(Module):
    """Multiplies by `factor` while training."""

    def __init__(self, factor=1.5):
        self.factor = factor

    def forward(self, x):
        return x * self.factor if self.training else x


class Net(Module):
    """A layer, batch norm, a gate, tanh and a layer."""

    def __init__(self, queue):
        self.first = Linear(queue, programs.INPUTS, programs.HIDDEN)
        self.norm = BatchNorm1d(queue, programs.HIDDEN)
        self.gate = Gate()
        self.last = Linear(queue, programs.HIDDEN, programs.CLASSES)

    def forward(self, x):
        return self.last(ag.tanh(self.gate(self.norm(self.first(x)))))


OPTIMIZERS = {
    "sgd": lambda params: SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda params: AdamW(params, lr=0.01, weight_decay=0.1),
}


class Run:
    """A model in training. `way` overrides how every step and look is run."""

    def __init__(self, queue, optimizer, way=None, folder=None):
        self.queue, self.kind, self.way, self.folder = queue, optimizer, way, folder
        self.model, self.opt = self._made()
        self.model.load_state_dict({**self.model.state_dict(), **programs.start()})
        self._wrap()

    def _made(self):
        model = Net(self.queue).double()
        return model, OPTIMIZERS[self.kind](model.parameters())

    def _wrap(self):
        model, opt = self.model, self.opt  # closed over, as users write it
        self.compiled = jit_compile(lambda x: model(x))

        def train(forward, x, labels, without):
            with ag.Tape() as tape:
                loss = ag.cross_entropy(forward(x), ag.tensor(labels))
            if loss.requires_grad:
                tape.backward(loss)
            grads = {name: p.grad for name, p in model.named_parameters()}
            for p in [p for name, p in model.named_parameters() if name == without]:
                p.grad = None
            opt.step()
            model.zero_grad()
            return loss, {k: g for k, g in grads.items() if g is not None}

        def recorded(x, labels, without):
            return train(model, ag.tensor(x), labels, without)

        self.train, self.recorded = train, ag.CompiledStep(recorded)

    def act(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Do one action; returns everything that can be seen afterwards."""
        seen = getattr(self, name)(**settings) or {}
        state = {f"state.{k}": v.to_host() for k, v in self.model.state_dict().items() if "num_batches" not in k}
        return {**seen, **state}

    def step(self, way, rows, seed, without):
        x, labels = (Tensor.from_host(self.queue, a) for a in programs.batch(seed, rows))
        way = self.way or way
        if way == "step":
            loss, grads = self.recorded(x, labels, without)
        else:
            forward = {"jit": self.compiled, "checkpoint": lambda x: ag.checkpoint(self.model, x)}.get(way, self.model)
            loss, grads = self.train(forward, ag.tensor(x), labels, without)
        found = {f"grad.{name}": None for name, _ in self.model.named_parameters()}
        return {**found, **{f"grad.{k}": g.to_host() for k, g in grads.items()}, "loss": loss.to_host()}

    def look(self, way, rows, seed, grad):
        x = ag.tensor(Tensor.from_host(self.queue, programs.batch(seed, rows)[0]))
        forward = self.compiled if (self.way or way) == "jit" else self.model
        with ag.set_grad_enabled(grad), ag.Tape():
            return {"result": forward(x).to_host()}

    def training(self, child, on):
        (getattr(self.model, child) if child else self.model).train(on)

    def replace(self, layer, seed):
        getattr(self.model, layer).weight = Parameter(Tensor.from_host(self.queue, programs.weights(layer, seed)))

    def write(self, layer, seed):
        self.model.load_state_dict({f"{layer}.weight": programs.weights(layer, seed)}, strict=False)

    def freeze(self, layer, on):
        getattr(self.model, layer).requires_grad_(not on)

    def rate(self, lr):
        self.opt.param_groups[0]["lr"] = lr

    def factor(self, factor):
        self.model.gate.factor = factor

    def reload(self):
        """Go on as another process would: new objects, everything from a file; modes and settings are the program's."""
        path = self.folder / "run.netcl"
        save_checkpoint(self.model, path, optimizer=self.opt)
        before = self.model
        self.model, self.opt = self._made()
        load_checkpoint(self.model, path, optimizer=self.opt)
        for old, new in zip(before.modules(), self.model.modules(), strict=True):
            new.training = old.training
        for old, new in zip(before.parameters(), self.model.parameters(), strict=True):
            new.requires_grad = old.requires_grad
        self.model.gate.factor = before.gate.factor
        self._wrap()


def compare(found, wanted, where, tolerance):
    """Everything seen in one run equals what was seen in another."""
    assert sorted(found) == sorted(wanted), where
    for key, value in wanted.items():
        if value is None or found[key] is None:
            assert value is None and found[key] is None, f"{where}: {key}"
        else:
            np.testing.assert_allclose(found[key], value, rtol=tolerance, atol=tolerance, err_msg=f"{where}: {key}")
