"""Pages that are generated: commands, options, settings, metrics, Python's names, decisions.

What they tell is asked of the code when the site is built, so that they are never behind it.
"""

from __future__ import annotations

import inspect
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final
from urllib.request import urlopen

import click
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import rocketpoll
import rocketpoll.spark
from rmq_spark.cli.main import SECTIONS, command_tree
from rmq_spark.cli.shell.help_topics import TOPICS, help_topic
from rmq_spark.spark.options.table import OPTIONS, Use
from rocketpoll import Admin, EmbeddedBroker, aio, errors
from rocketpoll.broker.common.setting import SETTING
from rocketpoll.broker.settings.settings import SECTIONS as SETTINGS

_DOCS: Final = Path(__file__).parent.parent / "docs"
_PROGRAM: Final = "rocketpoll"
_WIDTH: Final = 96
_OF_ALL_METRICS: Final = frozenset({"cluster", "node_id", "node_type"})


def commands() -> str:
    """Return the page of all commands, with the help that each gives."""
    parts = [
        "# Commands",
        (
            "The help of each command, as printed by `rocketpoll COMMAND --help`. "
            "The guide is [The command line](../command-line.md)."
        ),
    ]
    for topic in TOPICS:
        parts += [f"## help {topic}", f"```text\n{help_topic(topic)}\n```"]
    tree = command_tree()
    for section, leaves in SECTIONS.items():
        parts.append(f"## {section}")
        with click.Context(tree, info_name=_PROGRAM) as root:
            for name in leaves:
                command = tree.get_command(root, name)
                if command is None:
                    raise LookupError(f"{_PROGRAM} lists {name}, and has no such command")
                parts += _helps(command, root, name)
    return "\n\n".join(parts) + "\n"


