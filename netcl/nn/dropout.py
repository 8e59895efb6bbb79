"""Dropout."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.nn.module import Module


class Dropout(Module):
    """In training each element is 0 with probability p and otherwise divided by 1 - p; in evaluation x itself.

    Source: Srivastava et al. 2014, JMLR 15.
    """

    _shown = ("p",)

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: expected p in [0, 1), got {p}.")
        self.p = p

    def forward(self, x: Any) -> Any:
        """Same shape."""
        return ag.dropout(x, self.p) if self.training and self.p else x
