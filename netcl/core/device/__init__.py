"""Devices: what is here, which one "auto" takes, and what each can do."""

from netcl.core.device.discovery import DeviceHandle, DeviceManager, device, manager, queue_of
from netcl.core.device.profile import DeviceProfile, override_profile, profile_of

__all__ = [
    "DeviceHandle", "DeviceManager", "DeviceProfile", "device", "manager", "override_profile", "profile_of", "queue_of",
]  # fmt: skip
