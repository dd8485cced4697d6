"""Usage errors: click's, in the words of this command line, and hints for other tools' options.

    No such option '--from-beginning'.  ──>  there is no option --from-beginning. Use --offset start

`HINTS` and `VERB_HINTS` have the options and verbs of Kafka's programs, kcat, rpk and mqadmin, and
what to write here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import click

from rmq_spark.errors import nearest_name

_ADDRESS: Final = ("--namesrv HOST:PORT",)
_PROFILE: Final = ("--profile NAME, with keys and certificates in the profiles file",)
_TOPIC: Final = ("TOPIC, without an option",)
_GROUP: Final = ("--group NAME", "GROUP, without an option")
_START: Final = ("--offset start", "--to start", "--from start")
_END: Final = ("--offset end", "--to end")
_COUNT: Final = ("--count N",)
_TIME: Final = ("--offset 2026-11-23T09:00Z", "--to 2026-11-23T09:00Z", "--from 2026-11-23T09:00Z")

HINTS: Final[Mapping[str, Sequence[str]]] = {
    "--bootstrap-server": _ADDRESS,
    "--bootstrap-servers": _ADDRESS,
    "--broker-list": _ADDRESS,
    "--brokers": _ADDRESS,
    "--namesrvAddr": _ADDRESS,
    "--namesrv-addr": _ADDRESS,
    "--name-server": _ADDRESS,
    "--zookeeper": _ADDRESS,
    "-b": _ADDRESS,
    "--command-config": _PROFILE,
    "--consumer.config": _PROFILE,
    "--consumer-property": _PROFILE,
    "--producer.config": _PROFILE,
    "-X": _PROFILE,
    "--topic": _TOPIC,
    "--topicName": _TOPIC,
    "-t": _TOPIC,
    "--group": _GROUP[1:],
    "--groupName": _GROUP,
    "-g": _GROUP[1:],
    "-G": _GROUP,
    "--from-beginning": _START,
    "--to-earliest": ("--to start",),
    "--to-latest": ("--to end",),
    "--to-offset": ("--to N",),
    "--to-datetime": _TIME,
    "--by-duration": ("--to -1h",),
    "--shift-by": ("--to +N, or --to -N",),
    "--to-current": ("rocketpoll group clone",),
    "--reset-offsets": ("rocketpoll group seek GROUP --to POSITION",),
    "--execute": ("--yes",),
    "--force": ("--yes",),
    "--all-topics": ("none: without --topic, all topics of the group are meant",),
    "--all-groups": ("the pattern '*'",),
    "--members": ("none: members are always shown",),
    "--start-from-date": _TIME,
    "--max-messages": _COUNT,
    "--num": _COUNT,
    "-c": _COUNT,
    "-e": ("none: without --follow, the command stops at the end",),
    "--partition": ("--queue N",),
    "--partitions": ("--queues N", "--queue N"),
    "-p": ("--queue N", "--queues N"),
    "--replication-factor": ("none: RocketMQ replicates brokers, not topics",),
    "-r": ("none: RocketMQ replicates brokers, not topics",),
    "--config": ("--attribute NAME=VALUE",),
    "--formatter": ("--format FORMAT",),
    "--property": ("--format FORMAT",),
    "--describe": ("verb describe",),
    "--list": ("verb list",),
    "--create": ("verb create",),
    "--delete": ("verb delete",),
    "--alter": ("verb alter",),
    "--deliver-after": ("--delay TIME",),
    "--deliver-at": ("--at TIME",),
    "-C": ("rocketpoll consume TOPIC",),
    "-P": ("rocketpoll produce TOPIC",),
    "-L": ("rocketpoll topic list",),
    "-K": ("-f '%k %s\\n' to print keys, or produce --json to send them",),
}
"""Hints by the option of another tool: the first that applies to the command is shown."""

VERB_HINTS: Final[Mapping[str, str]] = {
    "reset": "seek",
    "reset-offsets": "seek",
    "offset-reset": "seek",
    "offset-delete": "seek",
    "add-partitions": "alter",
    "alter-config": "alter",
    "update": "alter",
    "config": "alter",
    "status": "health",
    "metadata": "info",
    "add": "create",
    "remove": "delete",
    "rm": "delete",
    "ls": "list",
}
"""Verbs of rocketpoll for those of other tools."""

COMMAND_HINTS: Final[Mapping[str, str]] = {
    "kafka-topics": "topic",
    "kafka-console-consumer": "consume",
    "kafka-console-producer": "produce",
    "kafka-consumer-groups": "group",
    "kafka-acls": "acl",
    "updateTopic": "topic create",
    "deleteTopic": "topic delete",
    "topicList": "topic list",
    "topicStatus": "topic describe",
    "clusterList": "cluster info",
    "consumerProgress": "group describe",
    "resetOffsetByTime": "group seek",
    "queryMsgById": "message",
    "queryMsgByKey": "consume --key",
    "sendMessage": "produce",
    "printMsg": "consume",
    "consumeMessage": "consume",
    "container": "broker",
    "namesrv": "broker",
    "consumer": "consume",
    "producer": "produce",
    "send": "produce",
    "read": "consume",
    "subscribe": "consume",
    "lag": "group list",
}
"""Commands of rocketpoll for those of other tools."""

_POSITION: Final = re.compile(r"'(beginning|earliest|start|end|latest|stored|s@.*|-?\d+)'")
_INTEGER: Final = re.compile(r"'(?P<text>.*)' is not a valid (integer|integer range)\.")
_RANGE: Final = re.compile(r"(?P<text>\S+) is not in the range .*")
_CHOICE: Final = re.compile(r"(?P<text>'.*') is not one of (?P<known>.*)\.")
_MISSING_PATH: Final = re.compile(r"(?:File|Directory|Path) '(?P<path>.*)' does not exist\.")
_EXTRA: Final = re.compile(r"Got unexpected extra arguments? \((?P<text>.*)\)")
_ADDRESS_FORM: Final = re.compile(r"[\w.-]+:\d+")


def describe_usage_error(error: click.UsageError) -> str:
    """Return what is wrong with a command line and how to write it, without a full stop."""
    text = _describe(error).strip()
    return text.rstrip(".") if not text.endswith("...") else text


def command_hint(name: str, known: Sequence[str]) -> str | None:
    """Return the known command that a wrong name probably means, or None."""
    if name in VERB_HINTS and VERB_HINTS[name] in known:
        return VERB_HINTS[name]
    hint = COMMAND_HINTS.get(name.removesuffix(".sh"))
    if hint is not None and hint.split()[0] in known:
        return hint
    return nearest_name(name, known)


def option_hint(option: str, context: click.Context) -> str | None:
    """Return the hint for an option that a command does not have, or None."""
    command = context.command
    arguments = [
        _argument_name(each) for each in command.params if isinstance(each, click.Argument)
    ]
    known = [
        name
        for each in command.get_params(context)
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
    ]
    for hint in HINTS.get(option, ()):
        first, _, rest = hint.partition(" ")
        if first == "none:":
            return f"None is needed: {rest}"
        if first == "verb":
            if isinstance(command, click.Group) and rest in command.list_commands(context):
                return f"Use {context.command_path} {rest}"
        elif first.startswith("-"):
            if first.rstrip(",") in known:
                return f"Use {hint}"
        elif not first.isupper() or first.rstrip(",") in arguments:
            return f"Use {hint}"
    near = nearest_name(option, [name for name in known if name.startswith("--")])
    return f"Did you mean {near}?" if near else None


def _argument_name(argument: click.Parameter) -> str:
    name = argument.metavar or argument.human_readable_name.upper()
    return name.removeprefix("[").removesuffix("]").removesuffix("...")


def _describe(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        hint = None if error.ctx is None else option_hint(error.option_name, error.ctx)
        problem = f"there is no option {error.option_name}"
        return f"{problem}. {hint}" if hint else problem
    if isinstance(error, click.BadOptionUsage) and "requires an argument" in error.message:
        return f"{error.option_name} needs a value. Write it after the option"
    if isinstance(error, click.MissingParameter):
        return f"{_name(error)} is missing{_example_hint(error.ctx)}"
    if isinstance(error, click.BadParameter):
        return f"{_name(error)}: {_describe_value(error)}"
    if found := _EXTRA.fullmatch(error.message):
        return f"unexpected argument {found['text']}{_example_hint(error.ctx)}"
    return error.format_message()


def _example_hint(context: click.Context | None) -> str:
    example = getattr(context.command, "example", "") if context is not None else ""
    return f". Write for example: {example.splitlines()[0]}" if example else ""


def _name(error: click.BadParameter) -> str:
    param = error.param
    if isinstance(param, click.Option):
        return "/".join(param.opts)
    if param is not None:
        return _argument_name(param)
    return str(error.param_hint or "an argument").strip("'")


def _describe_value(error: click.BadParameter) -> str:
    message, kind = error.message, getattr(error.param, "type", None)
    if found := _CHOICE.fullmatch(message):
        known = found["known"].replace("'", "")
        hint = ". For a position, use --offset" if _POSITION.fullmatch(found["text"]) else ""
        return f"there is no {found['text']}. Use one of {known}{hint}"
    found = _INTEGER.fullmatch(message) or _RANGE.fullmatch(message)
    if found and isinstance(kind, click.types.IntParamType):
        is_address = _ADDRESS_FORM.fullmatch(found["text"])
        hint = ". For an address, use --namesrv" if is_address else ""
        return f"{found['text']} is not {_range_text(kind)}{hint}"
    if found := _MISSING_PATH.fullmatch(message):
        return f"{found['path']} does not exist. Check the path"
    return message


def _range_text(kind: object) -> str:
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        return f"a whole number from {low:,} to {high:,}"
    if low is not None:
        return f"a whole number of at least {low:,}"
    return "a whole number"
