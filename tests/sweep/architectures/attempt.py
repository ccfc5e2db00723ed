"""Attempts to compile the tiny model of a type and to run it, one for each column of the table of architectures."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.architectures import VOCAB_SIZE, tiny_config, tiny_model
from tests.support.generation import greedy, prompt_of, reference
from tests.support.tiny_models import tiny_tokenizer

COLUMNS = ("mebp", "prge", "int4", "generate", "GGUF", "ios-mlx")
PASSED, REFUSED, UNMADE, SLOW, FAILED = "passed", "refused", "not tried", "slow", "FAILED"
_TOKENS = 8
_INTERNAL, _STOPPED = 70, 130
_SETTINGS = ("max_length=24", "batch_size=2", "lora.r=2")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of one attempt.

    Attributes:
        status: passed, refused in one sentence, not tried (transformers cannot make the model), slow or failed.
        reason: message of a refusal or failure; empty if passed.
    """

    model_type: str
    column: str
    status: str
    reason: str = ""


def attempts(model_type: str, folder: Path, columns: Sequence[str] = COLUMNS) -> Iterator[Outcome]:
    """Make the tiny model of a type in ``folder``, and try each column."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            tiny_model(tiny_config(model_type)).save_pretrained(folder / "model")
            tiny_tokenizer().save_pretrained(folder / "model")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        yield from (Outcome(model_type, column, UNMADE, reason) for column in columns)
        return
    for column in columns:
        yield Outcome(model_type, column, *_attempt(column, folder / "model", folder))


def attempt(model_type: str, column: str, folder: Path) -> Outcome:
    """Return the outcome of one column."""
    return next(attempts(model_type, folder, [column]))


def _attempt(column: str, model: Path, folder: Path) -> tuple[str, str]:
    """Return status and reason."""
    # Names for llama.cpp are in the manifest of any bundle with adapters.
    bundle = folder / ("mebp" if column == "GGUF" else column)
    if not bundle.exists():
        code, message = _compiled(column, model, bundle)
        if code:
            return FAILED if code == _INTERNAL else REFUSED, message
    if column in ("mebp", "prge", "int4"):
        code, _ = _called(["parity", str(bundle), "--steps", "2", "--json"])
        return (FAILED, "parity disagrees") if code else (PASSED, "")
    if column == "generate":
        return _generated(model, bundle)
    if column == "GGUF":
        names = json.loads((bundle / "manifest.json").read_text())["model"]["llama_cpp"]
        problem = names.get("problem")
        return (
            (REFUSED, f"llama.cpp has no names for {problem.removeprefix('a bundle of ')}")
            if problem
            else (PASSED, "")
        )
    return PASSED, ""


def _compiled(column: str, model: Path, bundle: Path) -> tuple[int, str]:
    settings = [*_SETTINGS, f"weights={'int4' if column == 'int4' else 'fp32'}"]
    settings += [] if column == "generate" else ["generate=false"]
    command = ["compile", str(model), "-o", str(bundle), "--json"]
    command += ["--target", "ios-mlx" if column == "ios-mlx" else "host"]
    command += ["--method", "prge" if column == "prge" else "mebp"]
    code, message = 0, ""
    for targets in ("attention", "all-linear"):
        chosen = (*settings, f"lora.target_modules={targets}")
        code, message = _called([*command, *(part for one in chosen for part in ("--set", one))])
        if "lora.target_modules" not in message:
            break
    return code, message


def _generated(model: Path, bundle: Path) -> tuple[str, str]:
    """Compare greedy tokens of a bundle and of transformers."""
    from zoexport.core.errors import ZoExportError
    from zoexport.session import Session

    prompt = prompt_of(9, VOCAB_SIZE)
    try:
        with Session.open(bundle) as session:
            made = list(session.generate(prompt, max_new_tokens=_TOKENS, stop_tokens=()).tokens)
    except ZoExportError as error:
        return REFUSED, str(error)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            expected = greedy(reference(model, bundle), prompt, _TOKENS)
    except Exception as error:
        return UNMADE, f"transformers does not generate: {type(error).__name__}: {error}"
    return (PASSED, "") if made == expected else (FAILED, f"{made} instead of {expected}")


def _called(arguments: list[str]) -> tuple[int, str]:
    """Return the exit code of the command line, and its error's message or what it printed."""
    from zoexport.cli.main import run

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = run(arguments)
    if code == _STOPPED:
        raise KeyboardInterrupt
    lines = printed.getvalue().splitlines()
    content = json.loads(lines[-1]) if lines else {}
    return code, str(content.get("error", {}).get("message", "" if code == 0 else lines))
