"""All commands of the command line, from the command tree."""

import click

from rmq_spark.cli.main import command_tree


def _verbs(command, words):
    """Return all verbs below a command, by their command words."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            yield from _verbs(below, (*words, name))
    else:
        yield words, command


EVERY = {" ".join(words): verb for words, verb in _verbs(command_tree(), ())}
