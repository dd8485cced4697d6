"""The command tree: nouns, verbs, and their lazy loading."""

from __future__ import annotations

import click
import pytest

from rmq_spark.cli.shell.command_tree import (
    CommandGroup,
    CommandWithExample,
    ConnectionOption,
    LazyCommand,
    RootGroup,
)

leaf = CommandWithExample(
    "leaf", callback=lambda: 7, example="rocketpoll leaf one\nrocketpoll leaf two"
)


def tree(*names):
    sections = {"Things": {name: LazyCommand(__name__, f"about {name}") for name in names}}
    return RootGroup(sections, name="rocketpoll")


def run(root, *arguments):
    with root.make_context("rocketpoll", list(arguments)) as context:
        return root.invoke(context)


def test_command_is_imported_only_when_it_is_run():
    root = tree("leaf", "missing")
    context = click.Context(root)
    assert "missing   about missing" in root.get_help(context)
    with pytest.raises(AttributeError, match="missing"):
        root.get_command(context, "missing")
    assert root.get_command(context, "leaf") is leaf
    assert root.get_command(context, "other") is None


def test_command_help_ends_with_its_example():
    assert leaf.get_help(click.Context(leaf)).endswith(
        "Example:\n  rocketpoll leaf one\n  rocketpoll leaf two"
    )


def test_help_lists_connection_options_after_the_commands_own():
    options = [
        ConnectionOption(["--namesrv"], help="Where."),
        click.Option(["--rate"], help="How fast."),
    ]
    verb = CommandWithExample("verb", params=options)
    words = verb.get_help(click.Context(verb)).split()
    places = [words.index(word) for word in ("--rate", "--help", "Connection:", "--namesrv")]
    assert places == sorted(places)


def test_command_returns_what_its_function_returns():
    assert run(CommandGroup("noun", commands={"leaf": leaf}), "leaf") == 7


@pytest.mark.parametrize(("name", "hint"), [("laef", ". Did you mean leaf?"), ("xyz", "")])
def test_misspelt_command_is_refused_with_the_nearest(name, hint):
    with pytest.raises(click.UsageError) as raised:
        run(CommandGroup("noun", commands={"leaf": leaf}), name)
    assert raised.value.message == f"there is no command {name}{hint}"
