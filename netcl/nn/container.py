"""Modules that hold modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from netcl.core.arguments import whole
from netcl.nn.activation import GELU, ReLU, SiLU
from netcl.nn.conv import Conv2d
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.norm import BatchNorm1d, BatchNorm2d

FUSED: dict[type[Module], tuple[str, ...]] = {  # the activations that the kernel of a layer can apply
    **dict.fromkeys((Linear, Conv2d), ("relu", "gelu", "silu")),
    **dict.fromkeys((BatchNorm1d, BatchNorm2d), ("relu",)),
}
NAMES: dict[type[Module], str] = {ReLU: "relu", GELU: "gelu", SiLU: "silu"}
FORWARD: dict[type[Module], Any] = {kind: kind.forward for kind in (*FUSED, *NAMES)}  # what the kernels compute


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

    def __setitem__(self, index: int, layer: Module) -> None:
        """Put a module in the place of another."""
        self.layers[self._place(index)] = _checked(type(self).__name__, layer)
        self._changed()

    def __delitem__(self, index: int | slice) -> None:
        """Take modules out; those behind move up."""
        del self.layers[index if isinstance(index, slice) else self._place(index)]
        self._changed()

    def append(self, layer: Module) -> Any:
        """Add a module at the end."""
        return self.insert(len(self), layer)

    def insert(self, index: int, layer: Module) -> Any:
        """Add a module before the one at `index`."""
        where = type(self).__name__
        self.layers.insert(whole(where, "an index", index), _checked(where, layer))
        self._changed()
        return self

    def extend(self, layers: Iterable[Module]) -> Any:
        """Add modules at the end."""
        self.layers.extend([_checked(type(self).__name__, layer) for layer in layers])
        self._changed()
        return self

    def pop(self, index: int = -1) -> Module:
        """Take a module out and return it."""
        layer = self.layers.pop(self._place(index))
        self._changed()
        return layer

    def _place(self, index: Any) -> int:
        where, n = type(self).__name__, len(self.layers)
        place = whole(where, "an index", index)
        if not -n <= place < n:
            raise IndexError(f"{where}: expected an index in [{-n}, {n}), got {place}.")
        return place


def _checked(where: str, layer: Any) -> Module:
    if not isinstance(layer, Module):
        raise TypeError(
            f"{where}: expected modules, got {type(layer).__name__}; a function goes into a Module's forward."
        )
    return layer


class Sequential(_List):
    """Modules called in turn. A linear, convolution or batch norm layer and the activation after it run as one kernel
    where the layer has one for it: ReLU, and after linear layers and convolutions also SiLU and the exact GELU.
    """

    def __init__(self, *layers: Module | Iterable[Module]) -> None:
        one = len(layers) == 1 and isinstance(layers[0], Iterable) and not isinstance(layers[0], Module)
        given: Any = layers[0] if one else layers
        super().__init__(given.values() if isinstance(given, Mapping) else given)

    def forward(self, x: Any) -> Any:
        """The last module's result."""
        i = 0
        layers: list[Any] = self.layers
        while i < len(layers):
            layer = layers[i]
            activation = _taken_along(layer, layers[i + 1]) if i + 1 < len(layers) else None
            x = layer(x) if activation is None else layer.forward_with(x, activation)
            i += 1 if activation is None else 2
        return x


def _taken_along(layer: Module, after: Module) -> str | None:
    """The activation `after` by name, when the kernel of `layer` can apply it and nobody looks in between."""
    name = NAMES.get(type(after))
    if name not in FUSED.get(type(layer), ()) or not (_is_plain(layer) and _is_plain(after)):
        return None
    return name if getattr(after, "approximate", "none") == "none" else None


def _is_plain(module: Module) -> bool:
    """Whether calling the module is its class's own forward: no hooks, and no other forward in its place."""
    kind = type(module)
    own = "forward" not in module.__dict__ and kind.forward is FORWARD[kind] and kind.__call__ is Module.__call__
    return own and not module.hooked


class ModuleList(_List):
    """A list of modules; what is done with them is up to the owner's forward."""


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.items_ = {name: _checked("ModuleDict", m) for name, m in (modules or {}).items()}

    def members(self) -> Iterator[tuple[str, Any]]:
        """The modules by name, then whatever else was set."""
        yield from self.items_.items()
        yield from ((n, v) for n, v in super().members() if not n.startswith("items_."))

    def __getitem__(self, name: str) -> Module:
        return self.items_[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.items_[name] = _checked("ModuleDict", module)
        self._changed()

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)
