"""Streaming attention on CPU devices: register tiles, blocks and launches of attend_cpu.cl and attend_grad_cpu.cl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, DType, compute_dtype
from netcl.core.kernels import dialect
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.kernels import route, sources
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.kernels.route import FIRST, LAST, Route, choose
from netcl.ops.attend.problem import (
    ATTENTION,
    ATTENTION_GRAD,
    OPTIONS,
    BiasGrad,
    Call,
    arguments,
    dims,
    flags,
    results,
)

CACHE = 256 << 10  # bytes of the second-level cache that a gradient's blocks may take
FEW = 4  # queries up to which keys and values are read as they are
LIMITS = f"for at most {FEW} queries"
GRAD_BLOCKS = ((96, 48), (48, 48), (32, 24), (16, 12))  # keys and queries that a gradient takes at once
# Rows and vectors of a row of the register tiles, by the floats of a vector. Sums fill the 16 registers of 8 floats; of
# the 32 of 16 floats half are enough. The rows of the forward pass divide usual head sizes.
FORWARD_TILE = {16: (8, 2), 8: (4, 3)}
GRAD_TILE = {16: (8, 2), 8: (6, 2)}
ALONE = (1, 1, 1)  # work-items of a group


class Form(NamedTuple):
    """How kernels of attention_cpu.cl compute: dtypes, floats per vector of the device, register tile."""

    stored: DType
    compute: DType
    vector: int
    rows: int
    vectors: int

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return self.vector * 4 // self.compute.itemsize

    @property
    def panel(self) -> int:
        """Columns of the register tile."""
        return self.width * self.vectors

    def source(self, c: Call, *files: str, **sizes: int) -> str:
        """The program in `files` for the scores of `c`."""
        double = self.compute.itemsize == 8
        defines: dict[str, Any] = {**dict(flags(c)), **({"DOUBLE": 1} if double else {})}
        maths = dialect.preamble(frozenset({"f_tanh"}), C_NAME[self.compute], self.width, True) if c.x.softcap else ""
        tile = {"VW": self.width, "MR": self.rows, "NV": self.vectors}
        types = {"S": C_NAME[self.stored], "E": C_NAME[self.compute], "LANE": "long" if double else "int"}
        text = ("memory.cl", "philox.cl", "attention_scores.cl", "attention_rows.cl", "attention_cpu.cl", *files)
        return sources.load(*text, preamble=maths, **defines, **tile, **types, **sizes)


def _form(queue: Queue, stored: DType, tiles: dict[int, tuple[int, int]]) -> Form:
    vector = profile_of(queue).vector
    return Form(stored, compute_dtype(stored), vector, *tiles[vector])


def forward(c: Call) -> tuple[Tensor, Tensor]:
    """o and lse."""
    few = c.x.queries <= FEW
    widened = c.q.dtype != compute_dtype(c.q.dtype) and (route.special or not few)
    shapes = (c.k.shape, c.v.shape) if widened else c.x.width
    key = (ATTENTION, c.q.shape, c.q.dtype, flags(c), shapes, route.mode)

    def make() -> Callable[[Call], tuple[Tensor, Tensor]]:
        direct = Route(FIRST if few else LAST, "direct", lambda: _plan_forward(c, True, False), "" if few else LIMITS)
        tiled = Route(FIRST, "tiled", lambda: _plan_forward(c, False, widened))
        chosen: Callable[[Call], tuple[Tensor, Tensor]] = choose(ATTENTION, [direct, tiled])
        return chosen

    return remember(c.q.queue, key, make)(c)


def _plan_forward(c: Call, few: bool, widened: bool) -> Callable[[Call], tuple[Tensor, Tensor]]:
    x, queue, form = c.x, c.q.queue, _form(c.q.queue, c.q.dtype, FORWARD_TILE)
    use = {"USE_ATTEND_FEW" if few else "USE_ATTEND": 1} | ({"WIDENED": 1} if widened else {})
    text = form.source(c, "attend_cpu.cl", DP=-(-max(x.size, x.width) // 64) * 64, **use)
    made = program(queue, text, "attend_few" if few else "attend", OPTIONS)
    grid = (x.queries if few else -(-x.queries // form.panel), x.heads, x.batch)
    launch = made.bind(grid, ALONE, results(c))
    if not widened:
        return lambda c: launch(**arguments(c), d=made.record("d", **dims(c)))
    grid = (-(-x.keys // 64), c.k.shape[1], x.batch)
    wide = program(queue, text, "widen", OPTIONS)
    widen = [wide.bind(grid, ALONE, {"out": (t.shape, form.compute)}) for t in (c.k, c.v)]

    def run(c: Call) -> Any:
        """k and v are read so often that converting them first is cheaper."""
        sizes = [dims(c._replace(k=t, x=c.x._replace(size=t.shape[3]))) for t in (c.k, c.v)]
        k, v = (w(k=t, d=made.record("d", **d)) for w, t, d in zip(widen, (c.k, c.v), sizes))
        c = c._replace(k=k, v=v)
        return launch(**arguments(c), d=made.record("d", **dims(c)))

    return run


def _grad_sizes(form: Form, width: int, profile: DeviceProfile) -> dict[str, int]:
    """Keys (BK) and queries (BQ) per block of the gradient: the largest whose working set fits in local memory."""
    limit = min(profile.local_mem, CACHE) // form.compute.itemsize
    for keys, queries in GRAD_BLOCKS:
        keys = -(-keys // form.panel) * form.panel
        queries = -(-queries // form.rows) * form.rows
        sums = -(-keys // form.rows) * form.rows
        row = width + form.width
        if 2 * (keys + sums) * width + (keys + 2 * queries) * row + 2 * queries * (keys + form.width) <= limit:
            break
    return {"BK": keys, "BQ": queries}


def backward(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and the dots of g and o."""
    key = (ATTENTION_GRAD, c.x, c.q.dtype, flags(c), route.mode)

    def make() -> Callable[[Call], tuple[Tensor, Tensor, Tensor, Tensor]]:
        tiled = Route(FIRST, "tiled", lambda: _plan_backward(c))
        chosen: Callable[[Call], tuple[Tensor, Tensor, Tensor, Tensor]] = choose(ATTENTION_GRAD, [tiled])
        return chosen

    return remember(c.q.queue, key, make)(c)


