"""``make demo``: the verbs one after another on SmolLM2-135M, with the sentence set.

Each verb runs as its own process, as a person would run it, so that training's memory is that of training. What a
run left in the folder is used again by the next.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from zoexport.core.errors import ZoExportError
from zoexport.core.figures import loss_curve, table
from zoexport.core.recipes import read_recipe
from zoexport.data.samples import sentences

MODEL = "smollm2-135m"
RECIPE = "smollm2-135m-mebp"
STEPS = 60
PARITY_STEPS = 2
QUESTIONS = (
    "Feeble comedy. It was",
    "Manages to be both hugely entertaining and uplifting. It was",
    "Painfully padded. It was",
)
"""Prompts of the held-out sentences, answered before and after training."""
ANSWER_TOKENS = 6


class VerbFailed(Exception):
    """A verb failed and has said why; carries its exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def main() -> None:
    """Parse the folder and run."""
    parser = argparse.ArgumentParser(description="Compile, train and export SmolLM2-135M.")
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    try:
        run(arguments.folder, arguments.steps)
    except VerbFailed as failure:
        sys.exit(failure.exit_code)
    except ZoExportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def run(folder: Path, steps: int) -> None:
    """The whole round: compile, evaluate, train, evaluate, compare, export, draw."""
    bundle, state = folder / "bundle", folder / "state"
    adapter, curve = folder / "adapter", folder / "demo.png"
    say("Sentences: 'film review sentence' It was -> great | terrible")
    data = sentences()
    compile_once(bundle, state)
    say(f"Evaluate the model as it is on {data.test.name}")
    before = verb("eval", bundle, "--data", data.test)
    say(f"Train to {steps} steps")
    trained = verb("train", bundle, "--data", data.train, "--state", state, "--steps", steps)
    say("Evaluate the trained state")
    after = verb("eval", bundle, "--data", data.test, "--state", state)
    say(f"Compare the session with the reference in PyTorch over {PARITY_STEPS} steps")
    parity = verb("parity", bundle, "--steps", PARITY_STEPS)
    say("Export the adapter for PEFT")
    verb("adapter", "export", bundle, "--state", state, "-o", adapter, "--force")
    say(f"Answer {len(QUESTIONS)} of the held-out sentences, before and after")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in QUESTIONS))
    texts = [answers(bundle, prompts, *options) for options in ((), ("--state", state))]
    loss_curve(
        curve,
        trained["losses"],
        title=f"{MODEL}, MeBP int4: loss of each step",
        evaluations={0: before["loss"], trained["steps"]: after["loss"]},
        answers=list(zip(QUESTIONS, *texts, strict=True)),
    )
    rows = [
        ("loss", before["loss"], after["loss"]),
        ("accuracy", before["accuracy"], after["accuracy"]),
    ]
    print("\n" + table(("held out", "before", f"after {trained['steps']} steps"), rows))
    print("\n" + table(("prompt", "before", "after"), list(zip(QUESTIONS, *texts, strict=True))))
    memory = trained["peak_anonymous_mb"]
    if trained["step_seconds_median"] is not None:
        print(f"\n{trained['step_seconds_median']:.2f} s a step, {memory} MB of anonymous memory")
    verdict = "agrees with" if parity["passed"] else "DISAGREES with"
    loss, gradient = (parity[f"max_relative_{key}_error"] for key in ("loss", "gradient"))
    print(
        f"the session {verdict} the reference: loss within {loss:.1e}, gradients within {gradient:.1e}\n"
    )
    places = (("bundle", bundle), ("state", state), ("adapter", adapter), ("loss curve", curve))
    for name, path in (*places, ("training data", data.train), ("test data", data.test)):
        print(f"{name:14}{path}")
    if not parity["passed"]:
        raise VerbFailed(1)


def compile_once(bundle: Path, state: Path) -> None:
    """Compile, unless an intact bundle of the recipe is there; a state of a former bundle goes with it."""
    if bundle.exists():
        found = json.loads(command("inspect", bundle).stdout)
        settings, recipe = found.get("settings", {}), read_recipe(RECIPE)
        same = found.get("method") == recipe.method
        if same and all(settings.get(key) == value for key, value in recipe.settings.items()):
            say(f"The bundle in {bundle} is intact: not compiled again")
            return
    say(f"Compile {MODEL} for android-cpu (recipe {RECIPE})")
    arguments = ("--target", "android-cpu", "--recipe", RECIPE)
    verb("compile", MODEL, *arguments, "-o", bundle, "--force")
    if state.exists():
        shutil.rmtree(state)


def command(*arguments: object, show: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a verb with ``--json``; its progress is shown where ``show``."""
    line = [sys.executable, "-m", "zoexport", *map(str, arguments), "--json"]
    errors = None if show else subprocess.DEVNULL
    return subprocess.run(line, stdout=subprocess.PIPE, stderr=errors, text=True)


def verb(*arguments: object) -> dict[str, Any]:
    """A verb's result.

    Raises:
        VerbFailed: it has printed its one message.
    """
    done = command(*arguments, show=True)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:  # killed
        raise VerbFailed(done.returncode or 1) from None
    # parity's 'no' is an answer: a result with an exit code of its own.
    if "error" in result:
        raise VerbFailed(done.returncode)
    return result


def answers(bundle: Path, prompts: Path, *options: object) -> list[str]:
    """What follows each prompt of a file, on one line.

    Raises:
        VerbFailed: it has printed its one message.
    """
    arguments = ("--data", prompts, "--max-new-tokens", ANSWER_TOKENS, *options)
    done = command("generate", bundle, *arguments, show=True)
    if done.returncode != 0:
        raise VerbFailed(done.returncode)
    return [" ".join(json.loads(line)["text"].split()) for line in done.stdout.splitlines()]


def say(text: str) -> None:
    """One line between the verbs."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
