"""``rocketpoll message``: finds a message by either id, and shows which groups have consumed it.

`message_trace` finds and traces it, for the console as well.
"""

from __future__ import annotations

import sys

import click

from rmq_spark.cli.messages.message_text import message_fields
from rmq_spark.cli.messages.message_trace import (
    Delivery,
    DeliveryState,
    TracedEvent,
    find_copies,
    trace_deliveries,
    traced_events,
    transaction_of,
)
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.output import local_time, output_option, show_document
from rmq_spark.errors import format_count
from rmq_spark.wire.message.properties import RESERVED_NAMES
from rmq_spark.wire.names import TRACE_TOPIC


@click.command(
    cls=CommandWithExample,
    example="rocketpoll message $(rocketpoll consume orders -n 1 -f %i) --topic orders",
)
@click.argument("message_id", metavar="ID")
@click.option("--topic", metavar="TOPIC", help="Search this topic. [default: all topics]")
@click.option(
    "--trace-topic",
    metavar="TOPIC",
    default=TRACE_TOPIC,
    show_default=True,
    help="The topic of traces.",
)
@output_option
@connection_options
def message(
    message_id: str, topic: str | None, trace_topic: str, output: str, access: ClusterAccess
) -> None:
    """Show where a message is, what it contains, and which groups have consumed it.

    A group counts as having consumed the message once its committed offset is past it, also when
    its filter skipped the message. Producers and consumers that record traces add each send and
    each delivery, with its time.
    """

    def print_search(topics: int) -> None:
        searched = format_count(topics, "topic")
        sys.stderr.write(f"searching {searched}. To search one, give --topic\n")

    with access.admin() as admin:
        copies = find_copies(admin, message_id, topic, print_search)
        found = copies[0]
        document = {
            **message_fields(found),
            "offset_id": found.offset_message_id,
            "commit_log_offset": found.commit_log_offset,
            "flag": found.flag,
            "delay_level": found.delay_level,
            "system_properties": {
                name: value for name, value in found.properties.items() if name in RESERVED_NAMES
            },
            "groups": [_group_row(each) for each in trace_deliveries(admin, found)],
        }
        transaction = transaction_of(admin, found)
        if transaction is not None:
            document["transaction"] = transaction._asdict()
        traces = traced_events(admin, found.message_id, trace_topic)
        if traces:
            document["traces"] = [_trace_row(each) for each in traces]
        if len(copies) > 1:  # a send that was tried again may be stored twice
            document["copies"] = [
                {
                    "broker": each.queue.broker_name,
                    "queue": each.queue.queue_id,
                    "offset": each.queue_offset,
                }
                for each in copies
            ]
    show_document(document, output)


def _trace_row(event: TracedEvent) -> dict[str, object]:
    return {
        "time": local_time(event.timestamp_ms) if event.timestamp_ms else None,
        "event": event.action,
        "group": event.group,
        "success": event.is_success,
        "detail": event.detail,
    }


def _group_row(delivery: Delivery) -> dict[str, object]:
    state = {
        DeliveryState.CONSUMED: "consumed",
        DeliveryState.WAITING: f"waiting, {delivery.messages_before} before it",
        DeliveryState.NOT_STARTED: "not started: no committed offset",
        DeliveryState.DEAD_LETTER: f"dead letter: rocketpoll dlq show {delivery.group}",
    }[delivery.state]
    return {
        "group": delivery.group,
        "state": state,
        "committed": delivery.committed,
        "given_back": delivery.retries,
    }
