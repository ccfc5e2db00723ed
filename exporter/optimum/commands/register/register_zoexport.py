"""``optimum-cli export zoexport``: ``zoexport compile`` as an optimum exporter.

optimum imports every file of the namespace package ``optimum.commands.register`` when its command line starts, so this
one imports only what parsing needs. This folder and its parents must have no ``__init__.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import click
from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand

from zoexport.cli.compile import compile_verb

_OUTPUT = "output"
"""Last and without a name here, as in optimum's other exporters."""


class ZoexportExportCommand(BaseOptimumCLICommand):
    """Runs ``zoexport compile``, with its options, messages and exit codes."""

    COMMAND = CommandInfo(
        name="zoexport",
        help="Compile a language model into a bundle that fine-tunes itself on a phone.",
    )

    @staticmethod
    def parse_args(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``zoexport compile`` to ``parser``."""
        parser.add_argument(
            "-m",
            "--model",
            required=True,
            help="A Hugging Face directory, a GGUF file, a hub id, or a name such as smollm2-135m.",
        )
        parser.add_argument(_OUTPUT, metavar="OUT", help="The bundle's folder.")
        for option in _options():
            help_text = (option.help or "").replace("%", "%%")
            if option.is_flag:
                for names in filter(None, (option.opts, option.secondary_opts)):
                    parser.add_argument(*names, action="store_true", help=help_text)
            else:
                parser.add_argument(
                    *option.opts,
                    action="append" if option.multiple else "store",
                    required=option.required,
                    metavar=option.make_metavar(click.Context(compile_verb)),
                    help=help_text,
                )

    def run(self) -> None:
        """Compile, and end the process with the verb's exit code."""
        from zoexport.cli.main import run

        sys.exit(run(["compile", *self._words()]))

    def _words(self) -> Iterator[str]:
        """Yield the command line of ``zoexport compile``; values may begin with a dash."""
        given = vars(self.args)
        yield f"--{_OUTPUT}={given[_OUTPUT]}"
        for option in _options():
            name = option.opts[-1]
            value = given[name.lstrip("-").replace("-", "_")]
            if option.is_flag:
                names = (name, *option.secondary_opts)
                yield from (one for one in names if given[one.lstrip("-").replace("-", "_")])
            elif value is not None:
                yield from (f"{name}={word}" for word in (value if option.multiple else [value]))
        yield from ("--", given["model"])


def _options() -> list[click.Option]:
    """Return the options of ``zoexport compile`` except the model and the bundle's folder."""
    return [
        parameter
        for parameter in compile_verb.params
        if isinstance(parameter, click.Option) and parameter.name != _OUTPUT
    ]


REGISTER_COMMANDS = [(ZoexportExportCommand, ExportCommand)]
