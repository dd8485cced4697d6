"""``rocketpoll sink``: shows what streaming queries have committed with exactly-once delivery.

The command reads the manifests in a topic's commits topic, but none of the rows that they name. It
also asks rocketpoll brokers, which know the last batch of each sink that stages rows with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, full_name_options
from rmq_spark.cli.shell.failures import Failure, confirm
from rmq_spark.cli.shell.output import local_time, output_option, show_rows, write_text
from rmq_spark.client.errors import RouteNotFound

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin, BrokerSink
    from rmq_spark.client.admin.arrow_reads import SinkBatch
    from rmq_spark.client.manifest import ManifestId

_BATCHES_SHOWN: Final = 20


@click.group(cls=CommandGroup)
def sink() -> None:
    """List, show and forget what queries committed with delivery=exactly_once."""


@sink.command("list", example="rocketpoll sink list bills")
@click.argument("topic", metavar="[TOPIC]", required=False)
@output_option
@full_name_options
def list_sinks(topic: str | None, output: str, access: ClusterAccess) -> None:
    """List the queries and batch writes that have committed to a topic.

    Sinks listed with a broker stage their rows there, and only their last batch is known. Without a
    topic, only these sinks are listed. All other sinks commit with manifests. "repeats" counts
    batches that ran again after they were committed: readers skip them.
    """
    with access.admin() as admin:
        by_sink: dict[str, list[SinkBatch]] = {}
        for batch in [] if topic is None else _committed_batches(topic, admin):
            by_sink.setdefault(_name_of(batch.id), []).append(batch)
        staged = _staged_sinks(topic, admin)
    rows = []
    for name, batches in by_sink.items():
        counting = [batch for batch in batches if batch.is_counted]
        rows.append(
            {
                "sink": name,
                "last_batch": counting[-1].id.batch_id,
                "batches": len(counting),
                "rows": sum(batch.row_count for batch in counting),
                "repeats": len(batches) - len(counting),
                "last": local_time(counting[-1].stored_ms),
            }
        )
    rows += [
        {
            "sink": each.name,
            "broker": each.broker_name,
            "last_batch": each.state.batch_id,
            "last": local_time(each.state.committed_ms),
        }
        for each in staged
    ]
    columns = ["sink", "broker", "last_batch", "batches", "rows", "repeats", "last"]
    none = "no sink has staged batches" if topic is None else f"nothing was committed to {topic}"
    show_rows(rows, columns, output, empty_text=none)


@sink.command(example="rocketpoll sink show bills -n 5")
@click.argument("topic", metavar="TOPIC")
@click.argument("name", metavar="[SINK]", required=False)
@click.option("-n", "--count", type=click.IntRange(1), default=_BATCHES_SHOWN, show_default=True,
              metavar="N", help="Show the latest N batches.")  # fmt: skip
@output_option
@full_name_options
def show(topic: str, name: str | None, count: int, output: str, access: ClusterAccess) -> None:
    """Show the latest batches committed to a topic."""
    with access.admin() as admin:
        batches, staged = _committed_batches(topic, admin), _staged_sinks(topic, admin)
    found = [
        (
            batch.stored_ms,
            {
                "sink": _name_of(batch.id),
                "batch": batch.id.batch_id,
                "rows": batch.row_count,
                "bytes": batch.body_bytes,
                "stored": local_time(batch.stored_ms),
                "run": batch.id.run_id or None,
                "counts": batch.is_counted,
            },
        )
        for batch in batches
    ]
    found += [
        (
            each.state.committed_ms,
            {
                "sink": each.name,
                "broker": each.broker_name,
                "batch": each.state.batch_id,
                "rows": each.state.rows,
                "bytes": each.state.body_bytes,
                "stored": local_time(each.state.committed_ms),
                "counts": True,
            },
        )
        for each in staged
    ]
    if staged:
        found.sort(key=lambda each: each[0])
    rows = [row for _, row in found if name is None or row["sink"] == name]
    if name is not None and not rows:
        raise Failure(
            f"{name} has committed nothing to {topic}",
            f"List its sinks with rocketpoll sink list {topic}",
        )
    columns = ["sink", "broker", "batch", "rows", "bytes", "stored", "run", "counts"]
    show_rows(rows[-count:], columns, output, empty_text=f"nothing was committed to {topic}")


@sink.command(example="rocketpoll sink forget bills-writer --yes")
@click.argument("name", metavar="SINK")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@full_name_options
def forget(name: str, *, yes: bool, access: ClusterAccess) -> None:
    """Make brokers forget a sink and its staged rows.

    Stop the sink for good first: if it continues, batches that it has already committed can be
    committed twice.
    """
    from rmq_spark.client.admin.admin import broker_sinks, remove_sink  # noqa: PLC0415  # --help does not need it

    with access.admin() as admin:
        known = [each for each in broker_sinks(admin) if each.name == name]
        last = max((each.state.batch_id for each in known), default=None)
        what = f"forget sink {name}" if last is None else f"forget sink {name} after batch {last}"
        confirm(what, yes=yes)
        brokers = remove_sink(admin, name)
    if not brokers:
        raise Failure(f"no broker knows sink {name}", "List all with rocketpoll sink list")
    write_text(f"forgot {name} on {', '.join(brokers)}\n")


def _staged_sinks(topic: str | None, admin: Admin) -> list[BrokerSink]:
    from rmq_spark.client.admin.admin import broker_sinks  # noqa: PLC0415  # --help does not need it

    return broker_sinks(admin, topic)


def _committed_batches(topic: str, admin: Admin) -> list[SinkBatch]:
    from rmq_spark.client.admin.arrow_reads import sink_batches  # noqa: PLC0415  # imports pyarrow

    admin.topic_offsets(topic)  # raises if the topic does not exist
    try:
        return sink_batches(admin.instance, topic)
    except RouteNotFound:
        return []


def _name_of(identity: ManifestId) -> str:
    if identity.query_id is None:
        return identity.write_name
    write = f"/{identity.write_name}" if identity.write_name else ""
    return f"{identity.query_id}{write}"
