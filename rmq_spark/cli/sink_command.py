"""``rocketpoll sink``: what streaming queries have committed to a topic with exactly once.

It reads the manifests in the topic's commits topic, and none of the rows that they name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rmq_spark.cli.connection import Access, connected
from rmq_spark.cli.failures import Failure
from rmq_spark.cli.output import output_option, show_rows, time_of
from rmq_spark.cli.tree import Noun
from rmq_spark.client.errors import RouteNotFound

if TYPE_CHECKING:
    from rmq_spark.client.admin.committed_reads import SinkBatch
    from rmq_spark.client.manifest import ManifestId

_SHOWN: Final = 20


@click.group(cls=Noun)
def sink() -> None:
    """List and show what queries have committed to a topic with delivery=exactly_once."""


@sink.command("list", example="rocketpoll sink list bills")
@click.argument("topic", metavar="TOPIC")
@output_option
@connected
def list_sinks(topic: str, output: str, access: Access) -> None:
    """List the queries and batch writes that have committed to a topic.

    Repeats are batches that were run again after they had counted: readers pass them over.
    """
    by_sink: dict[str, list[SinkBatch]] = {}
    for batch in _batches(topic, access):
        by_sink.setdefault(_name_of(batch.id), []).append(batch)
    rows = []
    for name, batches in by_sink.items():
        counting = [batch for batch in batches if batch.counts]
        rows.append(
            {
                "sink": name,
                "last_batch": counting[-1].id.batch_id,
                "batches": len(counting),
                "rows": sum(batch.row_count for batch in counting),
                "repeats": len(batches) - len(counting),
                "last": time_of(counting[-1].stored_ms),
            }
        )
    columns = ["sink", "last_batch", "batches", "rows", "repeats", "last"]
    show_rows(rows, columns, output, none=f"nothing was committed to {topic}")


@sink.command(example="rocketpoll sink show bills -n 5")
@click.argument("topic", metavar="TOPIC")
@click.argument("name", metavar="[SINK]", required=False)
@click.option("-n", "--count", type=click.IntRange(1), default=_SHOWN, show_default=True,
              metavar="N", help="The latest N.")  # fmt: skip
@output_option
@connected
def show(topic: str, name: str | None, count: int, output: str, access: Access) -> None:
    """Show the latest batches that were committed to a topic, by all sinks or by one."""
    batches = _batches(topic, access)
    if name is not None:
        known = {_name_of(batch.id) for batch in batches}
        if name not in known:
            raise Failure(f"{name} has committed nothing to {topic}: rocketpoll sink list {topic}")
        batches = [batch for batch in batches if _name_of(batch.id) == name]
    rows = [
        {
            "sink": _name_of(batch.id),
            "batch": batch.id.batch_id,
            "rows": batch.row_count,
            "stored": time_of(batch.stored_ms),
            "run": batch.id.run_id or None,
            "counts": batch.counts,
        }
        for batch in batches[-count:]
    ]
    columns = ["sink", "batch", "rows", "stored", "run", "counts"]
    show_rows(rows, columns, output, none=f"nothing was committed to {topic}")


def _batches(topic: str, access: Access) -> list[SinkBatch]:
    from rmq_spark.client.admin.committed_reads import sink_batches  # noqa: PLC0415  # pyarrow

    with access.admin() as admin:
        admin.topic_offsets(topic)  # a topic that is not there is told as such
        try:
            return sink_batches(admin.instance, topic)
        except RouteNotFound:
            return []


def _name_of(identity: ManifestId) -> str:
    if identity.query_id is None:
        return identity.write_name
    write = f"/{identity.write_name}" if identity.write_name else ""
    return f"{identity.query_id}{write}"
