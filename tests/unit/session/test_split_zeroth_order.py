"""Zeroth-order training of a split bundle: the session perturbs, the stages score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from tests.unit.session.test_first_order import expected_loss
from tests.unit.session.test_split_manifest import rewrite
from zoexport.core import rng
from zoexport.core.errors import BundleError, ConfigError, DivergedError
from zoexport.session import Session

EXAMPLES = bundles.text_examples()
SLOTS = {
    name: 3 * number + 2
    for number, (name, (role, _)) in enumerate(split_bundles.slots().items())
    if role == "trainable"
}


FZOO = {
    "levels": [{"begin": 0, "directions": 3, "difference": "forward"}],
    "copies": "stage",
    "noise": "rademacher",
    "divisor": "deviation",
}


def write_fzoo(folder: Path) -> Path:
    """One-sided copies along signs, whose differences are divided by their deviation."""
    return split_bundles.write_bundle(
        folder, method="fzoo", settings={"num_queries": 3}, changes={"step": FZOO}
    )


def expected_fzoo(steps: list[list[int]]) -> tuple[list[list[float]], dict[str, bundles.Floats]]:
    """Likewise of FZOO: g_j = (l_j - l_0) / std(l_1 .. l_q)."""
    values = split_bundles.initial_values()
    learning_rate, eps, queries = np.float32(0.1), np.float32(1e-2), 3
    losses = []
    for step, indices in enumerate(steps):
        u = {
            name: [
                rng.signs(7, tensor_id, query, step, values[name].size).reshape(values[name].shape)
                for query in range(queries)
            ]
            for name, tensor_id in SLOTS.items()
        }
        found = []
        for query in (None, *range(queries)):
            moved = {
                n: values[n] if query is None or n not in u else values[n] + eps * u[n][query]
                for n in values
            }
            state = {n: torch.tensor(v) for n, v in moved.items()}
            found.append(float(expected_loss(state, [EXAMPLES[i] for i in indices], "full")))
        sigma = np.std(found[1:], ddof=1)
        g = [np.float32((loss - found[0]) / sigma) for loss in found[1:]]
        for name in SLOTS:
            total = sum(g[j] * u[name][j] for j in range(queries))
            values[name] = values[name] - learning_rate / np.float32(queries) * total
        losses.append(found)
    return losses, values


def expected_run(steps: list[list[int]]) -> tuple[list[list[float]], dict[str, bundles.Floats]]:
    """From the definitions: each step's losses, and the slots with the last update applied."""
    values = split_bundles.initial_values()
    learning_rate, eps, seed, queries = np.float32(0.1), np.float32(1e-2), 7, 2
    losses = []
    for step, indices in enumerate(steps):
        z = {
            name: [
                rng.normals(seed, tensor_id, query, step, values[name].size).reshape(
                    values[name].shape
                )
                for query in range(queries)
            ]
            for name, tensor_id in SLOTS.items()
        }
        found = []
        for query in range(queries):
            for sign in (np.float32(1), np.float32(-1)):
                moved = {
                    n: values[n] + sign * eps * z[n][query] if n in z else values[n] for n in values
                }
                state = {n: torch.tensor(v) for n, v in moved.items()}
                found.append(float(expected_loss(state, [EXAMPLES[i] for i in indices], "full")))
        g = [
            np.float32((found[2 * q] - found[2 * q + 1]) / (2 * float(eps))) for q in range(queries)
        ]
        for name in SLOTS:
            total = g[0] * z[name][0] + g[1] * z[name][1]
            values[name] = values[name] - learning_rate / np.float32(queries) * total
        losses.append(found)
    return losses, values


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_trains_as_the_definitions_say(tmp_path: Path, method: str) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", method=method)
    steps = [[0, 1, 2], [3, 4], [5, 6, 0]]
    losses, values = expected_run(steps)
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=SplitModel()) as session:
        assert (session.info.num_queries, session.info.copies) == (2, 1)
        for expected, indices in zip(losses, steps, strict=True):
            assert session.step(dataset, indices).losses == pytest.approx(expected, rel=2e-4)
        for name in SLOTS:
            found = np.frombuffer(session.read_slot(name), np.float32)
            np.testing.assert_allclose(found, values[name].ravel(), rtol=2e-2, atol=2e-3)
            assert session.replay_slot(name, 3).tobytes() == found.tobytes()
        with pytest.raises(ConfigError, match="no gradient"):
            session.read_slot("lora_B.0", gradient=True)
        with pytest.raises(ConfigError, match=method):
            session.configure(max_grad_norm=1.0)


