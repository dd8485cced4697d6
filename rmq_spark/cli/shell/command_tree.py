"""Command tree: nouns with verbs, imported when they are run, each verb with an example.

    LazyCommand          where a command is, and a line about it; its module is imported on use
    CommandGroup         a command with subcommands, which suggests the right one for a typo
    CommandWithExample   a command with an example in its help; a test runs all of these as written

Listing the commands imports none of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

import click

from rmq_spark.cli.shell.failures import USAGE
from rmq_spark.cli.shell.usage_errors import command_hint

_HELP_NAMES: Final = ("-h", "--help")
_RANGE: Final = re.compile(r"; [0-9<=>x]+(?=\])|  \[[0-9<=>x]+\]$")
"""Matches the range of a number in an option's help, which omits it; errors show the range."""

_OPTION_WIDTH_MAX: Final = 26
_SHOWN_CONNECTION_OPTIONS: Final = ("namesrv", "profile")
"""The options for the connection that the help of each command shows."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_HELP_SETTINGS: Final = {"help_option_names": list(_HELP_NAMES), "max_content_width": 100}


class LazyCommand(NamedTuple):
    """A command that is not imported yet: its module, and a line for the list of commands."""

    module: str
    summary: str


class ConnectionOption(click.Option):
    """An option for the connection to a cluster, which ``rocketpoll help connection`` lists."""


def option_set(*options: Callable[[Any], Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that adds options to a command, which lists them in this order."""

    def add(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class CommandWithExample(click.Command):
    """A command whose help ends with an example of its use."""

    def __init__(self, *arguments: Any, example: str = "", **settings: Any) -> None:
        settings.setdefault("context_settings", _HELP_SETTINGS)
        super().__init__(*arguments, **settings)
        self.example = example

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the first paragraph, so that the options are on the first screen."""
        _write_indented(formatter, _paragraphs(self)[0])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, further paragraphs, and some connection options."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        own = [each for each in options if not isinstance(each, ConnectionOption)]
        shared = [each for each in options if isinstance(each, ConnectionOption)]
        named = [each for each in shared if each.name in _SHOWN_CONNECTION_OPTIONS]
        for title, listed in (("Options", own), ("Connection", named)):
            records = option_records(listed, ctx)
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=_OPTION_WIDTH_MAX)
                    if listed is named:
                        formatter.write_text("Keys, TLS and others: rocketpoll help connection")
            if listed is own:
                _write_indented(formatter, _paragraphs(self)[1])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, line by line."""
        super().format_epilog(ctx, formatter)
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _paragraphs(command: click.Command) -> tuple[str, str]:
    first, _, others = inspect.cleandoc(command.help or "").partition("\n\n")
    return first, others


def _write_indented(formatter: click.HelpFormatter, text: str) -> None:
    if text:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)


def option_records(
    options: Iterable[click.Option], context: click.Context
) -> list[tuple[str, str]]:
    """Return options as help lists them, without the ranges of numbers."""
    return [
        (record[0], _RANGE.sub("", record[1]))
        for option in options
        if (record := option.get_help_record(context)) is not None
    ]


class CommandGroup(click.Group):
    """A command with subcommands; the error for a misspelled one suggests the closest name."""

    command_class = CommandWithExample

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("context_settings", _HELP_SETTINGS)
        super().__init__(*arguments, **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a subcommand, print the help as it is, and exit as for wrong usage."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands, each with the first sentence of its help, uncut."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None:
                sentence, _, _ = _paragraphs(command)[0].partition(". ")
                rows.append((name, f"{' '.join(sentence.split()).rstrip('.')}."))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that the first argument names."""
        name = args[0]
        is_unknown = self.get_command(ctx, name) is None and not name.startswith("-")
        if is_unknown and not ctx.resilient_parsing:  # a shell completes words of any kind
            near = command_hint(name, self.list_commands(ctx))
            hint = f". Did you mean {near}?" if near else ""
            ctx.fail(f"there is no command {name}{hint}")
        return super().resolve_command(ctx, args)


class RootGroup(CommandGroup):
    """The root: its commands are imported when they are run, and listed without an import."""

    def __init__(self, sections: Mapping[str, Mapping[str, LazyCommand]], **settings: Any) -> None:
        super().__init__(**settings)
        self._sections = sections
        self._leaves = {name: leaf for each in sections.values() for name, leaf in each.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of all commands, in the order of the help."""
        return list(self._leaves)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import a command and return it; None if there is none of that name."""
        leaf = self._leaves.get(cmd_name)
        if leaf is None:
            return None
        command: click.Command = getattr(import_module(leaf.module, "rmq_spark.cli"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the commands by section, without importing any."""
        for title, leaves in self._sections.items():
            with formatter.section(title):
                rows = [(name, leaf.summary) for name, leaf in leaves.items()]
                formatter.write_dl(rows, col_spacing=3)
