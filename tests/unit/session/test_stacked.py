"""Split programs that perturb: all copies as rows of one call, trained weights in float16, a program that updates."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support import bundles, stacked_bundles
from tests.support.sessions import make_dataset
from tests.support.stacked_bundles import (
    BIAS,
    QUERIES,
    SEED,
    SHIFT,
    TRAINED,
    VALUES,
    StackedModel,
    initial_values,
    noise,
    updated,
)
from zoexport.session import Session, Tensor

EXAMPLES = bundles.text_examples()
CHOICES = bundles.choice_examples()
EPS, LR = np.float32(2e-2), np.float32(2e-2)
KINDS = [(False, False), (True, False), (False, True), (True, True)]
State = dict[str, NDArray[Any]]


def write(folder: Path, kind: tuple[bool, bool] = (False, False), **changes: Any) -> Path:
    noise_given, update_program = kind
    return stacked_bundles.write_bundle(
        folder, noise_given=noise_given, update_program=update_program, **changes
    )


def state_of(session: Session, *, finished: bool = True) -> State:
    """Every slot in its own dtype: what is read as float32 loses nothing."""
    found = {}
    for name, values in initial_values().items():
        read = np.frombuffer(session.read_slot(name, finished=finished), np.float32)
        found[name] = read.astype(values.dtype)
        np.testing.assert_array_equal(found[name].astype(np.float32), read)
    return found


def scores(
    state: Mapping[str, NDArray[Any]], candidate: bundles.Candidate
) -> tuple[float, int, int]:
    """The candidate's summed log-probability, its label entries, and how many are the argmax."""
    tokens, labels = candidate
    found = stacked_bundles.logprobs(state, tokens)
    entries = [(t, label) for t, label in enumerate(labels) if label != bundles.NO_LABEL]
    right = sum(int(found[t].argmax()) == label for t, label in entries)
    return sum(float(found[t, label]) for t, label in entries), len(entries), right


def expected_losses(state: State, step: int, indices: list[int], loss: str = "full") -> list[float]:
    losses = []
    for query in range(QUERIES):
        for sign in (np.float32(1), np.float32(-1)):
            moved: dict[str, NDArray[Any]] = dict(state)
            for name in TRAINED:
                z = sign * EPS * noise(name, step, query)
                moved[name] = state[name].astype(np.float32) + z
            found = []
            examples = CHOICES if loss == "choices" else EXAMPLES
            for candidates, target in (examples[i] for i in indices):
                sums = [scores(moved, candidate) for candidate in candidates]
                if loss == "full":
                    found.append(-sums[target][0] / sums[target][1])
                else:
                    totals = [total for total, _, _ in sums]
                    found.append(float(np.log(np.sum(np.exp(totals))) - totals[target]))
            losses.append(float(np.mean(found)))
    return losses


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["full", "choices"])
def test_trains_as_the_definitions_say(tmp_path: Path, kind: tuple[bool, bool], loss: str) -> None:
    path = write(tmp_path / "bundle", kind, settings={"loss": loss})
    state: State = initial_values()
    with (
        make_dataset(CHOICES if loss == "choices" else EXAMPLES) as dataset,
        Session.open(path, engine=StackedModel()) as session,
    ):
        assert (session.info.num_queries, session.info.copies, session.info.rows) == (2, 4, 8)
        for step, indices in enumerate([[0, 1, 2], [3, 4], [5, 4, 0], [1]]):
            found = session.step(dataset, indices)
            # The first call of a step applies the update of the step before.
            current = state_of(session, finished=False)
            for name in initial_values():
                np.testing.assert_array_equal(current[name], state[name])
            assert found.losses == pytest.approx(
                expected_losses(state, step, indices, loss), rel=3e-6
            )
            gradients = [
                np.float32((found.losses[2 * q] - found.losses[2 * q + 1]) / (2 * float(EPS)))
                for q in range(QUERIES)
            ]
            record = session.record(step)
            assert record.gradients == found.gradients == tuple(map(float, gradients))
            assert (record.learning_rate, record.eps) == (LR, EPS)
            state = updated(state, list(record.gradients), record.learning_rate, step)
            finished = state_of(session)
            for name in initial_values():
                assert finished[name].tobytes() == state[name].tobytes()
            for name in TRAINED:
                assert session.replay_slot(name, step + 1) == session.read_slot(name)
                assert (finished[name] != initial_values()[name]).any()
        assert session.replay_slot(BIAS, 4) == session.read_slot(BIAS)


