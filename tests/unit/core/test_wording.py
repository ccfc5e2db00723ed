"""Messages name flags on the command line and keyword arguments in Python."""

from __future__ import annotations

import pytest

from zoexport.core.config import parse
from zoexport.core.errors import Cancelled, ConfigError, StateError, rebuilt
from zoexport.core.wording import command_line, worded
from zoexport.methods.mebp import MebpConfig

WORDED = [
    ("Compile again with --set lora.r=8.", "Compile again with lora_r=8."),
    ("Choose --set max_length=32 or less.", "Choose max_length=32 or less."),
    ("--set weights=int4 quantizes it", 'weights="int4" quantizes it'),
    ("Pass --set pack=false.", 'Pass settings={"pack": False}.'),
    (
        "Write --set lora.layers_to_transform=last:K.",
        'Write settings={"lora.layers_to_transform": "last:K"}.',
    ),
    (
        "Write --set 'lora.rank_pattern={NAME: NUMBER}', with a blank",
        'Write settings={"lora.rank_pattern": {NAME: NUMBER}}, with a blank',
    ),
    ("Pass --overwrite to start over.", "Pass overwrite=True to start over."),
    ("--no-verify keeps the bundle", "verify=False keeps the bundle"),
    ("Choose another --output.", "Choose another output=."),
    ("Leave --adapter out, or choose another", "Leave adapter= out, or choose another"),
    ("Use --format merged, and the tool", 'Use format="merged", and the tool'),
    ("Add --ram MB, the memory", "Add ram=MB, the memory"),
    ("(--split labels:0.5)", '(split="labels:0.5")'),
    ("--dp-noise 0.5 that spends", "dp_noise=0.5 that spends"),
    (
        "Write it as --columns prompt=question,completion=answer.",
        'Write it as columns={"prompt": "question", "completion": "answer"}.',
    ),
    ("with the traceback (--debug).", "with the traceback."),
    ("a key: 'zoexport sign --generate PATH'", "a key: 'zoexport sign --generate PATH'"),
    ("a--b and data/--x.jsonl -- there", "a--b and data/--x.jsonl -- there"),
]


@pytest.mark.parametrize(("written", "expected"), WORDED)
def test_flags_are_keyword_arguments_in_python(written: str, expected: str) -> None:
    assert worded(written) == expected
    assert worded(expected) == expected
    with command_line():
        assert worded(written) == written
    assert worded(written) == expected


def test_errors_have_the_words_of_the_caller() -> None:
    parts = {"found": "no --data", "expected": "--data", "fix": "Pass --set eps=1."}
    error = ConfigError("--choices", **parts)
    assert error.as_dict() == {
        "where": "choices=",
        "found": "no data=",
        "expected": "data=",
        "fix": 'Pass settings={"eps": 1}.',
    }
    assert str(error) == 'choices=: found no data=; expected data=. Pass settings={"eps": 1}.'
    with command_line():
        assert ConfigError("--choices", **parts).as_dict() == {"where": "--choices", **parts}
        # A child process has no command line; its error reaches one.
        assert rebuilt(error.with_type()).as_dict() == {"where": "--choices", **parts}
    assert str(rebuilt(error.with_type())) == str(error)


def test_flags_come_back_after_an_error_in_the_command_line() -> None:
    with pytest.raises(StateError, match="--force"), command_line():
        raise StateError("run", found="a state", expected="none", fix="Pass --force.")
    assert worded("--force") == "force=True"
    assert Cancelled("--x", found="no memory", expected="more", fix="-").where == "x="


def test_a_setting_that_is_compiled_in_names_its_keyword() -> None:
    with pytest.raises(ConfigError, match=r"Compile again with lora_r=4\.$"):
        parse(MebpConfig, {"lora.r": 4}, runtime_only=True)
