"""The order of test files in the second tier, which every worker process of a run works out for itself."""

from __future__ import annotations

from tests.support.order import ROOT, newest_first


def test_order_does_not_depend_on_how_files_are_listed() -> None:
    """Files of one name in two folders too: workers whose orders differ end the whole run."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    names = [path.name for path in files]
    assert len(set(names)) < len(names), "no two test files have one name any more"
    assert newest_first(files) == newest_first(reversed(files))
    assert sorted(newest_first(files)) == files
