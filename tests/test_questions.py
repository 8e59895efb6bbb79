"""The tasks of docs/questions.md, each run as it stands, on NumPy and on an OpenCL device."""

import re
from pathlib import Path

import numpy as np
import pytest

import netcl as nc
from netcl import ag, nn, optim

PAGE = Path(__file__).resolve().parents[1] / "docs" / "questions.md"
TASKS = re.findall(r"^### (.*?)\n+```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("task", "code"), TASKS, ids=[task for task, _ in TASKS])
def test_a_task_runs_as_it_stands(queue, tmp_path, monkeypatch, task, code):
    monkeypatch.chdir(tmp_path)
    with nc.device(queue):
        exec(code, {"np": np, "nc": nc, "ag": ag, "nn": nn, "optim": optim, "__name__": "question"})


def test_there_are_thirty_tasks():
    assert len(TASKS) == len(set(TASKS)) == 30
