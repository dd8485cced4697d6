"""BrokerStats: counts messages sent and fetched, per topic, per group and in total.

Each count is added to the sums since the last `sample`; a sample closes these and adds them to
windows:

    minute     6 buckets of 10 s        recent   60 buckets of 10 s, of the broker as a whole
    hour       6 buckets of 10 min
    day       24 buckets of 1 h

Each topic and each group also has a total since the start, for counters that only grow.

A bucket has only what was counted while it was open, so a topic or group without messages
disappears from memory after a day. Nothing is saved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Final, NamedTuple

from rmq_spark.wire.bodies.operators import BrokerStatsData, BrokerStatsItem

from ..common.local_time import local_time

# ---- Windows.

SAMPLE_INTERVAL_MS: Final = 10_000

KEYS_MAX: Final = 30_000
"""The maximum number of keys of a bucket: topics, and pairs of a topic and a group, of which one
client could create millions in a day. The statistics of single topics and groups leave out further
keys.
"""

_KEYS_PER_STEP: Final = 512

Key = tuple[str, str]
"""The kind of a counter, and its owner."""


class Sum:
    """The number of messages, of their bytes, and of the calls that carried them."""

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
    """The sums of the latest buckets, the newest of which is still open.

    A window records how long each bucket was open instead of dates, so the clock may jump.
    """

    def __init__(self, bucket_ms: int, buckets: int) -> None:
        self._bucket_ms = bucket_ms
        self._buckets: deque[tuple[int, Sums]] = deque([(0, {})], buckets)

    def add(self, sums: Sums, elapsed_ms: int) -> Iterator[None]:
        """Add the sums of a period in steps, except for keys dropped meanwhile."""
        duration_ms, bucket = self._buckets[-1]
        # Samples come a little early or late.
        if duration_ms + SAMPLE_INTERVAL_MS // 2 > self._bucket_ms:
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

    def discard(self, is_deleted: Callable[[Key], bool]) -> Iterator[None]:
        """Drop the sums of deleted keys, in steps."""
        for _, bucket in tuple(self._buckets):
            yield from drop(bucket, is_deleted)


def drop(sums: Sums, is_deleted: Callable[[Key], bool]) -> Iterator[None]:
    """Remove the sums of deleted keys, in steps."""
    for some in in_steps(tuple(sums)):
        for key in some:
            if is_deleted(key):
                sums.pop(key, None)
        yield


def in_steps(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Yield keys in chunks that take about a millisecond."""
    for start in range(0, len(keys), _KEYS_PER_STEP):
        yield keys[start : start + _KEYS_PER_STEP]


def per_second(count: int, covered_ms: int) -> float:
    """Return a count as a rate per second."""
    return round(1000 * count / covered_ms, 2) if covered_ms else 0.0


# ---- Durations, in the cells that RocketMQ shows.

_LOWS_MS: Final = (0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 4000, 5000,
                   10000)  # fmt: skip
"""The start of each cell, which is the end of the one before."""

_CELLS_FROM_MS: Final[Mapping[int, str]] = {
    0: "<=0ms",
    1: "0~10ms",
    10: "10~50ms",
    50: "50~100ms",
    100: "100~200ms",
    200: "200~500ms",
    500: "500ms~1s",
    1000: "1~2s",
    2000: "2~3s",
    3000: "3~4s",
    4000: "4~5s",
    5000: "5~10s",
    10000: "10s~",
}
"""RocketMQ's cells, which are larger, by their starts."""


