"""Usage errors name the problem and the remedy, also for users of other tools."""

import click
import pytest
from support.programs.cli_commands import EVERY

from rmq_spark.cli.main import SECTIONS, command_tree
from rmq_spark.cli.shell.usage_errors import COMMAND_HINTS, HINTS, VERB_HINTS, option_hint


def contexts():
    """Return the contexts of all commands and command groups."""
    root = click.Context(command_tree(), info_name="rocketpoll")
    for words in dict.fromkeys((*SECTIONS, *EVERY, *(name.split()[0] for name in EVERY))):
        command, context = root.command, root
        for word in words.split():
            found = command.get_command(context, word) if isinstance(command, click.Group) else None
            if found is None:
                break
            command, context = found, click.Context(found, info_name=word, parent=context)
        else:
            yield context


CONTEXTS = list(contexts())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("consume orders --bootstrap-server k:9092", "no option --bootstrap-server. Use --namesrv"),
        ("consume orders --from-beginning", "Use --offset start. See"),
        ("lake orders DIR --from-beginning", "Use --from start. See"),
        ("consume orders --max-messages 5", "Use --count N. See"),
        ("consume orders -o beginning", "Use one of text, json, raw, hex. For a position, "),
        ("consume orders -o -10", "For a position, use --offset"),
        ("consume --topic orders", "Use TOPIC, without an option"),
        ("consume orders -n localhost:9876", "For an address, use --namesrv"),
        ("consume", "TOPIC is missing. Write for example: rocketpoll consume orders --offset -10"),
        ("doctor --bundle", "--bundle needs a value. Write it after the option. See"),
        ("message A B", "unexpected argument B. Write for example: rocketpoll message"),
        ("consume orders -G billing", "Use --group NAME"),
        ("consume orders -n 0", "-n/--count: 0 is not a whole number of at least 1"),
        ("consume orders -n five", "five is not a whole number"),
        ("produce orders --delay-level 99", "--delay-level: 99 is not a whole number from 0 to 18"),
        ("produce orders --broker-list k:9092", "Use --namesrv HOST:PORT"),
        ("group reset billing", "there is no command reset. Did you mean seek?"),
        ("group seek billing --to-earliest", "Use --to start"),
        ("group seek billing --to end --execute", "Use --yes"),
        ("group describe --group billing", "Use GROUP, without an option"),
        ("topic --list", "Use rocketpoll topic list"),
        ("topic create t --replication-factor 3", "None is needed: RocketMQ replicates brokers"),
        ("topic create t --partitions 3", "Use --queues N"),
        ("kafka-topics.sh --list", "Did you mean topic?"),
        ("consumerProgress -g billing", "Did you mean group describe?"),
        ("store verify /nope", "DIR: /nope does not exist. Check the path"),
        ("produce orders --deliver-after 10m", "Use --delay TIME"),
        ("tail orders --consumer.config x", "Use --profile NAME"),
    ],
)  # fmt: skip
def test_usage_error_says_what_to_write(run, line, said):
    ran = run(*line.split())
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert said in ran.err
    assert ran.err.rstrip().endswith("--help")


@pytest.mark.parametrize("option", HINTS)
def test_each_hint_for_an_option_applies_to_some_command_that_lacks_the_option(option):
    hints = set()
    for context in CONTEXTS:
        own = {name for each in context.command.params for name in each.opts}
        if option not in own:
            hints.add(option_hint(option, context))
    for hint in HINTS[option]:
        kind, _, rest = hint.partition(" ")
        assert any(
            said is not None and said.endswith(rest if kind in ("none:", "verb") else hint)
            for said in hints
        ), hint


def test_hints_for_verbs_and_commands_name_existing_ones():
    nouns = {name for section in SECTIONS.values() for name in section}
    verbs = {name.split()[-1] for name in EVERY}
    assert set(VERB_HINTS.values()) <= verbs
    assert not set(COMMAND_HINTS) & nouns
    for hint in COMMAND_HINTS.values():
        command = hint.partition(" --")[0]
        assert command in EVERY or command in nouns
