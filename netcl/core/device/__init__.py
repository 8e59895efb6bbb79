"""Devices: what is here, which one "auto" takes, and what each can do."""

from netcl.core.device.discovery import DeviceHandle, DeviceManager, device, manager, pick_default, queue_of
from netcl.core.device.profile import DeviceProfile, override_profile, profile_of

__all__ = [
    "DeviceHandle",
    "DeviceManager",
    "DeviceProfile",
    "device",
    "manager",
    "override_profile",
    "pick_default",
    "profile_of",
    "queue_of",
]
