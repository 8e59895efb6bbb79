"""The text of a fold's kernel: what fold.cl leaves open, for one chain and one walk."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from netcl.core.dtypes import BOOL, C_NAME, INT32, INT64, DType, is_float
from netcl.core.kernels import dialect
from netcl.core.kernels.dialect import of_formulas
from netcl.fusion.chain import Chain
from netcl.fusion.render import c_argument, head, memory_of, vector_load, vector_store
from netcl.fusion.walk import Walk
from netcl.kernels import sources
from netcl.kernels.sources import NARROW

# How folds start and combine: by a function, or by what a value that does not replace the best is to it.
FOLDS = {"sum": (0.0, "ADD"), "prod": (1.0, "MUL"), "max": (-math.inf, "<="), "min": (math.inf, ">=")}
PLACES = {"argmax": "max", "argmin": "min"}  # folds of pairs of a value and its place
FINALS = {"": "{}", "mean": "DIV({}, (T)(s_final))", "root": "f_sqrt(DIV({}, (T)(s_final)))"}


class Split(NamedTuple):
    """How the work is cut: sizes of fold.cl, and how many parts come out."""

    unit: int
    ostep: int
    istep: int
    iparts: int
    parts: int


class Text(NamedTuple):
    """Everything the program's text depends on besides the chain."""

    fold: str
    final: str
    walk: Walk  # ranks: of the kept axes, and of the walked ones
    results: tuple[DType | None, ...]  # of what is folded; None is not stored
    rows: bool


@of_formulas(4096)
def source(chain: Chain, text: Text) -> str:
    """The program."""
    walk, folded = text.walk, range(len(text.results))
    stored = {k: C_NAME[t] for k, t in enumerate(text.results) if t is not None}
    pointers = [*walk.pointers(), *(f"__global {t}* restrict sum_{k}" for k, t in stored.items())]
    index = [*walk.indices(), *(f"osum_{k}" for k in stored), *Split._fields]
    scalars = [f"a_{s}" for s in chain.scalars] + (["s_final"] if text.final else [])
    parameters = [*pointers, *(f"const I {x}" for x in index), *(f"const {walk.element} {s}" for s in scalars)]
    words = {function for _, function, _ in chain.lines} | {FOLDS[PLACES.get(text.fold, text.fold)][1]}
    words |= {"DIV"} if text.final else set()
    words |= {"f_sqrt"} if text.final == "root" else set()
    lines = [
        f"#define E {walk.element}\n#define W {walk.width}\n#define WG {walk.group}",
        f"#define WALK_RANK {walk.ranks[1]}\n#define OUTS {len(folded)}",
        *(["#define ON_CPU"] if walk.on_cpu else []),
        *(["#define ROWS"] if text.rows else []),
        *[line for k in folded for line in _value(k, text, walk.element)],
        f"typedef struct {{ {' '.join(f'T{k} v{k};' for k in folded)} }} A;",
        f"#define EACH(M) {' '.join(f'M({k})' for k in folded)}",
        f"#define STORED(M) {' '.join(f'M({k})' for k in stored)}",
        *_combine(text.fold),
        f"#define FINAL(v) {FINALS[text.final].format('v')}",
        f"#define PARAMETERS {', '.join(parameters)}",
        f"#define SCALARS {' '.join(f'const T {s} = (T)(a_{s});' for s in chain.scalars)}",
        f"#define KEPT(row) {' '.join(walk.decode(0, 'row', 'o', 'b_'))}",
        f"#define WALK(row) {' '.join(walk.decode(1, 'row', 'b_', 'p_'))}",
        _step(chain, text, full=True),
        _step(chain, text, full=False),
    ]
    body = sources.text("fold.cl").replace("NAME", name_of(chain, text.fold))
    macros = "\n".join(lines) + "\n"
    return memory_of(macros) + head(words, walk, stored.values()) + macros + body


def _combine(fold: str) -> list[str]:
    """How two values become one. NaN beats what is none."""
    how = FOLDS[PLACES.get(fold, fold)][1]
    if how.isalpha():
        return [f"#define COMBINE(a, b) {how}(a, b)"]
    if fold not in PLACES:
        return [f"#define COMBINE(a, b) (~((b) {how} (a)) & ((a) == (a)) ? (b) : (a))"]
    better = {"<=": ">", ">=": "<"}[how]  # Intel's CPU runtime takes wrong places among doubles where it is negated
    return ["#define PAIR", f"#define BEATS(b, a) ((((b) {better} (a)) | ((b) != (b))) & ((a) == (a)))"]


