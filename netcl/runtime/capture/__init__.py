"""Recording launches once and replaying them without Python in between."""

from netcl.runtime.capture.capture import KernelCapture, capture_disabled, capture_graph, get_capture

__all__ = ["KernelCapture", "capture_disabled", "capture_graph", "get_capture"]