def bias_grad(c: Call, delta: Tensor, wanted: BiasGrad) -> Tensor:
    """The sums of ds that `wanted` names."""
    key = ("bias_grad", c.x, c.q.dtype, flags(c), wanted)
    launch = remember(c.q.queue, key, lambda: _plan_bias_grad(c, wanted))
    found: Tensor = launch(c, delta)
    return found


def _plan_bias_grad(c: Call, wanted: BiasGrad) -> Callable[[Call, Tensor], Tensor]:
    form, x = _form(c.q.queue, c.q.dtype, GRAD_TILE), c.x
    width = -(-max(x.size, x.width) // form.panel) * form.panel
    sizes = _grad_sizes(form, width, profile_of(c.q.queue))
    text = form.source(c, "attend_grad_cpu.cl", "bias_grad_cpu.cl", DP=width, **sizes, **wanted.defines)
    made = program(c.q.queue, text, "bias_grad", OPTIONS)
    samples, heads, down, across = wanted.grid(sizes["BQ"], sizes["BK"])
    new = {"out": (wanted.shape, form.compute)}
    launch = made.bind((down * across, heads, samples), ALONE, new, across=across, **wanted.steps)
    return lambda c, delta: launch(**arguments(c), delta=delta.buffer, d=made.record("d", **dims(c)))


def _plan_backward(c: Call) -> Callable[[Call], tuple[Tensor, Tensor, Tensor, Tensor]]:
    x, queue, profile = c.x, c.q.queue, profile_of(c.q.queue)
    form, heads = _form(queue, c.q.dtype, GRAD_TILE), x.heads // x.group
    width = -(-max(x.size, x.width) // form.panel) * form.panel
    sizes = _grad_sizes(form, width, profile)
    text = form.source(c, "attend_grad_cpu.cl", DP=width, USE_QUERY_GRAD=1, USE_KEY_GRAD=1, **sizes)
    splits = max(1, min(-(-4 * profile.compute_units // (x.batch * heads)), -(-x.keys // sizes["BK"])))
    rows = -(-x.queries // form.rows) * form.rows
    parts = ((splits, x.batch * x.heads, rows, width), form.compute)
    grid = (-(-x.queries // 64), x.heads, x.batch)
    made = program(queue, text, "attend_grad", OPTIONS)
    by_keys = {"dk": (c.k.shape, c.k.dtype), "dv": (c.v.shape, c.v.dtype)}
    key_grad = made.bind((splits, heads, x.batch), ALONE, {**by_keys, "parts": parts})
    dots = program(queue, text, "dots", OPTIONS).bind(grid, ALONE, {"delta": (c.q.shape[:3], form.compute)})
    join = program(queue, text, "join", OPTIONS).bind(grid, ALONE, {"dq": (c.q.shape, c.q.dtype)})

    def run(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        d = made.record("d", **dims(c, splits, rows))
        delta = dots(g=c.g, o=c.o, d=d)
        given = {**arguments(c), "delta": delta.buffer, "d": d}
        dk, dv, parts = key_grad(**given)
        return join(parts=parts.buffer, **given), dk, dv, delta

    return run
