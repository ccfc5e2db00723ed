"""Options that several verbs share."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from zoexport.cli import completion

F = TypeVar("F", bound=Callable[..., Any])


_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}


def unescaped(text: str) -> str:
    """A text of the command line, in which ``\\n``, ``\\t`` and ``\\\\`` are a line's end, a tab and a backslash."""
    return re.sub(r"\\([nt\\])", lambda found: _ESCAPED[found[1]], text)


TEXT: dict[str, Any] = {"type": unescaped, "metavar": "TEXT"}
"""Of an option that takes such a text."""

#: A path as given; whether it exists is for the function that opens it to say, in its own words.
PATH = click.Path(path_type=Path)


def common(function: F) -> F:
    """``--json`` (passed on as ``as_json``) and ``--debug`` (read by ``main``)."""
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
    """An argument or option ``bundle`` with ``--trust`` as an open Bundle, None where none is given.

    Its sessions use the ``--engine`` of the verb, where it has that option.
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
    """``--trust``: the keys of which one must have signed a bundle, or None."""

    def read(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> Any:
        from zoexport.core.trust import Trust

        return Trust.of(given, "--trust") if given else None

    return click.option(
        "--trust",
        metavar="KEY",
        multiple=True,
        callback=read,
        help="Refuse a bundle that KEY did not sign: a .pub file, or its line; again for several.",
    )(function)


def engine(function: F) -> F:
    """``--engine``."""
    return click.option(
        "--engine",
        metavar="NAME",
        help="Of those that BUNDLE has programs for; executorch is the CPU of one for android-gpu. Default: its own.",
    )(function)


def method_and_target(function: F) -> F:
    """``--target`` and ``--method``, by name."""
    function = click.option(
        "--method",
        help="How it trains; see 'zoexport methods'. Default: by target.",
        shell_complete=completion.named(completion.methods),
    )(function)
    return click.option(
        "--target",
        required=True,
        help="Where it will run; see 'zoexport targets'.",
        shell_complete=completion.named(completion.targets),
    )(function)


def recipe(function: F) -> F:
    """``--recipe``."""
    return click.option(
        "--recipe",
        metavar="NAME|FILE",
        help="Method and settings by name (see 'zoexport recipes') or of a YAML file; --set wins.",
        shell_complete=completion.named(completion.recipes),
    )(function)


def settings(function: F) -> F:
    """``--set key=value``, as often as needed."""
    return click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting, such as lora.r=8; may be repeated.",
        shell_complete=completion.named(completion.settings),
    )(function)


def typed(*keys: str) -> Callable[[F], F]:
    """Options for common settings, such as ``--lora-r``, in place of ``--set lora.r=...``; ``settings`` comes after it.

    Args:
        keys: of the settings, in the order of the help.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_settings(*arguments: Any, **given: Any) -> Any:
            chosen = {key: given.pop(_python(key)) for key in keys}
            assignments = tuple(
                f"{key}={value}" for key, value in chosen.items() if value is not None
            )
            given["assignments"] = (*given["assignments"], *assignments)
            return function(*arguments, **given)

        decorated: Any = with_settings
        for key in reversed(keys):
            kind, text = _TYPED[key]
            option = "--" + _python(key).replace("_", "-")
            decorated = click.option(option, _python(key), type=kind, help=text)(decorated)
        return decorated

    return decorate


def _python(key: str) -> str:
    return key.replace(".", "_")


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
}


def data(
    *others: str, required: bool = True, text: str = 'Examples (docs/cli.md, "Data").'
) -> Callable[[F], F]:
    """``--data`` and how it is read as one :class:`DataSource`; ``others`` are read likewise."""
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
    """An option or argument ``data`` with how it is read, as :func:`data`."""

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
                help="The classes of --label-column, in the order of their numbers. Default: those in the data.",
            ),
            click.option(
                "--label-column",
                metavar="COLUMN",
                help="The class of each row: the examples choose one of all classes.",
            ),
            click.option(
                "--template",
                metavar="NAME|FILE",
                help="How a row becomes an example: sst2, rte, cb, boolq, wic, multirc, copa, record, squad, drop, "
                "or a YAML file.",
            ),
            click.option(
                "--columns",
                metavar="KEY=COLUMN,...",
                help="Which columns are prompt, completion and so on.",
            ),
            option,
        ):
            decorated = add(decorated)
        return decorated

    return decorate


