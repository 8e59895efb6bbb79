"""Whether results must repeat bit for bit from run to run. All ops of netcl do by themselves; others ask here."""

from __future__ import annotations

from netcl.core.errors import NetclError


class _Mode:
    on = False


def use_deterministic(mode: bool = True) -> None:
    """Refuse whatever could give other bits in another run on the same device.

    Every op of netcl repeats exactly as it is: sums go in a fixed order, no float is added atomically, and random
    numbers follow `netcl.seed`. So this refuses only ops of others that call `refuse_random_order`.
    """
    _Mode.on = bool(mode)


def is_deterministic() -> bool:
    """Whether `use_deterministic` is on."""
    return _Mode.on


def refuse_random_order(where: str) -> None:
    """For an op whose sums go in no fixed order: raise NetclError where `use_deterministic` is on."""
    if _Mode.on:
        raise NetclError(
            f"{where}: expected an op whose results repeat, since netcl.use_deterministic is on; "
            "this one adds in no fixed order. Use another, or netcl.use_deterministic(False)."
        )