def test_kinds_of_programs_make_the_same_run(tmp_path: Path) -> None:
    runs = []
    for number, kind in enumerate(KINDS):
        path = write(tmp_path / f"bundle{number}", kind)
        with (
            make_dataset(EXAMPLES) as dataset,
            Session.open(path, engine=StackedModel()) as session,
        ):
            session.train(dataset, 5)
            records = [session.record(i) for i in range(5)]
            runs.append((records, session.read_slot(VALUES), session.evaluate(dataset)))
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("given", [False, True])
def test_what_programs_are_given(tmp_path: Path, given: bool) -> None:
    """Copies are rows of one call; only the first call of a step updates; all calls of a step perturb alike."""
    path = write(tmp_path / "bundle", (given, True), max_labels=4)
    model = StackedModel()
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=model) as session:
        session.step(dataset, [0, 1, 2])
        gradients = session.record(0).gradients
        first = [name for name, _ in model.calls]
        del model.calls[:]
        session.step(dataset, [0, 1, 2])
        current = state_of(session, finished=False)
    names = [name.split("@")[0] for name, _ in model.calls]
    assert names == [name.split("@")[0] for name in first]
    passes = names.count("embed.forward")
    assert names[0] == "update" and names.count("update") == 1 and passes > 1
    assert names.count("layer.forward") == 2 * passes
    (_, updating), *calls = model.calls
    assert updating["gradients"].tolist() == list(gradients)
    assert updating["rate"].tolist() == [float(LR)]
    for name in TRAINED:
        np.testing.assert_array_equal(updating[name], initial_values()[name])
    labels = 0
    for name, inputs in calls:
        if name.startswith("embed"):
            tokens = inputs["tokens"]
            assert tokens.shape[0] == 8 and tokens.any()
            assert torch.equal(tokens, tokens[:2].repeat(4, 1))
        if name.startswith("layer"):
            np.testing.assert_array_equal(inputs["values"], current[VALUES])
            np.testing.assert_array_equal(inputs["shift"], current[SHIFT])
            assert inputs["epsilon"].tolist() == [float(EPS)]
            if given:
                for slot in TRAINED:
                    expected = np.stack([noise(slot, 1, query) for query in range(QUERIES)])
                    np.testing.assert_array_equal(inputs[f"noise.{slot}"], expected)
            else:
                assert (inputs["seed"].tolist(), inputs["step"].tolist()) == ([SEED], [1])
        labels += name.startswith("head")
    if given:
        before = np.stack([noise(VALUES, 0, query) for query in range(QUERIES)])
        np.testing.assert_array_equal(updating[f"previous_noise.{VALUES}"], before)
    # The head takes the entries of all copies of a call, three at a time.
    entries = sum(label != bundles.NO_LABEL for i in range(3) for label in EXAMPLES[i][0][0][1])
    assert 3 * labels >= 4 * entries > 3 * (labels - passes)


def test_nothing_is_pending_at_first(tmp_path: Path) -> None:
    model = StackedModel()
    path = write(tmp_path / "bundle", (True, True))
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=model) as session:
        session.step(dataset, [0])
    name, inputs = model.calls[0]
    assert name == "update"
    for key in ("gradients", *(f"previous_noise.{slot}" for slot in TRAINED)):
        assert not inputs[key].any()


@pytest.mark.parametrize("kind", KINDS[:2])
def test_evaluates_more_rows_unperturbed(tmp_path: Path, kind: tuple[bool, bool]) -> None:
    """Where training calls have two rows and eight labels a copy, evaluation has eight different rows."""
    path = write(tmp_path / "bundle", kind)
    model = StackedModel()
    examples = EXAMPLES + CHOICES
    with make_dataset(EXAMPLES) as data, Session.open(path, engine=model) as session:
        session.train(data, 3)
        state = state_of(session)
        del model.calls[:]
        with make_dataset(examples) as dataset:
            found = session.evaluate(dataset)
    layers = [inputs for name, inputs in model.calls if name.startswith("layer")]
    tokens = [inputs["tokens"] for name, inputs in model.calls if name.startswith("embed")]
    assert not any(inputs["epsilon"].any() for inputs in layers)
    if kind[0]:
        assert not any(inputs[f"noise.{name}"].any() for inputs in layers for name in TRAINED)
    assert len({tuple(row) for row in tokens[0].tolist()}) == 8
    # More entries than a training call may have.
    heads = [name for name, _ in model.calls].index("head.forward")
    assert [name for name, _ in model.calls[heads : heads + 3]] == ["head.forward"] * 3

    losses, right, choices, labels, argmax = [], 0, 0, 0, 0
    for candidates, target in examples:
        sums = [scores(state, candidate) for candidate in candidates]
        losses.append(-sums[target][0] / sums[target][1])
        if len(candidates) > 1:
            choices += 1
            right += int(np.argmax([total for total, _, _ in sums])) == target
        labels += sums[target][1]
        argmax += sums[target][2]
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert found.accuracy == right / choices
    assert found.token_accuracy == argmax / labels


