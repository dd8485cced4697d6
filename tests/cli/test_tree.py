"""The command tree: nouns, verbs, and their lazy loading."""

import click
import pytest

from rmq_spark.cli.main import command_tree
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


def every_command(command, context):
    if not isinstance(command, click.Group):
        yield context
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        yield from every_command(
            child,
            click.Context(
                child,
                context,
                name,
                terminal_width=80,
                max_content_width=80,
            ),
        )


def test_own_options_of_every_command_fit_the_first_screen():
    """A screen has 24 lines of 80 columns."""
    root = command_tree()
    seen = 0
    for context in every_command(root, click.Context(root, info_name="rocketpoll")):
        lines = context.get_help().splitlines()
        if "Options:" in lines:
            end = lines.index("", lines.index("Options:"))
            assert end <= 24, (context.command_path, end)
            seen += 1
    assert seen > 30


def test_nouns_list_their_verbs_with_a_whole_sentence():
    root = command_tree()
    context = click.Context(root, info_name="rocketpoll")
    for name in root.list_commands(context):
        noun = root.get_command(context, name)
        if isinstance(noun, click.Group):
            help_text = click.Context(noun, context, name, terminal_width=80).get_help()
            assert "..." not in help_text.partition("Commands:")[2], name


def test_command_returns_what_its_function_returns():
    assert run(CommandGroup("noun", commands={"leaf": leaf}), "leaf") == 7


@pytest.mark.parametrize(("name", "hint"), [("laef", ". Did you mean leaf?"), ("xyz", "")])
def test_misspelt_command_is_refused_with_the_nearest(name, hint):
    with pytest.raises(click.UsageError) as raised:
        run(CommandGroup("noun", commands={"leaf": leaf}), name)
    assert raised.value.message == f"there is no command {name}{hint}"
