"""``progress=True`` of the Python functions: a bar in a terminal and a notebook, lines elsewhere."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

import pytest

from zoexport.core.progress import silent
from zoexport.run.progress import Phases, Steps, phases, stepping
from zoexport.session import StepEvaluation, StepProgress

STEP = StepProgress(1, 2, 0.5, 1e-3, 0.25, 300_000_000, 157_000_000)
EVALUATION = StepEvaluation(
    step=1, loss=0.25, accuracy=None, token_accuracy=0.5, margin=None, best=True
)


def test_no_progress_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    with phases("compile", False) as shown, stepping("train", False, None, None) as run:
        assert shown is silent and run == (silent, silent, silent)
    assert capfd.readouterr() == ("", "")


def test_callbacks_are_passed_on_without_a_bar(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    with phases("compile", lambda *found: seen.append(found)) as shown:
        shown("loading the model", 0.5)
    with stepping("train", seen.append, lambda *found: seen.append(found), seen.append) as run:
        run[0](STEP)
        run[1]("training", None)
        run[2](EVALUATION)
    assert seen == [("loading the model", 0.5), STEP, ("training", None), EVALUATION]
    assert capfd.readouterr() == ("", "")


def test_progress_true_prints_lines_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with phases("compile", True) as shown:
        assert isinstance(shown, Phases)
        shown("loading the model", None)
    with stepping("train", True, None, None) as (step, phase, evaluated):
        assert isinstance(step, Steps)
        phase("training", None)
        step(STEP)
        evaluated(EVALUATION)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[:2] == ["compile: loading the model", "train: training"]
    assert "train: step 1/2  loss 0.5000" in err and "held-out loss 0.2500, the best so far" in err


def test_own_callbacks_replace_those_of_the_bar() -> None:
    seen: list[Any] = []
    with stepping("train", True, lambda *found: seen.append(found), seen.append) as run:
        run[1]("training", None)
        run[2](EVALUATION)
    assert seen == [("training", None), EVALUATION]


class ZMQInteractiveShell:
    """The class of the shell of a notebook, by whose name rich detects one."""


@pytest.mark.parametrize("widgets", [True, False])
def test_notebooks_with_widgets_show_a_bar(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], widgets: bool
) -> None:
    class Output:
        """Stand-in for ``ipywidgets.Output``."""

        def __enter__(self) -> Output:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

        def clear_output(self, wait: bool = False) -> None:
            pass

    shown: list[Any] = []
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(
        "zoexport.run.progress.find_spec", lambda name: object() if widgets else None
    )
    for name, content in (
        ("ipywidgets", {"Output": Output}),
        ("IPython", {}),
        ("IPython.display", {"display": shown.append}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    with phases("compile", True) as bar:
        bar("loading the model", None)
    assert any(isinstance(one, Output) for one in shown) == widgets
    assert ("compile: loading the model\n" in capfd.readouterr().err) == (not widgets)
