"""The user's line in messages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import netcl

SCRIPT = """
import numpy as np
import netcl.autograd as ag
from netcl.core.device import manager
from netcl.core.errors import GradientError
from netcl.core.tensor import Tensor

x = ag.tensor(Tensor.from_host(manager.default("cpu").queue, np.float32([-1])), requires_grad=True)
try:
    with ag.detect_anomaly(), ag.Tape():
        ag.log(x)  # line of the anomaly
except GradientError as error:
    print(error)


def reads(x):
    return x * float(x.sum())  # line of the reading


def fails(x):
    return x * {}["missing"]  # line of the error


for function in (reads, fails):
    compiled = ag.jit_compile(function)
    try:
        compiled(x)
    except KeyError:
        pass
    print(compiled.reasons[0])
"""


def test_a_script_in_a_folder_named_as_the_package_is_named_by_line(tmp_path):
    root = tmp_path / "netcl"  # what `git clone` makes
    shutil.copytree(Path(netcl.__file__).parent, root / "netcl", ignore=shutil.ignore_patterns("__pycache__"))
    script = root / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    anomaly, reading, failure = ran.stdout.splitlines()
    lines = SCRIPT.splitlines()

    def place(comment):
        (number,) = (k for k, line in enumerate(lines, 1) if line.endswith(comment))
        return f"{script}:{number}"

    assert f"{place('line of the anomaly')}: ag.log(x)" in anomaly
    assert place("line of the reading") in reading
    assert place("line of the error") in failure
