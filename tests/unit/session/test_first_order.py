"""First-order training of a split bundle against torch: losses, gradients, updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from zoexport.core.errors import ConfigError, DivergedError
from zoexport.session import Session

Example = tuple[list[bundles.Candidate], int]


def parameters(**which: bool) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Every slot as a tensor, and the trainable ones."""
    values = split_bundles.initial_values(**which)
    state = {name: torch.tensor(value) for name, value in values.items()}
    trained = []
    for name, (role, _) in split_bundles.slots(**which).items():
        if role == "trainable":
            trained.append(state[name].requires_grad_())
    return state, trained


def scores(
    state: dict[str, torch.Tensor], candidates: Sequence[bundles.Candidate]
) -> list[tuple[torch.Tensor, int]]:
    """The sum of the log-probabilities of each candidate's labels, and how many they are."""
    sums = []
    for tokens, labels in candidates:
        at = [t for t, label in enumerate(labels) if label != bundles.NO_LABEL]
        found = split_bundles.logprobs(
            state,
            torch.tensor([tokens]),
            torch.tensor(at),
            torch.tensor([labels[t] for t in at]),
        )
        sums.append((found.sum(), len(at)))
    return sums


def expected_loss(
    state: dict[str, torch.Tensor],
    chosen: Sequence[Example],
    kind: str,
    beta: float = 0.1,
    reference: dict[str, torch.Tensor] | None = None,
    choices: str = "sum",
) -> torch.Tensor:
    """The loss of docs/formats.md, one candidate at a time; of pairs as trl writes it."""
    losses = []
    for candidates, target in chosen:
        sums = scores(state, candidates)
        if kind == "full":
            losses.append(-sums[target][0] / sums[target][1])
        elif kind == "choices":
            compared = [s / n if choices == "mean" else s for s, n in sums]
            losses.append(-torch.log_softmax(torch.stack(compared), 0)[target])
        elif kind == "dpo":
            before = scores(reference or parameters()[0], candidates)
            policy = sums[target][0] - sums[1 - target][0]
            known = before[target][0] - before[1 - target][0]
            losses.append(-logsigmoid(beta * (policy - known.detach())))
        else:
            mean, other = (sums[i][0] / sums[i][1] for i in (target, 1 - target))
            log_odds = (mean - other) - (
                torch.log1p(-torch.exp(mean)) - torch.log1p(-torch.exp(other))
            )
            losses.append(-mean - beta * logsigmoid(log_odds))
    return torch.stack(losses).mean()


def check_run(
    path: Path,
    examples: list[Example],
    steps: list[list[int]],
    settings: dict[str, Any],
    optimizer: str,
    **which: bool,
) -> SplitModel:
    """Take the steps in the session and in torch, and compare after each."""
    state, trained = parameters(**which)
    names = [n for n, (role, _) in split_bundles.slots(**which).items() if role == "trainable"]
    learning_rate = settings.get("learning_rate", 0.02)
    decay = settings.get("weight_decay", 0.0)
    torch_optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(trained, lr=learning_rate, weight_decay=decay)
        if optimizer == "adamw"
        else torch.optim.SGD(
            trained, lr=learning_rate, weight_decay=decay, momentum=settings["momentum"]
        )
    )
    model = SplitModel()
    with make_dataset(examples) as dataset, Session.open(path, engine=model) as session:
        session.configure(**settings)
        for number, indices in enumerate(steps):
            report = session.step(dataset, indices)
            torch_optimizer.zero_grad()
            kind = settings.get("loss", "full")
            beta = settings.get(f"{kind}.beta", 0.1)
            loss = expected_loss(
                *(state, [examples[i] for i in indices], kind, beta, parameters(**which)[0]),
                settings.get("choices", "sum"),
            )
            loss.backward()
            assert report.loss == pytest.approx(float(loss.detach()), rel=2e-5, abs=1e-6)
            assert (report.step, report.losses, report.gradients) == (number, (report.loss,), ())
            for name, parameter in zip(names, trained, strict=True):
                assert parameter.grad is not None
                found = np.frombuffer(session.read_slot(name, gradient=True), np.float32)
                np.testing.assert_allclose(
                    found, parameter.grad.numpy().ravel(), rtol=2e-3, atol=2e-6, err_msg=name
                )
            if settings.get("max_grad_norm"):
                torch.nn.utils.clip_grad_norm_(trained, settings["max_grad_norm"])
            torch_optimizer.step()
            for name, parameter in zip(names, trained, strict=True):
                found = np.frombuffer(session.read_slot(name), np.float32)
                # AdamW divides by the gradient's size: where that is near rounding, so is the quotient.
                np.testing.assert_allclose(
                    found, parameter.detach().numpy().ravel(), rtol=1e-3, atol=3e-4, err_msg=name
                )
                assert session.read_slot(name, finished=False).tobytes() == found.tobytes()
    return model