def resume(function: F) -> F:
    """``--recover`` and ``--change-settings``, of verbs that go on with a run."""
    function = click.option(
        "--change-settings",
        is_flag=True,
        help="Go on with other settings or data than the run's; the state keeps what changed.",
    )(function)
    return click.option(
        "--recover",
        is_flag=True,
        help="Go on from the last good record of a damaged log; a copy of it is kept.",
    )(function)


def validation(function: F) -> F:
    """``--eval-data`` and what goes with it, of verbs that train."""
    options = (
        click.option(
            "--eval-data",
            metavar="SOURCE",
            shell_complete=completion.files,
            help="Held-out examples: evaluated on before, meanwhile and after.",
        ),
        click.option(
            "--eval-every",
            type=click.IntRange(min=1),
            metavar="N",
            help="Steps from one evaluation to the next; a tenth of all.",
        ),
        click.option(
            "--patience",
            type=click.IntRange(min=1),
            metavar="K",
            help="End after K evaluations in a row without a lower loss.",
        ),
        click.option(
            "--keep",
            type=click.Choice(["best", "last"]),
            help="Whose values the state gives: the best evaluation's (the default), or the last step's.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def last(function: F) -> F:
    """``--last``, of verbs that read a state."""
    return click.option(
        "--last",
        is_flag=True,
        help="With the values of the last step, also where the run keeps its best.",
    )(function)


def prompting(function: F) -> F:
    """How ``--prompt`` is meant: ``system`` and ``chat_template`` (``run.generate.asked``)."""
    function = click.option(
        "--chat-template/--no-chat-template",
        default=None,
        help="Ask in a conversation, or continue the text as it is. Default: as the state learned, in a conversation "
        "without one.",
    )(function)
    return click.option("--system", **TEXT, help="The system message of the conversation.")(
        function
    )


def stop(function: F) -> F:
    """``--stop``, as often as needed."""
    return click.option(
        "--stop",
        **TEXT,
        multiple=True,
        help="The text ends before it; again for several. \\n is a line's end.",
    )(function)


def sliding(function: F) -> F:
    """``--sliding``."""
    return click.option(
        "--sliding",
        is_flag=True,
        help="Past the bundle's context, go on over the last part of the text (docs/generate.md).",
    )(function)


def sampling(function: F) -> F:
    """How tokens are chosen, as one ``sampling``."""

    @functools.wraps(function)
    def with_sampling(*arguments: Any, **given: Any) -> Any:
        from zoexport.session import Sampling

        names = (field.name for field in dataclasses.fields(Sampling))
        chosen = Sampling(**{name: given.pop(name) for name in names})
        return function(*arguments, sampling=chosen, **given)

    see = "See docs/generate.md."
    decorated: Any = with_sampling
    for option in (
        click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True),
        click.option(
            "--repetition-penalty", type=float, default=1.0, show_default=True, help="1: none."
        ),
        click.option("--min-p", type=float, default=0.0, show_default=True, help=see),
        click.option("--top-k", type=click.IntRange(min=0), default=0, help="0: all tokens."),
        click.option("--top-p", type=float, default=1.0, show_default=True, help=see),
        click.option(
            "--temperature",
            type=float,
            default=0.0,
            show_default=True,
            help="0: the likeliest token.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def force(function: F) -> F:
    """``--force``."""
    return click.option(
        "--force", is_flag=True, help="Replace what is already there, once the new is complete."
    )(function)
