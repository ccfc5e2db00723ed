"""What ``plan`` says to do: first order where it fits, and of zeroth order what learns most an operation."""

from __future__ import annotations

import pytest

from zoexport.plan.advice import advice

MEBP = {"method": "mebp", "settings": {"batch": 1}, "first_order": True}
MEZO = {"method": "mezo", "settings": {}, "first_order": False}


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_fzoo_is_named_where_slower_zeroth_order_was_asked_for(method: str) -> None:
    for fits, options in ((None, []), (True, [MEZO]), (False, [MEZO]), (False, [])):
        assert "fzoo with lora.init=activations" in advice(method, False, fits, options)


def test_it_is_not_where_first_order_fits_or_other_values_are_trained() -> None:
    assert "fzoo" not in advice("prge", False, True, [MEBP])
    assert "--method mebp --set batch=1" in advice("prge", False, False, [MEBP])
    for method in ("fzoo", "quzo", "senszoq", "spzo"):
        assert "fzoo" not in advice(method, False, None, [])
    assert advice("mebp", True, True, [MEBP]).startswith("It fits.")