@pytest.mark.parametrize("good", [0, 1, 4])
def test_a_step_that_fails_changes_nothing(tmp_path: Path, good: int) -> None:
    path = write(tmp_path / "bundle", (False, True))
    model = StackedModel()
    left: list[int] = []

    def engine(program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        if left and not left.pop():
            raise RuntimeError("the device is gone")
        model(program, inputs, outputs)

    runs = []
    for fails in (False, True):
        with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=engine) as session:
            session.train(dataset, 2)
            if fails:
                left[:] = [0, *[1] * good]
                with pytest.raises(RuntimeError, match="the device is gone"):
                    session.train(dataset, 3)
                assert session.info.steps == 2
            session.train(dataset, 4)
            runs.append(([session.record(i) for i in range(4)], session.read_slot(VALUES)))
    assert runs[0] == runs[1]


def tensors_of(path: Path) -> dict[str, tuple[str, bytes]]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    del header["__metadata__"]
    data = content[8 + size :]
    return {name: (e["dtype"], data[slice(*e["data_offsets"])]) for name, e in header.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_run(tmp_path: Path, kind: tuple[bool, bool]) -> None:
    path = write(tmp_path / "bundle", kind)
    found = []
    for parts in ((6,), (1, 3, 6)):
        state = tmp_path / f"state{len(parts)}"
        for steps in parts:
            with (
                make_dataset(EXAMPLES) as dataset,
                Session.open(path, engine=StackedModel()) as session,
            ):
                session.attach(state)
                session.train(dataset, steps)
                result = session.evaluate(dataset)
                current = state_of(session, finished=False)
        snapshot = state / "snapshot-5.safetensors"
        found.append(((state / "trajectory.log").read_bytes(), snapshot.read_bytes(), result))
        tensors = tensors_of(snapshot)
        assert {name: dtype for name, (dtype, _) in tensors.items()} == {
            VALUES: "F16",
            SHIFT: "F32",
        }
        assert all(tensors[name][1] == current[name].tobytes() for name in TRAINED)
    assert found[0] == found[1]
    # From the initial values and the records alone, too.
    for file in state.glob("snapshot-*"):
        file.unlink()
    with Session.open(path, engine=StackedModel()) as session:
        session.attach(state, read_only=True)
        again = state_of(session, finished=False)
    assert all(again[name].tobytes() == current[name].tobytes() for name in TRAINED)


def test_float32_becomes_the_slots_dtype(tmp_path: Path) -> None:
    """Rounded to nearest, ties to even, when it is written; exact when it is read."""
    path = write(tmp_path / "bundle")
    given = np.array(
        [1 + 2**-11, 1 + 3 * 2**-11, -0.1, 65519, 2**-24, 2**-25, 3 * 2**-26, -0.0, 1e-8],
        np.float32,
    )
    rounded = given.astype(np.float16)
    assert rounded[:2].tolist() == [1.0, 1 + 2**-9] and rounded[3] == 65504
    shift = np.linspace(0.1, 1, 6, dtype=np.float32)
    bias = np.linspace(-1, 1, 13, dtype=np.float32)
    state = tmp_path / "state"
    with make_dataset(EXAMPLES) as dataset, Session.open(path, engine=StackedModel()) as session:
        session.attach(state)
        for name, values in ((VALUES, given), (SHIFT, shift), (BIAS, bias)):
            session.write_slot(name, values)
        written = state_of(session)
        assert written[VALUES].tobytes() == rounded.tobytes()
        assert written[SHIFT].tobytes() == shift.tobytes()
        assert written[BIAS].tobytes() == bias.astype(np.float16).tobytes()
        assert session.replay_slot(VALUES, 0) == session.read_slot(VALUES)
        losses = session.step(dataset, [0]).losses
        assert losses == pytest.approx(expected_losses(written, 0, [0]), rel=3e-6)
        session.save()
    tensors = tensors_of(state / "initial.safetensors")
    assert tensors[VALUES] == ("F16", rounded.tobytes())
    assert (tensors[BIAS][0], tensors[SHIFT][0]) == ("F16", "F32")
    with Session.open(path, engine=StackedModel()) as session:
        session.attach(state)
        assert state_of(session, finished=False)[VALUES].tobytes() == rounded.tobytes()
        assert state_of(session)[BIAS].tobytes() == written[BIAS].tobytes()
