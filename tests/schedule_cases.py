"""Schedules that are compared with PyTorch's: read by the tests and by tools/fixtures/schedules.py."""

STEPS = 100
RATES = (1.0, 0.3)  # of two groups

# of each: a function of (the module with the schedules, the optimizer), with SGD of momentum 0.9 or Adam
CASES = {
    "StepLR": lambda S, o: S.StepLR(o, 30, gamma=0.5),
    "MultiStepLR": lambda S, o: S.MultiStepLR(o, [10, 40, 40, 80], gamma=0.3),
    "ExponentialLR": lambda S, o: S.ExponentialLR(o, 0.95),
    "ConstantLR": lambda S, o: S.ConstantLR(o, factor=0.5, total_iters=7),
    "LinearLR": lambda S, o: S.LinearLR(o, start_factor=0.1, end_factor=0.8, total_iters=33),
    "PolynomialLR": lambda S, o: S.PolynomialLR(o, total_iters=60, power=1.7),
    "CosineAnnealingLR": lambda S, o: S.CosineAnnealingLR(o, T_max=40, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, T_0=12, T_mult=2, eta_min=0.02),
    "CosineAnnealingWarmRestarts even": lambda S, o: S.CosineAnnealingWarmRestarts(o, T_0=15),
    "CyclicLR": lambda S, o: S.CyclicLR(o, base_lr=[0.1, 0.05], max_lr=1.0, step_size_up=12, step_size_down=7),
    "CyclicLR triangular2": lambda S, o: S.CyclicLR(o, 0.1, 1.0, step_size_up=9, mode="triangular2"),
    "CyclicLR exp_range": lambda S, o: S.CyclicLR(o, 0.1, 1.0, 9, mode="exp_range", gamma=0.98, cycle_momentum=False),
    "CyclicLR scale_fn": lambda S, o: S.CyclicLR(o, 0.1, 1.0, 9, scale_fn=lambda x: 1 / (1 + x)),
    "OneCycleLR": lambda S, o: S.OneCycleLR(o, max_lr=[1.0, 0.3], total_steps=101),
    "OneCycleLR linear": lambda S, o: S.OneCycleLR(o, 1.0, epochs=10, steps_per_epoch=11, anneal_strategy="linear"),
    "OneCycleLR three": lambda S, o: S.OneCycleLR(o, 1.0, total_steps=120, three_phase=True, pct_start=0.2),
    "SequentialLR": lambda S, o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, total_iters=10), S.CosineAnnealingLR(o, 50), S.ExponentialLR(o, 0.9)], [10, 60]
    ),
    "ChainedScheduler": lambda S, o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 8), S.ExponentialLR(o, 0.97)]),
}
ADAM = ("OneCycleLR", "CyclicLR triangular2")
