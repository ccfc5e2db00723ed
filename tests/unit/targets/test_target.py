"""The base class of targets."""

from __future__ import annotations

from importlib import util

import pytest

from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError


@pytest.mark.parametrize(
    ("target", "package"),
    [("ios-coreml", "coremltools"), ("ios-mlx", "mlx"), ("android-gpu", "executorch")],
)
def test_missing_package_is_named(
    target: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == package else known(name))
    with pytest.raises(ConfigError, match=f"the package {package} is not installed"):
        plan("mebp", target, {})
