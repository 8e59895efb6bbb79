"""The dialect of the primitive table: text that means the same in OpenCL C and in Python.

Legal are `+ - * /`, on integers `& | ^ ~`, one comparison at a time, calls of the functions below and of those made
known by `define_function`, and `where(condition, then, else)`.
`check` refuses everything whose meaning differs (`1/2`, chained comparison, `**`). From a formula come

- a Python function over NumPy arrays (`NUMPY[NAME]`), and
- an OpenCL C function over the compute type `T` (`preamble`), where T is a vector: `float8` or `float16` on CPU
  devices, `float4` on GPUs. Vector code needs no help from an auto-vectoriser; a partial vector at the end is padded.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from netcl.core.kernels import special

BYTES = {"char": 1, "uchar": 1, "short": 2, "int": 4, "long": 8}  # of the types of whole numbers
FLOATING = ("float", "double")  # C names of the types that compute with fractions
# name in the dialect -> OpenCL C builtin (floats)
FUNCTIONS = {
    "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "sin": "sin", "cos": "cos",
    "tan": "tan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "atan": "atan", "atan2": "atan2", "erf": "erf",
    "pow": "pow", "fmod": "fmod", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "abs": "fabs",
    "asin": "asin", "acos": "acos", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "exp2": "exp2",
    "erfc": "erfc", "lgamma": "lgamma", "hypot": "hypot", "copysign": "copysign",
    "quotient": "", "erfinv": "", "lshift": "", "rshift": "",  # no builtins: always the blocks of math.cl
}  # fmt: skip
_LEGAL = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Compare, ast.Lt, ast.Gt,
    ast.LtE, ast.GtE, ast.Eq, ast.NotEq, ast.Call, ast.Name, ast.Load, ast.Constant, ast.BitAnd, ast.BitOr, ast.BitXor,
    ast.Invert,
)  # fmt: skip
_SHIFTS = ("lshift", "rshift")  # of integers alone
_OF_INTEGERS = ("abs", "fmod", "pow", "floor", "ceil", "round", "trunc", "quotient", *_SHIFTS)
_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Invert)  # C has them for integers alone


@cache
def names(formula: str) -> frozenset[str]:
    """The names a formula reads, function names included."""
    return frozenset(n.id for n in ast.walk(ast.parse(formula, mode="eval")) if isinstance(n, ast.Name))


class Definition(Protocol):
    """An op as formulas: a row of the primitive table."""

    @property
    def name(self) -> str:
        """The op's name."""

    @property
    def value(self) -> str:
        """The formula of its value."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its operands."""

    @property
    def attrs(self) -> tuple[str, ...]:
        """Names of its numbers."""

    @property
    def grads(self) -> tuple[str | None, ...]:
        """The formulas of its gradients."""

    def functions(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        """(NAME, parameters, formula) of the value and of each gradient."""


def check(row: Definition) -> None:
    """Raise ValueError unless every formula of `row` means the same in C and in Python."""
    if row.grads and len(row.grads) != len(row.inputs):
        raise ValueError(f"{row.name}: expected {len(row.inputs)} gradients, got {len(row.grads)}.")
    legal = {*FUNCTIONS, "where", *DEFINITIONS, *row.inputs, *row.attrs}
    for i, formula in enumerate((row.value, *row.grads)):
        if formula:
            _check_formula(row.name, formula, legal | {"g", "y"} if i else legal)


def _check_formula(name: str, formula: str, legal: set[str]) -> None:
    for n in ast.walk(ast.parse(formula, mode="eval")):
        if not isinstance(n, _LEGAL):
            raise ValueError(f"{name}: {type(n).__name__} is outside the dialect in {formula!r}.")
        if isinstance(n, ast.Compare) and len(n.ops) > 1:
            raise ValueError(f"{name}: a chained comparison differs in C; compare once at a time in {formula!r}.")
        if isinstance(n, ast.Name) and n.id not in legal:
            choices = sorted(legal - DEFINITIONS.keys())
            raise ValueError(f"{name}: unknown name {n.id!r} in {formula!r}; legal are {choices}.")
        if isinstance(n, ast.Constant) and type(n.value) not in (int, float):
            raise ValueError(f"{name}: expected numbers, got {n.value!r} in {formula!r}.")
        if isinstance(n, ast.BinOp) and all(isinstance(c, ast.Constant) for c in (n.left, n.right)):
            raise ValueError(f"{name}: fold the constant (1/2 truncates in C) in {formula!r}.")


# -- Python ------------------------------------------------------------------------------------------------------------


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    """np.where in which a Python number takes the dtype of the other branch, as in C."""
    if isinstance(then, (int, float)) and isinstance(otherwise, (np.ndarray, np.generic)):
        then = np.asarray(then).astype(otherwise.dtype)
    elif isinstance(otherwise, (int, float)) and isinstance(then, (np.ndarray, np.generic)):
        otherwise = np.asarray(otherwise).astype(then.dtype)
    return np.where(condition, then, otherwise)


def _pow(a: Any, b: Any) -> Any:
    """np.power; of integers to a negative one the whole part, where NumPy refuses."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "f" or b.dtype.kind == "f" or not (b < 0).any():
        return np.power(a, b)
    below = _where(a == 1, 1, _where(a == -1, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, below, np.power(a, np.maximum(b, 0)))


NUMPY: dict[str, Any] = {f: getattr(np, f) for f in FUNCTIONS if hasattr(np, f)}
NUMPY |= {f: getattr(np, f"arc{f[1:]}") for f in FUNCTIONS if hasattr(np, f"arc{f[1:]}")}
NUMPY |= {"pow": _pow, "where": _where, "abs": np.abs, **special.NUMPY}

DEFINITIONS: dict[str, tuple[tuple[str, ...], str]] = {}  # NAME -> (parameters, formula)
forget: list[Callable[[], Any]] = []  # drop what was made of formulas: caches, plans, programs
F = TypeVar("F", bound=Callable[..., Any])


def of_formulas(maxsize: int | None = None) -> Callable[[F], F]:
    """Decorator: an lru_cache of what is made of formulas, emptied when one is defined anew."""

    def cached(function: F) -> F:
        found = lru_cache(maxsize=maxsize)(function)
        forget.append(found.cache_clear)
        return cast(F, found)

    return cached


def defined_anew() -> None:
    """Forget all that was made of formulas, since one of them is another now."""
    for drop in forget:
        drop()


def define(row: Definition) -> None:
    """Make the functions of `row` known to both languages."""
    for name, parameters, formula in row.functions():
        _define(name, parameters, formula)


def _define(name: str, parameters: tuple[str, ...], formula: str) -> None:
    before = DEFINITIONS.get(name)
    DEFINITIONS[name] = (parameters, formula)
    NUMPY[name] = eval(f"lambda {', '.join(parameters)}: {formula}", NUMPY)
    if before is None:
        preamble.cache_clear()
    elif before != (parameters, formula):
        defined_anew()


def define_function(name: str, parameters: tuple[str, ...], formula: str) -> None:
    """Make a helper such as MY_OP(a, b) known to both languages; it may call the table's functions (ADD, MUL, ...)."""
    _check_formula(name, formula, {*FUNCTIONS, "where", *DEFINITIONS, *parameters})
    _define(name, parameters, formula)


def definition(name: str) -> tuple[tuple[str, ...], str] | None:
    """Parameters and formula of a function such as MUL or RELU_D0; None when nobody defined it."""
    return DEFINITIONS.get(name)


def calls(name: str) -> frozenset[str]:
    """The base functions (exp, sqrt, ...) that a defined function calls, through others as well."""
    found: set[str] = set()
    todo = [name]
    while todo:
        words = names(DEFINITIONS[word][1]) if (word := todo.pop()) in DEFINITIONS else frozenset()
        found |= words & FUNCTIONS.keys()
        todo += words & DEFINITIONS.keys()
    return frozenset(found)


def needs_floats(name: str) -> bool:
    """Whether a function divides, holds a fraction, or calls what only floats have, itself or through others."""
    if name not in DEFINITIONS:
        return name in FUNCTIONS and name not in _OF_INTEGERS
    for n in ast.walk(ast.parse(DEFINITIONS[name][1], mode="eval")):
        if isinstance(n, ast.Div) or (isinstance(n, ast.Constant) and isinstance(n.value, float) and n.value % 1):
            return True
        if isinstance(n, ast.Name) and n.id != name and needs_floats(n.id):
            return True
    return False


# -- OpenCL C ----------------------------------------------------------------------------------------------------------


def constant(value: float, element: str) -> str:
    """A number as a C literal of `element` type: 0.5f, 0.5, 2."""
    if element not in FLOATING:
        return str(int(value))
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    if math.isnan(value):
        return "NAN"
    return repr(float(value)) + ("f" if element == "float" else "")


_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.USub: "-", ast.Invert: "~",
}  # fmt: skip


