"""``rocketpoll group``: list, describe, seek, clone, delete.

What seek would do is worked out for all queues before the first is changed: so half of a cluster
that does not answer leaves all as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_spark.cli.connection import Access, connected
from rmq_spark.cli.failures import Failure, line_of
from rmq_spark.cli.output import output_option, show_document, show_rows, time_of
from rmq_spark.cli.places import PLACE, Kind, Place
from rmq_spark.cli.queues import QUEUE, QueueName, spans_from
from rmq_spark.cli.topic_command import confirm
from rmq_spark.cli.tree import Noun
from rmq_spark.client.errors import ClientError, NotSupported, RouteNotFound
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX, dlq_topic, is_system_group, retry_topic

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.admin.group_offsets import Lag

_PLAN: Final = ("topic", "broker", "queue", "committed", "to", "moves", "behind")


class Move(NamedTuple):
    """One queue's part of a seek; ``committed`` is None if the group has committed nothing."""

    queue: MessageQueue
    committed: int | None
    to: int
    end: int


@click.group(cls=Noun)
def group() -> None:
    """Look at lag, members and offsets of consumer groups, and change offsets."""


@group.command("list", example="rocketpoll group list")
@click.option("--all", "with_all", is_flag=True, help="RocketMQ's own groups, too.")
@output_option
@connected
def list_groups(*, with_all: bool, output: str, access: Access) -> None:
    """List all groups: members that are online, topics, messages behind."""
    with access.admin() as admin:
        rows = []
        for name in sorted(admin.groups()):
            if is_system_group(name) and not with_all:
                continue
            progress = admin.progress(name)
            times = [lag.last_timestamp for lag in progress]
            rows.append(
                {
                    "group": name,
                    "members": len(admin.members(name)),
                    "topics": sorted(_topics_of(progress)),
                    "behind": sum(lag.messages for lag in progress if not _is_retry(lag.queue)),
                    "last_consumed": time_of(max(times, default=0)),
                }
            )
    columns = ["group", "members", "topics", "behind", "last_consumed"]
    show_rows(rows, columns, output, none="no groups; a consumer's first start makes its group")


@group.command(example="rocketpoll group describe billing")
@click.argument("name", metavar="GROUP")
@output_option
@connected
def describe(name: str, output: str, access: Access) -> None:
    """Show the lag of a group by queue, its members, and what failed.

    For a queue that is behind, "waiting since" is when its next message was stored. last consumed
    is the time of storing, too: of the last message that the group has consumed.
    """
    with access.admin() as admin:
        members = admin.members(name)
        owners = admin.queue_owners(name) if members else {}
        topics = {*_topics_of(admin.progress(name)), *(queue.topic for queue in owners)}
        if not topics and not members:
            _check_group(admin, name)
        lags = [
            lag
            for topic in sorted(topics)
            if not topic.startswith(RETRY_PREFIX)
            for lag in _lag_of(admin, name, topic)
        ]
        queues = list(_queue_rows(admin, lags, owners))
        document = {
            "group": name,
            "members": len(members),
            "behind": sum(lag.messages for lag in lags),
            "waiting_for_retry": sum(
                lag.messages for lag in _lag_of(admin, name, retry_topic(name))
            ),
            "dead_letters": _messages_in(admin, dlq_topic(name)),
            "queues": queues,
            "online": [
                {
                    "client": member.client_id,
                    "address": member.client_addr,
                    "language": member.language,
                    "queues": sum(
                        owner == member.client_id and not _is_retry(queue)
                        for queue, owner in owners.items()
                    ),
                }
                for member in members
            ],
        }
    show_document(document, output)


@group.command(
    example="rocketpoll group seek billing --to @-1h --dry-run\n"
    "rocketpoll group seek billing --topic orders --queue 0 --to +1",
)
@click.argument("name", metavar="GROUP")
@click.option("--to", "place", type=PLACE, required=True, metavar="PLACE",
              help="start, end, an offset, a time (@09:00, @-1h, @2026-11-23T09:00Z), or relative "
              "to what it has committed: +1 skips one message, -10 repeats ten.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="TOPIC",
              help="Only this topic, instead of all; may be given several times.")  # fmt: skip
