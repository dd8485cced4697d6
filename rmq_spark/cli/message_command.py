"""``rocketpoll message``: finds a message by either id, and says who has consumed it.

Ids of brokers name the place. Those of producers are looked up in the index of a topic, which has
to be named, or all are asked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.connection import Access, connected
from rmq_spark.cli.failures import Failure
from rmq_spark.cli.message_text import json_of
from rmq_spark.cli.output import output_option, show_document
from rmq_spark.cli.tree import HELP_SETTINGS, Verb
from rmq_spark.client.errors import BrokerRefused, ConnectionFailed, NotFound, RouteNotFound
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import RecordError
from rmq_spark.wire.message_id import decode_offset_message_id
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, is_system_group
from rmq_spark.wire.properties import RESERVED_NAMES

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin


@click.command(
    cls=Verb,
    context_settings=HELP_SETTINGS,
    example="rocketpoll message $(rocketpoll consume orders -n 1 -f %i) --topic orders",
)
@click.argument("message_id", metavar="ID")
@click.option("--topic", metavar="TOPIC", help="Where to look; without, all topics are searched.")
@output_option
@connected
def message(message_id: str, topic: str | None, output: str, access: Access) -> None:
    """Show where a message is, what it holds, and which groups have consumed it.

    A group has, if it has committed an offset behind the message. One that filters it away passes
    over it, and counts as well.
    """
    with access.admin() as admin:
        copies = _found(admin, message_id, topic)
        found = copies[0]
        document = {
            **json_of(found),
            "offset_id": found.offset_message_id,
            "commit_log_offset": found.commit_log_offset,
            "flag": found.flag,
            "delay_level": found.delay_level,
            "system_properties": {
                name: value for name, value in found.properties.items() if name in RESERVED_NAMES
            },
            "groups": _groups(admin, found),
        }
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


def _found(admin: Admin, message_id: str, topic: str | None) -> Sequence[MessageExt]:
    """Return a message's copies, the first one first.

    Raises:
        Failure: There are none.
    """
    if topic is not None:
        try:
            return admin.messages_by_unique_id(topic, message_id)
        except NotFound:
            found = _by_offset_id(admin, message_id)
            if found is None or found.topic != topic:
                raise Failure(
                    f"{topic} has no message {message_id}; without --topic all topics are searched"
                ) from None
            return [found]
    found = _by_offset_id(admin, message_id)
    if found is not None:
        return [found]
    topics = sorted(each for each in admin.topics() if not each.startswith(RETRY_PREFIX))
    if sys.stderr.isatty():
        sys.stderr.write(f"{len(topics)} topics are searched; --topic is quicker\n")
    for each in topics:
        try:
            return admin.messages_by_unique_id(each, message_id)
        except (NotFound, RouteNotFound):  # noqa: PERF203  # it is in another topic
            continue
    raise Failure(
        f"no topic has a message {message_id}: it was deleted since, or the id is another one's"
    )


def _by_offset_id(admin: Admin, message_id: str) -> MessageExt | None:
    """Return the message at the place that an id names, if it is a broker's id."""
    try:
        host, _ = decode_offset_message_id(message_id)
    except RecordError:
        return None
    if str(host) not in admin.masters().values():
        return None  # an id of a producer has the same form
    try:
        return admin.message_by_offset_id(message_id)
    except (BrokerRefused, ConnectionFailed):
        return None


def _groups(admin: Admin, found: MessageExt) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in sorted(admin.groups_of_topic(found.topic)):
        if is_system_group(name):  # tools that look, and consume nothing
            continue
        lags = {lag.queue: lag for lag in admin.lag(name, found.topic)}
        committed = lags[found.queue].consumer_offset if found.queue in lags else None
        if committed is None:
            state = "has committed nothing"
        elif committed > found.queue_offset:
            state = "consumed"
        else:
            state = f"not yet: {found.queue_offset - committed} before it"
        if not found.topic.startswith(DLQ_PREFIX) and _is_dead(admin, name, found):
            state = f"dead letter: rocketpoll dlq show {name}"
        rows.append({"group": name, "state": state, "committed": committed})
    return rows


def _is_dead(admin: Admin, name: str, found: MessageExt) -> bool:
    try:
        return bool(admin.messages_by_unique_id(dlq_topic(name), found.message_id))
    except (NotFound, RouteNotFound):
        return False