@cache
def to_c(formula: str, element: str) -> str:
    """A formula as a C expression over T, whose elements are of type `element`."""
    tree = ast.parse(formula, mode="eval").body
    text: dict[ast.AST, str] = {}
    for n in reversed(list(ast.walk(tree))):  # what a node holds comes before it
        if isinstance(n, ast.BinOp):
            text[n] = f"({text[n.left]} {_OPERATORS[type(n.op)]} {text[n.right]})"
        elif isinstance(n, ast.UnaryOp):
            text[n] = f"({_OPERATORS[type(n.op)]}{text[n.operand]})"
        elif isinstance(n, ast.Compare):
            text[n] = f"({text[n.left]} {_OPERATORS[type(n.ops[0])]} {text[n.comparators[0]]})"
        elif isinstance(n, ast.Call):
            prefix = "f_" if text[n.func] in FUNCTIONS else ""
            text[n] = f"{prefix}{text[n.func]}({', '.join([text[a] for a in n.args])})"
        elif isinstance(n, ast.Name):
            text[n] = n.id
        elif isinstance(n, ast.Constant):
            number = constant(ast.literal_eval(n), element)
            text[n] = number if element in FLOATING else f"(T)({number})"  # an int may not meet narrower vectors
    return text[tree]


_WORD = re.compile(r"[A-Za-z_]\w*")


