"""The op table of the tests: one row per op with an independent reference, never the table's own formula."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import special

A, AB, ABC = ((5, 7),), ((5, 7), (7,)), ((5, 1), (5, 7), (1, 7))


@dataclass(frozen=True)
class OpCase:
    """One row. `domain` bounds the samples (per operand when nested), away from kinks and poles."""

    op: str
    ref: Callable
    shapes: tuple = A
    domain: tuple = (-2.0, 2.0)
    attrs: dict = field(default_factory=dict)
    rtol: float = 1e-5
    grad: bool = True  # whether the op has a gradient
    specials: bool = True  # whether NaN and infinity follow the reference

    def __str__(self):
        return self.op + "".join(f"-{v}" for v in self.attrs.values())

    def sample(self, seed=0, dtype=np.float64, shapes=None):
        """Operands drawn from the domain."""
        rng = np.random.default_rng(seed)
        domains = self.domain if isinstance(self.domain[0], tuple) else (self.domain,) * len(self.shapes)
        return [rng.uniform(*d, s).astype(dtype) for d, s in zip(domains, shapes or self.shapes, strict=True)]


def truth(f):
    """A comparison as numbers, for references that return booleans."""
    return lambda *xs: np.asarray(f(*xs))


def sigmoid(a):
    return special.expit(a)


def softplus(a):
    return np.logaddexp(a, 0)


def gelu_tanh(a):
    return 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))


def select(condition, b, c):
    return np.where(condition != 0, b, c)


def elu(a, alpha):
    return np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0)))


def towards_zero(a, b):
    q = np.floor_divide(a, b)
    return q + ((q < 0) & (q * b != a)).astype(q.dtype)


def numpy_relu(a):
    return np.maximum(a, 0)


C = OpCase
POSITIVE, AWAY, INNER = (0.1, 4.0), (0.3, 2.0), (-0.9, 0.9)

ELEMENTWISE = [
    C("add", np.add, AB), C("sub", np.subtract, AB), C("mul", np.multiply, AB),
    C("div", np.divide, AB, ((-2, 2), (0.3, 2))), C("neg", np.negative), C("abs", np.abs, domain=AWAY),
    C("sign", np.sign, domain=AWAY), C("square", np.square), C("reciprocal", np.reciprocal, domain=AWAY),
    C("pow", np.power, AB, ((0.2, 3), (-2, 2)), specials=False),
    C("remainder", np.remainder, AB, ((0.1, 0.9), (1.1, 2)), specials=False),
    C("fmod", np.fmod, AB, ((0.1, 0.9), (1.1, 2))),
    C("maximum", np.maximum, AB), C("minimum", np.minimum, AB),
    C("clip", lambda a, lo, hi: np.clip(a, lo, hi), domain=(-0.4, 0.4), attrs={"lo": -0.5, "hi": 0.5}),
    C("clip", lambda a, lo, hi: np.clip(a, lo, hi), domain=(0.6, 2), attrs={"lo": -0.5, "hi": 0.5}),
    C("where", select, ABC),
    C("lt", np.less, AB, grad=False), C("le", np.less_equal, AB, grad=False), C("gt", np.greater, AB, grad=False),
    C("ge", np.greater_equal, AB, grad=False), C("eq", np.equal, AB, grad=False), C("ne", np.not_equal, AB, grad=False),
    C("logical_and", np.logical_and, AB, grad=False), C("logical_or", np.logical_or, AB, grad=False),
    C("logical_not", np.logical_not, grad=False), C("isnan", np.isnan, grad=False),
    C("isfinite", np.isfinite, grad=False), C("isinf", np.isinf, grad=False),
    C("exp", np.exp), C("expm1", np.expm1), C("log", np.log, domain=POSITIVE), C("log2", np.log2, domain=POSITIVE),
    C("log10", np.log10, domain=POSITIVE), C("log1p", np.log1p, domain=(-0.8, 3)), C("sqrt", np.sqrt, domain=POSITIVE),
    C("rsqrt", lambda a: 1 / np.sqrt(a), domain=POSITIVE), C("sin", np.sin), C("cos", np.cos),
    C("tan", np.tan, domain=(-1, 1)), C("sinh", np.sinh), C("cosh", np.cosh), C("tanh", np.tanh), C("atan", np.arctan),
    C("atan2", np.arctan2, AB, ((-2, 2), (0.3, 2))), C("erf", special.erf),
    C("asin", np.arcsin, domain=INNER), C("acos", np.arccos, domain=INNER), C("asinh", np.arcsinh),
    C("acosh", np.arccosh, domain=(1.2, 4)), C("atanh", np.arctanh, domain=INNER), C("exp2", np.exp2),
    C("hypot", np.hypot, AB, AWAY), C("copysign", np.copysign, AB, AWAY), C("logaddexp", np.logaddexp, AB),
    C("logaddexp2", np.logaddexp2, AB), C("xlogy", special.xlogy, AB, POSITIVE), C("sinc", np.sinc, specials=False),
    C("logit", special.logit, domain=(0.1, 0.9)), C("deg2rad", np.deg2rad), C("rad2deg", np.rad2deg),
    C("erfc", special.erfc), C("erfinv", special.erfinv, domain=INNER),
    C("lgamma", special.gammaln, domain=(2.3, 9), specials=False),
    C("digamma", special.digamma, domain=(2.1, 9)),
    C("lerp", lambda a, b, c: a + c * (b - a), ABC, specials=False),
    C("addcmul", lambda a, b, c, value: a + value * b * c, ABC, attrs={"value": 0.5}),
    C("addcdiv", lambda a, b, c, value: a + value * b / c, ABC, AWAY, attrs={"value": 0.5}),
    C("nan_to_num", lambda a, nan, posinf, neginf: np.nan_to_num(a, nan=nan, posinf=posinf, neginf=neginf),
      attrs={"nan": 1.5, "posinf": 3.0, "neginf": -2.0}),
    C("floor_divide", np.floor_divide, AB, ((0.1, 0.9), (1.1, 2))),
    C("trunc_divide", towards_zero, AB, ((0.1, 0.9), (1.1, 2)), specials=False),
    C("floor", np.floor, domain=(0.1, 0.9)), C("ceil", np.ceil, domain=(0.1, 0.9)),
    C("round", np.round, domain=(0.6, 1.4)),
    C("trunc", np.trunc, domain=(0.1, 0.9)),
    C("frac", lambda a: np.modf(a)[0], domain=(0.1, 0.9), specials=False),
    C("celu", elu, domain=(-2, -0.3), attrs={"alpha": 1.0}),
    C("softshrink", lambda a, lambd: np.sign(a) * np.maximum(np.abs(a) - lambd, 0), domain=(0.6, 2),
      attrs={"lambd": 0.5}),
    C("hardshrink", lambda a, lambd: np.where(np.abs(a) > lambd, a, a * 0), domain=(0.6, 2), attrs={"lambd": 0.5},
      specials=False),
    C("tanhshrink", lambda a: a - np.tanh(a)),
    C("threshold", lambda a, threshold, value: np.where(a <= threshold, value, a), domain=(0.6, 2),
      attrs={"threshold": 0.5, "value": 0.25}),
    C("relu", numpy_relu, domain=AWAY), C("relu", numpy_relu, domain=(-2, -0.3), attrs={}),
    C("leaky_relu", lambda a, slope: np.where(a < 0, slope * a, a), domain=(-2, -0.3), attrs={"slope": 0.2}),
    C("prelu", lambda a, b: np.where(a < 0, b * a, a), AB, ((-2, -0.3), (-2, 2))),
    C("elu", elu, domain=(-2, -0.3), attrs={"alpha": 1.5}),
    C("selu", lambda a: 1.0507009873554805 * elu(a, 1.6732632423543772), domain=AWAY),
    C("sigmoid", sigmoid), C("log_sigmoid", special.log_expit), C("silu", lambda a: a * sigmoid(a), specials=False),
    C("gelu", lambda a: a * special.ndtr(a), specials=False), C("gelu_tanh", gelu_tanh, specials=False),
    C("softplus", softplus), C("mish", lambda a: a * np.tanh(softplus(a)), specials=False),
    C("softsign", lambda a: a / (1 + np.abs(a)), domain=AWAY, specials=False),
    C("hard_sigmoid", lambda a: np.clip(a / 6 + 0.5, 0, 1)),
    C("hard_swish", lambda a: a * np.clip(a + 3, 0, 6) / 6, specials=False),
    C("hard_tanh", lambda a: np.clip(a, -1, 1), domain=INNER),
]  # fmt: skip

INTEGERS = [
    C("bitwise_and", np.bitwise_and, AB, grad=False), C("bitwise_or", np.bitwise_or, AB, grad=False),
    C("bitwise_xor", np.bitwise_xor, AB, grad=False), C("bitwise_not", np.bitwise_not, grad=False),
    C("left_shift", np.left_shift, AB, (0, 9), grad=False), C("right_shift", np.right_shift, AB, (0, 9), grad=False),
]  # fmt: skip