@click.option("-q", "--queue", type=QUEUE, metavar="N|BROKER:N", help="Only this queue.")
@click.option("--dry-run", is_flag=True, help="Show what it would do, and change nothing.")
@output_option
@connected
def seek(
    name: str,
    place: Place,
    topics: tuple[str, ...],
    queue: QueueName | None,
    output: str,
    *,
    dry_run: bool,
    access: Access,
) -> None:
    """Have a group go on elsewhere, online or not, and show each queue's old and new offset.

    Members that are online are told, and go on there at once. behind is how much the group has
    before it then.
    """
    with access.admin() as admin:
        chosen = list(topics) or sorted(
            each for each in _topics_of(admin.progress(name)) if not each.startswith(RETRY_PREFIX)
        )
        if not chosen:
            _check_group(admin, name)
            raise Failure(f"{name} has committed nothing yet: say which --topic")
        if not topics and queue is not None and len(chosen) > 1:
            raise click.UsageError(f"--queue needs --topic: {name} consumes {', '.join(chosen)}")
        if topics and _is_unknown(admin, name):
            _check_group(admin, name)
        plan = [move for topic in chosen for move in _plan(admin, name, topic, place, queue)]
        if not dry_run:
            _carry_out(admin, name, plan, place, is_all=queue is None)
    show_rows(map(_move_row, plan), _PLAN, output, none=f"{name} has no queues there")
    if output == "table":
        done = "nothing was changed: a dry run" if dry_run else "moved"
        sys.stderr.write(f"{done}\n")


@group.command(example="rocketpoll group clone billing billing-test")
@click.argument("source", metavar="GROUP")
@click.argument("target", metavar="NEW-GROUP")
@click.option("--topic", metavar="TOPIC", help="Only this topic; all that GROUP consumes.")
@output_option
@connected
def clone(source: str, target: str, topic: str | None, output: str, access: Access) -> None:
    """Give a group the offsets of another, so that it goes on where that one is.

    Offsets that NEW-GROUP has already are replaced.
    """
    with access.admin() as admin:
        if _is_unknown(admin, source):
            _check_group(admin, source)
        members = admin.members(target)
        if members:
            raise Failure(f"{target} has {len(members)} members online: stop them first")
        admin.clone_offsets(source, target, topic=topic)
        rows = [
            {
                "topic": lag.queue.topic,
                "broker": lag.queue.broker_name,
                "queue": lag.queue.queue_id,
                "committed": lag.consumer_offset,
                "behind": lag.messages,
            }
            for lag in admin.progress(target)
            if not _is_retry(lag.queue)
        ]
    columns = ["topic", "broker", "queue", "committed", "behind"]
    show_rows(rows, columns, output, none=f"{source} has no offsets")


@group.command(example="rocketpoll group delete billing-test --yes")
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(name: str, *, yes: bool, access: Access) -> None:
    """Delete a group, with its offsets, its retries and its dead letters."""
    with access.admin() as admin:
        if _is_unknown(admin, name):
            _check_group(admin, name)
        members = admin.members(name)
        if members:
            raise Failure(f"{name} has {len(members)} members online: stop them first")
        dead = _messages_in(admin, dlq_topic(name))
        confirm(f"delete {name} with its offsets and {dead} dead letters", yes=yes)
        admin.delete_group(name)
    sys.stdout.write(f"deleted {name} with its offsets and {dead} dead letters\n")


