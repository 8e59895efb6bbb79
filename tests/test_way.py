"""The way through the code stays short: `tools/way.py` holds the limits."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICES

TOOL = Path(__file__).parents[1] / "tools" / "way.py"
BACKENDS = ["cpu", *(["cl:cpu", "as-gpu"] if any(name.endswith("-cpu") for name in DEVICES) else [])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_first_or_warm_call_takes_longer_ways_than_its_limit(backend):
    ran = subprocess.run([sys.executable, TOOL, backend], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