@cache
def _math_blocks() -> dict[str, str]:
    """The functions of math.cl by name: vector forms without builtins, for CPU devices."""
    text = (resources.files("netcl.core.kernels") / "math.cl").read_text()
    return {block.split("\n", 1)[0].strip(): block.split("\n", 1)[1] for block in text.split("// @")[1:]}


@cache
def _maths(element: str, width: int, on_cpu: bool, doubles: bool) -> dict[str, str]:
    """The definition of each `f_<name>`: a builtin, or on CPU devices and integers a function of our own."""
    blocks = _math_blocks()
    if element not in FLOATING:
        bits = str(8 * BYTES[element])
        own = {n: blocks.get(f"int_{n}", f"#define f_{n}(a) (a)\n").replace("BITS", bits) for n in FUNCTIONS}
        return {f"f_{n}": text for n, text in own.items()}
    found = {n: f"#define f_{n} {builtin}\n" if builtin else blocks.get(n, "") for n, builtin in FUNCTIONS.items()}
    if on_cpu and element == "float":
        found |= {n: text for n, text in blocks.items() if doubles or "f_quarter" not in text}
    if element == "double":
        found |= {n.removeprefix("double_"): text for n, text in blocks.items() if n.startswith("double_")}
    if on_cpu and element == "double" and width > 1:  # PoCL's of eight doubles errs in some lanes
        lanes = ", ".join([f"pow(a.s{j:x}, b.s{j:x})" for j in range(width)])
        found["pow"] = f"static inline T f_pow(T a, T b) {{ return (T)({lanes}); }}\n"
    return {f"f_{n}": text for n, text in found.items()}


@lru_cache(maxsize=1024)
def preamble(used: frozenset[str] | None, element: str, width: int, on_cpu: bool = False, doubles: bool = True) -> str:
    """The C functions named in `used` (all when None) and what they call, over T = `element` x `width`.

    With `on_cpu`, float maths is written without OpenCL builtins, which some CPU drivers leave as slow function calls;
    without `doubles`, sin, cos and tan, which reduce their argument in double precision, stay builtins.
    """
    if used is None:
        used = frozenset(w for w in DEFINITIONS if element not in FLOATING or not _is_of_bits(w))
    maths = _maths(element, width, on_cpu, doubles)
    order: dict[str, str] = {}  # what is called stands before what calls it
    waiting: dict[str, str] = {}
    todo = sorted(used, reverse=True)
    while todo:
        word = todo.pop()
        if word in waiting:  # all that it calls is there
            order[word] = waiting.pop(word)
        elif word not in order and word in maths:
            waiting[word] = maths[word]
            todo += [word, *[w for w in reversed(_WORD.findall(waiting[word])) if w != word]]
        elif word not in order and word in DEFINITIONS:
            parameters, formula = DEFINITIONS[word]
            body = to_c(formula, element)
            arguments = ", ".join([f"T {p}" for p in parameters])
            value = body if _WORD.search(body) else f"(T)({body})"  # a number is as wide as its result
            waiting[word] = f"static inline T {word}({arguments}) {{ return {value}; }}\n"
            todo += [word, *reversed(_WORD.findall(body))]
    vector = element if width == 1 else f"{element}{width}"
    mask = {"float": "int", "double": "long"}.get(element, element.lstrip("u"))
    suffix = "" if width == 1 else str(width)
    types = f"typedef {vector} T;\ntypedef {mask}{suffix} M;\n"
    types += f"#define AS_T as_{vector}\n#define AS_M as_{mask}{suffix}\n"
    if "f_quarter" in order:
        types += f"#define D double{suffix}\n#define CONVERT_D convert_double{suffix}\n#define AS_L as_long{suffix}\n"
        types += f"#define CONVERT_T convert_{vector}\n#define CONVERT_M convert_{mask}{suffix}\n"
        types = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + types
    text = "#define where(c, t, f) ((c) ? (T)(t) : (T)(f))\n" + "".join(order.values())
    if "SOME(" in text:
        types += f"#define SOME(m) {'(m)' if width == 1 else 'any(m)'}\n"
    return types + text


forget.append(preamble.cache_clear)


def _is_of_bits(name: str) -> bool:
    """Whether a function uses operators on bits, itself or through others."""
    if name not in DEFINITIONS:
        return name in _SHIFTS
    formula = DEFINITIONS[name][1]
    own = any(isinstance(n, _BITS) for n in ast.walk(ast.parse(formula, mode="eval")))
    return own or any(_is_of_bits(word) for word in names(formula))
