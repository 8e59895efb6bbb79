"""Tables of records: on the terminal, all in docs/performance.md, ten rows in README.md (`... report --page`)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks: begin (python -m benchmarks.report --page) -->", "<!-- benchmarks: end -->"
CHOSEN = {  # file -> rows that README.md shows, the ones behind among them
    "cpu-pocl-step": ("MLP 784-256-128-10 AdamW step, batch 32, recorded", "digits CNN step, batch 64, recorded"),
    "cpu-pocl": (
        "matmul 1024",
        "conv 3x3 (32,64,56,56)->64 forward",
        "sum (4096,1024) all",
        "AdamW step, 62 tensors, 11.7M",
    ),
    "h200-gpu": ("matmul fp32 high 4096", "matmul fp16 4096", "attention fp16 both", "residual stage fp32"),
}
COLUMNS = ("case", "ours ms", "reference ms", "ratio", "target", "kept", "cpu ratio", "rate", "share", "error")
WIDTHS = (44, 10, 18, 8, 7, 7, 10, 15, 6, 9)


def path_of(machine: str, suite: str) -> Path:
    """Where the last full run of a suite on a machine is kept."""
    return RESULTS / f"{machine if machine.startswith(suite) else f'{machine}-{suite}'}.jsonl"


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """One JSON line a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file."""
    return [standard(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]


def standard(record: dict[str, Any]) -> dict[str, Any]:
    """A record of benchmarks/h200.py, which counts microseconds and TFLOP/s, in the form of all others."""
    if "suite" in record:
        return record
    ours, torch = record.get("ours_us"), record.get("torch_us")
    flops, rate = record.get("tflops"), record.get("gbs")
    return record | {
        "suite": "gpu", "machine": "h200", "reference": "torch", "threads": 0,
        "ours_ms": None if ours is None else 1e-3 * ours, "reference_ms": None if torch is None else 1e-3 * torch,
        "ratio": record.get("ratio"), "target": record.get("target"), "error": record.get("error"),
        "rate": flops or rate, "unit": "TFLOP/s" if flops else "GB/s" if rate else "",
        "versions": record.get("versions", {"torch": record.get("torch", "")}), "commit": record.get("commit", ""),
    }  # fmt: skip


def number(x: float | None, digits: int = 3) -> str:
    """A figure with `digits` significant digits, "-" for none."""
    return "-" if x is None else f"{x:.{digits}g}" if abs(x) < 10 ** (digits - 1) else f"{x:.0f}"


def verdict(record: dict[str, Any]) -> str:
    """ "ok", "low" (under its target), "failed", or "" where no target is set."""
    if record.get("failed"):
        return "failed"
    if record.get("target") is None or record.get("ratio") is None:
        return ""
    return "ok" if record["ratio"] >= record["target"] else "low"


def cells(record: dict[str, Any]) -> list[str]:
    """A record as the table's texts."""
    rate = f"{number(record['rate'])} {record['unit']}" if record.get("unit") else "-"
    share = record.get("share")
    reference = number(record.get("reference_ms"))
    reference += "" if reference == "-" else f" {record['reference']}"
    mark = {"low": " <", "failed": " !"}.get(verdict(record), "")
    return [record["case"], number(record.get("ours_ms")), reference, number(record.get("ratio")) + mark,
            number(record.get("target")), number(record.get("kept_ratio")), number(record.get("cpu_ratio")), rate,
            "-" if share is None else f"{100 * share:.0f}%", number(record.get("error"), 2)]  # fmt: skip


def line(texts: Sequence[str]) -> str:
    """Texts as one row of the terminal's table."""
    first, *rest = (t.rjust(w) for t, w in zip(texts, WIDTHS))
    return texts[0].ljust(WIDTHS[0]) + "".join(rest) if first else ""


def show(record: dict[str, Any]) -> None:
    """Print a record, and the reason below it when it failed."""
    print(line(cells(record)), flush=True)
    if record.get("failed"):
        print(f"    failed: {record['failed']}", flush=True)


