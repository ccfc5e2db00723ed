"""lm_eval scores and continues texts with a bundle as it does with transformers over the merged model."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import Registry, get_model
from lm_eval.tasks import TaskManager

import zoexport.run.lm_eval  # noqa: F401 - registers the model
from tests.support.compiled import Compiler
from tests.support.tiny_models import fixed_tokens
from zoexport.api import Bundle
from zoexport.core.errors import BundleError, ConfigError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests" / "data" / "lm_eval"
ITEMS = 50
LENGTH = 48
BOUND = 1e-4
"""Nats of a continuation or text, in fp32 on both sides."""


class Case:
    """A trained bundle and the merged model."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.bundle, self.state, self.merged = bundle, folder / "run", folder / "merged"
        tokens = fixed_tokens(3, 20)
        with Session.open(bundle) as session, Dataset() as dataset:
            session.attach(self.state)
            for row in tokens.tolist():
                dataset.add([(row[:-1], row[1:])], 0)
            for _ in range(4):
                session.step(dataset, range(3))
            session.save()
        opened = Bundle.open(bundle)
        opened.export_adapter(self.merged, state=self.state, format="merged")
        self.context = opened.manifest["generate"]["context"]

    def ours(self, *tasks: str) -> dict[str, list[Any]]:
        """Responses of the session by task."""
        return _responses("zoexport", {"bundle": str(self.bundle), "run": str(self.state)}, tasks)

    def theirs(self, *tasks: str, max_length: int) -> dict[str, list[Any]]:
        """Responses of transformers over the merged model."""
        given = {"pretrained": str(self.merged), "dtype": "float32", "max_length": max_length}
        return _responses("hf", {**given, "device": "cpu"}, tasks)


@pytest.fixture(scope="module")
def case(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Case:
    settings = {"lora__target_modules": "all-linear", "learning_rate": 0.05}
    bundle = compiler.bundle("llama", "mebp", max_length=LENGTH, generate=True, **settings)
    return Case(bundle, tmp_path_factory.mktemp("lm_eval"))


@pytest.fixture(autouse=True)
def local_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks name their data from the root; what datasets writes is not shared with other runs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))


def _responses(model: str, arguments: dict[str, Any], tasks: tuple[str, ...]) -> dict[str, Any]:
    found = simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=list(tasks),
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        batch_size=1,
        bootstrap_iters=0,
    )
    samples = {task: found["samples"][task] for task in tasks}
    assert all(len(of_task) == ITEMS for of_task in samples.values())
    return {
        task: [response for sample in of_task for (response,) in sample["resps"]]
        for task, of_task in samples.items()
    }


def test_log_likelihoods_are_those_of_transformers(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """Some contexts and texts are longer than ``max_length``."""
    tasks = ("zoexport_choices", "zoexport_texts")
    ours = case.ours(*tasks)
    assert "longer than the bundle's max_length: up to " in caplog.text
    theirs = case.theirs(*tasks, max_length=LENGTH)
    choices = list(zip(ours[tasks[0]], theirs[tasks[0]], strict=True))
    assert len(choices) > 3 * ITEMS
    assert max(abs(mine[0] - other[0]) for mine, other in choices) < BOUND
    assert [mine[1] for mine, _ in choices] == [other[1] for _, other in choices]
    texts = zip(ours[tasks[1]], theirs[tasks[1]], strict=True)
    assert max(abs(mine - other) for mine, other in texts) < BOUND


def test_completions_are_those_of_transformers(case: Case) -> None:
    task = "zoexport_completions"
    ours = case.ours(task)[task]
    assert len(set(ours)) > ITEMS // 2
    assert ours == case.theirs(task, max_length=case.context)[task]


def test_entry_point_is_the_registered_class() -> None:
    """lm_eval's registry refuses a name that two different paths claim."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (point,) = project["entry-points"]["lm_eval.models"].items()
    registry: Registry[Any] = Registry("model")
    registry.register(point[0], target=point[1])
    registry.register(point[0])(get_model("zoexport"))
    assert registry.get(point[0]) is get_model("zoexport")


def test_greedy_continuations_are_recognized(case: Case) -> None:
    model = get_model("zoexport")(bundle=str(case.bundle), run=str(case.state))
    start = "The film is a warm"
    tokens = model.tok_encode(start)
    greedy = list(model.session.generate(tokens, max_new_tokens=5, stop_tokens=()).tokens)
    other = [*greedy[:-1], greedy[-1] + 1]
    found = model._loglikelihood_tokens(
        [(None, tokens, greedy), (None, tokens, other)], disable_tqdm=True
    )
    assert [is_greedy for _, is_greedy in found] == [True, False]
    # Without a context, a text follows the tokenizer's BOS.
    (empty,) = model.loglikelihood([_request("loglikelihood", "", start)], disable_tqdm=True)
    (rolling,) = model.loglikelihood_rolling([_request("loglikelihood_rolling", start)])
    assert empty[0] == pytest.approx(rolling, abs=1e-6)


@pytest.mark.slow
def test_command_line_writes_results(case: Case, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "zoexport.run.lm_eval", "--model", "zoexport"),
            *("--model_args", f"bundle={case.bundle},run={case.state}"),
            *("--tasks", "zoexport_choices", "--include_path", str(TASKS), "--limit", "4"),
            *("--output_path", str(tmp_path / "results.json")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("results*.json")
    assert 0 <= json.loads(written.read_text())["results"]["zoexport_choices"]["acc,none"] <= 1


def test_errors_say_what_to_do(case: Case, compiler: Compiler) -> None:
    model = get_model("zoexport")
    encoder = compiler.bundle("bert", "mebp", weights="int4", lora__target_modules="all-linear")
    with pytest.raises(BundleError, match="a masked language model"):
        model(bundle=str(encoder))
    opened = model(bundle=str(case.bundle))
    long = _request("loglikelihood", "a", " b" * (LENGTH + 1))
    with pytest.raises(ConfigError, match=f"max_length of the bundle: found {LENGTH}, and"):
        opened.loglikelihood([long], disable_tqdm=True)
    for options, message in (({"max_gen_toks": 500}, "max_gen_toks"), ({"num_beams": 2}, "num_b")):
        with pytest.raises(ConfigError, match=message):
            opened.generate_until([_request("generate_until", "a", options)], disable_tqdm=True)


def _request(kind: Any, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)