TEXT = bundles.text_examples()
CHOICES = bundles.choice_examples()
PAIRS = bundles.pair_examples()
STEPS = [[0, 1], [2, 3, 4, 5, 6], [1, 1, 6], [3]]


@pytest.mark.parametrize("every", [1, 2, 3, 9])
@pytest.mark.parametrize("embedding", [False, True])
def test_checkpoints_do_not_change_the_gradient(
    tmp_path: Path, every: int, embedding: bool
) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", embedding=embedding)
    check_run(path, TEXT, STEPS, {"checkpoint_every": every}, "adamw", embedding=embedding)


@pytest.mark.parametrize(
    ("activation_cache_mb", "saving"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (99, 2)]
)
@pytest.mark.parametrize("every", [1, 3])
def test_saved_results_do_not_change_the_gradient(
    tmp_path: Path, activation_cache_mb: int, saving: int, every: int
) -> None:
    """The last stages save, down to one that cannot, whatever fits: here 1.7 MB and 1.5 MB."""
    path = split_bundles.write_bundle(tmp_path / "bundle", rows=2000, lengths=(8,), saving=True)
    settings = {"activation_cache_mb": activation_cache_mb, "checkpoint_every": every}
    model = check_run(path, TEXT, STEPS, settings, "adamw")
    steps = len(STEPS)
    kinds = [name.split("@")[0] for name in model.calls]
    for program in ("saving", "from_saved"):
        assert [kinds.count(f"{kind}.{program}") for kind in ("join", "mix")] == [
            steps * (saving > 0),
            steps * (saving > 1),
        ]