class Durations:
    """Counts durations in the last full minute; until one has passed, those so far."""

    def __init__(self) -> None:
        self._counts = self._last_minute = [0] * len(_LOWS_MS)
        self.max_ms = 0

    def add(self, elapsed_ms: int, count: int = 1) -> None:
        """Count one event, or ``count`` events of the same duration."""
        self._counts[max(bisect_right(_LOWS_MS, elapsed_ms) - 1, 0)] += count
        self.max_ms = max(self.max_ms, elapsed_ms)

    def end_minute(self) -> None:
        """Publish the counts since the previous call, and start again at zero."""
        self._last_minute, self._counts = self._counts, [0] * len(_LOWS_MS)

    def cells(self) -> dict[str, int]:
        """Return the counts by the names of RocketMQ's cells, in RocketMQ's order."""
        cells = dict.fromkeys(_CELLS_FROM_MS.values(), 0)
        name = ""
        for low_ms, count in zip(_LOWS_MS, self._last_minute, strict=True):
            name = _CELLS_FROM_MS.get(low_ms, name)
            cells[name] += count
        return cells

    def within_ms(self, share: float) -> int:
        """Return the end, in milliseconds, of the cell that contains this quantile."""
        wanted = share * sum(self._last_minute)
        done = 0
        for next_low_ms, count in zip(_LOWS_MS[1:], self._last_minute, strict=False):
            done += count
            if done >= wanted:
                return next_low_ms - 1
        return self.max_ms


_SAMPLES_PER_MINUTE: Final = 60_000 // SAMPLE_INTERVAL_MS
_ELAPSED_MS_MAX: Final = 60_000
"""The maximum time between two samples; past it, the clock jumped or the machine slept."""


class _Counter(NamedTuple):
    """One of RocketMQ's statistics, as VIEW_BROKER_STATS_DATA names it."""

    kind: str
    counts_bytes: bool


TOPIC_PUT: Final = "topic put"
GROUP_GET: Final = "group get"
SEND_BACK: Final = "send back"
_PUT, _GET = "put", "get"
_MISSES: Key = ("missed", "")
_WITH_TOTALS: Final = frozenset({TOPIC_PUT, GROUP_GET, SEND_BACK})

STATS_NAMES: Final[Mapping[str, _Counter]] = {
    "TOPIC_PUT_NUMS": _Counter(TOPIC_PUT, counts_bytes=False),
    "TOPIC_PUT_SIZE": _Counter(TOPIC_PUT, counts_bytes=True),
    "GROUP_GET_NUMS": _Counter(GROUP_GET, counts_bytes=False),
    "GROUP_GET_SIZE": _Counter(GROUP_GET, counts_bytes=True),
    "SNDBCK_PUT_NUMS": _Counter(SEND_BACK, counts_bytes=False),
    "BROKER_PUT_NUMS": _Counter(_PUT, counts_bytes=False),
    "BROKER_GET_NUMS": _Counter(_GET, counts_bytes=False),
}
"""The statistics by name. Keys are a topic, ``topic@group``, or the cluster's name."""


class Rates(NamedTuple):
    """The number of events per second over the last 10, 60 and 600 s."""

    ten_seconds: float
    minute: float
    ten_minutes: float

    def __str__(self) -> str:
        return " ".join(str(round(rate, 2)) for rate in self)


class BrokerRates(NamedTuple):
    """The rates of the broker as a whole."""

    puts: Rates  # messages stored
    found: Rates  # pulls that found messages
    missed: Rates  # pulls that found none
    transferred: Rates  # messages delivered

    @property
    def gets(self) -> Rates:
        """The rates of all pulls, with or without messages."""
        return Rates(
            *(found + missed for found, missed in zip(self.found, self.missed, strict=True))
        )


class DayTotals(NamedTuple):
    """The numbers of messages from the start until the beginning of yesterday, and of today."""

    yesterday_morning: int = 0
    today_morning: int = 0

    def after(self, total: int) -> DayTotals:
        """Return the totals at the start of another day."""
        return DayTotals(self.today_morning, total)


