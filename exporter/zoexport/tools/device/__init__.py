"""Commands of ``zoexport device``, for phones connected over adb."""

from zoexport.core.adb import list_devices
from zoexport.tools.device.parity import device_parity
from zoexport.tools.device.runner import make_runner
from zoexport.tools.device.runs import generate, pull, push, train

__all__ = ["device_parity", "generate", "list_devices", "make_runner", "pull", "push", "train"]
