"""Settings of ``train --set`` reach the session under the names that it has."""

from __future__ import annotations

import dataclasses

import pytest

from zoexport.core.config import as_dict, fields
from zoexport.methods import methods
from zoexport.session import Run
from zoexport.train import runtime_settings


@pytest.mark.parametrize("method", methods.names())
def test_every_runtime_setting_is_a_field_of_the_run(method: str) -> None:
    config = methods.get(method).config
    # A target decides where a method does not.
    defaults = {key: 7 if value is None else value for key, value in as_dict(config()).items()}
    given = {key: str(defaults[key]) for key, (_, info) in fields(config).items() if info.runtime}
    assert "lr_schedule" in given
    chosen = runtime_settings({"method": method}, given)
    # Of a key such as dpo.beta the dot is no part of a field's name.
    assert {key.replace(".", "_") for key in chosen} <= {
        field.name for field in dataclasses.fields(Run)
    }
    assert chosen == {key: defaults[key] for key in given}
