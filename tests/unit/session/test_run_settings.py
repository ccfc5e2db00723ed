"""A run goes on with its own settings and data, or with others that were asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset, open_session, state_bytes
from tests.support.split_bundles import SplitModel
from zoexport.core.errors import ConfigError, StateError
from zoexport.session import Dataset, Session, describe_state


def begun(bundle: Path, state: Path, dataset: Dataset, **settings: Any) -> None:
    with open_session(bundle, state) as session:
        session.configure(**settings)
        session.train(dataset, 3)


def content(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in state.iterdir() if path.name != "lock"}


def resumed(bundle: Path, state: Path, *, change: bool = False, **settings: Any) -> Session:
    session = open_session(bundle)
    session.attach(state, change_settings=change)
    session.configure(**settings)
    return session


@pytest.fixture
def state(bundle: Path, tmp_path: Path, dataset: Dataset) -> Path:
    begun(bundle, tmp_path / "state", dataset, learning_rate=0.25, batch_size=3)
    return tmp_path / "state"


def test_a_run_keeps_its_settings(bundle: Path, state: Path, dataset: Dataset) -> None:
    with open_session(bundle) as session:
        session.configure(learning_rate=0.25, batch_size=3)
        session.train(dataset, 6)
        whole = state_bytes(session)
    with resumed(bundle, state) as session:
        assert (session.settings["learning_rate"], session.settings["batch_size"]) == (0.25, 3)
        session.train(dataset, 6)
        assert state_bytes(session) == whole
    # What is only read is evaluated as the bundle says.
    with open_session(bundle, state, read_only=True) as session:
        assert session.settings["learning_rate"] == 0.5


@pytest.mark.parametrize(
    ("change", "found", "expected"),
    [
        ({"learning_rate": 0.125}, "learning_rate 0.25", "learning_rate 0.125"),
        ({"eps": 0.5}, "eps 0.01", "eps 0.5"),
        (
            {"batch_size": 2, "gradient_accumulation_steps": 2},
            "batch_size 3, gradient_accumulation_steps 1",
            "batch_size 2, gradient_accumulation_steps 2",
        ),
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type constant", "lr_scheduler_type cosine"),
        ({"warmup_steps": 7}, "warmup_steps 0", "warmup_steps 7"),
        ({"loss": "choices"}, "loss full", "loss choices"),
    ],
)
def test_other_settings_are_refused(
    bundle: Path, state: Path, change: dict[str, Any], found: str, expected: str
) -> None:
    before = content(state)
    with (
        make_dataset(bundles.choice_examples()) as dataset,
        resumed(bundle, state, **change) as session,
    ):
        for take in (lambda: session.train(dataset, 9), lambda: session.step(dataset, [0])):
            with pytest.raises(StateError) as caught:
                take()
            assert f"found a run with {found}" in str(caught.value)
            assert f"expected {expected}" in str(caught.value)
            assert "change_settings=True" in str(caught.value)
    assert content(state) == before


def test_changes_are_taken_and_kept(bundle: Path, state: Path, dataset: Dataset) -> None:
    with resumed(bundle, state, change=True, learning_rate=0.125) as session:
        session.train(dataset, 5)
        rates = [session.record(i).learning_rate for i in range(5)]
    assert rates == [0.25] * 3 + [0.125] * 2
    with make_dataset(bundles.text_examples()[:5]) as fewer:
        with resumed(bundle, state) as session:
            assert session.settings["learning_rate"] == 0.125
            with pytest.raises(StateError, match=r"7 examples of digest .* expected 5 examples of"):
                session.train(fewer, 9)
            # No step is left to take: that is refused all the same.
            with pytest.raises(StateError, match="7 examples of digest"):
                session.train(fewer, 5)
            session.train(dataset, 5)
        with resumed(bundle, state, change=True, batch_size=2) as session:
            session.train(fewer, 6)
    described = describe_state(state)
    kept = {
        "learning_rate": 0.125,
        "eps": 0.01,
        "batch_size": 2,
        "gradient_accumulation_steps": 1,
        "loss": "full",
        "warmup_steps": 0,
    }
    assert kept.items() <= described["settings"].items()
    # The state stores the seed itself, and no number of steps that no rate depends on.
    assert not {"seed", "total_steps"} & described["settings"].keys()
    assert described["data"]["examples"] == 5
    first, second, third = described["changes"]
    assert first == {"step": 3, "key": "learning_rate", "old": 0.25, "new": 0.125}
    assert second == {"step": 5, "key": "batch_size", "old": 3, "new": 2}
    assert (third["step"], third["key"], third["new"]) == (5, "data", described["data"]["sha256"])


def test_the_digest_sees_all_of_the_examples(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    begun(bundle, tmp_path / "state", dataset)
    examples = bundles.text_examples()
    (tokens, labels), *_ = examples[0][0]
    altered = [
        [examples[1], examples[0], *examples[2:]],
        [([([*tokens[:-1], tokens[-1] ^ 1], labels)], 0), *examples[1:]],
        [([(tokens, [*labels[:-1], -100])], 0), *examples[1:]],
        [([(tokens, labels), (tokens, labels)], 0), *examples[1:]],
        examples + examples[:1],
    ]
    for one in altered:
        with (
            make_dataset(one) as other,
            resumed(bundle, tmp_path / "state") as session,
            pytest.raises(StateError, match="examples of digest"),
        ):
            session.train(other, 9)


def test_a_run_may_be_made_longer_and_the_state_keeps_that(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    begun(bundle, tmp_path / "constant", dataset)
    with resumed(bundle, tmp_path / "constant") as session:
        session.train(dataset, 9)
    begun(bundle, tmp_path / "linear", dataset, lr_scheduler_type="linear")
    with resumed(bundle, tmp_path / "linear") as session:
        session.train(dataset, 2)  # fewer than there are: nothing to do
        session.train(dataset, 9)
    assert describe_state(tmp_path / "linear")["changes"] == [
        {"step": 3, "key": "total_steps", "old": 3, "new": 9}
    ]


def test_states_of_before_take_what_is_asked_for(
    bundle: Path, state: Path, dataset: Dataset
) -> None:
    (state / "run.json").unlink()
    assert describe_state(state)["settings"] is None
    with resumed(bundle, state, learning_rate=0.75) as session:
        session.train(dataset, 4)
    described = describe_state(state)
    assert (described["settings"]["learning_rate"], described["changes"]) == (0.75, [])
    with (
        resumed(bundle, state, learning_rate=0.25) as session,
        pytest.raises(StateError, match=r"learning_rate 0\.75"),
    ):
        session.train(dataset, 5)


def test_a_run_that_has_not_begun_is_free(bundle: Path, state: Path, dataset: Dataset) -> None:
    log = (state / "trajectory.log").read_bytes()
    (state / "trajectory.log").write_bytes(log[:64])
    with resumed(bundle, state, learning_rate=0.125) as session:
        session.train(dataset, 2)
    assert describe_state(state)["changes"] == []


def test_every_flipped_byte_of_the_settings_is_seen(bundle: Path, state: Path) -> None:
    path = state / "run.json"
    whole = path.read_bytes()
    expected = describe_state(state)
    for byte in range(len(whole)):
        for bit in (0, 4):
            path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
            try:
                assert describe_state(state) == expected, byte  # white space
            except StateError:
                with pytest.raises(StateError):
                    resumed(bundle, state)


def test_first_order_settings(tmp_path: Path, dataset: Dataset) -> None:
    bundle, state = split_bundles.write_bundle(tmp_path / "bundle"), tmp_path / "state"

    def attached(**settings: Any) -> Session:
        session = Session.open(bundle, engine=SplitModel())
        session.attach(state)
        session.configure(**settings)
        return session

    with attached(max_grad_norm=0.5, momentum=0.25) as session:
        session.train(dataset, 2)
    kept = json.loads((state / "run.json").read_text())["settings"]
    assert (kept["max_grad_norm"], kept["momentum"]) == (0.5, 0.25)
    assert "eps" not in kept and "checkpoint_every" not in kept
    with attached(max_grad_norm=1.0) as session:
        with pytest.raises(StateError, match=r"max_grad_norm 0\.5; expected max_grad_norm 1\.0"):
            session.train(dataset, 3)
        session.configure(max_grad_norm=0.5, eps=0.5, checkpoint_every=2)
        session.train(dataset, 3)


@pytest.mark.parametrize("name", ["learning_rate", "eps", "weight_decay", "max_grad_norm"])
def test_settings_beyond_float32_are_refused(bundle: Path, name: str) -> None:
    with open_session(bundle) as session, pytest.raises(ConfigError, match=r"1e\+300.*float32"):
        session.configure(**{name: 1e300})
