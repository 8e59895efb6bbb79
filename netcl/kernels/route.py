"""Routes: the ways in which an op can compute a problem, by name, and how one of them is chosen.

An op lists a `Route` for each algorithm that its kind of device has, and `choose` gives the plan of the cheapest one
that serves and builds. `force` names the route to take in its place; `watch` tells what was chosen and why.

Costs are cycles of a compute unit, as tiling.py estimates them from the roofline of the tuning table.

`mode` is a number for everything that choices depend on beside operands and device: forced routes, the precision of
products, matrix units that are allowed or given up. It is a part of the keys of plans, programs and recordings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

from netcl.core.errors import NetclError, RouteError, meant
from netcl.core.queue import Plans, state_of

FIRST = 0.0  # cost of a route that was measured to be the fastest wherever it serves: the first listed is taken
LAST = math.inf  # of one that serves and is taken only where it is forced
HOST = "host"  # the route of every op on the NumPy backend

COST = attrgetter("cost")
ROUTES: dict[str, tuple[str, ...]] = {}  # the routes of each op, of all kinds of devices
ALIASES = {  # names of earlier documentation
    "matmul_naive": "naive",
    "matmul_tiled": "tiled",
    "matmul_optimized": "tiled",
    "matmul_register_tiled": "tiled",
    "matmul_vectorized": "tiled",
    "conv2d_naive": "direct",
    "conv2d_im2col": "im2col",
    "conv2d_implicit_gemm": "implicit_gemm",
    "conv2d_tiled_local": "implicit_gemm",
    "conv2d_winograd": "winograd",
    "winograd_fused": "winograd",
    "depthwise_conv2d": "depthwise",
}


class Route(NamedTuple):
    """One way to compute a problem; `plan` makes what runs it, None where it cannot serve."""

    cost: float
    name: str
    plan: Callable[[], Any] | None
    why: str = ""  # why it cannot serve, or is not worth taking
    spare: Callable[[Exception], None] | None = None  # told of a failure to build; without it the failure is raised


class Decision(NamedTuple):
    """What an op chose: the route's name, and name, cost and remark of every route, the cheapest first."""

    op: str
    chosen: str
    routes: tuple[tuple[str, float, str], ...]


mode = 0
special = False  # whether a route is forced, or choices are watched
_modes: dict[Any, int] = {(): 0}
_facts: dict[str, Hashable] = {}
_forced: dict[str, str] = {}  # op: route
_watching: list[Decision] | None = None


def declare(op: str, *names: str) -> str:
    """Make the routes of `op` known, so that they can be forced; returns `op`."""
    ROUTES[op] = (*names, HOST)
    return op


def settle(name: str, value: Hashable) -> None:
    """Note that choices depend on the fact `name`, which is `value` from now on."""
    global mode
    _facts[name] = value
    mode = _modes.setdefault(tuple(sorted(_facts.items(), key=lambda fact: fact[0])), len(_modes))


def cannot(name: str, why: str) -> Route:
    """A route that does not serve, and why."""
    return Route(LAST, name, None, why)


def ranked(op: str, routes: Iterable[Route]) -> list[Route]:
    """The routes that may be taken, the best first; the forced one alone."""
    wanted = _forced.get(op)
    if wanted is not None:
        return [r for r in routes if r.name == wanted and r.plan is not None]
    return sorted((r for r in routes if r.plan is not None and r.cost < LAST), key=COST)


def choose(op: str, routes: Sequence[Route]) -> Any:
    """The plan of the best of `routes` that builds; one that does not and has a `spare` leaves it to the next.

    Raises RouteError, with all routes and what speaks against each, where none serves, or not the forced one.
    """
    best = routes[0]
    if not special and best.cost == FIRST and best.plan is not None and best.spare is None:
        return best.plan()
    forced, failed = op in _forced, dict[str, str]()
    for route in ranked(op, routes):
        place = -1 if _watching is None else len(_watching)
        try:
            plan = route.plan()  # type: ignore[misc]  # ranked leaves out those without a plan
        except NetclError as error:
            if forced or route.spare is None:
                raise
            route.spare(error)
            failed[route.name] = f"did not build: {error}"
            continue
        if _watching is not None:
            _watching.insert(place, _decision(op, route.name, routes, failed))
        return plan
    raise RouteError(_refusal(op, routes, failed))


