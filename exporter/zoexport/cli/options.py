"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

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


def bundle(function: F) -> F:
    """The argument BUNDLE, and ``--trust``, which holds for it without being passed on."""
    return click.argument("bundle", type=PATH)(trust(function))


def trust(function: F) -> F:
    """``--trust``: whatever the verb opens from here on must be signed."""

    def require(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> None:
        from zoexport.core import trust as trusts

        trusts.require(given)

    return click.option(
        "--trust",
        metavar="KEY",
        multiple=True,
        expose_value=False,
        callback=require,
        help="Refuse a bundle that KEY did not sign: a .pub file, or its line; again for several.",
    )(function)


def method_and_target(function: F) -> F:
    """``--target`` and ``--method``, by name."""
    function = click.option(
        "--method", help="How it trains; see 'zoexport methods'. Default: by target."
    )(function)
    return click.option(
        "--target", required=True, help="Where it will run; see 'zoexport targets'."
    )(function)


def recipe(function: F) -> F:
    """``--recipe``."""
    return click.option("--recipe", type=PATH, help="A YAML file of settings; --set wins over it.")(
        function
    )


def settings(function: F) -> F:
    """``--set key=value``, as often as needed."""
    return click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting, such as lora.rank=8; may be repeated.",
    )(function)


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


def force(function: F) -> F:
    """``--force``."""
    return click.option(
        "--force", is_flag=True, help="Replace what is already there, once the new is complete."
    )(function)
