"""Shell completion: ``rocketpoll completion SHELL``, and the names that it completes.

    eval "$(rocketpoll completion bash)"    # in ~/.bashrc

Commands and options complete without a connection. Arguments that are names of topics, groups or
profiles complete as well; if the cluster does not answer at once, there are no completions.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from rmq_spark.cli.shell.command_tree import CommandWithExample, RootGroup
from rmq_spark.cli.shell.connection import access_of
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.errors import ProfileRejected
from rmq_spark.client.profiles import read_profiles
from rmq_spark.wire.names import is_internal_topic, is_system_group

PROGRAM: Final = "rocketpoll"
VARIABLE: Final = "_ROCKETPOLL_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
_SECONDS_MAX: Final = 1.0
_NAMES_MAX: Final = 1_000


@click.command(
    cls=CommandWithExample,
    example="rocketpoll completion bash > rocketpoll.bash\n"
    "rocketpoll completion fish > rocketpoll.fish",
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes a SHELL (bash, zsh or fish) complete names.

    For bash, add the line eval "$(rocketpoll completion bash)" to ~/.bashrc; for zsh, add the same
    line with zsh to ~/.zshrc. For fish, write the script to
    ~/.config/fish/completions/rocketpoll.fish.
    """
    script_class = get_completion_class(shell)
    if script_class is None:
        raise Failure(f"this release of click has no completion for {shell}", "Update click")
    root = context.find_root().command
    script = script_class(root, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())


class CompletingRoot(RootGroup):
    """A root whose commands complete the names of topics, groups and profiles."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with types of arguments that complete names."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _add_names(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named, also after the word help."""
        if args[0] == "help":
            args = args[1:]
        return super().resolve_command(ctx, args) if args else (None, None, args)


class _NameType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    name = "text"

    def __init__(self, list_names: Callable[[Mapping[str, Any]], list[str]]) -> None:
        self._list_names = list_names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del param

        found: list[str] = []

        def ask() -> None:
            with contextlib.suppress(Exception):  # an error could not be shown here
                found.extend(self._list_names(ctx.params))

        thread = threading.Thread(target=ask, daemon=True, name="completion")
        with contextlib.redirect_stderr(io.StringIO()):
            thread.start()
            thread.join(_SECONDS_MAX)
        names = sorted(name for name in list(found) if name.startswith(incomplete))
        return [CompletionItem(name) for name in names[:_NAMES_MAX]]


def _add_names(command: click.Command) -> None:
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _add_names(each)
    for param in command.params:
        name = (param.metavar or param.human_readable_name.upper()).strip("[].")
        kind = _TYPES.get(name.split("]")[0]) if param.type is click.STRING else None
        if param.opts == ["--profile"]:
            kind = _TYPES["PROFILE"]
        if kind is not None:
            param.type = kind


def _list_topics(params: Mapping[str, Any]) -> list[str]:
    with access_of(params).admin() as admin:
        cluster = admin.cluster_info()
        own = {*cluster.broker_addr_table, *cluster.cluster_addr_table}
        return [name for name in admin.topics() if not is_internal_topic(name, own)]


def _list_groups(params: Mapping[str, Any]) -> list[str]:
    with access_of(params).admin() as admin:
        return [name for name in admin.groups() if not is_system_group(name)]


def _list_profiles(_: Mapping[str, Any]) -> list[str]:
    with contextlib.suppress(ProfileRejected):
        return [each.name for each in read_profiles()]
    return []


_TYPES: Final = {
    "TOPIC": _NameType(_list_topics),
    "SOURCE": _NameType(_list_topics),
    "GROUP": _NameType(_list_groups),
    "PROFILE": _NameType(_list_profiles),
}
"""The types of arguments and options, by their names in the help."""
