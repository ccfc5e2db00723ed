"""Python loads this by itself in every process of a participant whose path begins with this folder."""

import os
import sys

if os.environ.get("ZOEXPORT_TEST_FAULTS") and any(
    "flwr-clientapp" in argument or "flwr-serverapp" in argument for argument in sys.orig_argv
):
    import tests.support.fault_hooks  # noqa: F401
