"""Modules that hold modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from netcl.nn.activation import ReLU
from netcl.nn.conv import Conv2d
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.norm import BatchNorm1d, BatchNorm2d

FUSED = (Linear, Conv2d, BatchNorm1d, BatchNorm2d)  # layers whose kernel can apply the ReLU that follows


class _List(Module):
    """Modules by position; their paths are "0", "1", ..."""

    layers: list[Module]

    def __init__(self, layers: Iterable[Module] = ()) -> None:
        self.layers = [_checked(type(self).__name__, layer) for layer in layers]

    def members(self) -> Iterator[tuple[str, Any]]:
        """The layers by position, then whatever else was set."""
        yield from ((str(i), layer) for i, layer in enumerate(self.layers))
        yield from ((n, v) for n, v in super().members() if not n.startswith("layers."))

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __getitem__(self, index: int | slice) -> Any:
        kind: Any = type(self)
        return kind(self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def append(self, layer: Module) -> Any:
        """Add a module at the end."""
        self.layers.append(_checked(type(self).__name__, layer))
        return self


def _checked(where: str, layer: Any) -> Module:
    if not isinstance(layer, Module):
        raise TypeError(
            f"{where}: expected modules, got {type(layer).__name__}; a function goes into a Module's forward."
        )
    return layer


class Sequential(_List):
    """Modules called in turn. A linear, convolution or batch norm layer and the ReLU after it run as one kernel."""

    def __init__(self, *layers: Module | Iterable[Module]) -> None:
        one = len(layers) == 1 and isinstance(layers[0], Iterable) and not isinstance(layers[0], Module)
        given: Any = layers[0] if one else layers
        super().__init__(given.values() if isinstance(given, Mapping) else given)

    def forward(self, x: Any) -> Any:
        """The last module's result."""
        layers, i = self.layers, 0
        while i < len(layers):
            layer = layers[i]
            after = layers[i + 1] if i + 1 < len(layers) else None
            if type(layer) in FUSED and type(after) is ReLU and not _hooked(layer, after):
                x = layer.forward_relu(x)  # type: ignore[attr-defined]
                i += 2
            else:
                x = layer(x)
                i += 1
        return x


def _hooked(*modules: Module) -> bool:
    return any(m._before or m._after for m in modules)


class ModuleList(_List):
    """A list of modules; what is done with them is up to the owner's forward."""

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end."""
        for m in modules:
            self.append(m)
        return self


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.items_ = {name: _checked("ModuleDict", m) for name, m in (modules or {}).items()}

    def members(self) -> Iterator[tuple[str, Any]]:
        """The modules by name."""
        return iter(self.items_.items())

    def __getitem__(self, name: str) -> Module:
        return self.items_[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.items_[name] = _checked("ModuleDict", module)

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)
