"""What is remembered of a device's matrix units holds for the texts that were tried, and no others."""

import dataclasses

import pytest

from netcl.core.device.profile import numpy_profile
from netcl.kernels import sources
from netcl.ops.nvidia import probe


@pytest.mark.parametrize("name", probe.TEXTS)
def test_another_text_is_tried_again(monkeypatch, name):
    profile, text = dataclasses.replace(numpy_profile(), vendor="NVIDIA", architecture="sm_90"), sources.text
    before = probe._key(profile)
    monkeypatch.setattr(sources, "text", lambda file: text(file) + ("// another\n" if file == name else ""))
    assert probe._key(profile) != before


def test_the_sum_of_parts_is_among_the_texts():
    assert "split_k.cl" in probe.TEXTS