class BrokerStats:
    """All counters of a broker."""

    def __init__(self, cluster_name: str, now_ms: int) -> None:
        """Start at zero; like RocketMQ, count the whole broker under the name of its cluster."""
        self._put_key: Key = (_PUT, cluster_name)
        self._get_key: Key = (_GET, cluster_name)
        self._sums: Sums = {}
        self._closed: Sums = {}
        """The sums that are being added to the windows, or were added last."""
        self._sampled_ms = now_ms
        self._samples = 0
        self._minute = Window(SAMPLE_INTERVAL_MS, 6)
        self._hour = Window(600_000, 6)
        self._day = Window(3_600_000, 24)
        self._recent = Window(SAMPLE_INTERVAL_MS, BUCKETS_MAX)
        self._today: date = local_time(now_ms).date()
        self.put_totals = self.get_totals = DayTotals()
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failures = 0
        self.failed_messages_dropped = {"retries_disabled": 0, "unstorable": 0}
        """Messages that consumers sent back and that are not stored again, by reason."""
        self.put_latency = Durations()
        self.got_messages = 0
        self.get_latency_ms_max = 0
        self._broker_window: Sums = {}
        self._totals: Sums = {}
        self._pending_sums: Sums = {}
        """The closed sums that are not in the totals yet."""

    # ---- counting, on every send and pull

    def record_put(self, topic: str, count: int, byte_count: int, *, calls: int = 1) -> None:
        """Count stored messages; ``put_latency`` counts their wait for the disk."""
        self._add(self._sums, (TOPIC_PUT, topic), count, byte_count, calls)
        self._add(self._broker_window, self._put_key, count, byte_count, calls)
        self.put_messages += count
        self.put_bytes += byte_count

    def record_put_failure(self) -> None:
        """Count a send that was not stored."""
        self.put_failures += 1

    def record_get(
        self, topic: str, group: str, count: int, byte_count: int, elapsed_ms: int
    ) -> None:
        """Count messages delivered to a group; 0 for a pull that found none."""
        self.get_latency_ms_max = max(self.get_latency_ms_max, elapsed_ms)
        if not count:
            self._add(self._broker_window, _MISSES, 0, 0)
            return
        self._add(self._sums, (GROUP_GET, f"{topic}@{group}"), count, byte_count)
        self._add(self._broker_window, self._get_key, count, byte_count)
        self.got_messages += count

    def record_send_back(self, topic: str, group: str) -> None:
        """Count a message that a group could not consume and sent back."""
        self._add(self._sums, (SEND_BACK, f"{topic}@{group}"), 1, 0)

    @staticmethod
    def _add(sums: Sums, key: Key, count: int, byte_count: int, calls: int = 1) -> None:
        found = sums.get(key)
        if found is None:
            if len(sums) >= KEYS_MAX:
                return
            found = sums[key] = Sum()
        found.messages += count
        found.bytes += byte_count
        found.calls += calls

    # ---- every ten seconds

    def sample(self, now_ms: int) -> Iterator[None]:
        """Close the sums since the last sample, and add them to the windows, in steps."""
        elapsed_ms = now_ms - self._sampled_ms
        if not 0 <= elapsed_ms <= _ELAPSED_MS_MAX:
            elapsed_ms = SAMPLE_INTERVAL_MS
        self._sampled_ms = now_ms
        self._samples += 1
        if self._samples % _SAMPLES_PER_MINUTE == 0:
            self.put_latency.end_minute()
        whole, self._broker_window = self._broker_window, {}
        # before the first step, so that later counts go into new sums
        self._closed, self._sums = (whole | self._sums, {})
        yield from self._add_to_totals()
        yield from self._recent.add(whole, elapsed_ms)
        for window in (self._minute, self._hour, self._day):
            yield from window.add(self._closed, elapsed_ms)
        today = local_time(now_ms).date()
        if today != self._today:
            self._today = today
            self.put_totals = self.put_totals.after(self.put_messages)
            self.get_totals = self.get_totals.after(self.got_messages)

    def _add_to_totals(self) -> Iterator[None]:
        closed = {key: each for key, each in self._closed.items() if key[0] in _WITH_TOTALS}
        for key, left in self._pending_sums.items():  # the loop was too busy since the last sample
            both = closed[key] = Sum(left.messages, left.bytes, left.calls)
            if key in self._closed:
                both.add(self._closed[key])
        self._pending_sums = closed
        for some in in_steps(tuple(self._pending_sums)):
            for key in some:
                each = self._pending_sums.pop(key, None)
                if each is not None and (key in self._totals or len(self._totals) < KEYS_MAX):
                    self._totals.setdefault(key, Sum()).add(each)
            yield

    def discard_topic(self, topic: str) -> Iterator[None]:
        """Drop a deleted topic's counts, in steps: a new topic of its name starts at zero."""
        prefix = f"{topic}@"
        return self._discard(
            lambda key: (
                key == (TOPIC_PUT, topic) or (_is_group_key(key) and key[1].startswith(prefix))
            )
        )

    def discard_group(self, group: str) -> Iterator[None]:
        """Drop a deleted group's counts, in steps."""
        suffix = f"@{group}"
        return self._discard(lambda key: _is_group_key(key) and key[1].endswith(suffix))

    def _discard(self, is_deleted: Callable[[Key], bool]) -> Iterator[None]:
        for sums in (self._sums, self._pending_sums, self._totals):
            yield from drop(sums, is_deleted)
        # after the sums above, because a running `sample` copies from these into the others
        yield from drop(self._closed, is_deleted)
        for window in (self._minute, self._hour, self._day):
            yield from window.discard(is_deleted)

    # ---- reading

    def data(self, stats_name: str, stats_key: str) -> BrokerStatsData | None:
        """Return one of `STATS_NAMES` over three windows, or None if it is unknown or idle."""
        counter = STATS_NAMES.get(stats_name)
        if counter is None:
            return None
        key = (counter.kind, stats_key)
        if not self._day.total(key)[0].calls:
            return None
        items = (_item(window, key, counter) for window in (self._minute, self._hour, self._day))
        minute, hour, day = items
        return BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)

    def totals(self) -> Iterator[tuple[Key, Sum]]:
        """Yield the sums since the start, by kind and owner; they are not a snapshot.

        The kinds are `TOPIC_PUT`, by topic, and `GROUP_GET` and `SEND_BACK`, by ``topic@group``.
        """
        for key in dict.fromkeys((*self._totals, *self._pending_sums, *self._sums)):
            total = Sum()
            for sums in (self._totals, self._pending_sums, self._sums):
                each = sums.get(key)
                if each is not None:
                    total.add(each)
            yield key, total

    def topic_put_tps(self, topic: str) -> float:
        """Return the messages sent to a topic per second, over the last minute."""
        return per_second(*_messages(self._minute, (TOPIC_PUT, topic)))

    def group_get_tps(self, group: str, topics: Iterable[str]) -> float:
        """Return the messages of topics delivered to a group per second, over the last minute."""
        keys = ((GROUP_GET, f"{topic}@{group}") for topic in topics)
        return sum(per_second(*_messages(self._minute, key)) for key in keys)

    def rates(self) -> BrokerRates:
        """Return the broker's rates."""
        return BrokerRates(
            puts=self._rates(self._put_key, "messages"),
            found=self._rates(self._get_key, "calls"),
            missed=self._rates(_MISSES, "calls"),
            transferred=self._rates(self._get_key, "messages"),
        )

    def _rates(self, key: Key, field_name: str) -> Rates:
        totals = (self._recent.total(key, buckets) for buckets in (1, 6, 60))
        return Rates(
            *(per_second(getattr(total, field_name), covered_ms) for total, covered_ms in totals)
        )


def _is_group_key(key: Key) -> bool:
    return key[0] in (GROUP_GET, SEND_BACK)


def _messages(window: Window, key: Key) -> tuple[int, int]:
    total, covered_ms = window.total(key)
    return total.messages, covered_ms


def _item(window: Window, key: Key, counter: _Counter) -> BrokerStatsItem:
    total, covered_ms = window.total(key)
    count = total.bytes if counter.counts_bytes else total.messages
    return BrokerStatsItem(
        sum=count,
        tps=per_second(count, covered_ms),
        avgpt=round(count / total.calls, 2) if total.calls else 0.0,
    )