def cost(op: str, routes: Sequence[Route]) -> float:
    """What the route that `choose` would take first costs; LAST where none serves."""
    return next((route.cost for route in ranked(op, routes)), LAST)


def kept(op: str, most: int) -> int:
    """How many values a work-item keeps in registers between passes over a row: `most`, or 0 to read them again.

    `most` is 0 where rows are too long.
    """
    if not special:
        return most
    registers = Route(FIRST, "registers", lambda: most) if most else cannot("registers", "for shorter rows")
    return int(choose(op, [registers, Route(FIRST, "passes", lambda: 0)]))


def sole(op: str, name: str = HOST) -> None:
    """Say, when `special`, that `op` has no route but `name` here. Raises RouteError where another one is forced."""
    choose(op, [Route(FIRST, name, lambda: name)])


def forced(op: str) -> str | None:
    """The route that is forced for `op`."""
    return _forced.get(op)


# -- forcing -----------------------------------------------------------------------------------------------------------


@contextmanager
def force(*names: str) -> Iterator[None]:
    """Within the block ops take the routes of these names: `with force("winograd"):`, for all threads.

    A name holds for every op that has a route of that name, "conv2d.winograd" for one op. An op that does not have it
    chooses as always. `netcl.ops.explain` lists the routes of a call. Raises RouteError for a name that no op has;
    inside the block, for a problem that the route does not serve.
    """
    global _forced
    before = _forced
    _force({**before, **{op: route for name in names for op, route in _meant(name)}})
    try:
        yield
    finally:
        _force(before)


def _force(routes: dict[str, str]) -> None:
    global _forced, special
    _forced, special = routes, bool(routes) or _watching is not None
    settle("forced", tuple(sorted(routes.items())))


def _meant(name: str) -> list[tuple[str, str]]:
    """The ops and the route that `name` stands for."""
    op, _, route = name.rpartition(".")
    route = ALIASES.get(route.lower(), route)
    found = [(known, route) for known, names in ROUTES.items() if route in names and op in ("", known)]
    if not found:
        known = sorted({*ALIASES, *(n for names in ROUTES.values() for n in names)})
        listed = "; ".join(f"{known_op}: {', '.join(names)}" for known_op, names in sorted(ROUTES.items()))
        raise RouteError(f"force: expected the name of a route, got {name!r}{meant(name, known)}; routes are {listed}.")
    return found


# -- telling -----------------------------------------------------------------------------------------------------------


@contextmanager
def collect() -> Iterator[list[Decision]]:
    """What ops choose within the block, in order, where their plans are made in it."""
    global _watching, special
    before, found = _watching, list[Decision]()
    _watching, special = found, True
    try:
        yield found
    finally:
        _watching = before
        special = bool(_forced) or _watching is not None


@contextmanager
def watch(queue: Any) -> Iterator[list[Decision]]:
    """As `collect` for ops on `queue`, whose plans are made anew."""
    state = state_of(queue)
    before, state.plans = state.plans, Plans()
    try:
        with collect() as found:
            yield found
    finally:
        state.plans = before


def _decision(op: str, chosen: str, routes: Sequence[Route], failed: dict[str, str]) -> Decision:
    rows = sorted(routes, key=lambda r: (r.plan is None, r.cost))
    forced = _forced.get(op)
    told = [(r.name, r.cost, "forced" if r.name == forced else _remark(r, failed)) for r in rows]
    return Decision(op, chosen, tuple(told))


def _remark(route: Route, failed: dict[str, str]) -> str:
    return failed.get(route.name) or route.why


def _refusal(op: str, routes: Sequence[Route], failed: dict[str, str]) -> str:
    """The error's text: what was expected, and what speaks against each route."""
    wanted = _forced.get(op)
    against = {r.name: _remark(r, failed) or "serves" for r in routes}
    listed = "; ".join(f"{name}: {why}" for name, why in against.items())
    if wanted is None:
        return f"{op}: expected a problem that a route of this device serves, got one that none does: {listed}."
    why = against.get(wanted, "it is no route here")
    expected = f"expected a problem that the forced route {wanted!r} serves"
    return f"{op}: {expected}, got one that it does not ({why}); routes here are {listed}."
