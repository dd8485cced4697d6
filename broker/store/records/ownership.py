"""RecordOwner: the queue whose records a consume queue may lead to.

An entry of a damaged file may lead to a whole record of another queue, of another topic, or of a
deleted topic of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer

from ..bulk import lazy_numpy as np
from ..results import PhysicalOffset

if TYPE_CHECKING:
    import numpy.typing as npt

_HEAD = Struct(">4xi4xi20xi")
"""Magic, queue and sysFlag."""
_NUMBER = Struct(">i")
_MAGIC_AT, _QUEUE_AT, _SYS_FLAG_AT = 4, 12, 36
_BODY_LENGTH_AT = (
    layout.HEAD_BYTES
    + layout.HOST_V4_BYTES * 2
    + layout.STORE_TIMESTAMP_BYTES
    + layout.TAIL_BYTES
    - 4
)
"""With IPv4 hosts."""
_V6_EXTRA_BYTES = layout.HOST_V6_BYTES - layout.HOST_V4_BYTES
_BORN_V6, _STORE_V6 = MessageSysFlag.BORN_HOST_V6.value, MessageSysFlag.STORE_HOST_V6.value
_HOSTS_V6 = _BORN_V6 | _STORE_V6
_LENGTH_BYTES: Final = {
    layout.MAGIC_V1: layout.TOPIC_LENGTH_V1_BYTES,
    layout.MAGIC_V2: layout.TOPIC_LENGTH_V2_BYTES,
}


class TopicFieldPosition(NamedTuple):
    """The position in a record at which its topic must be, after its length."""

    at: int
    text: bytes


class RecordOwner(NamedTuple):
    """One queue of a topic, whose records all lie at or past a log offset."""

    topic: bytes
    queue_id: int
    since: PhysicalOffset

    def topic_position(self, data: Buffer, at: int) -> TopicFieldPosition | None:
        """Return where the topic must be in the record that starts there.

        None if that is no record of this queue.
        """
        try:
            magic, queue_id, sys_flag = _HEAD.unpack_from(data, at)
            length_at = at + _BODY_LENGTH_AT
            if sys_flag & _HOSTS_V6:
                length_at += _V6_EXTRA_BYTES * (
                    bool(sys_flag & _BORN_V6) + bool(sys_flag & _STORE_V6)
                )
            (body_length,) = _NUMBER.unpack_from(data, length_at)
        except error:
            return None
        width = _LENGTH_BYTES.get(magic)
        if width is None or queue_id != self.queue_id or body_length < 0:
            return None
        return TopicFieldPosition(
            length_at + 4 + body_length, len(self.topic).to_bytes(width, "big") + self.topic
        )

    def first_mismatch_of_few(self, records: Sequence[Buffer], sizes: Sequence[int]) -> int | None:
        """Find the first record that is not of this queue, one after the other.

        None if there is none.
        """
        number = 0
        for piece in records:
            at, end = 0, len(piece)
            while at < end:
                place = self.topic_position(piece, at)
                at += sizes[number]
                if (
                    place is None
                    or piece[place.at : min(place.at + len(place.text), at)] != place.text
                ):
                    return number
                number += 1
        return None

    def first_mismatch(self, records: Sequence[Buffer], sizes: npt.NDArray[np.int64]) -> int | None:
        """Find the first record that is not of this queue; None if there is none."""
        starts = np.cumsum(sizes) - sizes
        first = before = 0
        for piece in records:
            count = int(np.searchsorted(starts, before + len(piece)))
            data = np.frombuffer(piece, np.uint8)
            is_own = self._own_mask(data, starts[first:count] - before, sizes[first:count])
            if not is_own.all():
                return first + int(np.argmin(is_own))
            first, before = count, before + len(piece)
        return None

    def _own_mask(
        self, data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        is_own = sizes >= layout.RECORD_BYTES_MIN
        at = np.where(is_own, at, 0)
        if len(data) < layout.RECORD_BYTES_MIN:
            return is_own
        magics, flags = _words(data, at + _MAGIC_AT), _words(data, at + _SYS_FLAG_AT)
        is_v2 = magics == layout.MAGIC_V2
        is_own &= (is_v2 | (magics == layout.MAGIC_V1)) & (
            _words(data, at + _QUEUE_AT) == self.queue_id
        )
        v6_hosts = (flags & _BORN_V6 != 0).astype(np.int64) + (flags & _STORE_V6 != 0)
        length_at = np.minimum(at + _BODY_LENGTH_AT + _V6_EXTRA_BYTES * v6_hosts, len(data) - 4)
        body_lengths = _words(data, length_at)
        topic_at = length_at + 4 + body_lengths + np.where(is_v2, 2, 1)
        is_own &= (body_lengths >= 0) & (topic_at + len(self.topic) <= at + sizes)
        topic_at = np.where(is_own, topic_at, 2)
        is_own &= data[topic_at - 1] == len(self.topic) & 0xFF
        is_own &= ~is_v2 | (data[topic_at - 2] == len(self.topic) >> 8)
        for number, byte in enumerate(self.topic):
            is_own &= data[np.minimum(topic_at + number, len(data) - 1)] == byte
        return is_own


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers of 32 bits with a sign that start anywhere."""
    cells: npt.NDArray[np.void] = np.ndarray((len(data) - 3,), "V4", data, strides=(1,))
    return cells[at].view(">i4").astype(np.int64)
