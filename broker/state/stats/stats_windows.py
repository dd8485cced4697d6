"""Statistics windows: sums over the last minutes and hours, in buckets that expire one by one.

Windows know how long their buckets were open and no dates, so the clock may jump.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

SAMPLE_INTERVAL_MS: Final = 10_000

KEYS_MAX: Final = 30_000
"""Of one bucket: topics, and pairs of a topic and a group, of which one client could make millions
in a day. What moves beyond is left out of the statistics of single topics and groups."""

_KEYS_PER_STEP: Final = 512

Key = tuple[str, str]
"""A kind of counter, and its owner."""


class Sum:
    """The number of messages, of their bytes, and of the calls that brought them."""

    __slots__ = ("bytes", "calls", "messages")

    def __init__(self, messages: int = 0, byte_count: int = 0, calls: int = 0) -> None:
        self.messages = messages
        self.bytes = byte_count
        self.calls = calls

    def add(self, other: Sum) -> None:
        """Add another sum to this one."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.calls += other.calls


Sums = dict[Key, Sum]


BUCKETS_MAX: Final = 60
"""The maximum number of buckets of a window."""


class Window:
    """The sums of a number of latest buckets, the newest of which is still open."""

    def __init__(self, bucket_ms: int, buckets: int) -> None:
        self._bucket_ms = bucket_ms
        self._buckets: deque[tuple[int, Sums]] = deque([(0, {})], buckets)

    def add(self, sums: Sums, elapsed_ms: int) -> Iterator[None]:
        """Add the sums of a period of milliseconds, in steps, but for keys dropped meanwhile."""
        duration_ms, bucket = self._buckets[-1]
        if (
            duration_ms + SAMPLE_INTERVAL_MS // 2 > self._bucket_ms
        ):  # samples come a little early or late
            duration_ms, bucket = 0, {}
            self._buckets.append((0, bucket))
        for some in in_steps(tuple(sums)):
            for key in some:
                each = sums.get(key)
                if each is not None and (key in bucket or len(bucket) < KEYS_MAX):
                    bucket.setdefault(key, Sum()).add(each)
            yield
        self._buckets[-1] = (duration_ms + elapsed_ms, bucket)

    def total(self, key: Key, buckets: int = BUCKETS_MAX) -> tuple[Sum, int]:
        """Return the sum of the newest buckets, and the milliseconds that they cover."""
        total, covered_ms = Sum(), 0
        for duration_ms, bucket in list(self._buckets)[-buckets:]:
            covered_ms += duration_ms
            each = bucket.get(key)
            if each is not None:
                total.add(each)
        return total, covered_ms

    def forget(self, is_deleted: Callable[[Key], bool]) -> Iterator[None]:
        """Drop the sums of keys that are gone, in steps."""
        for _, bucket in tuple(self._buckets):
            yield from drop(bucket, is_deleted)


def drop(sums: Sums, is_deleted: Callable[[Key], bool]) -> Iterator[None]:
    """Remove the sums of keys that are gone, in steps."""
    for some in in_steps(tuple(sums)):
        for key in some:
            if is_deleted(key):
                sums.pop(key, None)
        yield


def in_steps(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Yield keys, as many at a time as can be processed in a millisecond."""
    for start in range(0, len(keys), _KEYS_PER_STEP):
        yield keys[start : start + _KEYS_PER_STEP]


def per_second(count: int, covered_ms: int) -> float:
    """Return a count as a rate per second."""
    return round(1000 * count / covered_ms, 2) if covered_ms else 0.0
