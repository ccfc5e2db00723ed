"""Phones on a desk, over adb: what the verbs of ``zoexport device`` call."""

from zoexport.device.adb import list_devices
from zoexport.device.parity import device_parity
from zoexport.device.runs import pull, push, train

__all__ = ["device_parity", "list_devices", "pull", "push", "train"]
