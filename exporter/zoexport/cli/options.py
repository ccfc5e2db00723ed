"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from zoexport.cli import completion
from zoexport.core.keywords import keyword

F = TypeVar("F", bound=Callable[..., Any])


_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}


def unescaped(text: str) -> str:
    """Replace the escapes ``\\n``, ``\\t`` and ``\\\\`` in a text of the command line."""
    return re.sub(r"\\([nt\\])", lambda found: _ESCAPED[found[1]], text)


TEXT: dict[str, Any] = {"type": unescaped, "metavar": "TEXT"}
"""Parameters of an option whose text may contain escapes (:func:`unescaped`)."""

#: A path as given; the function that opens it checks that it exists.
PATH = click.Path(path_type=Path)


def common(function: F) -> F:
    """Add ``--json`` (passed on as ``as_json``) and ``--debug`` (read by ``main``)."""
    function = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        help="Show the Python traceback of a failure.",
    )(function)
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON object on one line; everything else goes to standard error.",
    )(function)


def opening(parameter: Callable[[Any], Any]) -> Callable[[F], F]:
    """Turn an argument or option ``bundle`` and ``--trust`` into an open Bundle, None if omitted.

    Its sessions use the ``--engine`` of the command, if it has that option.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def opened(*arguments: Any, **given: Any) -> Any:
            from zoexport.api import Bundle

            path, how = given.pop("bundle"), {"trust": given.pop("trust")}
            how["engine"] = given.pop("engine", None)
            found = None if path is None else Bundle.open(path, **how)
            return function(*arguments, bundle=found, **given)

        decorated: Any = parameter(trust(opened))
        return decorated

    return decorate


bundle = opening(click.argument("bundle", type=PATH))
"""The argument BUNDLE, and ``--trust``."""


def trust(function: F) -> F:
    """Add ``--trust``: the bundle must be signed with one of these keys; None if omitted."""

    def read(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> Any:
        from zoexport.core.trust import Trust

        return Trust.of(given, "--trust") if given else None

    return click.option(
        "--trust",
        metavar="KEY",
        multiple=True,
        callback=read,
        help="Public key (a .pub file or its line) that must have signed the bundle; may be "
        "repeated.",
    )(function)


def engine(function: F) -> F:
    """Add ``--engine``."""
    return click.option(
        "--engine",
        metavar="NAME",
        help="Backend to run; must be one that BUNDLE was compiled for. Default: the bundle's "
        "primary backend.",
    )(function)


def method_and_target(function: F) -> F:
    """Add ``--target`` and ``--method``, by name."""
    function = click.option(
        "--method",
        help="Training method; see 'zoexport methods'. Default: by target.",
        shell_complete=completion.named(completion.methods),
    )(function)
    return click.option(
        "--target",
        required=True,
        help="Device type to train on; see 'zoexport targets'.",
        shell_complete=completion.named(completion.targets),
    )(function)


def recipe(function: F) -> F:
    """Add ``--recipe``."""
    return click.option(
        "--recipe",
        metavar="NAME|FILE",
        help="Recipe (see 'zoexport recipes') or YAML file with method and settings; --set "
        "overrides it.",
        shell_complete=completion.named(completion.recipes),
    )(function)


def settings(function: F) -> F:
    """Add ``--set key=value``, which may be repeated."""
    return click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="Setting, such as lora.r=8; may be repeated.",
        shell_complete=completion.named(completion.settings),
    )(function)


def typed(*keys: str) -> Callable[[F], F]:
    """Add options for common settings, such as ``--lora-r`` for ``--set lora.r=...``.

    The decorator ``settings`` must follow it.

    Args:
        keys: keys of the settings, in the order of the help.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_settings(*arguments: Any, **given: Any) -> Any:
            chosen = {key: given.pop(keyword(key)) for key in keys}
            assignments = tuple(
                f"{key}={value}" for key, value in chosen.items() if value is not None
            )
            given["assignments"] = (*given["assignments"], *assignments)
            return function(*arguments, **given)

        decorated: Any = with_settings
        for key in reversed(keys):
            kind, text = _TYPED[key]
            option = "--" + keyword(key).replace("_", "-")
            decorated = click.option(option, keyword(key), type=kind, help=text)(decorated)
        return decorated

    return decorate


