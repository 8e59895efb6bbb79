"""Parameter, and how layers make theirs."""

from netcl.autograd.node import Parameter
from netcl.core.device import queue_of

__all__ = ["Parameter", "queue_of"]
