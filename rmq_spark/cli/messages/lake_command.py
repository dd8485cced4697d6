"""``rocketpoll lake``: writes the messages of a topic to a Delta table, each exactly once.

    offsets in the table ──> messages outside of them ──> rows ──> one commit: rows, offsets

The table itself says where to resume (`TopicTable`); there is no other state. Of each queue it
holds one range of offsets, which grows at its end and, with ``--from``, at its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_spark.cli.messages.delta_table import UNKNOWN_TIME, HeldRange, TopicTable
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, full_name_options
from rmq_spark.cli.shell.failures import Failure, OutageNotes, print_error
from rmq_spark.cli.shell.output import write_text
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    PositiveFloat,
    TopicPosition,
    parse_position,
    resolve_ranges,
)
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    MessageRejected,
    OffsetMoved,
    OffsetOutOfRange,
    TableTooLarge,
    TopicNotUsable,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.reading.read_bounds import ReadRange
    from rmq_spark.wire.message_queue import MessageQueue

_PROGRAM: Final = "rocketpoll lake"
_START: Final = TopicPosition(PositionKind.START)
_END: Final = TopicPosition(PositionKind.END)
_COMMIT_MESSAGES: Final = 500_000
_COMMIT_BYTES: Final = 256 << 20
"""Bytes of rows after which a commit takes no further queues."""

_OUTAGES: Final = (*CONNECTION_FAULTS, BrokerNotFound, TopicNotUsable)
_NEEDED: Final = ("brokerName", "queueId", "queueOffset", "storeTimestamp")
"""Columns that are always read, to recognize the last message of a range."""


@click.command(
    cls=CommandWithExample,
    example="rocketpoll lake orders lake/orders\n"
    "rocketpoll lake orders lake/new-orders --from -1h --columns keys,body",
)
@click.argument("topic")
@click.argument("table")
@click.option("--from", "start", type=parse_position, metavar="POSITION",
              help="Where a new table begins: start, end, -10, +5, 42, or a time such as -1h. An "
              "existing table gets earlier messages as well. [default: start]")  # fmt: skip
@click.option("--until", "end", type=parse_position, metavar="POSITION",
              help="Stop before this position in each queue. [default: end]")  # fmt: skip
@click.option("--follow", is_flag=True, help="At the end, wait for new messages until Ctrl-C.")
@click.option("--interval", type=PositiveFloat(), metavar="SECONDS",
              help="With --follow: pause before new messages are read. [default: 10]")  # fmt: skip
@click.option("--columns", metavar="NAME,...", help="Columns of a new table, as of the Spark "
              "source. [default: those of the source]")  # fmt: skip
@click.option("--on-bad-record", type=click.Choice(["fail", "null", "skip"]), default="fail",
              show_default=True, help="What to do with a message that cannot be read: stop, write "
              "its row without a body, or leave it out.")  # fmt: skip
@click.option("--skip-lost", is_flag=True, help="Go on where the broker has deleted messages that "
              "the table does not have yet.")  # fmt: skip
@click.option("--commit-messages", type=click.IntRange(1), default=_COMMIT_MESSAGES,
              show_default=True, metavar="N", help="Most messages of one commit.")  # fmt: skip
@full_name_options
def lake(
    topic: str,
    table: str,
    start: TopicPosition | None,
    end: TopicPosition | None,
    interval: float | None,
    columns: str | None,
    on_bad_record: str,
    commit_messages: int,
    *,
    follow: bool,
    skip_lost: bool,
    access: ClusterAccess,
) -> None:
    """Write the messages of a topic to a Delta table, each exactly once. Needs no Spark.

    TABLE is a directory or an address such as s3://bucket/orders. Each commit has rows and offsets:
    stop the command at any time, and run it again to resume. Moves no offsets of groups.
    """
    if follow and end is not None:
        raise click.UsageError("--follow and --until exclude each other. Give one")
    if interval is not None and not follow:
        raise click.UsageError("--interval needs --follow. Add it, or leave out --interval")
    chosen = None if columns is None else _parse_columns(columns)
    with access.admin() as admin:
        starts = resolve_ranges(admin.instance, topic, start or _START, None)
        ends = None if follow else resolve_ranges(admin.instance, topic, end or _END, None)
        copy = _TopicCopy(
            admin,
            topic,
            TopicTable(table, topic, chosen),
            starts={bounds.queue: bounds.start for bounds in starts},
            ends=None if ends is None else {bounds.queue: bounds.start for bounds in ends},
            has_start=start is not None,
            on_bad_record=on_bad_record,
            skips_lost=skip_lost,
            commit_messages=commit_messages,
        )
        if follow:
            copy.follow(interval or 10.0)
        while copy.commit_next():
            pass


def _parse_columns(text: str) -> tuple[str, ...]:
    from rmq_spark.client.admin.arrow_reads import check_columns  # noqa: PLC0415  # --help does not need it

    try:
        return check_columns(name.strip() for name in text.split(","))
    except MessageRejected as error:
        raise click.UsageError(f"--columns {text}: {error}") from error


class _MissingRange(NamedTuple):
    """Offsets of one queue to add to a table, and what the table holds of the queue."""

    bounds: ReadRange
    held: HeldRange

    @property
    def is_backfill(self) -> bool:
        """True if the missing offsets precede those in the table. They are added from the end."""
        return self.bounds.start < self.held.first

    def first_part(self, count: int) -> ReadRange:
        start, end = self.bounds.start, self.bounds.end
        if self.is_backfill:
            return self.bounds._replace(start=max(start, end - count))
        return self.bounds._replace(end=min(end, start + count))


@dataclass
class _TopicCopy:
    """Copies a topic to a table, one commit at a time."""

    admin: Admin
    topic: str
    table: TopicTable
    starts: Mapping[MessageQueue, int]
    ends: Mapping[MessageQueue, int] | None
    """The offset of each queue before which to stop; None to continue forever."""
    has_start: bool
    on_bad_record: str
    skips_lost: bool
    commit_messages: int
    _turn: int = field(default=0, init=False)

    def follow(self, interval: float) -> None:
        """Commit new messages forever; wait while brokers do not answer."""
        outage = OutageNotes(f"copying {self.topic}", _OUTAGES, interval)
        while True:
            is_idle = False
            with outage:
                is_idle = not self.commit_next()
            if is_idle:
                time.sleep(interval)

    def commit_next(self) -> bool:
        """Commit the next messages; return False if there are none."""
        self.table.refresh()
        held: dict[MessageQueue, HeldRange] = {}
        missing = self._plan(held)
        if not missing and not held:
            return False
        self._turn += 1
        turn = self._turn % max(1, len(missing))
        try:
            tables = self._read([*missing[turn:], *missing[:turn]], held)
        except TableTooLarge:
            if self.commit_messages == 1:
                raise
            self.commit_messages //= 2
            return True
        except (OffsetMoved, OffsetOutOfRange):
            self.table.refresh()
            self._plan({})  # raises unless the broker has deleted messages before a backfill
            return True
        rows = _concatenate(tables, self.table.columns)
        version = self.table.append(rows, held)
        write_text(f"version {version}: {rows.num_rows} messages of {self.topic}\n")
        return True

    def _plan(self, new: dict[MessageQueue, HeldRange]) -> list[_MissingRange]:
        """Return the ranges missing in the table; add queues unknown to the table to ``new``."""
        missing = []
        for bounds in resolve_ranges(self.admin.instance, self.topic, _START, None):
            held = self.table.held(bounds.queue)
            if held is None:
                # If the table has other queues already, a new queue is read from its first message.
                start = bounds.start if self.table.has_commits else self.starts.get(bounds.queue, 0)
                start = min(max(start, bounds.start), bounds.end)
                held = new[bounds.queue] = HeldRange(start, start)
            elif held.next_offset < bounds.start:
                held = new[bounds.queue] = self._skip_lost(bounds, held)
            elif held.next_offset > bounds.end:
                raise _recreated(bounds.queue, held, f"the queue ends at offset {bounds.end}")
            end = (
                bounds.end if self.ends is None else min(bounds.end, self.ends.get(bounds.queue, 0))
            )
            start = self.starts.get(bounds.queue, held.first) if self.has_start else held.first
            parts = (
                bounds._replace(start=held.next_offset, end=end),
                bounds._replace(start=max(bounds.start, start), end=held.first),
            )
            missing += [_MissingRange(part, held) for part in parts if part.start < part.end]
        return missing

    def _skip_lost(self, bounds: ReadRange, held: HeldRange) -> HeldRange:
        lost = (
            f"the broker has deleted offsets {held.next_offset} to {bounds.start - 1} of "
            f"{bounds.queue}, which the table does not have yet"
        )
        if not self.skips_lost:
            raise Failure(lost, f"Add --skip-lost to go on at offset {bounds.start}")
        print_error(_PROGRAM, f"{lost}: going on at offset {bounds.start}")
        return HeldRange(held.first, bounds.start)

    def _read(
        self, missing: Iterable[_MissingRange], held: dict[MessageQueue, HeldRange]
    ) -> list[pa.Table]:
        """Return the rows of one commit; put the ranges that include them in ``held``."""
        tables: list[pa.Table] = []
        columns = list(dict.fromkeys((*self.table.columns, *_NEEDED)))
        left = self.commit_messages
        for missing_range in missing:
            part = missing_range.first_part(left)
            rows = self.admin.read_table(
                self.topic,
                start={part.queue: part.start},
                end={part.queue: part.end},
                columns=columns,
                on_bad_record=self.on_bad_record,
                bytes_max=_COMMIT_BYTES,
            )
            self._check_identity(missing_range)
            tables.append(rows)
            known = held.get(part.queue, missing_range.held)
            held[part.queue] = (
                known._replace(first=part.start)
                if missing_range.is_backfill
                else HeldRange(known.first, part.end, _last_stored_ms(rows, part.end))
            )
            left -= part.end - part.start
            if not left or sum(each.nbytes for each in tables) >= _COMMIT_BYTES:
                break
        return tables

    def _check_identity(self, missing_range: _MissingRange) -> None:
        """Raise an error if the broker has another message where the table's last one was.

        The check follows the read, so that rows of a recreated topic are never committed.
        """
        from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415  # --help does not need it

        queue, held = missing_range.bounds.queue, missing_range.held
        if held.stored_ms == UNKNOWN_TIME:
            return
        api, last = self.admin.instance.api, held.next_offset - 1
        found = api.peek(missing_range.bounds.address, READER_GROUP, queue, last).first_message(
            queue
        )
        if found is None or found.queue_offset != last or found.store_timestamp == held.stored_ms:
            return  # a message that is gone proves nothing
        times = f"{held.stored_ms} ms, and the broker's message there at {found.store_timestamp} ms"
        raise _recreated(queue, held, f"the table's last message was stored at {times}")


def _recreated(queue: MessageQueue, held: HeldRange, how: str) -> Failure:
    return Failure(
        f"{queue} is not the queue that the table has up to offset "
        f"{held.next_offset - 1}: {how}. The topic was deleted and created again, or its broker "
        "was restored from an older copy",
        "Write to another table",
    )


def _last_stored_ms(rows: pa.Table, end: int) -> int:
    """Return the store time of the message before an offset, if the rows have it."""
    if not rows.num_rows or rows["queueOffset"][-1].as_py() != end - 1:
        return UNKNOWN_TIME
    stored_us = rows["storeTimestamp"][-1].value
    return UNKNOWN_TIME if stored_us is None else stored_us // 1_000


def _concatenate(tables: list[pa.Table], columns: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415  # --help needs no pyarrow

    from rmq_spark.client.admin.arrow_reads import build_schema  # noqa: PLC0415  # --help does not need it

    if not tables:
        return build_schema(columns).empty_table()
    return pa.concat_tables([table.select(columns) for table in tables])
