"""What optimizers are compared on: parameters in two groups, their gradients step by step, and settings.

Read by the tests and by tools/fixtures/optimizers.py, which writes down what PyTorch does.
"""

import numpy as np

STEPS = 10
SHAPES = ((3, 4), (5,), (1,), (2, 3, 2))
SECOND_GROUP = {"lr": 0.03}
ABSENT = {2: (1,), 5: (0, 3)}  # steps: parameters that have no gradient then

FLAGS = {
    "SGD": ({"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.8, "nesterov": True}),
    "Adam": ({"amsgrad": True}, {"betas": (0.5, 0.7), "eps": 1e-3}),
    "AdamW": ({"amsgrad": True},),
    "RMSprop": ({"centered": True}, {"momentum": 0.9}, {"centered": True, "momentum": 0.9, "alpha": 0.8}),
    "Adagrad": ({"lr_decay": 0.1, "initial_accumulator_value": 0.2},),
    "Adadelta": ({"rho": 0.7, "eps": 1e-3},),
    "Adamax": ({"betas": (0.5, 0.7), "eps": 1e-3},),
    "NAdam": ({"decoupled_weight_decay": True, "weight_decay": 0.2}, {"momentum_decay": 0.1}),
    "RAdam": ({"decoupled_weight_decay": True, "weight_decay": 0.2}, {"betas": (0.5, 0.7), "eps": 1e-3}),
}
CASES = {
    f"{name} {' '.join(f'{k}={v}' for k, v in options.items())}": (name, {"lr": 0.02, **options})
    for name, given in FLAGS.items()
    for options in (*given, {}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "maximize": True})
}


def start():
    """Parameters in double precision."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s) for s in SHAPES]


def gradients(step):
    """The gradient of each parameter at a step, or None."""
    rng = np.random.default_rng(100 + step)
    return [None if i in ABSENT.get(step, ()) else rng.standard_normal(s) for i, s in enumerate(SHAPES)]
