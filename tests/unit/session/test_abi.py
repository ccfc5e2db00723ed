"""The C interface itself: options, calls within calls, and other threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import FROZEN, SLOT, LinearModel
from tests.support.sessions import open_session
from tests.support.signed import make_keys
from tests.support.strangers import rewrite
from zoexport.core import manifest
from zoexport.core.errors import BundleError, Cancelled, ConfigError
from zoexport.session import Bundle, Dataset, Session, StepProgress, Tensor, abi


def manifest_of(bundle: Path, options: dict[str, object] | None = None) -> Any:
    given = None if options is None else abi.options(options)
    return abi.result("zo_bundle_manifest", abi.path_bytes(bundle), given)


def test_the_manifest_of_a_bundle(bundle: Path, tmp_path: Path) -> None:
    assert manifest_of(bundle) == manifest_of(bundle, {}) == Bundle.open(bundle).manifest
    keys = make_keys(tmp_path / "keys")
    with pytest.raises(BundleError, match="no signature"):
        manifest_of(bundle, {"trusted_keys": [keys.pub.read_text()]})
    with pytest.raises(BundleError, match="no such folder"):
        manifest_of(tmp_path / "none")
    (bundle / manifest.FILE).write_text(
        json.dumps({**Bundle.open(bundle).manifest, "target": "other"})
    )
    with pytest.raises(BundleError, match="and other content"):
        manifest_of(bundle)


def test_a_manifest_without_what_hosts_read(bundle: Path) -> None:
    def without_tools(content: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in content.items() if key != "tools"}

    rewrite(bundle, without_tools)
    with pytest.raises(BundleError, match="at the top level: 'tools' is a required property"):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 2}, "option 'thread': found no such option; .*Did you mean 'threads'"),
        ({"threads": "2"}, "option 'threads': found '2'; expected a whole number of at least 0"),
        ({"threads": 2000}, "option 'threads': found 2000; .*at most 1024"),
        ({"threads": -1}, "option 'threads': found -1"),
        ({"verify": 1}, "option 'verify': found 1; expected true or false"),
        ({"engine": 1}, "option 'engine': found 1; expected a text"),
        ({"cache": "a\0b"}, "option 'cache': .*without zero characters"),
        ({"threads": 1.5}, "option 'threads': found 1.5"),
        ({"trusted_keys": "key"}, "option 'trusted_keys': found 'key'; expected a list"),
        ({"trusted_keys": [1]}, "option 'trusted_keys': found 1"),
        ([1], "options of open: found .1.; expected a JSON object"),
    ],
)
def test_options_are_checked_by_name_type_and_range(
    bundle: Path, options: object, message: str
) -> None:
    given = json.dumps(options).encode()
    with pytest.raises(ConfigError, match=message):
        abi.handle("zo_session_open", abi.path_bytes(bundle), given, None)


def test_options_that_are_not_json_are_refused(bundle: Path) -> None:
    for text in (b"", b"{", b'{"threads": 1, "threads": 2}'):
        with pytest.raises(ConfigError, match="options of open: found"):
            abi.handle("zo_session_open", abi.path_bytes(bundle), text, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0}, "setting 'learning_rate': found 0; expected a number above 0"),
        ({"learning_rate": 1e300}, "setting 'learning_rate'"),
        (
            {"batch_size": 1.5},
            "setting 'batch_size': found 1.5; expected a whole number of at least 1",
        ),
        ({"batch_size": 2**32}, "setting 'batch_size'"),
        ({"loss": "dpa"}, "setting 'loss': found 'dpa'; expected full, choices, dpo or orpo"),
        ({"lr_sheduler_type": "linear"}, "no such setting.*Did you mean 'lr_scheduler_type'"),
        (
            {"max_length": 9},
            "setting 'max_length': found a setting that is compiled into the bundle",
        ),
    ],
)
def test_settings_are_checked_by_the_table(
    bundle: Path, change: dict[str, Any], message: str
) -> None:
    with open_session(bundle) as session:
        before = session.settings
        with pytest.raises(ConfigError, match=message):
            session.configure(
                batch_size=2, **change
            ) if "batch_size" not in change else session.configure(**change)
        assert session.settings == before


def test_an_engine_that_counts_no_kernels_has_none(bundle: Path) -> None:
    with open_session(bundle) as session:
        assert session.costs["kernels"] == []
        assert {one["name"] for one in session.costs["programs"]} == {"train", "evaluate"}


def test_a_call_from_within_a_call_is_refused(bundle: Path, dataset: Dataset) -> None:
    refused: list[str] = []

    def attempt(session: Session) -> None:
        for call in (session.save, lambda: session.info, lambda: session.evaluate(dataset)):
            with pytest.raises(ConfigError, match="found a call from within a call"):
                call()
            refused.append("")

    class Calling(LinearModel):
        def __call__(
            self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
        ) -> None:
            attempt(opened)
            super().__call__(program, inputs, outputs)

    with Session.open(bundle, engine=Calling()) as opened, open_session(bundle) as plain:

        def on_progress(_: StepProgress) -> None:
            attempt(opened)

        opened.train(dataset, 2, on_progress)
        plain.train(dataset, 2)
        assert [opened.record(i) for i in range(2)] == [plain.record(i) for i in range(2)]
    assert len(refused) >= 12


def test_closing_from_within_takes_effect_afterwards(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    session = open_session(bundle, tmp_path / "state")
    session.train(dataset, 3, lambda progress: session.close() if progress.step == 1 else None)
    # The lock was released: the state can be trained again.
    with open_session(bundle, tmp_path / "state") as again:
        assert again.info.steps == 3


def test_another_thread_cancels(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    with open_session(bundle, tmp_path / "state") as session:
        session.cancel()  # nothing runs: nothing happens
        session.train(dataset, 2)
        begun = threading.Event()
        other = threading.Thread(target=lambda: (begun.wait(), session.cancel()))
        other.start()

        def on_progress(progress: StepProgress) -> None:
            if progress.step == 5:
                begun.set()
                other.join()

        with pytest.raises(Cancelled, match="step 5 of 1000"):
            session.train(dataset, 1000, on_progress)
        assert session.info.steps == 5
        session.train(dataset, 6)
    assert (tmp_path / "state" / "snapshot-4.safetensors").exists()


def test_a_slot_by_name(bundle: Path) -> None:
    with open_session(bundle) as session:
        assert [session.slot(name) for name in (SLOT, FROZEN)] == session.slots()
        with pytest.raises(ConfigError, match="slot other: found no such slot"):
            session.slot("other")
