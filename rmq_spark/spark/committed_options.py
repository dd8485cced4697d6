"""Options by which the commits topic of a source's topic is read, made of those of the source.

What contradicts them was refused by `committed_checks`. It knows no message.
"""

from __future__ import annotations

from dataclasses import replace

from rmq_spark.client.manifest import commits_topic
from rmq_spark.spark.bad_records import OnBadRecord
from rmq_spark.spark.body_options import BINARY_BODIES
from rmq_spark.spark.options import ReadOptions


def commits_options(options: ReadOptions) -> ReadOptions:
    """Return the options by which the commits topic of a source's topic is read."""
    (topic,) = options.selection.topics
    selection = replace(options.selection, option="isolation", topics=(commits_topic(topic),))
    return replace(
        options,
        selection=selection,
        expression="*",
        on_bad_record=OnBadRecord.FAIL,
        checks_crc=True,
        columns=(),
        body=BINARY_BODIES,
        pieces_min=None,
        tasks_max=None,
        piece_rows_max=None,
    )
