"""Key reader: reads the messages of one key through the brokers' index instead of whole queues.

A broker returns the newest messages of a time span, up to a maximum: the span is shortened until
there are no more. Hashes may collide, so that the keys of the messages are compared here. A broker
that is away is asked again until `retry_timeout_ms` have passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.admin.lookups import FOREVER_MS
from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS
from rmq_spark.spark.brokers.fan_out import BrokerAddresses
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import BrokersAway, OptionError, SparkError
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.options.start_positions import Positions, RelativeTimePosition, TimePosition
from rmq_spark.spark.read.dead_letters import bad_record_handler
from rmq_spark.spark.read.partition_reader import addresses_of, retry_timer_of
from rmq_spark.wire.headers.operators import QueryMessageRequestHeader
from rmq_spark.wire.message.properties import KEY_SEPARATOR
from rmq_spark.wire.message.record import decode_records, encode_record
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.wire.message.record import StoredMessage

QUERY_MESSAGES_LIMIT: Final = 64
"""The most messages that a RocketMQ broker returns for one query with its default settings."""

FULL_PAGE: Final = 32
"""An answer of this many messages or more may be cut off, if a broker's limit was lowered."""

_INDEX_MS: Final = 1_000
"""The resolution of the index in ms; it rounds times down."""


class KeyLookup(NamedTuple):
    """The lookup of one task at one broker; both times are in ms and inclusive."""

    topic: str
    broker_name: str
    key: str
    begin_ms: int
    end_ms: int

    @property
    def row_count(self) -> int:
        """The number of lookups; the number of rows is not known."""
        return 1


def plan_key_lookups(options: ReadOptions, queues: QueueClient) -> list[KeyLookup]:
    """Return one lookup for each topic and broker."""
    now_ms = time.time_ns() // 1_000_000
    begin_ms = _time_bound_ms(options.starting, now_ms, 0)
    # Without an ending option the search has no end, because a broker's clock may be ahead of ours.
    end_ms = _time_bound_ms(options.ending, now_ms, FOREVER_MS) - 1
    brokers = sorted(
        {(queue.topic, queue.broker_name) for queue in queues.discover(is_forced=True)}
    )
    return [KeyLookup(*each, options.key or "", begin_ms, end_ms) for each in brokers]


def read_key_lookup(
    options: ReadOptions, schema: pa.Schema, lookup: KeyLookup
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one lookup, in the order in which they were stored."""
    from rmq_spark.spark.bodies.decoder import record_batches_for  # noqa: PLC0415  # brings numpy and pyarrow
    from rmq_spark.wire.chunk import RecordChunk  # noqa: PLC0415  # brings numpy and pyarrow

    messages = _find_messages(options, lookup)
    if messages:
        records = b"".join(encode_record(messages[at]) for at in sorted(messages))
        with bad_record_handler(options) as bad:
            batches = record_batches_for(options, schema, bad)
            yield from batches.convert(RecordChunk(records), lookup.broker_name)


def _find_messages(options: ReadOptions, lookup: KeyLookup) -> dict[int, StoredMessage]:
    """Return the messages of a lookup by commit log offset; retry until the broker answers."""
    access, queue = options.access, MessageQueue(lookup.topic, lookup.broker_name, 0)
    addresses, timer = addresses_of(access), retry_timer_of(access, lookup.broker_name)
    while True:
        try:
            found = _query_messages(addresses, addresses.resolve(queue), lookup)
        except TRANSIENT_ERRORS as error:  # noqa: PERF203  # the loop retries
            if not timer.sleep_or_expire(error):
                raise BrokersAway(lookup.broker_name, access.retry_timeout_ms, error) from error
            addresses.refresh()
        else:
            timer.reset()
            return found


def _query_messages(
    addresses: BrokerAddresses, address: str, lookup: KeyLookup
) -> dict[int, StoredMessage]:
    found: dict[int, StoredMessage] = {}
    seen: set[int] = set()
    end_ms = lookup.end_ms
    while end_ms >= max(lookup.begin_ms - _INDEX_MS, 0):
        header = QueryMessageRequestHeader(
            topic=lookup.topic,
            key=lookup.key,
            max_num=QUERY_MESSAGES_LIMIT,
            begin_timestamp=max(lookup.begin_ms - _INDEX_MS, 0),
            end_timestamp=end_ms,
            unique_key_query=False,
        )
        page = list(decode_records(addresses.instance.api.admin.query_message(address, header)))
        for message in page:
            is_match = message.topic == lookup.topic and lookup.key in (message.keys or "").split(
                KEY_SEPARATOR
            )
            if is_match and lookup.begin_ms <= message.store_timestamp <= lookup.end_ms:
                found[message.physical_offset] = message
        physical_offsets = {message.physical_offset for message in page}
        if len(page) < FULL_PAGE:
            break
        oldest_ms = min(message.store_timestamp for message in page)
        if physical_offsets <= seen:
            raise SparkError(
                f"option key: more than {len(page)} messages of {lookup.topic} with key "
                f"{lookup.key!r} are from the same second ({oldest_ms} ms), and "
                f"{lookup.broker_name} returns no more. Read the topic without key, and filter "
                "its rows"
            )
        seen |= physical_offsets
        end_ms = oldest_ms
    return found


def _time_bound_ms(positions: Positions | None, now_ms: int, default: int) -> int:
    if positions is None:
        return default
    position = positions.common
    if isinstance(position, TimePosition):
        return position.timestamp_ms
    if isinstance(position, RelativeTimePosition):
        return now_ms - position.ms
    raise OptionError(
        positions.option,
        "together with key it must be a time: startingTimestamp, or for example -10m",
    )
