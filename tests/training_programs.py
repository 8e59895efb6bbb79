"""Random programs of training: what users do to a model between and within steps, as plain data.

The same program is run by netcl (tests/training_runs.py) and by PyTorch (tools/fixtures/training_state.py). This file
therefore imports neither. An action is a name and its settings; `observe` turns a state into a few numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

INPUTS, HIDDEN, CLASSES = 4, 6, 3
LAYERS = ("first", "last")
CHILDREN = ("", "norm", "gate")  # "" is the whole model
WAYS = ("eager", "jit", "step")  # how a training step is run
RATES = (0.01, 0.05, 0.1)
Action = tuple[str, dict[str, Any]]


def start() -> dict[str, np.ndarray]:
    """The model's first weights by path."""
    rng = np.random.default_rng(7)
    shapes = {
        "first.weight": (HIDDEN, INPUTS),
        "first.bias": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "norm.bias": (HIDDEN,),
        "last.weight": (CLASSES, HIDDEN),
        "last.bias": (CLASSES,),
    }
    return {name: rng.standard_normal(shape) * 0.5 for name, shape in shapes.items()}


def batch(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels."""
    rng = np.random.default_rng(1000 + seed)
    return rng.standard_normal((rows, INPUTS)), rng.integers(0, CLASSES, rows).astype(np.int32)


def weights(layer: str, seed: int) -> np.ndarray:
    """New values for the weight of a layer."""
    shape = start()[f"{layer}.weight"].shape
    return np.random.default_rng(2000 + seed).standard_normal(shape) * 0.5


def program(seed: int, length: int = 24) -> list[Action]:
    """A random program; the first actions of every one train, so that optimizers have states."""
    rng = np.random.default_rng(seed)
    names = ["step"] * 5 + ["look"] * 3 + ["training"] * 3
    names += ["replace", "write", "freeze", "rate", "factor", "reload"]
    return [("step", _settings("step", rng))] + [
        (name, _settings(name, rng)) for name in rng.choice(names, length - 1).tolist()
    ]


def _settings(name: str, rng: Any) -> dict[str, Any]:
    pick = lambda choices: choices[int(rng.integers(len(choices)))]  # noqa: E731
    seed = int(rng.integers(100))
    if name == "step":
        without = pick(("", "", "", "first.weight", "last.bias"))
        return {"way": pick(WAYS), "rows": pick((4, 5)), "seed": seed, "without": without}
    if name == "look":
        return {"way": pick(WAYS[:2]), "rows": pick((4, 5)), "seed": seed, "grad": bool(rng.integers(2))}
    if name == "training":
        return {"child": pick(CHILDREN), "on": bool(rng.integers(2))}
    if name in ("replace", "write"):
        return {"layer": pick(LAYERS), "seed": seed}
    if name == "freeze":
        return {"layer": pick(LAYERS), "on": bool(rng.integers(2))}
    if name == "rate":
        return {"lr": pick(RATES)}
    return {"factor": pick((0.5, 1.5, 2.0))} if name == "factor" else {}


def observe(found: dict[str, Any]) -> np.ndarray:
    """Three random projections of every array; NaN stands for a gradient that is absent."""
    numbers: list[float] = []
    for i, name in enumerate(sorted(found)):
        if found[name] is None:
            numbers += [np.nan] * 3
            continue
        flat = np.asarray(found[name], np.float64).reshape(-1)
        directions = np.random.default_rng(i).standard_normal((3, flat.size))
        numbers += (directions @ flat).tolist()
    return np.asarray(numbers)
