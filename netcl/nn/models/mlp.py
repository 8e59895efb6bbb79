"""MLP: linear layers with an activation between them."""

from __future__ import annotations

from typing import Any

from netcl.nn.activation import ReLU
from netcl.nn.container import Sequential
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.parameter import queue_of


class MLP(Module):
    """(..., input_dim) -> (..., output_dim) through `num_hidden_layers` linear layers with an `activation` each."""

    def __init__(
        self,
        queue: Any,
        input_dim: int,
        hidden_dim: int,
        output_dim: int,
        num_hidden_layers: int = 1,
        activation: type[Module] = ReLU,
    ) -> None:
        queue = queue_of("MLP", queue)
        self.input_dim, self.hidden_dim, self.output_dim = input_dim, hidden_dim, output_dim
        self.num_hidden_layers, self.activation = num_hidden_layers, activation
        layers: list[Module] = []
        width = input_dim
        for _ in range(num_hidden_layers):
            layers += [Linear(queue, width, hidden_dim), activation()]
            width = hidden_dim
        self.layers = Sequential(*layers, Linear(queue, width, output_dim))

    def forward(self, x: Any) -> Any:
        """(..., input_dim) -> (..., output_dim)."""
        return self.layers(x)
