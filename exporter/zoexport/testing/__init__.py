"""coreml: a saved Core ML package, read and run on any machine, so that what a phone will run can be compared."""

from __future__ import annotations

from zoexport.testing.engine import PackageEngine
from zoexport.testing.function import Feature
from zoexport.testing.package import Package

__all__ = ["Feature", "Package", "PackageEngine"]
