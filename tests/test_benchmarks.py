"""The benchmark harness: every case is right at a small size, and records, tables and failures are what they should be.

Nothing here looks at a time: speed is for people, and never decides whether a test passes.
"""

import json

import numpy as np
import pytest

from benchmarks import report, suites, trees
from benchmarks.__main__ import main
from benchmarks.case import Case, Work, error_of
from benchmarks.cases_cpu import resnet18_shapes
from benchmarks.ceilings import share
from benchmarks.run import Failed, Options, Session, machine
from benchmarks.timing import MOST_CALLS, calls_for, measure, summary

FIELDS = {
    "case", "suite", "ours_ms", "reference", "reference_ms", "ratio", "target", "error", "device", "driver", "versions",
    "commit", "date", "machine", "threads",
}  # fmt: skip
ALL = [(suite, case) for suite in suites.SUITES for case in suites.cases(suite)]
# Adam divides by the size of the gradient, so a gradient of rounding size moves a weight by a visible part of the rate.
TOLERANCE = {"step": 2e-3}


@pytest.mark.parametrize(("suite", "case"), ALL, ids=[case.name for _, case in ALL])
def test_every_case_is_right_at_a_small_size(queue, suite, case):
    error = error_of(*case.small.outputs(queue, seed=1))
    assert error < TOLERANCE.get(suite, 1e-5)


def test_names_are_unique_and_the_small_work_is_of_the_same_kind():
    names = [case.name for _, case in ALL]
    assert len(set(names)) == len(names)
    assert not [case.name for _, case in ALL if type(case.work) is not type(case.small)]


def test_every_case_has_a_reference():
    sides = {"torch": "torch", "numpy": "numpy", "netcl": "other"}
    for _, case in ALL:
        if case.reference == "limit":
            assert case.limit > 0, case.name
        else:
            method = sides[case.reference]
            assert getattr(type(case.work), method) is not getattr(Work, method), case.name


def test_the_acceptance_table_is_covered():
    for suite, pattern, target in [
        ("cpu", "^matmul 1024$", 1.0), ("cpu", "conv 3x3 .*forward", 1.5), ("cpu", "layer_norm.*forward", 2.0),
        ("cpu", "^gelu 4M", 3.0), ("cpu", "chain of four on 4M, jit", 5.0), ("cpu", "AdamW step, 62 tensors", 1.2),
        ("cpu", "16M", 5.0), ("step", "batch 32, recorded", 1.3), ("step", "digits.*recorded", 1.3),
    ]:  # fmt: skip
        (case,) = suites.cases(suite, pattern)
        assert case.target == target


def test_resnet18_has_62_tensors_and_11_7_million_parameters():
    shapes = resnet18_shapes()
    assert len(shapes) == 62
    assert sum(int(np.prod(s)) for s in shapes) == 11689512


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_error_is_relative_to_the_largest_value_and_keeps_nan():
    assert error_of([np.array([1.0, 4.5])], [np.array([1.0, 5.0])]) == pytest.approx(0.1)
    assert (
        np.isnan(error_of([np.array([np.nan])], [np.array([1.0])])) or error_of([np.array([np.nan])], [np.ones(1)]) > 0
    )
    with pytest.raises(ValueError, match="expected 2 results, got 1"):
        error_of([np.ones(1)], [np.ones(1), np.ones(1)])
    with pytest.raises(ValueError, match="expected a result of shape"):
        error_of([np.ones(2)], [np.ones(3)])


def test_a_measurement_counts_its_calls_and_waits_once():
    calls, waits = [], []
    wall, cpu = measure(lambda: calls.append(1), 5, lambda: waits.append(len(calls)))
    assert (len(calls), waits) == (5, [5])
    assert wall >= 0
    assert cpu >= 0


def test_short_work_is_called_more_often():
    assert calls_for(1.0) == 1
    assert calls_for(1e-3) == 3
    assert calls_for(0.0) == MOST_CALLS


def test_summary_takes_medians():
    assert summary([(0.001, 0.004), (0.003, 0.002), (0.002, 0.009)]) == {
        "ms": 2.0,
        "best_ms": 1.0,
        "cpu_ms": 4.0,
        "best_cpu_ms": 2.0,
    }


