"""Models and checkpoints as files. Nothing in them is executed when they are read."""

from netcl.io.checkpoint import load_checkpoint, save_checkpoint
from netcl.io.model import load_model, save_model
from netcl.io.save import load, save

__all__ = ["load", "load_checkpoint", "load_model", "save", "save_checkpoint", "save_model"]
