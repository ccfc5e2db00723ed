"""Command group with error messages in the format of zoexport."""

from __future__ import annotations

import click

from zoexport.core.errors import ConfigError, nearest


class Verbs(click.Group):
    """Group that lists commands in the order of use and explains unknown ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of use."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` name.

        Raises:
            ConfigError: there is no such verb; the message names the nearest.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise ConfigError(
                f"{ctx.command_path} {args[0]}",
                found="no such verb",
                expected="one of " + ", ".join(self.commands),
                fix=f"Run '{ctx.command_path} --help'.{nearest(args[0], self.commands)}",
            )
        return super().resolve_command(ctx, args)
