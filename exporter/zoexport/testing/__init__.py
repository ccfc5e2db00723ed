"""Evaluator for saved Core ML packages on any machine, to compare results with a phone."""

from __future__ import annotations

from zoexport.testing.engine import PackageEngine
from zoexport.testing.function import Feature
from zoexport.testing.package import Package

__all__ = ["Feature", "Package", "PackageEngine"]