_POSITIVE = click.IntRange(min=1)
_TYPED: dict[str, tuple[Any, str]] = {
    "learning_rate": (float, "Learning rate. Default: by method."),
    "lr_scheduler_type": (
        click.Choice(["constant", "linear", "cosine"]),
        "How the learning rate changes over the steps.",
    ),
    "warmup_steps": (click.IntRange(min=0), "Steps over which the learning rate rises."),
    "gradient_accumulation_steps": (_POSITIVE, "Batches per update."),
    "seed": (click.IntRange(0, (1 << 64) - 1), "Seed of the run."),
    "batch_size": (_POSITIVE, "Examples per step. Default: by method."),
    "max_length": (click.IntRange(min=2), "Tokens of an example; longer ones are cut."),
    "lora.r": (_POSITIVE, "Rank of the adapters."),
    "lora.alpha": (float, "Scaling of the adapters: alpha / r."),
    "weights": (click.Choice(["int4", "int8", "fp32"]), "Format of the frozen weights."),
    "soc": (
        str,
        "Chips of an NPU, such as SM8650,SM8750; auto: the connected phone's. Default: SM8650.",
    ),
}


def data(
    *others: str, required: bool = True, text: str = "Examples (docs/formats.md)."
) -> Callable[[F], F]:
    """Add ``--data`` and its format options as one :class:`DataSource`; same for ``others``."""
    option = click.option(
        "--data",
        metavar="SOURCE",
        required=required,
        help=text,
        shell_complete=completion.files,
    )
    return source(option, *others)


_OF_SOURCES = ("columns", "template", "label_column", "choices")


