"""Reductions, rows by index, windows and updates for an NVIDIA GPU, a table of benchmarks/h200.py.

Memory bounds them all, so the bytes that must move are given and the rate is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu_cases import Env, GpuCase, Pair

ROWS = (8192, 4096)
IMAGES = (32, 128, 56, 56)
GRADIENT, CONV = ("forward", "gradient"), ("forward", "dx", "dw")


def alike(env: Env, ours: Callable[..., Any], theirs: Callable[..., Any], *data: Any, moved: float) -> Pair:
    """One call of each on the same data; `moved` bytes at least. Errors against `theirs` of doubles."""
    torch = env.torch
    mine = [env.ours(d) for d in data]
    exact = theirs(*[d.double() if d.is_floating_point() else d for d in data])

    def errors() -> tuple[float, float]:
        return env.error(env.theirs(ours(*mine)), exact.double()), env.error(theirs(*data).double(), exact.double())

    torch.backends.cudnn.allow_tf32 = False
    return Pair(lambda: ours(*mine), lambda: theirs(*data), errors, bytes=moved)


def reduced(env: Env, name: str, axis: int | None, shape: tuple[int, ...] = ROWS) -> Pair:
    """A reduction of floats along an axis, or of all of them."""
    from netcl.ops import reduction

    x, torch = env.randn(*shape), env.torch
    how = {} if axis is None else {"dim": axis}
    their = {"sum": torch.sum, "max": torch.amax, "var": partial(torch.var, correction=0), "argmax": torch.argmax}[name]
    return alike(
        env, lambda x: getattr(reduction, name)(x, axis), lambda x: their(x, **how), x, moved=4.0 * x.numel()
    )  # fmt: skip


def running_sum(env: Env) -> Pair:
    """Running sums along rows."""
    from netcl.ops.scan import cumsum

    x = env.randn(*ROWS)
    return alike(env, lambda x: cumsum(x, 1), lambda x: env.torch.cumsum(x, 1), x, moved=8.0 * x.numel())


def turned(env: Env) -> Pair:
    """A transposed copy."""
    x = env.randn(*ROWS)
    return alike(
        env, lambda x: x.transpose(0, 1).contiguous(), lambda x: x.t().contiguous(), x, moved=8.0 * x.numel()
    )  # fmt: skip


def dropped(env: Env) -> Pair:
    """Dropout: ours and theirs draw other numbers, so the share of zeros stands for the error."""
    from netcl.ops.random import dropout

    x, torch = env.randn(*ROWS), env.torch
    mine = env.ours(x)
    share = lambda y: abs(float((y == 0).double().mean()) - 0.5)  # noqa: E731
    theirs = partial(torch.nn.functional.dropout, x, 0.5)
    return Pair(
        lambda: dropout(mine, 0.5), theirs, lambda: (share(env.theirs(dropout(mine, 0.5)[0])), share(theirs())),
        bytes=8.0 * x.numel(),
    )  # fmt: skip


def ordered(env: Env) -> Pair:
    """Sorted rows."""
    from netcl.ops.sort import sort

    x = env.randn(4096, 1024)
    return alike(env, lambda x: sort(x, 1), lambda x: env.torch.sort(x, 1)[0], x, moved=8.0 * x.numel())


def embedded(env: Env, part: str, rows: int = 50304, size: int = 768, ids: int = 8192) -> Pair:
    """Rows of a table by number, or the gradient of the table: sums of the rows that met."""
    from netcl.ops import indexing, scatter

    torch = env.torch
    w, index, g = env.randn(rows, size), torch.randint(0, rows, (ids,), device="cuda"), env.randn(ids, size)
    if part == "forward":
        return alike(
            env, indexing.embedding, lambda w, i: torch.nn.functional.embedding(i, w), w, index, moved=8.0 * ids * size
        )  # fmt: skip
    return alike(
        env, lambda g, i: scatter.take_grad("embedding", g, i, (rows, size), 0),
        lambda g, i: torch.zeros(rows, size, device="cuda", dtype=g.dtype).index_add_(0, i, g), g, index,
        moved=4.0 * (rows + ids) * size,
    )  # fmt: skip


def pooled(env: Env, part: str) -> Pair:
    """Max pooling of 2x2 windows, or its gradient."""
    from netcl.ops import pool

    torch, x = env.torch, env.randn(*IMAGES)
    run = partial(torch.nn.functional.max_pool2d, kernel_size=2, return_indices=True)
    if part == "forward":
        return alike(env, lambda x: pool.max_pool2d(x, 2), lambda x: run(x)[0], x, moved=5.0 * x.numel())
    y, their_places = run(x)
    g, mine = torch.randn_like(y), env.ours(x)
    places = pool.max_pool2d(mine, 2, return_indices=True)[1]
    tail = ((2, 2), (2, 2), (0, 0), (1, 1), False)
    return alike(
        env, lambda g: pool.max_pool2d_grad(g, places, x.shape, 2),
        lambda g: torch.ops.aten.max_pool2d_with_indices_backward(g, x.to(g.dtype), *tail, their_places), g,
        moved=5.0 * x.numel(),
    )  # fmt: skip


def depthwise(env: Env, part: str) -> Pair:
    """A 3x3 convolution of each channel with filters of its own, or a gradient."""
    from netcl.ops import conv

    torch, (n, c, size, _) = env.torch, IMAGES
    x, w, g = env.randn(*IMAGES), env.randn(c, 1, 3, 3), env.randn(*IMAGES)
    how = {"padding": 1, "groups": c}
    torch.backends.cudnn.benchmark = True
    ours, theirs, data = {
        "forward": (
            lambda x, w: conv.conv2d(x, w, **how), lambda x, w: torch.nn.functional.conv2d(x, w, **how), (x, w),
        ),
        "dx": (
            lambda g, w: conv.conv2d_input_grad(g, w, x.shape, **how),
            lambda g, w: torch.nn.grad.conv2d_input(x.shape, w, g, **how), (g, w),
        ),
        "dw": (
            lambda g, x: conv.conv2d_weight_grad(g, x, w.shape, **how),
            lambda g, x: torch.nn.grad.conv2d_weight(x, w.shape, g, **how), (g, x),
        ),
    }[part]  # fmt: skip
    return alike(env, ours, theirs, *data, moved=8.0 * n * c * size * size)


def updated(env: Env, sizes: tuple[int, ...] = (1 << 24, 1 << 20, 4096, 1 << 22) * 2) -> Pair:
    """A step of AdamW over several tensors, against PyTorch's fused one."""
    import netcl.autograd as ag
    from netcl.optim import AdamW

    torch = env.torch
    starts, grads = [env.randn(n) for n in sizes], [env.randn(n) for n in sizes]
    mine, theirs, wide = ([make(p.clone()) for p in starts] for make in (
        lambda p: ag.Parameter(env.ours(p)), torch.nn.Parameter, lambda p: torch.nn.Parameter(p.double()),
    ))  # fmt: skip
    for p, t, w, g in zip(mine, theirs, wide, grads):
        p.grad, t.grad, w.grad = env.ours(g), g.clone(), g.double()
    ours = AdamW(mine, lr=1e-3)
    fused, exact = (torch.optim.AdamW(ps, lr=1e-3, fused=True) for ps in (theirs, wide))

    def errors() -> tuple[float, float]:
        for step in (ours, fused, exact):
            step.step()
        ratios = [
            (env.error(env.theirs(p.value), w.detach()), env.error(t.detach().double(), w.detach()))
            for p, t, w in zip(mine, theirs, wide)
        ]
        return max(r[0] for r in ratios), max(r[1] for r in ratios)

    return Pair(ours.step, fused.step, errors, bytes=28.0 * sum(sizes))


CASES = (
    GpuCase("sum of all (8192,4096)", partial(reduced, name="sum", axis=None)),
    GpuCase("sum of all 256M", partial(reduced, name="sum", axis=None, shape=(1 << 28,))),
    *(
        GpuCase(f"{name} (8192,4096) axis {axis}", partial(reduced, name=name, axis=axis))
        for name in ("sum", "max", "var", "argmax") for axis in (0, 1)
    ),
    GpuCase("cumsum (8192,4096) axis 1", running_sum),
    GpuCase("transposed copy (8192,4096)", turned),
    GpuCase("dropout (8192,4096)", dropped),
    GpuCase("sort (4096,1024) axis 1", ordered),
    *(GpuCase(f"embedding 8192 of (50304,768) {part}", partial(embedded, part=part)) for part in GRADIENT),
    *(GpuCase(f"max pool 2x2 (32,128,56,56) {part}", partial(pooled, part=part)) for part in GRADIENT),
    *(GpuCase(f"depthwise 3x3 (32,128,56,56) {part}", partial(depthwise, part=part)) for part in CONV),
    GpuCase("AdamW step, 8 tensors of 42M", updated),
)  # fmt: skip
