"""Momentum and Adam whose moments are made from the log: the same bits however a run is cut, copied or followed."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from tests.unit.session.test_split_manifest import rewrite
from tests.unit.session.test_split_zeroth_order import EXAMPLES, SLOTS, write_fzoo
from zoexport.core import rng
from zoexport.core.errors import BundleError, ConfigError
from zoexport.methods.reference.moments import orthogonal
from zoexport.session import Record, Session

HORIZON = 4
RULES: dict[str, dict[str, Any]] = {
    "momentum": {"rule": "momentum", "horizon": HORIZON, "beta1": 0.75},
    "adam": {"rule": "adam", "horizon": HORIZON, "beta1": 0.75, "beta2": 0.9},
    "muon": {"rule": "muon", "horizon": HORIZON, "beta1": 0.75},
}
SEED = 7


def write(folder: Path, method: str, rule: str, **settings: Any) -> Path:
    """A hand-made split bundle of that rule."""
    path = (
        write_fzoo(folder)
        if method == "fzoo"
        else split_bundles.write_bundle(folder, method=method)
    )

    def change(manifest: dict[str, Any]) -> None:
        manifest["step"]["update"] = RULES[rule]
        manifest["settings"] |= {"optimizer": rule, "learning_rate": 0.01, **settings}

    rewrite(path, change)
    return path


def opened(path: Path, state: Path | None = None, **attach: Any) -> Session:
    session = Session.open(path, engine=SplitModel())
    if state is not None:
        session.attach(state, **attach)
    return session


def values(session: Session, *, finished: bool = True) -> dict[str, bytes]:
    return {name: bytes(session.read_slot(name, finished=finished)) for name in SLOTS}


def records(session: Session) -> list[Record]:
    return [session.record(step) for step in range(session.info.steps)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expected(made: list[Record], rule: dict[str, Any], noise: Any) -> dict[str, bundles.Floats]:
    """The slots after these records, by the definitions: each operation of float32 rounded, in docs' order."""
    masters = split_bundles.initial_values()
    f = np.float32
    for last, record in enumerate(made):
        newest = made[max(last + 1 - rule["horizon"], 0) : last + 1][::-1]
        q = len(record.gradients)

        def weights(beta: float, count: int = len(newest)) -> list[float]:
            powers = [1.0]
            while len(powers) < count:
                powers.append(powers[-1] * beta)
            return [power / sum(powers) for power in powers]

        adam = rule["rule"] == "adam"
        first = weights(rule["beta1"])
        second = weights(rule["beta2"]) if adam else first
        for name, tensor_id in SLOTS.items():
            size = masters[name].size
            m, v = f(0), f(0)
            for age, known in enumerate(newest):
                total = f(0)
                for query, g in enumerate(known.gradients):
                    z = noise(SEED, tensor_id, query, known.step, size)
                    total = f(g) * z if query == 0 else total + f(g) * z
                part = f(first[age] / (q if adam else 1)) * total
                square = f(second[age] / (q * q)) * (total * total)
                m, v = (part, square) if age == 0 else (m + part, v + square)
            move = m / (np.sqrt(v) + f(1e-8)) if adam else m
            rate = f(record.learning_rate) if adam else f(record.learning_rate) / f(q)
            if rule["rule"] == "muon":
                # In float64, of which only the last digits depend on the order of its sums.
                factor = orthogonal(torch.from_numpy(m.reshape(masters[name].shape)))
                move, rate = factor.numpy().reshape(-1), f(record.learning_rate)
            moved = masters[name] - (rate * move).reshape(masters[name].shape)
            masters[name] = moved.astype(f)
    return masters


@pytest.mark.parametrize("method", ["prge", "mezo", "fzoo"])
@pytest.mark.parametrize("rule", RULES)
def test_values_are_the_definitions_to_the_bit(tmp_path: Path, method: str, rule: str) -> None:
    path = write(tmp_path / "bundle", method, rule)
    with make_dataset(EXAMPLES) as dataset, opened(path) as session:
        session.train(dataset, 7)
        noise = rng.signs if method == "fzoo" else rng.normals
        wanted = expected(records(session), RULES[rule], noise)
        found = values(session)
        for name in SLOTS:
            assert found[name] == wanted[name].tobytes()
            assert bytes(session.replay_slot(name, 7)) == found[name]
        # That of the step before is what the last one was evaluated at.
        before = expected(records(session)[:6], RULES[rule], noise)
        for name, value in values(session, finished=False).items():
            assert value == before[name].tobytes() == bytes(session.replay_slot(name, 6))


