"""Readable records: whether a client may read a record of the log that it has named by its place.

The bytes at a place are not always a record: a message's body may have the form of one, with a
topic of its sender and properties that end within the messages of others. So a record counts as one
of its topic only if the topic's queue has it.
"""

from __future__ import annotations

from rmq_spark.errors import RecordError
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record import decode_record

from ..auth.needs import Action, ResourceType
from ..common.channel import Channel
from ..store.results import QueueOffset
from .processor import BrokerParts


def may_read(broker: BrokerParts, connection: Channel, record: Buffer, *actions: Action) -> bool:
    """Return whether any of these actions allows a client to read a record of the log."""
    access = broker.access
    if not access.is_enabled:
        return True
    reads_all = any(access.allows_every_topic(connection, action) for action in actions)
    try:
        message = decode_record(record, check_crc=False)
    except RecordError:  # nobody knows whose it is
        return reads_all
    if not access.allows(connection, ResourceType.TOPIC, message.topic, *actions):
        return False
    if reads_all:
        return True
    place = message.topic, message.queue_id, QueueOffset(message.queue_offset)
    return b"".join(broker.store.get_message(*place, count_max=1).buffers) == record
