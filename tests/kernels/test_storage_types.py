"""What a new storage type touches: the table of dtypes and the kit; CONTRIBUTING lists the few places beside them."""

import re
from pathlib import Path

import numpy as np

import netcl
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.program import program

ROOT = Path(netcl.__file__).parent
HOME = ("core/dtypes.py", "kernels/")  # the table and the kit
PLACES = {  # who names bfloat16 besides
    "core/familiar_methods.py": "a method of that name",
    "core/tensor.py": "scalars of the type are operands",
    "ops/promotion.py": "scalars of the type are numbers",
    "ops/product/gpu.py": "tiles of products",
    "io/file.py": "its name in safetensors",
    "nn/module.py": "a method of that name",
    "ops/attend/mma.py": "matrix units",
    "ops/nvidia/": "matrix units",
}
KERNEL = """
__kernel void twice(__global S* Y, __global const S* X, long oX) {
    const size_t i = get_global_id(0);
    STORE(Y, i, LOAD(X, oX + i) * 2);
}
"""


def test_a_toy_type_needs_its_file_and_one_row_of_the_kit(cl_queue, tmp_path, monkeypatch):
    toy = sources.text("bfloat.cl").replace("bfloat", "toy").replace("BFLOAT", "TOY")
    (tmp_path / "toy.cl").write_text(toy)
    monkeypatch.setitem(sources._places, "toy.cl", tmp_path / "toy.cl")
    monkeypatch.setitem(sources.NARROW, "toy", "TOY")
    values = np.array([1.5, -2.0, 1024.0, 0.25], np.float32)
    x = Tensor.from_host(cl_queue, (values.view(np.uint32) >> 16).astype(np.uint16).view(np.float16))
    source = sources.load(S="toy", T="float") + KERNEL
    y = program(cl_queue, source, "twice").bind((4,), None, {"Y": ((4,), x.dtype)})(X=x)
    np.testing.assert_array_equal((y.to_host().view(np.uint16).astype(np.uint32) << 16).view(np.float32), 2 * values)


def test_bfloat16_is_named_nowhere_but_in_the_listed_places():
    named = set()
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        code = re.sub(r'"""(.|\n)*?"""|#.*|f"[^"]*"', "", path.read_text(encoding="utf-8"))
        if re.search("bfloat", code, re.IGNORECASE) and not place.startswith(HOME):
            named.add(next((known for known in PLACES if place.startswith(known)), place))
    assert named == set(PLACES)
    text = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"`{place}`" in text for place in (*PLACES, *HOME))