@pytest.mark.parametrize("method", ["prge", "fzoo"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("parts", [(1, 9), (3, 5, 9), (8, 9)])
def test_a_run_goes_on_as_it_was(
    tmp_path: Path, method: str, rule: str, parts: tuple[int, ...]
) -> None:
    path = write(tmp_path / "bundle", method, rule)
    results = []
    for state, ends in ((tmp_path / "whole", (9,)), (tmp_path / "parts", parts)):
        for steps in ends:
            with make_dataset(EXAMPLES) as dataset, opened(path, state) as session:
                session.train(dataset, steps)
                found = values(session), session.evaluate(dataset)
        results.append((found, (state / "trajectory.log").read_bytes()))
    assert results[0] == results[1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("killed_after", [1, 5, 206])
def test_what_a_kill_leaves_goes_on_as_it_was(tmp_path: Path, rule: str, killed_after: int) -> None:
    """From the log alone, and from a snapshot with the records before it."""
    path = write(tmp_path / "bundle", "mezo", rule, learning_rate=1e-4)
    steps = killed_after + 3
    with make_dataset(EXAMPLES) as dataset:
        with opened(path, tmp_path / "whole") as session:
            session.train(dataset, steps)
            wanted = values(session), records(session)
        with opened(path, tmp_path / "run") as session:

            def stop(progress: Any) -> None:
                if progress.step == killed_after:
                    shutil.copytree(tmp_path / "run", tmp_path / "left")

            session.train(dataset, steps, stop)
        with opened(path, tmp_path / "left") as session:
            assert session.info.steps == killed_after
            session.train(dataset, steps)
            assert (values(session), records(session)) == wanted
        assert (tmp_path / "left" / "trajectory.log").read_bytes() == (
            tmp_path / "whole" / "trajectory.log"
        ).read_bytes()
        # Without its snapshots all is made from the initial values.
        kept = sorted(path.name for path in (tmp_path / "left").glob("snapshot-*"))
        assert (len(kept) > 1) == (killed_after > 200)
        for name in kept:
            (tmp_path / "left" / name).unlink()
        with opened(path, tmp_path / "left", read_only=True) as session:
            assert values(session) == wanted[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pieces", [(6,), (1, 5), (2, 0, 4)])
def test_another_session_follows_to_the_same_bits(
    tmp_path: Path, rule: str, pieces: tuple[int, ...]
) -> None:
    path = write(tmp_path / "bundle", "fzoo", rule)
    with make_dataset(EXAMPLES) as dataset:
        with opened(path, tmp_path / "trained") as session:
            session.train(dataset, 6)
            wanted, made = values(session), records(session)
        with opened(path, tmp_path / "followed", seed=SEED) as session:
            begin = 0
            for count in pieces:
                session.follow(made[begin : begin + count])
                begin += count
            assert values(session) == wanted
            session.train(dataset, 8)
            further = values(session)
        with opened(path, tmp_path / "trained") as session:
            session.train(dataset, 8)
            assert values(session) == further
    logs = [tmp_path / name / "trajectory.log" for name in ("trained", "followed")]
    assert logs[0].read_bytes() == logs[1].read_bytes()


def test_equal_losses_go_on_by_the_steps_before(tmp_path: Path) -> None:
    """A step without gradients counts as one of zeros, and a run of nothing else stays where it is."""
    path = write(tmp_path / "bundle", "fzoo", "momentum")
    with make_dataset(EXAMPLES) as dataset, opened(path) as session:
        session.train(dataset, 2)
        made = [*records(session)]
    zero = (0.0,) * len(made[0].gradients)
    made += [dataclasses.replace(made[1], step=step, gradients=zero) for step in range(2, 8)]
    moved = []
    for count in range(2, 9):
        with opened(path) as session:
            session.configure(seed=SEED)
            session.follow(made[:count])
            moved.append(values(session))
    changes = [before != after for before, after in itertools.pairwise(moved)]
    assert changes == [True] * (HORIZON - 1) + [False] * (6 - HORIZON + 1)


@pytest.mark.parametrize("rule", RULES)
def test_records_that_would_leave_the_range_are_refused(tmp_path: Path, rule: str) -> None:
    path = write(tmp_path / "bundle", "fzoo", rule)
    with make_dataset(EXAMPLES) as dataset, opened(path) as session:
        session.train(dataset, 2)
        made = records(session)
    for change in ({"gradients": (1e30, 1.0, 1.0)}, {"learning_rate": 1e30}):
        bad = [made[0], dataclasses.replace(made[1], **change)]
        with opened(path) as session:
            session.configure(seed=SEED)
            with pytest.raises(ConfigError, match="a gradient of up to"):
                session.follow(bad)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"rule": "adamw"}, "momentum, adam or muon"),
        ({"horizon": 0}, "horizon: found 0"),
        ({"horizon": 1001}, "horizon: found 1001"),
        ({"beta1": 1.0}, "below 1"),
        ({"beta2": -0.5}, "below 1"),
    ],
)
def test_rules_that_cannot_be(tmp_path: Path, update: dict[str, Any], message: str) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", method="mezo")

    def change(manifest: dict[str, Any]) -> None:
        manifest["step"]["update"] = {**RULES["adam"], **update}

    rewrite(path, change)
    with pytest.raises(BundleError, match=message):
        Session.open(path, engine=SplitModel())


def test_programs_that_update_are_refused(tmp_path: Path) -> None:
    path = bundles.write_bundle(tmp_path / "bundle", method="prge")

    def change(manifest: dict[str, Any]) -> None:
        manifest["step"]["update"] = RULES["adam"]

    rewrite(path, change)
    with pytest.raises(BundleError, match=r"step\.update"):
        Session.open(path, engine=bundles.LinearModel())


def test_a_rule_beside_no_step_is_refused(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", settings={"optimizer": "adam"})
    with pytest.raises(BundleError, match="momentum, adam or muon beside step"):
        Session.open(path, engine=SplitModel())