def _helps(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    context = click.Context(
        command, parent, name, terminal_width=_WIDTH, max_content_width=_WIDTH, color=False
    )
    path = context.command_path.removeprefix(f"{_PROGRAM} ")
    yield f"### {path}"
    yield f"```text\n{command.get_help(context).rstrip()}\n```"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            within = command.get_command(context, each)
            if within is not None:
                yield from _helps(within, context, each)


def options() -> str:
    """Return the page of all options of the Spark source and sink, with their meaning in a line."""
    lines = [
        "# Options of source and sink",
        "",
        (
            "Every option of `spark.readStream`, `spark.read` and `writeStream` or `write` with "
            '`format("rocketpoll")`. [Options and columns](../options.md) has their defaults and '
            "describes them in full."
        ),
        "",
        "| option | for | meaning |",
        "|---|---|---|",
    ]
    for name, option in OPTIONS.items():
        uses = [use.value for use in Use if use in option.uses]
        for_whom = "all" if len(uses) == len(Use) else ", ".join(uses)
        meaning = option.meaning
        if option.alias_of:
            meaning = meaning.replace("the same", f"the same as `{option.alias_of}`", 1)
        lines.append(f"| `{name}` | {for_whom} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Return the page of all metrics, as a broker that has just been started shows them."""
    lines = [
        "# Metrics",
        "",
        (
            "The metrics of a broker with `metricsPort`, at `/metrics`. Each has the labels "
            "`cluster`, `node_type` and `node_id`; further labels are listed if a new broker "
            "already has samples with them. [Operating a broker](../operate.md) has alerts, what "
            "to do about each, and a dashboard."
        ),
        "",
        "| metric | kind | meaning |",
        "|---|---|---|",
    ]
    for family in _families():
        end = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels}
        further = ", ".join(f"`{label}`" for label in sorted(labels - _OF_ALL_METRICS - {"le"}))
        says = _cell(family.documentation) + (further and f" By {further}.")
        lines.append(f"| `{family.name}{end}` | {family.type} | {says} |")
    return "\n".join(lines) + "\n"


def _families() -> list[Metric]:
    """Return the metrics of a broker with a topic, a group, and clients of each kind."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EmbeddedBroker(metricsPort=port) as broker:
        broker.send("orders", "one")
        with Admin(broker.address) as admin:
            for queue in admin.topic_offsets("orders"):
                admin.set_offset("billing", queue, 0, missing_ok=True)
        broker.messages("orders")
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return list(text_string_to_metric_families(answer.read().decode()))


def settings() -> str:
    """Return the page of all settings of the broker, with their defaults."""
    lines = [
        "# Settings of the broker",
        "",
        (
            "Write settings as lines `key=value` in the file of `rocketpoll broker -c FILE`, as "
            "arguments of that command, or as arguments of `EmbeddedBroker`. They have RocketMQ's "
            "names where RocketMQ has them; the last column is RocketMQ's default if it differs. "
            "[broker.conf](../../conf/broker.conf) is a file with all of them."
        ),
        "",
        "| setting | default | meaning | RocketMQ's default |",
        "|---|---|---|---|",
    ]
    for kind in SETTINGS.values():
        for field in fields(kind):
            if SETTING in field.metadata:
                said = field.metadata[SETTING]
                default = (
                    ""
                    if field.default is MISSING
                    else f"{said.value_type.to_text(field.default)}".strip()
                )
                shown = f"`{default}`" if default else ""
                lines.append(
                    f"| `{said.key}` | {shown} | {_cell(said.comment)} | {_cell(said.rocketmq)} |"
                )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _NamesPage:
    """A page of some of the names in rocketpoll. One page of all would take a browser seconds."""

    title: str
    guides: str
    names: str

    @property
    def path(self) -> str:
        return f"{self.title}.md"


_METHODS: Final = (FunctionType, property, classmethod, staticmethod)
_ATTRIBUTE: Final = re.compile(r'^ +self\.(\w+)(?:: .+)? = .+\n +"""', re.MULTILINE)
"""An attribute with a docstring."""

_NAMES_PAGES: Final = (
    _NamesPage(
        "producers",
        "[client](../client.md)",
        "Message MessageQueue Producer ProducerHealth SchemaRegistry SendResult SendRules "
        "SendStatus Serializer TransactionProducer TransactionResult TransactionState avro "
        "protobuf",
    ),
    _NamesPage(
        "consumers",
        "[consumers](../consumers.md), [filters](../filters.md)",
        "ConsumeConcurrentlyContext ConsumeConcurrentlyStatus ConsumeFromWhere "
        "ConsumeOrderlyContext ConsumeOrderlyStatus Consumer ConsumerHealth LitePullConsumer "
        "LitePullSettings MessageExt MessageModel PullLimits PushConsumer PushSettings "
        "SimpleConsumer by_sql by_tag",
    ),
    _NamesPage(
        "admin",
        "[client](../client.md)",
        "AclPolicy Admin ClientInstance ClusterUser Credentials GroupState LATEST_MS Lag "
        "MessageTrace TlsSettings TraceType read_committed read_table",
    ),
    _NamesPage(
        "testing",
        "[a broker in tests](../embedded.md), [test step by step](../testing.md)",
        "ClientError ConfigError EmbeddedBroker EmbeddedBrokerError NotInTime RocketPollError "
        "StreamTestError collect_stream stream_rows stream_test wait_until",
    ),
)


def python() -> str:
    """Return the page that leads to each name in rocketpoll and to each method of its classes."""
    parts = [
        "# Python: rocketpoll",
        (
            "The names that programs import from `rocketpoll`, and the methods of each class. "
            "Guides: [client](../client.md), [consumers](../consumers.md), "
            "[tests](../testing.md)."
        ),
    ]
    for page in _NAMES_PAGES:
        parts.append(f"## {page.title.capitalize()}")
        parts += [_index_entry(name, page.path) for name in page.names.split()]
    return "\n\n".join(parts) + "\n"


def _index_entry(name: str, path: str) -> str:
    """Return the paragraph of a name, with anchors and links for it and its methods."""
    each = getattr(rocketpoll, name)
    to = path.replace(".md", ".html")

    def link(label: str, anchor: str) -> str:
        return f'<a id="{anchor}" href="{to}#{anchor}"><code>{label}</code></a>'

    if not _is_documented(each, name):
        return link(name, name.lower())
    own = f"{rocketpoll.__name__}.{name}"
    about = (inspect.getdoc(each) or "").partition("\n\n")[0].replace("\n", " ")
    entry = f"{link(name, own)}: {about}"
    methods = [link(method, f"{own}.{method}") for method in _public_methods(each)]
    return f"{entry}<br>\n{' '.join(methods)}" if methods else entry


def _is_documented(each: Any, name: str) -> bool:
    """Say whether a name in rocketpoll has a docstring on the page of its group."""
    is_value = isinstance(each, (int, str))
    return not is_value and each.__name__ == name and name not in errors.__all__


def _public_methods(kind: Any) -> list[str]:
    """Return the names of what a class has a docstring for, inherited members of ours included."""
    if not inspect.isclass(kind):
        return []
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in {"rocketpoll", "rmq_spark"}:
            found.update(
                name for name, member in vars(base).items() if isinstance(member, _METHODS)
            )
            with suppress(OSError):  # a class that a call has made has no source
                found.update(_ATTRIBUTE.findall(inspect.getsource(base)))
    return sorted(name for name in found if not name.startswith("_"))


def _names_page(page: _NamesPage) -> str:
    text = f"Part of [rocketpoll](python.md). Guides: {page.guides}."
    return _names(rocketpoll, f"# Python: {page.title}", text, page.names.split())


def asyncio_names() -> str:
    """Return the page of the names that programs import from rocketpoll.aio."""
    return _names(
        aio, "# Python: rocketpoll.aio", "The asyncio client. Guide: [asyncio](../asyncio.md)."
    )


def spark_names() -> str:
    """Return the page of the names that programs import from rocketpoll.spark."""
    return _names(
        rocketpoll.spark,
        "# Python: rocketpoll.spark",
        "Lag, checkpoints and lineage of Spark queries, and the errors of source and sink. Guides: "
        "[the source](../spark.md), [the sink](../sink.md).",
    )


def error_names() -> str:
    """Return the page of the names that programs import from rocketpoll.errors."""
    return _names(
        errors,
        "# Python: rocketpoll.errors",
        "The exceptions. Guide: [troubleshooting](../troubleshooting.md).",
    )


def _names(package: ModuleType, title: str, text: str, chosen: list[str] | None = None) -> str:
    names = [name for name in chosen or package.__all__ if not name.startswith("_")]
    parts = [title, text]
    for name in sorted(names, key=str.casefold):
        each = getattr(package, name)
        if package is not errors and name in errors.__all__:
            parts.append(f"### {name}\n\nAn exception: see [rocketpoll.errors](errors.md).")
            continue
        if isinstance(each, (int, str)):
            parts.append(f"### {name}\n\n`{each!r}`")
        elif each.__name__ != name:
            anchor = f"{package.__name__}.{each.__name__}"
            parts.append(f"### {name}\n\nRocketMQ's name of [`{each.__name__}`](#{anchor}).")
        else:
            parts.append(f"::: {package.__name__}.{name}")
    return "\n\n".join(parts) + "\n"


def decisions() -> str:
    """Return the list of the decisions on record."""
    lines = ["# Design decisions", "", "Each with its reasons, its price and alternatives.", ""]
    for path in sorted((_DOCS / "adr").glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "adr/README.md": decisions,
    "reference/commands.md": commands,
    "reference/options.md": options,
    "reference/settings.md": settings,
    "reference/metrics.md": metrics,
    "reference/python.md": python,
    **{f"reference/{page.path}": partial(_names_page, page) for page in _NAMES_PAGES},
    "reference/aio.md": asyncio_names,
    "reference/errors.md": error_names,
    "reference/spark.md": spark_names,
}