def source(option: Callable[[Any], Any], *others: str) -> Callable[[F], F]:
    """Add format options to an option or argument ``data``, like :func:`data`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_source(*arguments: Any, **given: Any) -> Any:
            from zoexport.core.errors import ConfigError
            from zoexport.data.columns import parse_columns
            from zoexport.data.sources import DataSource

            how = {name: given.pop(name) for name in _OF_SOURCES}
            if given["data"] is None and set(how.values()) != {None}:
                raise ConfigError(
                    " and ".join(f"--{key.replace('_', '-')}" for key in how if how[key]),
                    found="no --data",
                    expected="the data that they are for",
                    fix="Pass --data, or leave them out.",
                )
            if how["columns"] is not None:
                how["columns"] = parse_columns(how["columns"])
            if how["choices"] is not None:
                how["choices"] = [one.strip() for one in how["choices"].split(",")]
            for name in ("data", *others):
                if given[name] is not None:
                    given[name] = DataSource(given[name], **how)
            return function(*arguments, **given)

        decorated: Any = with_source
        for add in (
            click.option(
                "--choices",
                metavar="A,B,...",
                help="Classes of --label-column, in the order of their numbers. Default: those in "
                "the data.",
            ),
            click.option(
                "--label-column",
                metavar="COLUMN",
                help="Column with the class of each row; each example is a choice between all "
                "classes.",
            ),
            click.option(
                "--template",
                metavar="NAME|FILE",
                help="Template for examples from rows: sst2, rte, cb, boolq, wic, multirc, copa, "
                "record, squad, drop, "
                "or a YAML file.",
            ),
            click.option(
                "--columns",
                metavar="KEY=COLUMN,...",
                help="Columns to use as prompt, completion and other keys.",
            ),
            option,
        ):
            decorated = add(decorated)
        return decorated

    return decorate


def resume(function: F) -> F:
    """Add ``--recover`` and ``--change-settings``, for commands that resume a run."""
    function = click.option(
        "--change-settings",
        is_flag=True,
        help="Resume with settings or data that differ from the run's; the state records what "
        "changed.",
    )(function)
    return click.option(
        "--recover",
        is_flag=True,
        help="Resume from the last valid record of a damaged log; a copy of the log is kept.",
    )(function)


def validation(function: F) -> F:
    """Add ``--eval-data`` and its related options, for commands that train."""
    options = (
        click.option(
            "--eval-data",
            metavar="SOURCE",
            shell_complete=completion.files,
            help="Validation examples, evaluated before, during and after training.",
        ),
        click.option(
            "--eval-every",
            type=click.IntRange(min=1),
            metavar="N",
            help="Steps between evaluations. Default: a tenth of all steps.",
        ),
        click.option(
            "--patience",
            type=click.IntRange(min=1),
            metavar="K",
            help="Number of evaluations in a row without a lower loss after which training stops.",
        ),
        click.option(
            "--keep",
            type=click.Choice(["best", "last"]),
            help="Weights that eval, generate and export use: those with the lowest validation "
            "loss (best, default) or "
            "the last ones (last).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def last(function: F) -> F:
    """Add ``--last``, for commands that read a state."""
    return click.option(
        "--last",
        is_flag=True,
        help="Use the weights of the last step, even if the run keeps the best ones.",
    )(function)


def prompting(function: F) -> F:
    """Add ``--system`` and ``--chat-template``, the prompt format (``run.generate.asked``)."""
    function = click.option(
        "--chat-template/--no-chat-template",
        default=None,
        help="Format the prompt with the chat template, or continue it as plain text. Default: as "
        "the state was "
        "trained; without a state, with the template.",
    )(function)
    return click.option("--system", **TEXT, help="System message of the conversation.")(function)


def stop(function: F) -> F:
    """Add ``--stop``, which may be repeated."""
    return click.option(
        "--stop",
        **TEXT,
        multiple=True,
        help="String before which generation stops; may be repeated. \\n is a line break.",
    )(function)


def sliding(function: F) -> F:
    """Add ``--sliding``."""
    return click.option(
        "--sliding",
        is_flag=True,
        help="Continue past the bundle's context with the last part of the text (docs/export.md).",
    )(function)


def sampling(function: F) -> F:
    """Add the sampling options, passed on as one ``sampling``."""

    @functools.wraps(function)
    def with_sampling(*arguments: Any, **given: Any) -> Any:
        from zoexport.session import Sampling

        names = (field.name for field in dataclasses.fields(Sampling))
        chosen = Sampling(**{name: given.pop(name) for name in names})
        return function(*arguments, sampling=chosen, **given)

    decorated: Any = with_sampling
    for option in (
        click.option(
            "--seed",
            type=click.IntRange(0, (1 << 64) - 1),
            default=0,
            show_default=True,
            help="Seed of sampling.",
        ),
        click.option(
            "--repetition-penalty",
            type=float,
            default=1.0,
            show_default=True,
            help="Penalty for repeated tokens; 1: none.",
        ),
        click.option(
            "--min-p",
            type=float,
            default=0.0,
            show_default=True,
            help="Minimum probability of a token, relative to the most likely one.",
        ),
        click.option(
            "--top-k",
            type=click.IntRange(min=0),
            default=0,
            help="Number of most likely tokens to sample from; 0: all.",
        ),
        click.option(
            "--top-p",
            type=float,
            default=1.0,
            show_default=True,
            help="Sample from the fewest tokens whose probabilities reach this sum.",
        ),
        click.option(
            "--temperature",
            type=float,
            default=0.0,
            show_default=True,
            help="Sampling temperature; 0: the most likely token.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def force(function: F) -> F:
    """Add ``--force``."""
    return click.option(
        "--force", is_flag=True, help="Replace an existing output once the new one is complete."
    )(function)
