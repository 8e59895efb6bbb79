"""Functions of the dialect that NumPy has not: SciPy's where it is installed, else element by element or our own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _by_scipy(name: str, without: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Any]:
    """The function of scipy.special, found at the first call; `without` computes in double precision."""
    found: list[Callable[[Any], Any]] = []

    def call(a: Any) -> Any:
        if not found:
            try:
                from scipy import special

                found.append(getattr(special, name))
            except ImportError:
                found.append(lambda x: _wide(without, x))
        return found[0](a)

    return call


def _wide(fn: Callable[[np.ndarray], np.ndarray], a: Any) -> Any:
    a = np.asarray(a)
    return fn(a.astype(np.float64)).astype(a.dtype) if a.size else a


def _log_gamma(x: float) -> float:
    """math.lgamma, infinite at the poles."""
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])
log_gamma = np.vectorize(_log_gamma, otypes=[np.float64])


def erfinv(a: np.ndarray) -> np.ndarray:
    """The inverse of erf in double precision: a start within a few percent, then four steps of Halley's."""
    with np.errstate(all="ignore"):
        x, rest = np.abs(a), 1.0 - np.abs(a)
        far = -np.log(rest * math.sqrt(math.pi))
        y = np.where(
            x < 0.9, 0.8862269254527580 * x * (1 + 0.2617993877991494 * x * x), np.sqrt(far - 0.5 * np.log(far))
        )
        for _ in range(4):
            error = np.where(x < 0.5, erf(y) - x, rest - erfc(y)) / (1.1283791670955126 * np.exp(-y * y))
            y = y - error / (1 + y * error)
        found: np.ndarray = np.copysign(np.where(x == 1, np.inf, np.where(x < 1, y, np.nan)), a)
    return found


def quotient(a: Any, b: Any) -> Any:
    """a / b; of integers the whole part, and 0 where b is 0."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.true_divide(a, b)
    return np.where(b == 0, np.zeros_like(a), np.floor_divide(a, b))  # asked for where b divides a


_gammaln = _by_scipy("gammaln", log_gamma)  # of -inf it is -inf, and infinite in C and in PyTorch
NUMPY: dict[str, Any] = {
    "erf": _by_scipy("erf", erf),
    "erfc": _by_scipy("erfc", erfc),
    "lgamma": lambda a: np.where(np.isneginf(a), np.inf, _gammaln(a)).astype(np.asarray(a).dtype),
    "erfinv": _by_scipy("erfinv", erfinv),
    "quotient": quotient,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "hypot": np.hypot,
    "copysign": np.copysign,
}