def test_share_compares_with_the_copy_of_the_nearest_smaller_size():
    found = {"copy": [[100, 40.0], [1000, 10.0]], "flops": 50.0}
    assert share(found, 25e9, 8, 1.0) == (25.0, "GFLOP/s", 0.5)
    assert share(found, 0, 5e9, 1.0) == (5.0, "GB/s", 0.5)
    assert share({"copy": [[1e10, 10.0]]}, 0, 5e9, 1.0)[2] == 0.5
    assert share({}, 0, 5e9, 1.0) == (5.0, "GB/s", None)
    assert share({}, 0, 0, 1.0) == (0.0, "", None)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session():
    session = Session(Options("cpu", "numpy", repeat=1, device="cpu"))
    yield session
    session.close()


def test_a_run_gives_complete_records(session):
    (case,) = suites.cases("cpu", r"^matmul 64 of")
    record = session.record(case)
    assert set(record) >= FIELDS | {
        "ours_cpu_ms",
        "reference_cpu_ms",
        "cpu_ratio",
        "rate",
        "unit",
        "runs",
        "calls",
        "kept_ratio",
    }
    assert record["reference"] == "numpy"
    assert record["ratio"] == pytest.approx(record["reference_ms"] / record["ours_ms"], abs=1e-3)
    assert record["error"] < 1e-5
    assert "failed" not in record
    assert json.loads(json.dumps(record)) == record


def test_what_cannot_run_is_a_record_with_its_reason(session):
    work = suites.cases("cpu", "^exp 4M")[0].work
    record = session.record(Case("no such case", work, work, 1.0))
    assert record["ours_ms"] is None
    assert record["failed"]
    assert report.verdict(record) == "failed"
    assert set(record) >= FIELDS


def test_a_child_that_died_is_named_and_started_again(session):
    session.reference.ask(do="facts")
    session.reference.process.kill()
    session.reference.process.wait()
    assert "versions" in session.reference.ask(do="facts")
    with pytest.raises(Failed, match="KeyError"):
        session.reference.ask(do="time", side="torch")


def test_without_torch_only_cases_with_a_numpy_form_have_a_reference(session):
    sides = {case.name: session._side(case) for case in suites.cases("cpu") + suites.cases("step")}
    assert sides["matmul 512"] == "numpy"
    assert sides["matmul 512, OpenBLAS"] == "numpy"
    assert sides["softmax (4096,1024) forward"] == ""
    assert sides["softmax from primitives, jit"] == "netcl"
    assert sides["import netcl (0.5 s)"] == "limit"


def test_the_command_line_prints_a_table_and_writes_json(tmp_path, capfd):
    path = tmp_path / "records.jsonl"
    main(["--suite", "cpu", "--filter", "^matmul 64 of", "--reference", "none", "--repeat", "1", "--device", "cpu",
          "--json", str(path)])  # fmt: skip
    printed = capfd.readouterr().out
    assert "matmul 64 of (64,64)x(64,64)" in printed
    (record,) = report.read(path)
    assert set(record) >= FIELDS
    assert record["reference"] == "none"
    assert record["reference_ms"] is None


def test_the_command_line_lists_cases_and_refuses_a_filter_without_match(capsys):
    main(["--list", "--suite", "cpu"])
    assert "conv 3x3 (32,64,56,56)->64 dX" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no case matches"):
        main(["--suite", "cpu", "--filter", "no such thing"])


# -- reports -----------------------------------------------------------------------------------------------------------

RECORD = {
    "case": "matmul 512", "suite": "cpu", "ours_ms": 2.0, "reference": "torch", "reference_ms": 3.0, "ratio": 1.5,
    "target": 0.95, "error": 4e-7, "rate": 134.2, "unit": "GFLOP/s", "share": 0.84, "cpu_ratio": 1.1,
    "kept_ratio": 1.2, "device": "CPU",
    "driver": "PoCL 3.0", "versions": {"python": "3.11"}, "commit": "abc", "date": "2025-01-02T00:00:00+00:00",
    "machine": "cpu-pocl", "threads": 2, "note": "bytes",
}  # fmt: skip