def position_of(compute: DType) -> DType:
    """The type of places of what is computed in `compute`: as wide, so that its vectors are masks."""
    return INT64 if compute.itemsize == 8 else INT32


def _value(k: int, text: Text, element: str) -> list[str]:
    """The types of folded value `k`, where it starts, and how it is written: one lane, and a whole vector."""
    place = k == 1 and text.fold in PLACES
    element = C_NAME[position_of(text.walk.compute)] if place else element
    first = "0" if place else _initial(text.fold, text.walk.compute, element)
    lines = [f"typedef {'M' if place else 'T'} T{k};\ntypedef {element} E{k};\n#define INIT{k} (T{k})({first})"]
    dtype = text.results[k]
    if dtype is None:
        return lines
    storage = C_NAME[dtype]
    lane = f"(sum_{k}[i] = ({storage})(v))"
    if storage in NARROW:
        lane = f"STORE_{NARROW[storage]}(sum_{k}, i, v)"
    lines += [f"#define R{k} {storage}", f"#define PUT{k}(i, v) {lane}"]
    if storage != element:
        return [*lines, f"#define PUT_ALL{k}(at, v) put_lanes{k}(sum_{k}, v, at, W)"]
    vector = f"typedef T{k} U_R{k} __attribute__((aligned({dtype.itemsize})));"
    return [*lines, vector, f"#define PUT_ALL{k}(at, v) (*(__global U_R{k}*)(sum_{k} + (at)) = (v))"]


def name_of(chain: Chain, op: str) -> str:
    """The name of the kernel."""
    return f"netcl_{op}_{chain.title}"


def _initial(op: str, compute: DType, element: str) -> str:
    """The fold's neutral element as a C literal."""
    value = FOLDS[PLACES.get(op, op)][0]
    if is_float(compute) or math.isfinite(value):
        return dialect.constant(value, element)
    limits = np.iinfo(np.uint8 if compute == BOOL else compute)
    suffix = "L" if element == "long" else ""
    return f"{limits.max}{suffix}" if value > 0 else f"-{limits.max}{suffix} - 1" if limits.min else "0"


def _step(chain: Chain, text: Text, full: bool) -> str:
    """The macro that loads one vector of each input, computes the chain and folds it into `acc`."""
    walk = text.walk
    element, width = walk.element, walk.width
    lines = ["const I c = (at);"] + ([] if full else ["const int count = (count_);"])
    pair = text.fold in PLACES
    if pair:
        lanes = ", ".join(str(j if text.rows else 0) for j in range(width))
        lines.append(f"const M pos = (M)(({C_NAME[position_of(walk.compute)]})(place)) + (M)({lanes});")
    for k, (v, x) in enumerate(zip(chain.inputs, walk.inputs, strict=True)):
        if pair and k == 1:  # the places of parts
            load = vector_load(replace(walk, compute=x.dtype), x, "in_1", full).replace("(T)(", "(M)(", 1)
            lines.append(f"const M {v} = {load};")
            continue
        lines.append(f"const T {v} = {vector_load(walk, x, f'in_{k}', full)};")
    for out, function, args in chain.lines:
        lines.append(f"const T {out} = {function}({', '.join(c_argument(a, element) for a in args)});")
    inside = "" if full else f"((M)({', '.join(str(j) for j in range(width))}) < (M)(count))"
    if pair:  # places grow along the walk
        value, place = (*chain.outputs, "pos")[:2]
        lines.append(f"const M take = BEATS({value}, acc.v0){inside and f' & {inside}'};")
        lines.append(f"acc.v0 = take ? {value} : acc.v0; acc.v1 = take ? {place} : acc.v1;")
    for k, value in enumerate(() if pair else chain.outputs[: len(text.results)]):
        lines.append(f"acc.v{k} = COMBINE(acc.v{k}, {value if full else f'({inside} ? {value} : INIT{k})'});")
    for k, (value, x) in enumerate(zip(chain.outputs[len(text.results) :], walk.outputs, strict=True)):
        lines += vector_store(walk, x, f"out_{k}", value, full)
    name = "STEP(acc, at, place)" if full else "PART(acc, at, place, count_)"
    return f"#define {name} {{ \\\n    " + " \\\n    ".join(lines) + " }"
