"""Plans of norms over contiguous rows: layer, RMS and group norm. Kernels: norm_cpu.cl, and norm_gpu.cl for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.layout import Shape, size_of
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import route
from netcl.ops.normalization.grid import (
    NORM,
    ByName,
    by_name,
    cpu_vector,
    gpu_vector,
    kernel,
    partial_rows,
    row_group,
    split_rows,
    stream_flag,
)
from netcl.ops.normalization.problem import (
    Needs,
    Normed,
    Optional,
    Rows,
    Types,
    begins_aligned,
    flags_of,
    prepared,
    types_of,
)

Forward = Callable[[Tensor, Optional, Optional, float], Normed]
Backward = Callable[..., tuple[Optional, Optional, Optional]]  # of g, x, mean, rstd and weight
Sums = tuple[Launch[ByName], int]  # makes dx, dw_part and db_part; rows of the last two


def plan_forward(x: Tensor, weight: Optional, bias: Optional, lead: Shape, r: Rows, rms: bool = False) -> Forward:
    """`norm` over the rows that `lead` counts: (x, weight, bias, eps) -> (y, mean, rstd). RMS writes no mean."""
    queue, types, profile = x.queue, types_of(x, weight, bias), profile_of(x.queue)
    new = {"y": (x.shape, x.dtype), "mean": (lead, types.compute), "rstd": (lead, types.compute)}
    if r.rows * r.n == 0:
        return lambda *_: tuple([allocate(queue, *of).fill_(0) for of in new.values()])
    flags = flags_of(RMS=rms, CHANNELS=r.per, HAS_W=weight is not None, HAS_B=bias is not None)
    if profile.kind == "cpu":
        if route.special:
            route.sole(NORM, "passes")
        flags += stream_flag(x.shape, r.stretch, types, profile)
        step = split_rows(r.rows, r.n, profile.compute_units)
        made = kernel(queue, "norm_cpu.cl", "norm", types, flags, **cpu_vector(types.compute, profile))
        launch = made.bind((-(-r.rows // step),), (1,), new, D={**r._asdict(), "step": step})
    else:
        aligned = begins_aligned(x, x.dtype) and all(begins_aligned(p, types.parameters) for p in (weight, bias))
        vector = gpu_vector(types.compute, r.stretch % 4 == 0 and aligned)
        sizes = row_group(r.n, vector["VEC"], profile)
        made = kernel(queue, "norm_gpu.cl", "norm", types, flags, **vector, **sizes)
        launch = made.bind(*_grid(r.rows, sizes), new, D=r._asdict())

    def run(x: Tensor, weight: Optional, bias: Optional, eps: float) -> Normed:
        x = x.contiguous()
        w, b = prepared(weight, types.parameters, x), prepared(bias, types.parameters, x)
        made: Normed = launch(x=x, w=w, b=b, eps=float(eps))
        return made

    return run


def _grid(rows: int, sizes: dict[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and group of a GPU for so many rows at once."""
    return (sizes["WG"] * -(-rows // sizes["ROWS"]), sizes["ROWS"]), (sizes["WG"], sizes["ROWS"])


def plan_backward(
    g: Tensor, x: Tensor, mean: Optional, weight: Optional, r: Rows, needs: Needs, shape: Shape
) -> Backward:
    """(g, x, mean, rstd, weight) -> those of dx, dweight and dbias that `needs` names; the last two of `shape`."""
    queue, types = x.queue, types_of(x, weight)
    stored = types.compute if weight is None else weight.dtype
    names = [name for name, need in zip(("dx", "dw", "db"), needs) if need]
    if r.rows * r.n == 0:
        zeros = {"dx": (x.shape, x.dtype), "dw": (shape, stored), "db": (shape, stored)}
        return lambda *_: _in_order({name: allocate(queue, *zeros[name]).fill_(0) for name in names})
    flags = flags_of(RMS=mean is None, CHANNELS=r.per, HAS_W=weight is not None, DX=needs[0])
    plan = _cpu_sums if profile_of(queue).kind == "cpu" else _gpu_channel_sums if r.per else _gpu_sums
    aligned = all(begins_aligned(t, x.dtype) for t in (g, x))
    aligned &= r.per > 0 or begins_aligned(weight, types.parameters)
    sums, count = plan(x, types, r, flags, needs, aligned)
    parameters = [name for name in names if name != "dx"]
    columns = _plan_columns(queue, shape, count, types, parameters) if parameters else None

    def run(g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional) -> Any:
        rstd = prepared(rstd, types.compute, rstd)
        w, mean = prepared(weight, types.parameters, rstd), prepared(mean, types.compute, rstd)
        found = sums(g=prepared(g, types.stored, g), x=x.contiguous(), w=w, mean=mean, rstd=rstd)
        if columns is not None:
            found |= {name: t.astype(stored) for name, t in columns(found).items()}
        return _in_order(found)

    return run


def _in_order(found: dict[str, Tensor]) -> tuple[Optional, Optional, Optional]:
    return found.get("dx"), found.get("dw"), found.get("db")


def _results(x: Tensor, types: Types, needs: Needs, parts: Shape) -> dict[str, Any]:
    """What `norm_grad` makes of dx and the partial sums of dweight and dbias."""
    new = {"dx": (x.shape, x.dtype), "dw_part": (parts, types.compute), "db_part": (parts, types.compute)}
    return {name: of for (name, of), need in zip(new.items(), needs) if need}


def _cpu_sums(x: Tensor, types: Types, r: Rows, flags: tuple[str, ...], needs: Needs, _: bool) -> Sums:
    """`norm_grad`, or `group_grad` that always sums each channel of a sample."""
    queue, profile = x.queue, profile_of(x.queue)
    step = partial_rows(r.rows, profile.compute_units)
    items = -(-r.rows // step)
    if r.per:
        name, parts, needs = "group_grad", (r.rows // r.groups, r.groups * r.per), (needs[0], True, True)
    else:
        name, parts, flags = "norm_grad", (items, r.n), flags + flags_of(DW=needs[1], DB=needs[2])
    flags += stream_flag(x.shape, r.stretch, types, profile) if needs[0] else ()
    made = kernel(queue, "norm_cpu.cl", name, types, flags, **cpu_vector(types.compute, profile))
    new = _results(x, types, needs, parts)
    return by_name(made, (items,), (1,), new, D={**r._asdict(), "step": step}), parts[0]


def _gpu_sums(x: Tensor, types: Types, r: Rows, flags: tuple[str, ...], needs: Needs, aligned: bool) -> Sums:
    """`norm_grad` in as many groups as fill the device, each of which sums over many rows."""
    queue, profile = x.queue, profile_of(x.queue)
    flags += flags_of(DW=needs[1], DB=needs[2])
    vector = gpu_vector(types.compute, r.n % 4 == 0 and aligned)
    sizes = row_group(r.n, vector["VEC"], profile)
    rows = min(-(-r.rows // sizes["ROWS"]), 4 * profile.compute_units) * sizes["ROWS"]
    made = kernel(queue, "norm_gpu.cl", "norm_grad", types, flags, **vector, **sizes)
    return by_name(made, *_grid(rows, sizes), _results(x, types, needs, (rows, r.n)), D=r._asdict()), rows


def _gpu_channel_sums(x: Tensor, types: Types, r: Rows, flags: tuple[str, ...], needs: Needs, aligned: bool) -> Sums:
    """`channel_sums` for the partial sums, and `norm_grad` over groups for dx."""
    queue, profile = x.queue, profile_of(x.queue)
    samples, channels = r.rows // r.groups, r.groups * r.per
    vector = gpu_vector(types.compute, r.span % 4 == 0 and aligned)
    sizes = row_group(r.span, vector["VEC"], profile, keep=False)
    made = kernel(queue, "norm_gpu.cl", "channel_sums", types, ("CHANNELS",), **vector, **sizes)
    rows = r._replace(rows=samples * channels, n=r.span)
    new = _results(x, types, (False, True, True), (samples, channels))
    sums = made.bind(*_grid(rows.rows, sizes), new, D=rows._asdict())
    spread = None
    if needs[0]:
        sizes = row_group(r.n, vector["VEC"], profile)
        made = kernel(queue, "norm_gpu.cl", "norm_grad", types, flags, **vector, **sizes)
        spread = by_name(made, *_grid(r.rows, sizes), {"dx": (x.shape, x.dtype)}, D=r._asdict())

    def run(**given: Tensor) -> dict[str, Tensor]:
        dw_part, db_part = sums(**{name: t for name, t in given.items() if name != "w"})
        return {"dw_part": dw_part, "db_part": db_part} | (spread(**given) if spread else {})

    return run, samples


def _plan_columns(
    queue: Queue, shape: Shape, count: int, types: Types, names: list[str]
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Second stage of dweight and dbias: each of `names` is the sum of the `count` rows of its part."""
    profile, n, types = profile_of(queue), size_of(shape), types._replace(stored=types.compute)
    grid: tuple[int, ...]
    group: tuple[int, ...]
    if profile.kind == "cpu":
        made = kernel(queue, "norm_cpu.cl", "columns", types, (), **cpu_vector(types.compute, profile))
        grid, group = (-(-n // 64), len(names)), (1, 1)
    else:
        limit = profile.group(256)
        width = min(32, limit)
        sizes: dict[str, Any] = {"WIDTH": width, "LANES": max(1, limit // width), "WG": limit, "PER": 0}
        made = kernel(queue, "norm_gpu.cl", "columns", types, (), **gpu_vector(types.compute, False), **sizes)
        grid, group = (-(-n // width) * width, sizes["LANES"], len(names)), (width, sizes["LANES"], 1)
    one = (shape, types.parameters)
    if len(names) == 2:
        both = made.bind(grid, group, {"dw": one, "db": one}, parts=count, n=n)
        return lambda found: dict(zip(names, both(dw_part=found["dw_part"].buffer, db_part=found["db_part"].buffer)))
    single = made.bind(grid, group, {"dw": one}, parts=count, n=n)

    def run(found: dict[str, Tensor]) -> dict[str, Tensor]:
        part = found[f"{names[0]}_part"].buffer
        return {names[0]: single(dw_part=part, db_part=part, db=part)}

    return run
