"""Reductions, rows by index, windows and updates for an NVIDIA GPU, a table of benchmarks/h200.py.

Memory bounds them all, so the bytes that must move are given and the rate is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu_cases import Env, GpuCase, Pair

ROWS = (8192, 4096)
TABLE = (50304, 768)
IMAGES = (32, 128, 56, 56)
GRADIENT, CONV = ("forward", "gradient"), ("forward", "dx", "dw")

HALF: dict[str, Any] = {"dtype": "float16"}
STEM: dict[str, Any] = {"shape": (32, 64, 112, 112), "window": (3, 2, 1)}  # as ResNet's
POOLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("max", "2x2 (32,128,56,56)", {}),
    ("max", "2x2 fp16 (32,128,56,56)", HALF),
    ("max", "3x3/2 (32,64,112,112)", STEM),
    ("max", "3x3/2 fp16 (32,64,112,112)", {**STEM, **HALF}),
    ("average", "2x2 (32,128,56,56)", {}),
)
DEPTHWISE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("3x3", {}), ("3x3 fp16", HALF), ("3x3/2", {"stride": 2}), ("3x3/2 fp16", {"stride": 2, **HALF}),
    ("7x7", {"size": 7}),
)  # fmt: skip


def alike(env: Env, ours: Callable[..., Any], theirs: Callable[..., Any], *data: Any, moved: float) -> Pair:
    """One call of each on the same data; `moved` bytes at least. Errors against `theirs` of doubles."""
    torch = env.torch
    mine = [env.ours(d) for d in data]
    exact = theirs(*[d.double() if d.is_floating_point() else d for d in data])

    def errors() -> tuple[float, float]:
        return env.error(env.theirs(ours(*mine)), exact.double()), env.error(theirs(*data).double(), exact.double())

    torch.backends.cudnn.allow_tf32 = False
    return Pair(lambda: ours(*mine), lambda: theirs(*data), errors, bytes=moved)


def reduced(env: Env, name: str, axis: Any, shape: tuple[int, ...] = ROWS, dtype: str = "float32") -> Pair:
    """A reduction along axes, or of all elements."""
    from netcl.ops import reduction

    x, torch = env.randn(*shape, dtype=dtype), env.torch
    how = {} if axis is None else {"dim": axis}
    their = {
        "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "var": partial(torch.var, correction=0),
        "argmax": torch.argmax,
    }[name]  # fmt: skip
    moved = float(x.numel() * x.element_size())
    return alike(env, lambda x: getattr(reduction, name)(x, axis), lambda x: their(x, **how), x, moved=moved)


def running_sum(env: Env) -> Pair:
    """Running sums along rows."""
    from netcl.ops.index.scan import cumsum

    x = env.randn(*ROWS)
    return alike(env, lambda x: cumsum(x, 1), lambda x: env.torch.cumsum(x, 1), x, moved=8.0 * x.numel())


def turned(
    env: Env, shape: tuple[int, ...] = ROWS, axes: tuple[int, ...] = (1, 0), dtype: str = "float32", start: int = 0
) -> Pair:
    """A copy with its axes in another order, from the element `start` of each row on."""
    x = env.randn(*shape, dtype=dtype)
    run = lambda x: x[..., start:].permute(*axes).contiguous()  # noqa: E731
    return alike(env, run, run, x, moved=2.0 * x.numel() * x.element_size())


def dropped(env: Env, part: str, dtype: str = "float32") -> Pair:
    """Dropout: ours and theirs draw other numbers, so the share of zeros stands for the error."""
    from netcl.ops.create.random import dropout, dropout_grad

    x, torch = env.randn(*ROWS, dtype=dtype), env.torch
    mine, kept = env.ours(x), torch.rand(*ROWS, device="cuda") < 0.5
    share = lambda y: abs(float((y == 0).double().mean()) - 0.5)  # noqa: E731
    _, draw = dropout(mine, 0.5)
    ours, theirs = {
        "forward": (lambda: dropout(mine, 0.5)[0], partial(torch.nn.functional.dropout, x, 0.5)),
        "gradient": (
            lambda: dropout_grad(mine, 0.5, draw), lambda: torch.ops.aten.native_dropout_backward(x, kept, 2.0),
        ),
    }[part]  # fmt: skip
    return Pair(
        ours, theirs, lambda: (share(env.theirs(ours())), share(theirs())), bytes=2.0 * x.element_size() * x.numel()
    )  # fmt: skip


def drawn(env: Env, name: str, size: int = 1 << 25) -> Pair:
    """Random numbers; the distance of their mean from the right one stands for the error."""
    from netcl.ops.create import random

    out = env.torch.empty(size, device="cuda")
    ours, theirs, mean = {
        "uniform": (random.uniform, out.uniform_, 0.5),
        "normal": (random.normal, out.normal_, 0.0),
        "bernoulli": (partial(random.bernoulli, p=0.25, dtype="float32"), partial(out.bernoulli_, 0.25), 0.25),
    }[name]
    off = lambda y: abs(float(y.double().mean()) - mean)  # noqa: E731
    return Pair(
        lambda: ours(env.queue, (size,)), theirs, lambda: (off(env.theirs(ours(env.queue, (size,)))), off(theirs())),
        bytes=4.0 * size,
    )  # fmt: skip


def moved_along(env: Env, name: str, shape: tuple[int, ...] = (4096, 1024)) -> Pair:
    """One element of each column by number, or elements added to their columns by number."""
    from netcl.ops.index import pick as indexing
    from netcl.ops.index import scatter

    torch, x = env.torch, env.randn(*shape)
    index = torch.randint(0, shape[0], shape, device="cuda")
    if name == "gather":
        return alike(
            env, lambda x, i: indexing.gather(x, i, 0), lambda x, i: torch.gather(x, 0, i), x, index,
            moved=16.0 * x.numel(),
        )  # fmt: skip
    return alike(
        env, lambda x, i, s: scatter.scatter_add(x, i, s, 0), lambda x, i, s: torch.scatter_add(x, 0, i, s), x, index,
        env.randn(*shape), moved=20.0 * x.numel(),
    )  # fmt: skip


def ordered(env: Env) -> Pair:
    """Sorted rows."""
    from netcl.ops.index.sort import sort

    x = env.randn(4096, 1024)
    return alike(env, lambda x: sort(x, 1), lambda x: env.torch.sort(x, 1)[0], x, moved=8.0 * x.numel())


def embedded(env: Env, part: str, ids: int = 8192, dtype: str = "float32", often: bool = False) -> Pair:
    """Rows of a table by number, or the gradient of the table: sums of the rows that met; `often`, as words meet."""
    from netcl.ops.index import pick as indexing
    from netcl.ops.index import scatter

    torch, (rows, size) = env.torch, TABLE
    w, g, index = env.randn(rows, size, dtype=dtype), env.randn(ids, size, dtype=dtype), torch.rand(ids, device="cuda")
    index = (rows**index - 1 if often else rows * index).long()  # often: the chance of number i falls as 1 / (i + 1)
    each = w.element_size()
    if part == "forward":
        return alike(
            env, indexing.embedding, lambda w, i: torch.nn.functional.embedding(i, w), w, index,
            moved=2.0 * each * ids * size,
        )  # fmt: skip
    return alike(
        env, lambda g, i: scatter.take_grad("embedding", g, i, (rows, size), 0),
        lambda g, i: torch.zeros(rows, size, device="cuda", dtype=g.dtype).index_add_(0, i, g), g, index,
        moved=1.0 * each * (rows + ids) * size,
    )  # fmt: skip


def pooled(
    env: Env, part: str, kind: str = "max", shape: tuple[int, ...] = IMAGES, window: tuple[int, int, int] = (2, 2, 0),
    dtype: str = "float32",
) -> Pair:  # fmt: skip
    """Pooling of windows (size, stride, padding), or its gradient; maxima with their indices, as training has them."""
    from netcl.ops.pooling import op as pool

    torch, x, functional = env.torch, env.randn(*shape, dtype=dtype), env.torch.nn.functional
    forward, average = part == "forward", kind == "average"
    if average:
        y = functional.avg_pool2d(x, *window)
    else:
        y, their_places = functional.max_pool2d(x, *window, return_indices=True)
    moved = x.element_size() * (x.numel() + y.numel()) + (0.0 if average else 4.0 * y.numel())
    if forward and average:
        return alike(
            env, lambda x: pool.avg_pool2d(x, *window), lambda x: functional.avg_pool2d(x, *window), x, moved=moved
        )  # fmt: skip
    if forward:
        return alike(
            env, lambda x: pool.max_pool2d(x, *window, return_indices=True)[0],
            lambda x: functional.max_pool2d(x, *window, return_indices=True)[0], x, moved=moved,
        )  # fmt: skip
    g, mine = torch.randn_like(y), env.ours(x)
    sizes = tuple((v, v) for v in window)
    if average:
        return alike(
            env, lambda g: pool.avg_pool2d_grad(g, shape, *window),
            lambda g: torch.ops.aten.avg_pool2d_backward(g, x.to(g.dtype), *sizes, False, True, None), g, moved=moved,
        )  # fmt: skip
    places = pool.max_pool2d(mine, *window, return_indices=True)[1]
    tail = (*sizes, (1, 1), False)
    return alike(
        env, lambda g: pool.max_pool2d_grad(g, places, shape, *window),
        lambda g: torch.ops.aten.max_pool2d_with_indices_backward(g, x.to(g.dtype), *tail, their_places), g,
        moved=moved,
    )  # fmt: skip


def depthwise(env: Env, part: str, size: int = 3, stride: int = 1, dtype: str = "float32") -> Pair:
    """A convolution of each channel with a filter of its own, or a gradient."""
    from netcl.ops.convolution import op as conv

    torch, (_, c, _, _) = env.torch, IMAGES
    x, w = env.randn(*IMAGES, dtype=dtype), env.randn(c, 1, size, size, dtype=dtype)
    how = {"padding": size // 2, "groups": c, "stride": stride}
    g = torch.randn_like(torch.nn.functional.conv2d(x, w, **how))
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
    return alike(env, ours, theirs, *data, moved=float(x.element_size() * (x.numel() + g.numel())))


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
    *(
        GpuCase(f"sum fp16 (8192,4096) axis {axis}", partial(reduced, name="sum", axis=axis, dtype="float16"))
        for axis in (0, 1)
    ),
    GpuCase("sum (32,128,56,56) axes 0 2 3", partial(reduced, name="sum", axis=(0, 2, 3), shape=IMAGES)),
    GpuCase("mean (64,1000) axis 1", partial(reduced, name="mean", axis=1, shape=(64, 1000))),
    GpuCase("cumsum (8192,4096) axis 1", running_sum),
    GpuCase("transposed copy (8192,4096)", turned),
    *(GpuCase(f"dropout (8192,4096) {part}", partial(dropped, part=part)) for part in GRADIENT),
    GpuCase("dropout (8192,4096) fp16", partial(dropped, part="forward", dtype="float16")),
    *(GpuCase(f"{name} 32M", partial(drawn, name=name)) for name in ("uniform", "normal", "bernoulli")),
    GpuCase("transposed copy fp16 (8192,4096)", partial(turned, dtype="float16")),
    GpuCase("transposed copy (8192,4096) from column 1", partial(turned, start=1)),
    GpuCase("NCHW to NHWC copy (32,128,56,56)", partial(turned, shape=IMAGES, axes=(0, 2, 3, 1))),
    GpuCase("NHWC to NCHW copy (32,56,56,128)", partial(turned, shape=(32, 56, 56, 128), axes=(0, 3, 1, 2))),
    GpuCase("sort (4096,1024) axis 1", ordered),
    *(GpuCase(f"embedding 8192 of (50304,768) {part}", partial(embedded, part=part)) for part in GRADIENT),
    *(
        GpuCase(f"embedding {n} of (50304,768) {part} {dtype}", partial(embedded, part=part, ids=n, dtype=dtype))
        for n, dtype in ((8192, "float16"), (65536, "float32")) for part in GRADIENT
    ),
    GpuCase("embedding 8192 often of (50304,768) gradient", partial(embedded, part="gradient", often=True)),
    *(GpuCase(f"{name} (4096,1024) axis 0", partial(moved_along, name=name)) for name in ("gather", "scatter_add")),
    *(
        GpuCase(f"{kind} pool {name} {part}", partial(pooled, part=part, kind=kind, **how))
        for kind, name, how in POOLS for part in GRADIENT
    ),
    *(
        GpuCase(f"depthwise {name} (32,128,56,56) {part}", partial(depthwise, part=part, **how))
        for name, how in DEPTHWISE for part in CONV
    ),
    GpuCase("AdamW step, 8 tensors of 42M", updated),
)  # fmt: skip