def _plan(admin: Admin, name: str, topic: str, place: Place, queue: QueueName | None) -> list[Move]:
    """Work out what seek does in a topic, asking all its brokers."""
    lags = {lag.queue: lag for lag in admin.lag(name, topic)}
    is_relative = place.kind in (Kind.BACK, Kind.FORTH)
    held = {
        span.queue: span for span in spans_from(admin.instance, topic, Place(Kind.START), queue)
    }
    if not is_relative:
        targets = {
            span.queue: span.start for span in spans_from(admin.instance, topic, place, queue)
        }
    moves = []
    for each, span in held.items():
        committed = lags[each].consumer_offset if each in lags else None
        if not is_relative:
            moves.append(Move(each, committed, targets[each], span.end))
            continue
        if committed is None and span.end > span.start:
            raise Failure(
                f"{name} has committed nothing in {topic} {each.broker_name}:{each.queue_id}, so "
                "that nothing is relative to it: seek to start, end, an offset or a time"
            )
        step = place.number if place.kind is Kind.FORTH else -place.number
        to = min(max((committed or 0) + step, span.start), span.end)
        moves.append(Move(each, committed, to, span.end))
    return moves


def _carry_out(
    admin: Admin, name: str, plan: Iterable[Move], place: Place, *, is_all: bool
) -> None:
    plan = list(plan)
    for done, move in enumerate(plan):
        try:
            admin.set_offset(name, move.queue, move.to)
        except NotSupported as error:  # noqa: PERF203  # what was done before has to be told
            # RocketMQ 4.9 tells members only of times: that will do where all queues go to one.
            times = {Kind.START: 0, Kind.END: -1, Kind.TIME: place.number}
            if done or not is_all or place.kind not in times:
                raise Failure(f"{error.remark}") from error
            for topic in sorted({each.queue.topic for each in plan}):
                admin.reset_to_time(name, topic, times[place.kind])
            return
        except ClientError as error:
            raise Failure(
                f"{line_of(error)}; {done} of {len(plan)} queues were moved before"
            ) from error


def _move_row(move: Move) -> dict[str, object]:
    return {
        "topic": move.queue.topic,
        "broker": move.queue.broker_name,
        "queue": move.queue.queue_id,
        "committed": move.committed,
        "to": move.to,
        "moves": None if move.committed is None else move.to - move.committed,
        "behind": move.end - move.to,
    }


def _queue_rows(
    admin: Admin, lags: Iterable[Lag], owners: Mapping[MessageQueue, str]
) -> Iterator[dict[str, object]]:
    """Yield a row for each queue; where the group is behind, its next message is looked at."""
    firsts: dict[MessageQueue, int] = {}
    for lag in lags:
        if lag.queue not in firsts:
            held = admin.topic_offsets(lag.queue.topic)
            firsts.update({queue: offsets.min_offset for queue, offsets in held.items()})
        waiting = None
        if lag.messages:  # those behind which the group is may be deleted by now
            place = max(lag.consumer_offset or 0, firsts.get(lag.queue, 0))
            waiting = admin.message_at(lag.queue, place)
        yield {
            "topic": lag.queue.topic,
            "broker": lag.queue.broker_name,
            "queue": lag.queue.queue_id,
            "committed": lag.consumer_offset,
            "end": lag.broker_offset,
            "behind": lag.messages,
            "last_consumed": time_of(lag.last_timestamp),
            "waiting_since": None if waiting is None else time_of(waiting.store_timestamp),
            "member": owners.get(lag.queue),
        }


def _lag_of(admin: Admin, name: str, topic: str) -> Iterable[Lag]:
    try:
        return admin.lag(name, topic)
    except RouteNotFound:  # it was deleted since, or never made, as no message has failed
        return ()


def _messages_in(admin: Admin, topic: str) -> int:
    try:
        offsets = admin.topic_offsets(topic).values()
    except RouteNotFound:
        return 0
    return sum(each.max_offset - each.min_offset for each in offsets)


def _topics_of(progress: Iterable[Lag]) -> set[str]:
    return {lag.queue.topic for lag in progress if not _is_retry(lag.queue)}


def _is_retry(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_PREFIX)


def _is_unknown(admin: Admin, name: str) -> bool:
    return name not in admin.groups() and not admin.progress(name)


def _check_group(admin: Admin, name: str) -> None:
    """Raise a Failure unless there is such a group."""
    known = admin.groups()
    if name not in known:
        near = get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise Failure(f"there is no group {name}: {hint}rocketpoll group list shows all")
