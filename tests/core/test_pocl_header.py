"""Programs built with the declarations that they use in the place of PoCL's whole header."""

from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest

from netcl.core.device import manager, pocl, pocl_header
from netcl.core.errors import BuildError
from netcl.runtime.cache import ProgramCache

HEADER = """
#ifndef _OPENCL_H_
#define _OPENCL_H_
#include "opencl-c-base.h"
#define __ovld __attribute__((overloadable))
/** Two
 * lines. */
float __ovld sin(float);
#if defined(cl_khr_fp64) && \\
    defined(more)  // why
double __ovld sin(double);
#else
double __ovld cos(
    double);  // two lines
#endif
__attribute__((deprecated("sin(x)"))) float4 __ovld sin(float4);
#pragma OPENCL EXTENSION cl_intel_x : begin
float __ovld convert_float(int);
float __ovld convert_float_rte(int);
#endif //_OPENCL_H_
"""


@pytest.fixture
def found():
    """(context, device) of the PoCL whose header is known."""
    for handle in manager.handles:
        if pocl.is_pocl(handle.device) and pocl_header.declarations("", handle.device):
            return handle.context, handle.device
    return pytest.skip("needs the PoCL of the wheel")


def run(found, source, options=()):
    """Eight results of the kernel `f(out)` of `source`, and the log of its build."""
    context, device = found
    program = ProgramCache("/nowhere").get_program(context, source, device, options)
    queue, host = cl.CommandQueue(context, device), np.zeros(8, np.float32)
    out = cl.Buffer(context, cl.mem_flags.READ_WRITE, host.nbytes)
    cl.Kernel(program, "f")(queue, (8,), (1,), out)
    cl.enqueue_copy(queue, host, out)
    return host, program.get_build_info(device, cl.program_build_info.LOG)


def test_lines_of_a_header():
    two = "#if defined(cl_khr_fp64) &&      defined(more)"
    assert [(name, text.split("(")[0], under) for name, text, under in pocl_header.parse(HEADER)] == [
        ("", "#define __ovld __attribute__", ()),
        ("sin", "float __ovld sin", ()),
        ("sin", "double __ovld sin", (two,)),
        ("cos", "double __ovld cos", (two + "\n#else",)),
        ("sin", "__attribute__", ()),
        ("convert_float", "float __ovld convert_float", ()),
        ("convert_float_rte", "float __ovld convert_float_rte", ()),
    ]
    with pytest.raises(ValueError, match="expected a function, got 'typedef int sin;'"):
        pocl_header.parse(HEADER.replace("float __ovld sin(float);", "typedef int sin;"))


def test_what_a_program_brings(monkeypatch):
    """Every overload of its names with the conditions, and of names put together those without a suffix."""
    monkeypatch.setattr(pocl_header, "_lines", lambda version: pocl_header.parse(HEADER) if version == "3.0" else [])
    device = SimpleNamespace(driver_version="3.0")
    text = pocl_header.declarations("x = cos(y)", device).replace("  ", " ")
    assert "cos( double);" in text and "sin" not in text and text.endswith("#line 1\n")
    assert text.count("#if") == text.count("#else") == text.count("#endif") == 1
    assert pocl_header.declarations("sin", device).count(" sin(") == 3
    pasted = pocl_header.declarations("convert_##T(1)", device)
    assert "convert_float(" in pasted and "convert_float_rte" not in pasted
    assert pocl_header.declarations("sin", SimpleNamespace(driver_version="6.0")) == ""


def test_overloads_are_chosen_as_with_the_whole_header(found, monkeypatch):
    """max of ints and floats, halves, conversions, 64-bit integers, doubles, and barriers of groups."""
    source = """
    #define JOIN(a, b) a##b
    #define TO(T, x) JOIN(convert_, T)(x)
    #define LOADS(N) vload##N(0, x)
    __kernel void f(__global float* out) {
        const int i = get_global_id(0);
        float x[4] = {1, 2, 3, 4};
        const double wide = 1 + exp(-(double)i);
        float4 v = LOADS(4) + vload_half(0, (const half*)x);
        barrier(CLK_LOCAL_MEM_FENCE);
        out[i] = max(i, 3) / 2 + max(0.25f * i, 0.5f) + (float)(wide - 1) * 1e6f + dot(v, v)
            + TO(float, mul_hi(i, 1 << 30)) + as_float(max(as_int(1.5f), 7)) + abs_diff(i, 9)
            + popcount((ulong)i << 40) + TO(int_sat_rte, 2.5f);
    }"""
    short, log = run(found, source)
    assert not log.strip()
    monkeypatch.setattr(pocl_header, "_lines", lambda version: [])
    assert short.tobytes() == run(found, source)[0].tobytes()


def test_a_name_that_is_missed_is_found_in_the_whole_header(found, tmp_path, monkeypatch):
    source = "#define F(a, b) a##b\n__kernel void f(__global float* out) { out[get_global_id(0)] = F(co, s)(0.0f); }"
    assert "cos" not in pocl_header.declarations(source, found[1])
    assert run(found, source)[0].tolist() == [1] * 8
    first, second = ProgramCache(tmp_path, 1 << 20), ProgramCache(tmp_path, 1 << 20)
    first.get_program(found[0], source, found[1])
    monkeypatch.setattr(pocl_header, "GUARD", "-Dfails_if_it_is_used")  # the second reads the whole header at once
    second.get_program(found[0], source, found[1])
    assert [(c.stats.builds, c.stats.disk_hits) for c in (first, second)] == [(1, 0), (0, 1)]
    assert not (tmp_path / "failed").exists()


def test_errors_name_the_lines_of_the_source(found, tmp_path):
    with pytest.raises(BuildError) as caught:
        ProgramCache(tmp_path).get_program(found[0], "\n__kernel void f() {\n  int x = nothing;\n}", found[1])
    assert ".cl:3:" in caught.value.log and pocl_header.GUARD not in str(caught.value)
    assert caught.value.source_path.read_text().startswith("\n__kernel")
