"""How one of an op's routes is chosen, forced, given up and told."""

import math

import pytest

import netcl.ops  # noqa: F401 - its modules make the routes of ops known
from netcl.core.errors import BuildError, NetclError, RouteError
from netcl.kernels import route
from netcl.kernels.route import FIRST, LAST, Route, cannot, choose, force


@pytest.fixture(autouse=True)
def ops(monkeypatch):
    """Two ops that share a route's name."""
    monkeypatch.setitem(route.ROUTES, "bake", ("oven", "grill", "fire", route.HOST))
    monkeypatch.setitem(route.ROUTES, "cook", ("pot", "fire", route.HOST))


def made(name, cost=1.0, **more):
    return Route(cost, name, lambda: f"plan of {name}", **more)


def fails():
    raise BuildError("no gas")


def test_the_cheapest_that_serves_is_taken():
    routes = [made("oven", 3.0), cannot("grill", "no grid"), made("fire", 2.0)]
    assert choose("bake", routes) == "plan of fire"
    assert route.cost("bake", routes) == 2.0


def test_of_equal_costs_the_first_listed_is_taken():
    assert choose("bake", [made("grill", FIRST), made("oven", FIRST)]) == "plan of grill"
    assert choose("bake", [cannot("grill", ""), made("oven"), made("fire")]) == "plan of oven"


def test_what_does_not_build_leaves_it_to_the_next():
    reasons = []
    routes = [Route(FIRST, "fire", fails, "", reasons.append), made("oven")]
    assert choose("bake", routes) == "plan of oven"
    assert [str(r) for r in reasons] == ["no gas"]
    with pytest.raises(BuildError, match="no gas"):
        choose("bake", [Route(FIRST, "fire", fails), made("oven")])
    with force("fire"), pytest.raises(BuildError, match="no gas"):
        choose("bake", routes)
    assert len(reasons) == 1


def test_a_route_is_forced_by_name_for_every_op_that_has_it():
    routes = [made("oven"), made("fire", LAST)]
    with force("fire"):
        assert choose("bake", routes) == choose("cook", [made("pot"), made("fire", 9.0)]) == "plan of fire"
        with force("bake.oven"):
            assert choose("bake", routes) == "plan of oven"
        assert choose("bake", routes) == "plan of fire"
    assert choose("bake", routes) == "plan of oven"
    with force("pot"):
        assert choose("bake", routes) == "plan of oven"


def test_a_forced_route_that_cannot_serve_raises_one_error_with_all_reasons():
    routes = [made("oven"), cannot("grill", "no grid")]
    wanted = r"bake: expected .*'grill' serves, got one that it does not \(no grid\).*oven: serves; grill: no grid"
    with force("grill"), pytest.raises(RouteError, match=wanted):
        choose("bake", routes)
    with force("fire"), pytest.raises(RouteError, match="it is no route here"):
        choose("bake", routes)
    with pytest.raises(RouteError, match="got one that none does: grill: no grid; fire: wet"):
        choose("bake", [cannot("grill", "no grid"), made("fire", LAST, why="wet")])


@pytest.mark.parametrize("name", ["ovn", "cook.oven", "baking.oven", ""])
def test_unknown_names_are_refused_with_the_routes_there_are(name):
    known = r"force: expected the name of a route, got .*bake: oven, grill, fire, host"
    with pytest.raises(RouteError, match=known), force(name):
        pass


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("matmul_optimized", "matmul.tiled"), ("winograd_fused", "conv2d.winograd"), ("CONV2D_IM2COL", "conv2d.im2col"),
        ("depthwise_conv2d", "conv2d.depthwise"), ("conv2d.winograd_fused", "conv2d.winograd"),
    ],
)  # fmt: skip
def test_earlier_names_stand_for_routes(old, new):
    op, name = new.split(".")
    with force(old):
        assert route.forced(op) == name


def test_every_earlier_name_stands_for_a_route():
    known = {name for names in route.ROUTES.values() for name in names}
    assert set(route.ALIASES.values()) <= known and not set(route.ALIASES) & known


def test_every_choice_of_facts_has_a_mode_of_its_own():
    before = route.mode
    with force("fire"):
        inside = route.mode
        with force("oven"):
            assert len({before, inside, route.mode}) == 3
    assert route.mode == before
    with force("fire"):
        assert route.mode == inside


def test_an_error_inside_ends_forcing():
    before = route.mode
    with pytest.raises(NetclError), force("fire"):
        raise NetclError
    assert route.mode == before and not route.special


def test_choices_are_told_in_order(cpu_queue):
    routes = [made("oven", 3.0), cannot("grill", "no grid"), Route(2.0, "fire", fails, "", lambda error: None)]
    with route.watch(cpu_queue) as found:
        choose("bake", [Route(FIRST, "fire", lambda: choose("cook", [made("pot", FIRST)]))])
        choose("bake", routes)
    assert [(d.op, d.chosen) for d in found] == [("bake", "fire"), ("cook", "pot"), ("bake", "oven")]
    assert found[2].routes == (
        ("fire", 2.0, "did not build: no gas"),
        ("oven", 3.0, ""),
        ("grill", math.inf, "no grid"),
    )
    assert not route.special


def test_numpy_has_one_route(cpu_queue):
    with force("host"):
        route.sole("bake")
    with force("oven"), pytest.raises(RouteError, match="it is no route here"):
        route.sole("bake")