def test_bundles_without_such_programs_refuse_to_save(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")
    with (
        Session.open(path, engine=SplitModel()) as session,
        pytest.raises(ConfigError, match="no programs that save results"),
    ):
        session.configure(activation_cache_mb=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.1, "learning_rate": 0.01},
        {"max_grad_norm": 0.05},
        {"loss": "choices"},
        {"loss": "choices", "max_grad_norm": 0.5, "checkpoint_every": 2},
        {"loss": "choices", "choices": "mean"},
        {"loss": "dpo"},
        {"loss": "dpo", "dpo.beta": 2.5, "max_grad_norm": 0.5, "checkpoint_every": 2},
        {"loss": "orpo", "orpo.beta": 0.75},
    ],
)
def test_adamw_is_torchs(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", rows=3, label_rows=2)
    examples = {"full": TEXT, "choices": CHOICES}.get(settings.get("loss", "full"), PAIRS)
    steps = [[0, 1], [2, 3, 4, 5], [1, 1, 5], [3]]
    check_run(path, examples, steps, settings, "adamw")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_sgd_is_torchs(tmp_path: Path, momentum: float, clip: float) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", settings={"optimizer": "sgd"}, head=True)
    settings = {
        "momentum": momentum,
        "max_grad_norm": clip,
        "weight_decay": 0.01,
        "learning_rate": 0.1,
    }
    check_run(path, TEXT, STEPS, settings, "sgd", head=True)


def test_rows_get_the_smallest_length_that_fits(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", rows=1)
    examples: list[Example] = [([([1] * n, [2] * n)], 0) for n in (1, 3, 4, 5, 6, 8)]
    model = SplitModel()
    with make_dataset(examples) as dataset, Session.open(path, engine=model) as session:
        session.evaluate(dataset)
    lengths = [int(name.split("@")[1]) for name in model.calls if name.startswith("embed.")]
    assert lengths == [8, 8, 5, 5, 3, 3]


def test_backward_goes_to_the_first_trained_stage(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", rows=1, label_rows=8)
    model = SplitModel()
    with make_dataset(TEXT) as dataset, Session.open(path, engine=model) as session:
        session.configure(checkpoint_every=3)
        session.step(dataset, [0])
    kinds = [name.split("@")[0] for name in model.calls]
    forward = [f"{kind}.forward" for kind in ("embed", "mix", "gate", "mix", "join")]
    # join is a group of its own, and still there; the group before it starts from what mix took.
    assert kinds == [
        *forward,
        "head.backward",
        "join.backward",
        "mix.forward",
        "gate.forward",
        "mix.backward",
        "gate.backward",
        "mix.backward",
    ]


@pytest.mark.parametrize("loss", ["full", "choices", "dpo", "orpo"])
def test_accumulation_is_a_larger_batch(tmp_path: Path, loss: str) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")
    examples = CHOICES if loss in ("full", "choices") else PAIRS
    found = []
    for batch, accumulated in ((1, 6), (6, 1)):
        with make_dataset(examples) as dataset, Session.open(path, engine=SplitModel()) as session:
            session.configure(batch_size=batch, gradient_accumulation_steps=accumulated, loss=loss)
            session.train(dataset, 4)
            found.append([session.record(i) for i in range(4)])
    assert found[0] == found[1]


def test_loss_falls_and_is_what_evaluation_says(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")
    state, _ = parameters()
    with make_dataset(TEXT) as dataset, Session.open(path, engine=SplitModel()) as session:
        before = session.evaluate(dataset)
        assert before.loss == pytest.approx(
            float(expected_loss(state, TEXT, "full").detach()), rel=1e-5
        )
        session.configure(batch_size=len(TEXT))
        session.train(dataset, 30)
        assert session.record(0).loss == pytest.approx(before.loss, rel=1e-6)
        assert session.evaluate(dataset).loss < 0.7 * before.loss


def test_evaluation_of_choices(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", label_rows=2)
    state, _ = parameters()
    with make_dataset(CHOICES) as dataset, Session.open(path, engine=SplitModel()) as session:
        session.configure(loss="choices")
        found = session.evaluate(dataset)
    assert found.loss == pytest.approx(
        float(expected_loss(state, CHOICES, "choices").detach()), rel=1e-5
    )
    assert found.accuracy is not None and 0 <= found.token_accuracy <= 1


def test_what_a_first_order_session_refuses(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")
    with make_dataset(TEXT) as dataset, Session.open(path, engine=SplitModel()) as session:
        with pytest.raises(ConfigError, match="found no gradient"):
            session.read_slot("lora_B.0", gradient=True)
        session.step(dataset, [0])
        with pytest.raises(ConfigError, match="found no gradient"):
            session.read_slot("lora_A.1", gradient=True)
        with pytest.raises(ConfigError, match="first-order method mebp"):
            session.replay_slot("lora_B.0", 0)
        for change in (
            {"momentum": 1.0},
            {"momentum": -0.5},
            {"weight_decay": -1.0},
            {"max_grad_norm": float("nan")},
            {"checkpoint_every": 0},
            {"checkpoint_every": -1},
        ):
            with pytest.raises(ConfigError, match=next(iter(change))):
                session.configure(**change)


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")

    class Broken(SplitModel):
        broken = False

        def __call__(self, program: str, inputs: Any, outputs: Any) -> None:
            super().__call__(program, inputs, outputs)
            if self.broken and "logprobs" in outputs:
                outputs["logprobs"].data[0] = float("nan")

    model = Broken()
    with make_dataset(TEXT) as dataset, Session.open(path, engine=model) as session:
        session.step(dataset, [0, 1])
        first = session.read_slot("lora_B.3")
        session.step(dataset, [2, 3])
        model.broken = True
        with pytest.raises(DivergedError, match="back at 1 steps"):
            session.step(dataset, [4, 5])
        assert session.read_slot("lora_B.3") == first
        assert session.info.steps == 1
        model.broken = False
        session.step(dataset, [2, 3])


def test_a_failing_engine_leaves_the_state(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")
    with make_dataset(TEXT) as dataset:
        whole = SplitModel()
        with Session.open(path, engine=whole) as session:
            session.step(dataset, [0, 1, 2])
            once = len(whole.calls)
            first = session.read_slot("lora_B.0").tobytes()
            session.step(dataset, [3, 4, 5])
            second = session.read_slot("lora_B.0").tobytes()
        for fail in range(once, len(whole.calls)):
            model = SplitModel(fail=fail)
            with Session.open(path, engine=model) as session:
                session.step(dataset, [0, 1, 2])
                with pytest.raises(RuntimeError, match="the device is gone"):
                    session.step(dataset, [3, 4, 5])
                assert session.read_slot("lora_B.0").tobytes() == first
                with pytest.raises(ConfigError, match="no gradient"):
                    session.read_slot("lora_B.0", gradient=True)
                model.fail = None
                session.step(dataset, [3, 4, 5])
                assert session.read_slot("lora_B.0").tobytes() == second
