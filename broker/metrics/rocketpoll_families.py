"""OwnFamilies: the metrics that RocketMQ does not have.

Their names begin with ``rocketpoll_``; times are in seconds, as Prometheus recommends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import ProcessCollector

from rmq_spark.wire.codes import RequestCode, ResponseCode

from ..common.histogram import Histogram
from ..processor.dispatcher import UNKNOWN_REQUEST
from ..store.staging.commit_table import SINKS_MAX
from .exposition import (
    CounterFamily,
    GaugeFamily,
    HistogramFamily,
    MetricFamily,
    MetricSample,
    counter,
    gauge,
)
from .sources import MetricsSources

_REASONS: Final = ("request", "reason")
_OF_PROCESS: Final = frozenset(
    {
        "process_cpu_seconds",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
)


class OwnFamilies:
    """The metrics of one broker under our names."""

    def __init__(self, sources: MetricsSources, loop_lag: Histogram, version: str) -> None:
        self._sources = sources
        self._loop_lag = loop_lag
        self._version = version
        self._process = ProcessCollector(registry=None)

    def families(self) -> Iterator[MetricFamily]:
        """Yield all families."""
        yield from self._health()
        yield from self._durations()
        yield from self._pulls()
        yield from self._requests()
        yield from self._tls()
        yield from self._access()
        yield from self._memory_and_disk()
        yield from self._tables()
        yield from self._timers()
        yield from self._transactions()
        yield from self._pops()
        yield from self._batches()
        yield from self._process_families()

    def _health(self) -> Iterator[MetricFamily]:
        observed = self._sources
        state = observed.broker.store.state()
        yield GaugeFamily(
            "rocketpoll_info",
            "The release of this broker; always 1.",
            ("version",),
            [MetricSample((self._version,), 1)],
        )
        yield gauge(
            "rocketpoll_ready",
            "1 if messages are accepted and delivered, 0 if not; /readyz says why.",
            observed.unready_reason() is None,
        )
        yield gauge(
            "rocketpoll_hindered",
            "1 while a shortage, such as a full disk, delays work of the broker.",
            state.degradation is not None,
        )
        yield GaugeFamily(
            "rocketpoll_registered",
            "1 if the broker is registered at this name server, 0 if not.",
            ("name_server",),
            [
                MetricSample((server,), is_registered)
                for server, is_registered in observed.registrations()
            ],
        )
        yield gauge(
            "rocketpoll_log_holes",
            "Damaged ranges of the commit log, which are skipped.",
            len(state.holes),
        )
        yield gauge(
            "rocketpoll_log_lost_bytes",
            "Bytes of the commit log that earlier runs had, and the start did not find.",
            state.lost_bytes,
        )
        yield gauge(
            "rocketpoll_clock_behind_seconds",
            "Seconds by which the time of the last stored message is ahead of the clock.",
            observed.broker.store.clock_behind_ms / 1000,
        )
        uptime_seconds = max(observed.broker.now_ms() - observed.started_ms, 0) / 1000
        yield gauge("rocketpoll_uptime_seconds", "Time since the start.", uptime_seconds)

    def _durations(self) -> Iterator[MetricFamily]:
        for name, description, histogram in (
            (
                "flush",
                "Time of each flush of the commit log.",
                self._sources.broker.store.flusher.durations,
            ),
            (
                "reput",
                "Time of each dispatch of messages to their queues, with the pulls that it wakes.",
                self._sources.reput_latency,
            ),
            (
                "loop_lag",
                "Delay of a timer of the broker's thread, measured every half a second.",
                self._loop_lag,
            ),
        ):
            yield HistogramFamily(f"rocketpoll_{name}_seconds", description, histogram)

    def _pulls(self) -> Iterator[MetricFamily]:
        holds = self._sources.broker.hold_service
        yield gauge("rocketpoll_pulls_held", "Pulls that wait for a message.", holds.hold_count)
        yield gauge("rocketpoll_queues_held", "Queues that pulls wait for.", holds.queue_count)
        yield counter(
            "rocketpoll_pulls_put_off_total",
            "Pulls answered early, because too many wait already (maxHolds).",
            holds.deferred_total,
        )
        yield counter(
            "rocketpoll_pulls_rescued_total",
            "Pulls that only the periodic check woke; each is a bug in the broker.",
            holds.rescued_total,
        )

    def _requests(self) -> Iterator[MetricFamily]:
        processors, server = self._sources.processors, self._sources.server
        yield CounterFamily(
            "rocketpoll_requests_refused_total",
            "Requests that were refused, by the answer that they got.",
            _REASONS,
            [
                MetricSample(
                    (
                        "unknown" if request == UNKNOWN_REQUEST else _name_of(RequestCode, request),
                        _name_of(ResponseCode, response),
                    ),
                    count,
                )
                for (request, response), count in sorted(processors.dispatch.refused.items())
            ],
        )
        yield counter(
            "rocketpoll_puts_failed_total",
            "Sends that the store did not accept.",
            processors.stats.put_failures,
        )
        yield CounterFamily(
            "rocketpoll_failed_messages_dropped_total",
            "Messages that consumers sent back and that are not stored again: the group has no "
            "retry queues, or the message is too large to be stored with the added properties.",
            ("reason",),
            [
                MetricSample((reason,), count)
                for reason, count in processors.stats.failed_messages_dropped.items()
            ],
        )
        sends = processors.acknowledger.queue()
        yield gauge("rocketpoll_sends_waiting", "Sends that wait for the disk.", sends.size)
        yield gauge(
            "rocketpoll_send_wait_seconds",
            "Time for which the oldest send has waited for the disk.",
            sends.head_wait_ms / 1000,
        )
        yield gauge("rocketpoll_connections", "Clients.", server.connections)
        yield CounterFamily(
            "rocketpoll_connections_refused_total",
            "Clients that were turned away, by the setting that limits them.",
            ("reason",),
            [MetricSample((reason,), count) for reason, count in sorted(server.refused.items())],
        )

        yield counter(
            "rocketpoll_connections_cut_total",
            "Connections that the broker closed, refused ones among them; its log says why.",
            server.closed_by_broker,
        )

    def _access(self) -> Iterator[MetricFamily]:
        access = self._sources.broker.access
        yield counter(
            "rocketpoll_authentication_failures_total",
            "Requests whose sender has not proven an identity.",
            access.failures,
        )
        yield counter(
            "rocketpoll_authorization_denials_total",
            "Requests of proven identities that do not have a needed right.",
            access.denials,
        )

    def _tls(self) -> Iterator[MetricFamily]:
        tls = self._sources.server.tls
        if tls is None:
            return
        yield CounterFamily(
            "rocketpoll_tls_handshakes_total",
            "Connections by the result of their TLS handshake; plain: refused, because TLS is "
            "required.",
            ("result",),
            [
                MetricSample(("completed",), tls.handshakes_completed),
                MetricSample(("failed",), tls.handshakes_failed),
                MetricSample(("plain",), tls.plain_refused),
            ],
        )
        yield GaugeFamily(
            "rocketpoll_tls_certificate_expiry_seconds",
            "Time until the first certificate of a setting expires; negative if one has.",
            ("setting",),
            [MetricSample((setting,), left) for setting, left in tls.expiry_seconds().items()],
        )

    def _memory_and_disk(self) -> Iterator[MetricFamily]:
        server, config = self._sources.server, self._sources.broker.config
        disk = self._sources.broker.disk_usage()
        yield gauge(
            "rocketpoll_in_flight_bytes",
            "Bytes of requests that are incomplete or wait.",
            server.in_flight_bytes,
        )
        yield gauge(
            "rocketpoll_unread_bytes",
            "Bytes of answers that clients have not read.",
            server.unread_bytes,
        )
        yield gauge("rocketpoll_disk_free_bytes", "Free bytes of the store's disk.", disk.free)
        yield gauge("rocketpoll_disk_total_bytes", "Size of the store's disk.", disk.total)
        yield gauge("rocketpoll_disk_used_ratio", "Used share of the store's disk.", disk.ratio)
        yield gauge(
            "rocketpoll_disk_refused_from_ratio",
            "Used share of the disk above which sends are refused.",
            config.store.disk_space_warning_level_ratio,
        )
        yield gauge(
            "rocketpoll_disk_deleted_from_ratio",
            "Used share of the disk above which messages younger than fileReservedTime are "
            "deleted; if cleanFileForciblyEnable is off, the share above which sends are refused.",
            config.store.disk_space_clean_forcibly_ratio
            if config.store.clean_file_forcibly_enable
            else config.store.disk_space_warning_level_ratio,
        )
        deletions = self._sources.deletion_log
        yield CounterFamily(
            "rocketpoll_files_deleted_total",
            "Files of the commit log that were deleted: expired, or forced out by a full disk.",
            ("reason",),
            [
                MetricSample(("expired",), deletions.expired_files),
                MetricSample(("disk_full",), deletions.forced_files),
            ],
        )
        yield counter(
            "rocketpoll_unconsumed_messages_deleted_total",
            "Messages deleted before a group had consumed them, added up over groups.",
            deletions.unconsumed_messages,
        )

    def _tables(self) -> Iterator[MetricFamily]:
        tables, config = self._sources.broker, self._sources.broker.config
        for name, description, count, most in (
            ("topics", "topics but the system's", tables.topics.limited_topics, config.max_topics),
            ("groups", "consumer groups", len(tables.groups.groups), config.max_groups),
            ("consumer_offsets", "offsets", tables.offsets.count, config.max_consumer_offsets),
        ):
            yield gauge(f"rocketpoll_{name}", f"Number of {description}.", count)
            yield gauge(f"rocketpoll_{name}_max", f"Maximum number of {description}.", most)
        yield counter(
            "rocketpoll_delayed_messages_dropped_total",
            "Delayed messages that can never be delivered; the log names each.",
            self._sources.broker.schedule.dropped_total,
        )
        yield GaugeFamily(
            "rocketpoll_delayed_messages",
            "Delayed messages that are not due yet, by level.",
            ("level",),
            self._delayed(),
        )

    def _timers(self) -> Iterator[MetricFamily]:
        timers = self._sources.broker.timers
        yield gauge(
            "rocketpoll_timers",
            "Timer messages that wait for their time.",
            timers.pending + timers.unindexed,
        )
        for name, description, value in (
            ("delivered", "Timer messages that were delivered.", timers.delivered_total),
            ("recalled", "Timer messages that were recalled.", timers.recalled_total),
            (
                "dropped",
                "Timer messages that can never be delivered; the log names each.",
                timers.dropped_total,
            ),
        ):
            yield counter(f"rocketpoll_timers_{name}_total", description, value)
        yield HistogramFamily(
            "rocketpoll_timer_delay_seconds",
            "Time by which timer messages were delivered late.",
            timers.delays,
        )

    def _transactions(self) -> Iterator[MetricFamily]:
        transactions = self._sources.broker.transactions
        yield gauge(
            "rocketpoll_half_messages",
            "Messages of transactions that are neither committed nor rolled back.",
            transactions.pending_count,
        )
        for name, description, count in (
            ("committed", "Transactions that were committed.", transactions.committed_total),
            ("rolled_back", "Transactions that were rolled back.", transactions.rolled_back_total),
            ("checks", "Checks of open transactions.", transactions.checks_total),
            (
                "checks_unsent",
                "Checks for which no producer of the group was connected.",
                transactions.unsent_checks_total,
            ),
            (
                "given_up",
                "Transactions whose message was moved to TRANS_CHECK_MAX_TIME_TOPIC.",
                transactions.given_up_total,
            ),
            (
                "lost",
                "Messages of transactions that were damaged, or deleted with old files.",
                transactions.lost_total,
            ),
        ):
            yield counter(f"rocketpoll_transactions_{name}_total", description, count)

    def _pops(self) -> Iterator[MetricFamily]:
        counters = self._sources.broker.pop_counters
        lost_total = self._sources.revive.dropped_total
        for name, description, total in (
            ("popped", "Messages that groups have popped.", counters.popped_total),
            ("acknowledged", "Popped messages acknowledged.", counters.acknowledged_total),
            ("changed", "Changes of invisible times.", counters.changed_total),
            ("revived", "Popped messages that are delivered again.", counters.revived_total),
            (
                "dead_letters",
                "Popped messages that became dead letters.",
                counters.dead_letters_total,
            ),
            ("lost", "Popped messages that could not be redelivered.", lost_total),
        ):
            yield counter(f"rocketpoll_pop_messages_{name}_total", description, total)

    def _batches(self) -> Iterator[MetricFamily]:
        batches, most = (
            self._sources.broker.store.staged_batches,
            self._sources.broker.config.store.staged_bytes_max,
        )
        for name, description, value in (
            ("staged_bytes", "Bytes of staged rows.", batches.staging_area.size),
            ("staged_bytes_max", "Maximum bytes of staged rows.", most),
            ("sinks", "Sinks that have committed staged batches.", len(batches.table.sinks)),
            ("sinks_max", "Maximum number of sinks.", SINKS_MAX),
        ):
            yield gauge(f"rocketpoll_{name}", description, value)
        for name, description, value in (
            ("committed", "Staged batches that were committed.", batches.commits),
            ("aborted", "Staged batches that their sinks gave up.", batches.aborts),
            ("rolled_back", "Commits that failed with rows in the log.", batches.rollbacks),
        ):
            yield counter(f"rocketpoll_batches_{name}_total", description, value)
        yield counter(
            "rocketpoll_staged_bytes_expired_total",
            "Bytes of staged rows that were deleted because no commit used them within a day.",
            batches.staging_area.expired_bytes,
        )
        yield counter(
            "rocketpoll_sinks_evicted_total",
            "Sinks that were forgotten to make room for others.",
            batches.table.evicted_sinks,
        )
        yield HistogramFamily(
            "rocketpoll_batch_hold_seconds",
            "Time for which each commit delayed other messages.",
            batches.hold_durations,
        )

    def _delayed(self) -> Iterator[MetricSample | None]:
        for level, delivered, end in self._sources.broker.schedule.progress():
            yield MetricSample((str(level),), max(end - delivered, 0))

    def _process_families(self) -> Iterator[MetricFamily]:
        for metric in self._process.collect():
            if metric.name in _OF_PROCESS:
                is_counter = metric.type == "counter"
                kind = CounterFamily if is_counter else GaugeFamily
                rows: Iterable[MetricSample] = [
                    MetricSample((), sample.value) for sample in metric.samples
                ]
                name = f"{metric.name}_total" if is_counter else metric.name
                yield kind(name, metric.documentation, (), rows)


def _name_of(codes: type[RequestCode | ResponseCode], number: int) -> str:
    return codes(number).name if number in codes._value2member_map_ else str(number)
