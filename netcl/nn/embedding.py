"""Embedding: rows of a table by index."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.nn import init
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter, queue_of


class Embedding(Module):
    """weight[index]: (...) whole numbers -> (..., embedding_dim). Rows start normal; row `padding_idx` is 0 and stays
    so.

    An index outside [0, num_embeddings) raises IndexOutOfRange, on OpenCL at the next synchronisation.
    """

    def __init__(
        self,
        queue: Any,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = "float32",
    ) -> None:
        queue = queue_of("Embedding", queue)
        if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: expected padding_idx in [0, {num_embeddings}), got {padding_idx}.")
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = Parameter(init.normal(queue, (num_embeddings, embedding_dim), dtype=dtype))
        if padding_idx is not None:
            self.weight.value[padding_idx].fill_(0)

    def forward(self, index: Any) -> Any:
        """(...) -> (..., embedding_dim)."""
        return ag.embedding(self.weight, index, padding_index=self.padding_idx)

    def extra_repr(self) -> str:
        """The table's size."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
