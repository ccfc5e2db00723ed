"""What ``plan`` says to do: first order where it fits, and of zeroth order what learns most an operation."""

from __future__ import annotations

import pytest

from zoexport.methods import methods
from zoexport.tools.plan import advice

MEBP = {"method": "mebp", "settings": {"batch_size": 1}, "first_order": True}
MEZO = {"method": "mezo", "settings": {}, "first_order": False}


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_fzoo_is_named_where_slower_zeroth_order_was_asked_for(method: str) -> None:
    for fits, options in ((None, []), (True, [MEZO]), (False, [MEZO]), (False, [])):
        found = advice(methods.get(method).sooner, False, fits, options)
        assert "fzoo with lora.init_weights=activations" in found


def test_it_is_not_where_first_order_fits_or_other_values_are_trained() -> None:
    sooner = methods.get("prge").sooner
    assert "fzoo" not in advice(sooner, False, True, [MEBP])
    assert "--method mebp --set batch_size=1" in advice(sooner, False, False, [MEBP])
    for method in ("fzoo", "mebp", "quzo", "senszoq", "spzo"):
        assert methods.get(method).sooner == ""
    assert advice("", True, True, [MEBP]).startswith("It fits.")
