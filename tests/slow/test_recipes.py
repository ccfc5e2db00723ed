"""Plans of published configurations with their recipes: docs/models.md says what they are."""

from __future__ import annotations

import pytest

from tests.support.recipes import model_of, row, rows_of_page
from zoexport import models
from zoexport.core.recipes import known

pytestmark = pytest.mark.slow

PARAMETERS = {
    "smollm2-135m": 134.5e6,
    "smollm2-360m": 361.8e6,
    "smollm2-1.7b": 1711e6,
    "qwen2.5-0.5b": 494e6,
    "qwen2.5-1.5b": 1544e6,
    "qwen2.5-3b": 3086e6,
    "qwen3-0.6b": 596e6,
    "qwen3-1.7b": 1721e6,
    "qwen3-4b": 4022e6,
    "gemma3-1b": 1000e6,
    "gemma3-4b": 4300e6,
    "llama3.2-1b": 1236e6,
    "llama3.2-3b": 3213e6,
}
"""As published."""


def test_the_page_has_every_recipe_and_every_configuration_one() -> None:
    assert list(rows_of_page()) == list(known())
    assert {model_of(name) for name in known()} == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_configurations_are_those_that_were_published(name: str) -> None:
    model = models.blank(models.resolve(f"shape:{name}")).model
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(PARAMETERS[name], rel=0.01)


@pytest.mark.parametrize("recipe", list(known()))
def test_a_plan_is_what_the_page_says(recipe: str) -> None:
    """Renew it by python -m tests.support.recipes."""
    found = row(recipe)
    assert found == rows_of_page()[recipe]
    if recipe.endswith("-mebp"):
        # Layers are mapped: a model takes a small part of its int4 weights.
        memory = int(found.split("|")[4].split()[0])
        assert 10 < memory < 150
        disk = int(found.split("|")[6].split()[0])
        assert disk > PARAMETERS[model_of(recipe)] * 0.5e-6 * 0.8
