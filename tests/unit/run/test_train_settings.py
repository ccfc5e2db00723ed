"""Settings of ``train --set`` are settings of the session's table."""

from __future__ import annotations

import json

import pytest

from zoexport.core.config import as_dict, fields
from zoexport.methods import methods, runtime_settings
from zoexport.session import abi


@pytest.mark.parametrize("method", methods.names())
def test_every_runtime_setting_is_one_of_the_session(method: str) -> None:
    config = methods.get(method).config
    # A target decides where a method does not.
    defaults = {key: 7 if value is None else value for key, value in as_dict(config()).items()}
    given = {key: str(defaults[key]) for key, (_, info) in fields(config).items() if info.runtime}
    assert "lr_scheduler_type" in given
    chosen = runtime_settings(method, given)
    abi.call("zo_options_check", b"settings", json.dumps(chosen).encode())
    assert chosen == {key: defaults[key] for key in given}
