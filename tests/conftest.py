"""Shared set-up: with ``tests/__init__.py`` this file puts the repository's root on the import path."""

from __future__ import annotations

import os

# No test talks to a hub; a test that needs a package registry carries the `network` marker.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