def test_verdicts():
    assert report.verdict(RECORD) == "ok"
    assert report.verdict(RECORD | {"ratio": 0.9}) == "low"
    assert report.verdict(RECORD | {"target": None}) == ""
    closing = report.closing([RECORD, RECORD | {"ratio": 0.9, "case": "b"}, RECORD | {"failed": "x", "case": "c"}])
    assert closing.splitlines() == ["1 of 3 targets met", "below target (<): b", "failed (!): c", "  b: bytes"]
    assert "\n- b: bytes" in report.markdown([RECORD, RECORD | {"ratio": 0.9, "case": "b"}])
    assert "bytes" not in report.markdown([RECORD])
    table = report.markdown([RECORD, RECORD | {"target": None, "case": "aside"}])
    assert "aside" not in table and table.endswith("1 cases without a target: `python -m benchmarks.report`.")


def test_records_of_the_gpu_harness_fit_the_same_table(tmp_path):
    gpu = {"case": "matmul", "ours_us": 50.0, "torch_us": 100.0, "ratio": 2.0, "target": 1.0, "error": 1e-7,
           "tflops": 300.0, "gbs": 0.0, "device": "H200", "driver": "1", "date": "2025-01-02"}  # fmt: skip
    report.write(
        tmp_path / "h200-gpu.jsonl", [gpu, {"case": "b", "failed": "no", "date": "", "device": "", "driver": ""}]
    )
    good, bad = report.read(tmp_path / "h200-gpu.jsonl")
    assert set(good) >= FIELDS
    assert (good["ours_ms"], good["reference_ms"], good["unit"]) == (0.05, 0.1, "TFLOP/s")
    assert "| matmul | 0.05 | 0.1 torch | 2 | 1 | - | 300 TFLOP/s | - | 1e-07 |" in report.all_tables(tmp_path)
    assert report.verdict(bad) == "failed"


def test_machines_and_files_are_named_after_the_device_and_the_suite():
    assert machine({"kind": "cpu", "vendor": "PoCL", "driver": "Portable ...", "device": "x"}) == "cpu-pocl"
    assert machine({"kind": "cpu", "vendor": "AMD", "driver": "Intel(R) OpenCL 1", "device": "x"}) == "cpu-intel"
    assert machine({"kind": "gpu", "vendor": "NVIDIA", "driver": "", "device": "NVIDIA H200"}) == "h200"
    assert report.path_of("cpu-pocl", "cpu").name == "cpu-pocl.jsonl"
    assert report.path_of("cpu-pocl", "step").name == "cpu-pocl-step.jsonl"
    assert report.path_of("h200", "gpu").name == "h200-gpu.jsonl"


def test_tables_are_written_between_their_markers(tmp_path):
    report.write(tmp_path / "cpu-pocl.jsonl", [RECORD, RECORD | {"case": "b", "ratio": None, "failed": "no"}])
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.update(readme, report.all_tables(tmp_path))
    text = readme.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "| matmul 512 | 2 | 3 torch | 1.5 | 0.95 | 1.2 | 134 GFLOP/s | 84% | 4e-07 |" in text
    assert "old" not in text
    assert not report.update(readme, report.all_tables(tmp_path))
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="add them once"):
        report.update(readme, report.all_tables(tmp_path))


def test_the_pages_show_the_kept_runs():
    assert report.all_tables() in report.PAGE.read_text(encoding="utf-8")
    assert report.chosen_rows() in report.README.read_text(encoding="utf-8")
    assert report.chosen_rows().count("\n") == 4 - 1 + sum(len(cases) for cases in report.CHOSEN.values())


def test_two_checkouts_are_compared_line_by_line(capsys):
    """This one with itself, on NumPy."""
    small = "2 x 16 x 8 x 8 to 16"
    assert trees.main([str(trees.ROOT), "--device", "cpu", "--rounds", "1", "--shapes", small]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line[: len(small)] for line in lines] == [small] * 3 and "DIFFER" not in "".join(lines)


def test_the_host_time_of_two_checkouts_is_compared_line_by_line(capsys):
    assert trees.main([str(trees.ROOT), "--device", "cpu", "--rounds", "1", "--host"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line[:37].rstrip() for line in lines] == list(trees.HOST) and "DIFFER" not in "".join(lines)
