"""Rows about what the broker does by itself: keeping house, and delivering delayed messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.gaps.asked import Scale, send
from benchmarks.gaps.measured import Client, Gap, MeasuredBroker
from benchmarks.gaps.operators import count_in_all
from benchmarks.gaps.row import Row
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig


def job_rows(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    """Do each job, with as much to do as the rows before have left."""
    controller = broker.controller
    processors = controller.processors
    count_in_all(broker, scale)
    name = f"counters of {9 * scale.topics:,} topics and groups are carried on"
    yield Row(("sample_stats",), name, broker.longest_turn(act=processors.sample_stats))
    gap = broker.usual_turn(scale.rounds, act=processors.expire_clients)
    yield Row(("expire_clients",), "clients are looked after", gap)
    gap = broker.usual_turn(scale.rounds, act=processors.note_busy)
    yield Row(("note_busy",), "whether sends are refused as busy is looked at", gap)
    gap = broker.usual_turn(scale.rounds, act=controller.store.reput_again)
    yield Row(("reput_again",), "whether messages wait to be carried is looked at", gap)
    for jobs, what in {
        ("_save_offsets",): controller.tables.offsets.save,
        ("_save_configurations",): controller.tables.save_configurations,
        ("_save_delay_offsets",): controller.schedule.save,
        ("_save_checkpoint", "_flush_early"): controller.store.save_checkpoint,
        ("clean",): controller.store.clean,
        ("_finish_opening",): controller.store.finish_opening,
    }.items():
        yield Row(jobs, f"{jobs[0].strip('_')}, in its thread", _aside(broker, what, scale.rounds))
    messages = 10 * scale.requests
    delayed = [send("filled", number, DELAY="1") for number in range(messages)]
    end = _end_of(broker, "filled") + messages
    gap = broker.longest_turn(client, delayed, until=lambda: _end_of(broker, "filled") >= end)
    yield Row(("delivery",), f"{messages:,} delayed messages are due", gap)


def _aside(broker: MeasuredBroker, job: Callable[[], object], rounds: int) -> Gap:
    """Run a job in the housekeeping thread, which meets the loop at the interpreter's lock."""
    tables = broker.controller.tables
    done: list[object] = []
    numbers = count(1)

    def begin() -> None:
        done.clear()
        number = next(numbers)
        tables.offsets.commit("G", "topic-0", 0, number)
        tables.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=number))
        tables.topics.create_in_send_back(f"another-{number}-{id(job)}", 1)
        broker.controller.housekeeping.run_aside(job, done.append)  # nobody else asks for it

    return broker.usual_turn(rounds, act=begin, until=lambda: done)


def _end_of(broker: MeasuredBroker, topic: str) -> int:
    return broker.controller.store.queue_offsets(topic, 0).next