def test_fzoo_trains_as_the_definitions_say(tmp_path: Path) -> None:
    steps = [[0, 1, 2], [3, 4], [5, 6, 0]]
    losses, values = expected_fzoo(steps)
    path = write_fzoo(tmp_path / "bundle")
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=SplitModel()) as session:
        assert (session.info.num_queries, session.info.copies) == (3, 1)
        for expected, indices in zip(losses, steps, strict=True):
            step = session.step(dataset, indices)
            assert step.losses == pytest.approx(expected, rel=2e-4)
            sigma = np.std(step.losses[1:], ddof=1)
            assert step.gradients == pytest.approx(
                [(loss - step.losses[0]) / sigma for loss in step.losses[1:]], rel=1e-6
            )
        for name in SLOTS:
            found = np.frombuffer(session.read_slot(name), np.float32)
            np.testing.assert_allclose(found, values[name].ravel(), rtol=2e-2, atol=2e-2)
            assert session.replay_slot(name, 3).tobytes() == found.tobytes()
        # Its copies are compiled in.
        session.configure(difference="forward", learning_rate=0.2)
        with pytest.raises(ConfigError, match="central, of the method fzoo"):
            session.configure(difference="central")


def test_copies_of_fzoo_are_the_kernels_bits(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def engine(program: str, inputs: object, outputs: object) -> None:
        if program.startswith("gate"):
            seen.append(bytes(inputs["B"].data))
        SplitModel()(program, inputs, outputs)

    path = write_fzoo(tmp_path / "bundle")
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=engine) as session:
        session.step(dataset, [1])
    master = split_bundles.initial_values()["lora_B.1"]
    expected = [master.tobytes()]
    for query in range(3):
        u = rng.signs(7, SLOTS["lora_B.1"], query, 0, master.size).reshape(master.shape)
        expected.append((master + np.float32(1e-2) * u).tobytes())
    assert seen == expected


def test_equal_losses_skip_the_step(tmp_path: Path) -> None:
    """A deviation of zero: the record has no gradients, the slots stay as they are, and the run goes on."""

    def engine(program: str, inputs: Any, outputs: Any) -> None:
        SplitModel()(program, inputs, outputs)
        if "logprobs" in outputs:
            outputs["logprobs"].data[:] = memoryview(
                np.full(outputs["logprobs"].shape, -2, np.float32)
            )

    path = write_fzoo(tmp_path / "bundle")
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=engine) as session:
        for step in range(3):
            assert list(session.step(dataset, [0, 1]).gradients) == [0, 0, 0]
            assert session.record(step).loss == 2
        for name in SLOTS:
            initial = split_bundles.initial_values()[name].tobytes()
            assert session.read_slot(name).tobytes() == initial


def test_a_loss_that_is_not_finite_stops_fzoo(tmp_path: Path) -> None:
    def engine(program: str, inputs: Any, outputs: Any) -> None:
        SplitModel()(program, inputs, outputs)
        if "logprobs" in outputs and np.array(inputs["x0"].data).sum() > 0:
            outputs["logprobs"].data[0] = float("nan")

    path = write_fzoo(tmp_path / "bundle")
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=engine) as session:
        with pytest.raises(DivergedError, match="not finite"):
            session.train(dataset, 8)
        for name in SLOTS:
            assert np.isfinite(np.frombuffer(session.read_slot(name), np.float32)).all()


def test_copies_are_the_kernels_bits(tmp_path: Path) -> None:
    """What a stage reads is master + eps z, rounded as zo_perturb_one does."""
    path = split_bundles.write_bundle(tmp_path / "bundle", method="prge")
    seen: list[bytes] = []

    def engine(program: str, inputs: object, outputs: object) -> None:
        if program.startswith("gate"):
            seen.append(bytes(inputs["B"].data))
        SplitModel()(program, inputs, outputs)

    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=engine) as session:
        session.step(dataset, [1])
    master = split_bundles.initial_values()["lora_B.1"]
    expected = []
    for query in range(2):
        z = rng.normals(7, SLOTS["lora_B.1"], query, 0, master.size).reshape(master.shape)
        move = np.float32(1e-2) * z
        expected += [(master + move).tobytes(), (master - move).tobytes()]
    assert seen == expected