def header(common: dict[str, Any]) -> str:
    """What everything ran on."""
    versions = ", ".join(f"{k} {v}" for k, v in common["versions"].items())
    top = common.get("ceilings") or {}
    limits = "".join(f"{rate:.1f} GB/s copying {size / 1e6:.0f} MB, " for size, rate in top.get("copy", []))
    limits += f"{top['flops']:.0f} GFLOP/s" if top.get("flops") else ""
    what = f"{common['device']} | {common['driver']} | {common['threads']} threads | commit {common['commit']}"
    return "\n".join([what, versions, *([f"ceilings: {limits}"] if limits else [])])


def closing(records: Sequence[dict[str, Any]]) -> str:
    """How many targets are met, and which are not."""
    marks = [(verdict(r), r["case"]) for r in records]
    met = sum(mark == "ok" for mark, _ in marks)
    lines = [f"{met} of {sum(mark != '' for mark, _ in marks)} targets met"]
    for mark, title in (("low", "below target (<)"), ("failed", "failed (!)")):
        names = [name for m, name in marks if m == mark]
        lines += [f"{title}: {'; '.join(names)}"] if names else []
    lines += [f"  {text}" for text in notes(records)]
    return "\n".join(lines)


def notes(records: Sequence[dict[str, Any]]) -> list[str]:
    """What bounds the cases below their target, as far as their notes say."""
    return [f"{r['case']}: {r['note']}" for r in records if verdict(r) == "low" and r.get("note")]


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """A suite's records as a table for docs/performance.md: those with a target, and how many others there are."""
    first, shown = records[0], [r for r in records if verdict(r)]
    threads = f", {first['threads']} threads" if first["threads"] else ""
    lines = [f"{first['device']}, {first['driver']}{threads}, {first['date'][:10]}.", "",
             "| case | netcl ms | reference ms | ratio | target | memory kept | rate | of ceiling | error |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for record in shown:
        name, ours, reference, ratio, target, kept, _, rate, share, error = cells(record)
        ratio = "failed" if record.get("failed") else ratio.removesuffix(" <")
        lines.append(f"| {' | '.join((name, ours, reference, ratio, target, kept, rate, share, error))} |")
    lines += ["", *(f"- {text}" for text in notes(records))] if notes(records) else []
    others = len(records) - len(shown)
    lines += ["", f"{others} cases without a target: `python -m benchmarks.report`."] if others else []
    return "\n".join(lines)


def all_tables(folder: Path = RESULTS) -> str:
    """The tables of every kept run, between the markers."""
    tables = [markdown(records) for path in sorted(folder.glob("*.jsonl")) if (records := read(path))]
    body = "\n\n".join(tables) or "No run is kept yet; `make bench` measures this machine."
    return f"{BEGIN}\n{body}\n{END}"


def chosen_rows(folder: Path = RESULTS) -> str:
    """The table of README.md, between the markers."""
    lines = ["| device | case | netcl ms | reference ms | ratio |", "| --- | --- | ---: | ---: | ---: |"]
    for name, cases in CHOSEN.items():
        path = folder / f"{name}.jsonl"
        for record in read(path) if path.exists() else ():
            if record["case"] in cases:
                device = record["device"].removeprefix("pthread-").removeprefix("NVIDIA ")
                lines.append(f"| {' | '.join((device, *cells(record)[:3], cells(record)[3].removesuffix(' <')))} |")
    return "\n".join([BEGIN, *lines, END])


def update(path: Path, body: str) -> bool:
    """Put `body` between the markers of `path`; whether anything changed. Raises ValueError without markers."""
    text = path.read_text(encoding="utf-8")
    start, end = text.find(BEGIN), text.find(END)
    if start < 0 or end < start:
        raise ValueError(f"report: expected the lines {BEGIN!r} and {END!r} in {path}, found none; add them once.")
    new = text[:start] + body + text[end + len(END) :]
    path.write_text(new, encoding="utf-8")
    return new != text


def main() -> None:
    """Print the kept runs, or write them into the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--page", action="store_true", help="write the tables into docs/performance.md and README.md")
    if parser.parse_args().page:
        for path, body in ((PAGE, all_tables()), (README, chosen_rows())):
            print(f"{path.name}: " + ("updated" if update(path, body) else "no change"))
        return
    for path in sorted(RESULTS.glob("*.jsonl")):
        records = read(path)
        print(f"{path.name}\n{header(records[0])}\n{line(COLUMNS)}")
        for record in records:
            show(record)
        print(closing(records) + "\n")


if __name__ == "__main__":
    main()
