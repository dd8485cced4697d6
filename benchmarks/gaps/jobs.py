"""Rows about the broker's own jobs: housekeeping, delayed messages, checks of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from benchmarks.gaps.asked import Scale, send
from benchmarks.gaps.measured import Client, Gap, MeasuredBroker
from benchmarks.gaps.operators import count_in_all
from benchmarks.gaps.row import Row
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rocketpoll.broker.store.queues.queue_table import FILES_AT_A_TIME, DeletedTopicFiles


def job_rows(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    """Run each job on what the rows before have left."""
    controller = broker.controller
    processors = controller.processors
    count_in_all(broker, scale)
    name = f"counters of {9 * scale.topics:,} topics and groups are carried on"
    yield Row(("sample_stats",), name, broker.longest_turn(act=processors.sample_stats))
    gap = broker.usual_turn(scale.rounds, act=processors.expire_clients)
    yield Row(("_scan_clients",), "clients are looked after", gap)
    gap = broker.usual_turn(scale.rounds, act=controller.housekeeping._check_threads)
    yield Row(("_check_threads",), "threads that failed to start are looked for", gap)
    gap = broker.usual_turn(scale.rounds, act=processors.log_busy)
    yield Row(("log_busy",), "whether sends are refused as busy is looked at", gap)
    gap = broker.usual_turn(scale.rounds, act=controller.store.retry_degraded)
    yield Row(("retry_degraded",), "whether messages wait to be carried is looked at", gap)
    gap = broker.usual_turn(scale.rounds, act=controller.tls.log_expiry)
    yield Row(("log_expiry",), "certificates that expire are looked for; there are none", gap)
    in_thread: dict[tuple[str, ...], Callable[[], object]] = {
        ("_save_offsets",): controller.tables.offsets.save,
        ("_save_configurations",): controller.tables.save_configurations,
        ("_save_delay_offsets",): controller.schedule.save,
        ("_save_timers",): controller.timers.save,
        ("_save_checkpoint", "_check_early_flush"): controller.store.save_checkpoint,
        ("clean",): controller.store.clean,
        ("_delete_topic_files",): partial(_delete_left, controller.store.deleted_topic_files),
        ("_finish_opening",): controller.store.finish_opening,
    }
    for jobs, what in in_thread.items():
        yield Row(
            jobs,
            f"{jobs[0].strip('_')}, in its thread",
            _housekeeping_gap(broker, what, scale.rounds),
        )
    messages = 10 * scale.requests
    delayed = [send("filled", number, DELAY="1") for number in range(messages)]
    end = _end_of(broker, "filled") + messages
    gap = broker.longest_turn(client, delayed, until=lambda: _end_of(broker, "filled") >= end)
    yield Row(("delivery",), f"{messages:,} delayed messages are due", gap)
    broker.send(
        client,
        [send("filled", number, TRAN_MSG="true", PGROUP="P") for number in range(messages)],
    )
    checks = controller.transactions
    clock_ms = controller.processors.broker.monotonic_ms

    def check_round() -> None:
        checks.check(clock_ms() + controller.processors.broker.config.transaction_check_interval_ms)

    gap = broker.usual_turn(scale.rounds, act=check_round)
    yield Row(("checks",), f"a part of a round of checks of {messages:,} half messages", gap)


def _housekeeping_gap(broker: MeasuredBroker, job: Callable[[], object], rounds: int) -> Gap:
    """Run a job in the housekeeping thread, which competes for the interpreter lock."""
    tables = broker.controller.tables
    done: list[object] = []
    numbers = count(1)

    def begin() -> None:
        done.clear()
        number = next(numbers)
        tables.offsets.commit("G", "topic-0", 0, number)
        tables.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=number))
        tables.topics.create_in_send_back(f"another-{number}-{id(job)}", 1)
        broker.controller.housekeeping.run_in_thread(job, done.append)  # nobody else asks for it

    return broker.usual_turn(rounds, act=begin, until=lambda: done)


def _delete_left(left: DeletedTopicFiles) -> None:
    """Delete the maximum number of files at a time, in queues of a deleted topic."""
    topic = left.new_path()
    for queue_id in range(FILES_AT_A_TIME // 2):
        (topic / str(queue_id)).mkdir(parents=True)
        (topic / str(queue_id) / "00000000000000000000").touch()
    left.add(topic, {})
    left.delete_some()


def _end_of(broker: MeasuredBroker, topic: str) -> int:
    return broker.controller.store.queue_offsets(topic, 0).next