def test_prge_and_mezo_are_the_same_run(tmp_path: Path) -> None:
    """And prge takes all copies through a stage before the next one."""
    found, calls = [], []
    for method in ("prge", "mezo"):
        path = split_bundles.write_bundle(tmp_path / method, method=method)
        model = SplitModel()
        with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=model) as session:
            session.train(dataset, 5)
            found.append([session.record(i) for i in range(5)])
            calls.append([name.split(".")[0] for name in model.calls[:8]])
    assert found[0] == found[1]
    assert calls[0] == ["embed"] * 4 + ["mix"] * 4
    assert calls[1][:6] == ["embed", "mix", "gate", "mix", "join", "head"]


@pytest.mark.parametrize("method", ["prge", "mezo", "fzoo"])
def test_resumes_and_evaluates(tmp_path: Path, method: str) -> None:
    write = write_fzoo if method == "fzoo" else split_bundles.write_bundle
    path = write(tmp_path / "bundle", **({} if method == "fzoo" else {"method": method}))
    contents = []
    for parts in ((6,), (3, 6)):
        state = tmp_path / f"state{len(parts)}"
        for steps in parts:
            with (
                make_dataset(EXAMPLES) as dataset,
                Session.open(path, engine=SplitModel()) as session,
            ):
                session.attach(state)
                session.train(dataset, steps)
                result = session.evaluate(dataset)
        contents.append(((state / "trajectory.log").read_bytes(), result))
        assert not (state / "work.bin").exists()
    assert contents[0] == contents[1]


def test_the_plan_decides_and_no_name(tmp_path: Path) -> None:
    """A method of any name takes the steps of its plan."""
    found = []
    for name in ("prge", "another"):
        path = split_bundles.write_bundle(tmp_path / name, method=name)
        model = SplitModel()
        with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=model) as session:
            session.train(dataset, 3)
            found.append(
                ([session.record(i) for i in range(3)], model.calls[1].startswith("embed"))
            )
    assert all(records == found[0][0] for records, _ in found)
    assert [together for _, together in found] == [True, False]


LEVEL = {"begin": 0, "directions": 2, "difference": "central"}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"levels": [], "copies": "one"}, r"levels"),
        ({"levels": [LEVEL | {"begin": 1}], "copies": "one"}, "begin: found 1"),
        ({"levels": [LEVEL, LEVEL], "copies": "one"}, "begin: found 0"),
        ({"levels": [LEVEL, LEVEL | {"begin": 6}], "copies": "one"}, "begin: found 6"),
        ({"levels": [LEVEL | {"directions": 0}], "copies": "one"}, "directions: found 0"),
        ({"levels": [LEVEL | {"difference": "x"}], "copies": "one"}, r"difference"),
        ({"levels": [LEVEL], "copies": "two"}, r"step\.copies: .*two"),
        ({"levels": [LEVEL, LEVEL | {"begin": 2}], "copies": "stage"}, r"step\.copies"),
        ({"levels": [LEVEL], "copies": "call"}, r"copies: found 1; expected 4"),
        ({"levels": [LEVEL], "copies": "stage", "noise": "x"}, r"noise: .*x"),
        ({"levels": [LEVEL], "copies": "stage", "divisor": "x"}, r"divisor: .*x"),
        ({"levels": [LEVEL], "copies": "stage", "divisor": "deviation"}, r"step\.divisor"),
        (FZOO | {"copies": "one"}, r"step\.divisor"),
        (FZOO | {"levels": [FZOO["levels"][0] | {"directions": 1}]}, r"step\.divisor"),
        (
            {"levels": [LEVEL | {"directions": 1 << 15}, LEVEL | {"begin": 2, "directions": 999}]}
            | {"copies": "one"},
            r"step: .*fewer directions",
        ),
        (
            {"levels": [LEVEL, LEVEL | {"begin": 5}], "copies": "one"},
            r"a group without a trainable slot",
        ),
    ],
)
def test_plans_that_cannot_be(tmp_path: Path, step: dict[str, object], message: str) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", method="mezo")
    rewrite(path, lambda manifest: manifest.update(step=step))
    with pytest.raises(BundleError, match=message):
        Session.open(path, engine=SplitModel())
