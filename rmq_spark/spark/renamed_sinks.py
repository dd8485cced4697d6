"""Renamed sinks: a stream whose last batch all may see already, and not under its present name.

    the sink has committed this batch, or the one before ──> it knows (`staging`)
    it has not
      ├─ another sink of the query has committed this batch ──> refused
      ├─ the batch counts by a manifest, of before visibleTo=all ──> refused
      └─ else ──> goes on

A broker knows batches by the sink's name. When a query is killed between a commit and Spark's
`commits/N`, it runs the batch again, which is seen twice if it has another name by then. Within
foreachBatch a query has several sinks, and nobody can tell. This module must not know how rows are
staged.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.client.manifest import ManifestId
from rmq_spark.client.requests.broker_api import BrokerApi
from rmq_spark.spark.committing import has_commits_topic, latest_manifests
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.options import WriteOptions

_BY_MANIFEST: Final = ("a manifest", "visibleTo", "committed_readers")


def refusal_of_renamed(
    options: WriteOptions, api: BrokerApi, address: str, part_of: ManifestId, topic: str
) -> WriteError | None:
    """Return why a stream's batch is refused that counts, and not as one of this sink; or None.

    Args:
        options: The options of the sink.
        api: Asks the broker.
        address: The broker's.
        part_of: The batch, and the query whose it is.
        topic: A topic that has rows of it.

    Raises:
        ClientError: Nobody tells now.
    """
    if part_of.query_id is None or part_of.write_name:
        return None
    for name, last in sorted(api.admin.sinks(address).items()):
        is_same = last.owner == part_of.query_id and topic in last.topics
        if is_same and name != options.sink_name and last.batch_id >= part_of.batch_id:
            return _refusal(options, part_of, topic, f"sink {name}", "sinkName", name)
    if has_commits_topic(options, topic):
        for manifest in latest_manifests(options, part_of, topic):
            if not manifest.id.write_name and manifest.id.batch_id >= part_of.batch_id:
                return _refusal(options, part_of, topic, *_BY_MANIFEST)
    return None


def _refusal(
    options: WriteOptions, part_of: ManifestId, topic: str, by: str, name: str, text: str
) -> WriteError:
    return WriteError(
        f"{part_of} counts in {topic} already, by {by}; sink {options.sink_name} knows nothing of "
        "it, and its rows would be seen twice. Start the query once more as it was, with "
        f'.option("{name}", "{text}") and .trigger(availableNow=True): then its checkpoint is '
        "behind that batch, and the option can be changed"
    )
