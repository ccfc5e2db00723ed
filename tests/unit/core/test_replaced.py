"""replaced: what an attribute is inside, and afterwards, whatever ends it."""

from __future__ import annotations

import types

import pytest

from zoexport.core.replaced import replaced


def test_attributes_are_others_inside_and_the_same_afterwards() -> None:
    one, other = types.SimpleNamespace(name=1, rest=2), types.SimpleNamespace(name=3)
    with replaced((one, "name", 10), (other, "name", 30)):
        assert (one.name, one.rest, other.name) == (10, 2, 30)
    assert (one.name, one.rest, other.name) == (1, 2, 3)


def test_an_error_inside_leaves_nothing_replaced() -> None:
    owner = types.SimpleNamespace(name=1)
    with pytest.raises(ZeroDivisionError), replaced((owner, "name", 2)):
        owner.name //= 0
    assert owner.name == 1


def test_an_attribute_that_is_not_there_is_an_error_and_nothing_is_replaced() -> None:
    owner = types.SimpleNamespace(name=1)
    with pytest.raises(AttributeError), replaced((owner, "name", 2), (owner, "nonesuch", 2)):
        pass
    assert vars(owner) == {"name": 1}
