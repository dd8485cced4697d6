"""Housekeeping: tasks that a broker runs without a request."""

import asyncio
import gc
import json
import threading

import pytest
from support.brokers.in_process import on_broker, run, small_broker, started, tell
from support.clients.remoting_clients import pull_request, pulled
from support.disks.faulty_disk import FaultyDisk, usage_of_large_disk
from support.stores.small_store import checkpointer_of, crash, message, open_store
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker import controller
from rocketpoll.broker.runtime import housekeeping
from rocketpoll.broker.store.errors import FlushFailed
from rocketpoll.broker.store.maintenance import checkpointer


def saved(root, name, table):
    """Return a file's content; between the two renames of a save there is none."""
    try:
        return json.loads((root / "config" / name).read_text()).get(table, {})
    except FileNotFoundError:
        return {}


def test_configurations_are_saved_within_a_second_and_offsets_at_their_interval(tmp_path):
    def groups():
        return saved(tmp_path, "subscriptionGroup.json", "subscriptionGroupTable")

    def offsets():
        return saved(tmp_path, "consumerOffset.json", "offsetTable")

    async def story(broker):
        tables = broker.controller.tables
        tables.groups.put(SubscriptionGroupConfig(group_name="G7"))
        tables.offsets.commit("G", "T", 0, 5)
        assert "G7" not in groups()
        broker.move(1)
        await broker.until(lambda: "G7" in groups())
        assert not offsets()
        broker.move(300)
        await broker.until(offsets)
        assert offsets() == {"T@G": {"0": 5}}

    tell(story, tmp_path, flushConsumerOffsetInterval=300_000)


def test_consumer_offsets_are_saved_after_their_messages_are_flushed(tmp_path):
    """With ASYNC_FLUSH, a power loss that leaves an offset also leaves the messages before it."""

    async def story(broker):
        client = await broker.connect()
        await client.put("a")
        end = broker.store.state().written_offset
        assert broker.store.state().flushed_offset < end
        broker.controller.tables.offsets.commit("G", "T", 0, 1)
        broker.move(300)
        await broker.until(lambda: saved(tmp_path, "consumerOffset.json", "offsetTable"))
        assert broker.store.state().flushed_offset == end

    later = dict.fromkeys(["checkpointIntervalMills", "flushIntervalCommitLog"], 900_000)
    tell(story, tmp_path, flushConsumerOffsetInterval=300_000, **later)


@on_broker(checkpointIntervalMills=12_000, cleanResourceInterval=6_000)
async def test_checkpoints_and_cleaning_run_at_their_intervals(broker):
    done = []
    housekeeping = broker.controller.housekeeping
    store = housekeeping._store = _Told(broker.store, done)
    assert store is not broker.store
    broker.move(7)
    await broker.until(lambda: done.count("clean"))
    assert done.count("save_checkpoint") == 0
    broker.move(7)
    await broker.until(lambda: done.count("save_checkpoint"))


@on_broker
async def test_slow_hold_sweep_is_logged(broker, caplog):
    """Only the sweep moves the clock: three queues take 60 ms, then 120."""
    broker.make_topic("T")
    client = await broker.connect()
    client.send(b"".join(pull_request(0, queue_id=n, suspend_ms=60_000).encode() for n in range(3)))
    await broker.held(3)
    asyncio.get_running_loop().stand_still()
    sweep, sweeps = broker.holds.check_hold_request, []

    def slow_sweep(now_ms):
        for step in sweep(now_ms):
            broker.move(0.02 if not sweeps else 0.04)
            yield step
        sweeps.append(now_ms)

    broker.holds.check_hold_request = slow_sweep
    for number in (1, 2):
        assert "checking the held pulls" not in caplog.text
        broker.move(5)
        while len(sweeps) < number:  # noqa: ASYNC110  # no event signals it
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "checking the held pulls of 3 queues took 1" in caplog.text


class _Told:
    """A store that records its calls."""

    def __init__(self, store, done):
        self._store, self._on_done = store, done

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name in {"clean", "save_checkpoint"}:
            self._on_done.append(name)
        return found


def test_sweep_rescues_and_counts_an_overlooked_held_pull(tmp_path, caplog):
    async def story(broker):
        consumer, producer = await broker.connect(), await broker.connect()
        broker.make_topic("T")
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        broker.holds.notify_message_arriving = lambda *_: 0  # suppress the notification
        await producer.put("a")
        assert broker.holds.hold_count == 1
        del broker.holds.notify_message_arriving
        broker.move(5)
        assert pulled(await consumer.receive()).bodies == ["a"]
        assert broker.holds.rescued_total == 1

    tell(story, tmp_path)
    assert "overlooked" in caplog.text


def test_hold_deadline_missed_by_a_stopped_machine_is_no_rescue(tmp_path, caplog):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        client.send(pull_request(0, suspend_ms=6_000))
        await broker.held(1)
        broker.move(3_600)  # the sweep was due before the deadline, and runs before it
        assert pulled(await client.receive()).code == 19
        broker.move(5)
        await client.ask(0)
        assert broker.holds.rescued_total == 0

    tell(story, tmp_path, serverChannelMaxIdleTimeMills=1_000_000_000)
    assert lines_of(caplog) == []


def test_client_without_heartbeats_is_closed(tmp_path, caplog):
    async def story(broker):
        client = await broker.connect()
        await client.heartbeat("G", "T")
        for seconds in (100, 19):
            broker.move(seconds)
            await client.ask(0, opaque=3)  # so that it is not idle
        broker.move(12)
        assert await client.closed() == b""

    tell(story, tmp_path)
    assert "no heartbeat for 120000 ms" in caplog.text


@pytest.mark.usefixtures("on_each_loop")
@on_broker
async def test_heartbeats_that_arrive_while_the_process_is_stopped_are_read_before_members_expire(
    broker,
):
    client = await broker.connect()
    await client.heartbeat("G", "T")
    broker.move(100)
    await client.ask(0, opaque=3)
    frame = client.heartbeat_frame("G", "T")
    asyncio.get_running_loop().call_soon(client.send_at_once, frame)
    broker.move(25)  # the last heartbeat that was read is 125 s old, and 120 are allowed
    assert (await client.receive()).code == 0
    broker.move(10)
    await client.ask(0, opaque=3)
    assert broker.controller.processors.consumers.group("G") is not None


def test_failing_housekeeping_job_is_logged_and_repeated(tmp_path, caplog):
    async def story(broker):
        calls = []

        def fail():
            calls.append(1)
            raise ValueError("this time")

        housekeeping = broker.controller.housekeeping
        housekeeping._every(1_000, fail)
        housekeeping._every(1_000, lambda: housekeeping._start_in_thread("it is not done", fail))
        for times in (2, 4):
            broker.move(1)
            await broker.until(lambda times=times: len(calls) >= times)

    tell(story, tmp_path)
    assert caplog.text.count("this time") >= 2


@on_broker(flushConsumerOffsetInterval=300_000)
async def test_offsets_that_could_not_be_saved_are_saved_the_next_time(
    broker, tmp_path, monkeypatch, caplog
):
    offsets, housekeeping = broker.controller.tables.offsets, broker.controller.housekeeping
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(offsets._table.table, "path", tmp_path / "gone" / "x")
        offsets.commit("G", "T", 0, 5)
        broker.move(300)
        await broker.until(lambda: "offsets of groups are not saved" in caplog.text)
    await broker.until(lambda: not housekeeping._pending_jobs)
    broker.move(300)
    await broker.until(lambda: saved(tmp_path, "consumerOffset.json", "offsetTable"))


def test_failed_configuration_save_is_logged_once_and_on_recovery(tmp_path, caplog):
    async def story(broker):
        tables, housekeeping = broker.controller.tables, broker.controller.housekeeping
        in_the_way = tmp_path / "config" / "topics.json.tmp"
        in_the_way.mkdir()
        broker.make_topic("U")
        for _ in range(3):
            broker.move(1)
            await broker.until(lambda: "configurations are not saved" in caplog.text)
            await broker.until(lambda: not housekeeping._pending_jobs)
        in_the_way.rmdir()
        broker.move(1)
        await broker.until(lambda: "resolved: configurations are not saved" in caplog.text)
        assert not tables.has_changed_configurations

    tell(story, tmp_path)
    assert caplog.text.count("configurations are not saved") == 2
    assert "Is a directory" in caplog.text


@on_broker
async def test_long_housekeeping_job_is_not_started_twice(broker):
    begun, go_on = [], threading.Event()

    def take_long():
        begun.append(1)
        go_on.wait(10)

    housekeeping = broker.controller.housekeeping
    housekeeping._start_in_thread("it takes long", take_long)
    await broker.until(lambda: begun)
    housekeeping._start_in_thread("it takes long", take_long)
    go_on.set()
    await broker.until(lambda: take_long not in housekeeping._running_jobs)
    assert len(begun) == 1


@on_broker
async def test_housekeeping_job_runs_in_a_thread_and_reports_in_the_loop(broker):
    told = []

    def fail():
        told.append(threading.get_ident())
        raise OSError("no room")

    broker.controller.housekeeping.run_in_thread(
        fail, lambda error: told.extend([threading.get_ident(), str(error)])
    )
    await broker.until(lambda: len(told) == 3)
    assert told[0] != threading.get_ident()
    assert told[1:] == [threading.get_ident(), "no room"]
    await broker.until(lambda: not broker.controller.housekeeping.is_busy)


def test_housekeeping_stop_waits_for_running_jobs(tmp_path):
    ended = []

    async def story(broker):
        begun, go_on = threading.Event(), threading.Event()

        def job():
            begun.set()
            go_on.wait(10)
            ended.append(1)

        broker.controller.housekeeping.run_in_thread(job, lambda _: None)
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, go_on.set)

    tell(story, tmp_path)
    assert ended == [1]


def test_hanging_checkpoint_does_not_block_offsets_cleaning_or_deletion(tmp_path):
    disk = FaultyDisk(slow="consumequeue")

    async def story(broker):
        client = await broker.connect()
        for _ in range(5):
            await client.put("a" * 400_000)
        assert broker.store.save_checkpoint()
        await client.put("b")
        files = len(list((tmp_path / "commitlog").iterdir()))
        assert files > 1
        disk.keep_waiting()
        broker.move(60)
        await broker.until(disk.is_waiting.is_set)
        broker.controller.tables.offsets.commit("G", "T", 0, 5)
        disk.usage = lambda _: usage_of_large_disk(0.87)
        broker.move(10)
        await broker.until(lambda: saved(tmp_path, "consumerOffset.json", "offsetTable"))
        await broker.until(lambda: len(list((tmp_path / "commitlog").iterdir())) == 1)
        answer = await client.call(RemotingCommand(215, ext_fields={"topic": "T"}))
        assert (answer.code, broker.store.queue_offsets("T", 0)) == (0, (0, 0))
        assert checkpointer_of(broker.store).is_under_way
        disk.let_go()
        await broker.until(lambda: not checkpointer_of(broker.store).is_under_way)

    try:
        tell(story, tmp_path, disk)
    finally:
        disk.let_go()


@on_broker(maxOpenFiles=18)
async def test_checkpoint_comes_early_when_many_files_are_unflushed(broker):
    """Otherwise a write to another queue would wait for a flush, and block all clients."""
    client = await broker.connect()
    assert not broker.store.is_flush_due
    for number in range(10):
        await client.put("a", topic=f"T{number}")
    assert broker.store.is_flush_due
    broker.move(1)
    await broker.until(lambda: not broker.store.is_flush_due)
    await broker.until(lambda: checkpointer_of(broker.store).saved_offset)


def test_broker_stop_does_not_wait_for_a_hanging_checkpoint(tmp_path, monkeypatch):
    """Nothing is lost: the next start recovers as after a crash."""
    monkeypatch.setattr(housekeeping, "_STORE_JOBS_STOP_SECONDS", 0.05)
    monkeypatch.setattr(checkpointer, "_LAST_CHECKPOINT_SECONDS", 0.05)
    disk = FaultyDisk(slow="consumequeue")

    async def hanging(broker):
        client = await broker.connect()
        await client.put("a")
        disk.keep_waiting()
        broker.move(60)
        await broker.until(disk.is_waiting.is_set)

    async def next_start(broker):
        assert broker.store.state().recovered_from_crash
        assert broker.store.queue_offsets("T", 0) == (0, 1)

    try:
        tell(hanging, tmp_path, disk)
        tell(next_start, tmp_path)
    finally:
        disk.let_go()


def test_checkpoint_failing_during_stop_leaves_no_unretrieved_exception(tmp_path, caplog):
    begun, go_on = threading.Event(), threading.Event()

    def fail():
        begun.set()
        go_on.wait(10)
        raise FlushFailed(5, "Input/output error")

    async def story(broker):
        broker.controller.housekeeping._start_in_store_pool("no checkpoint is taken", fail)
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, go_on.set)

    tell(story, tmp_path)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_housekeeping_job_after_stop_neither_runs_nor_fails(tmp_path):
    told = []

    async def story(broker):
        await broker.controller.stop()
        for run_aside in (
            broker.controller.housekeeping.run_in_thread,
            broker.controller.housekeeping.run_in_batch_thread,
        ):
            run_aside(lambda: told.append("done"), told.append)
        await asyncio.sleep(0.05)

    tell(story, tmp_path)
    assert told == []


def test_offsets_unsaved_on_a_slow_disk_are_saved_later_and_logged_once(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(controller, "_DRAIN_SECONDS", 0.05)
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        client = await broker.connect()
        await client.put("a")
        disk.keep_waiting()
        await client.put("b")
        broker.controller.tables.offsets.commit("G", "T", 0, 2)
        for _ in range(3):
            broker.move(5)
            await broker.until(
                lambda: (
                    "offsets of groups are not saved, retrying: a flush takes longer" in caplog.text
                )
            )
        assert not saved(tmp_path, "consumerOffset.json", "offsetTable")
        disk.let_go()
        broker.move(5)
        await broker.until(lambda: saved(tmp_path, "consumerOffset.json", "offsetTable"))

    try:
        tell(story, tmp_path, disk, flushDiskType="ASYNC_FLUSH")
    finally:
        disk.let_go()
    assert caplog.text.count("offsets of groups are not saved") == 2, (
        "once that it is so, once that it is over"
    )
    assert "ERROR" not in caplog.text


def test_recovery_after_a_crash_is_checkpointed_soon(tmp_path):
    """Otherwise a broker that crashes repeatedly would have more to redo each time."""
    store = open_store(tmp_path / "killed", mapped_file_size_commit_log=1 << 20)
    store.put_message(message("a"))
    crash(store)

    async def story(broker):
        assert broker.store.queue_offsets("T", 0) == (0, 1)
        assert checkpointer_of(broker.store).saved_offset == 0
        broker.move(1)
        await broker.until(lambda: checkpointer_of(broker.store).saved_offset)

    tell(story, tmp_path / "killed", mappedFileSizeConsumeQueue=20 * 8)


def test_stopped_broker_starts_no_recovery_checkpoint(tmp_path, caplog):
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    store.put_message(message("a"))
    crash(store)

    async def whole():
        config = small_broker(
            tmp_path, mappedFileSizeConsumeQueue=20 * 8, checkpointIntervalMills=2_000
        )
        async with started(config) as broker:
            pass
        broker.move(3)
        for _ in range(5):
            await asyncio.sleep(0)

    run(whole())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_housekeeping_without_threads_is_logged_once_and_retried(tmp_path, monkeypatch, caplog):
    """The system starts no more threads, or has no memory to queue the job."""

    async def story(broker):
        housekeeping = broker.controller.housekeeping
        errors = []
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(housekeeping._pool, "submit", fail)
            housekeeping.run_in_thread(lambda: None, errors.append)
            housekeeping._every(
                1_000, lambda: housekeeping._start_in_thread("it is not done", done)
            )
            broker.move(1)
            await broker.until(lambda: "it is not done" in caplog.text)
            broker.move(1)
            await broker.until(lambda: errors)
        broker.move(1)
        await broker.until(lambda: "resolved: it is not done" in caplog.text)
        assert [str(error) for error in errors] == ["can't start new thread"]
        assert housekeeping._pending_jobs == 0

    def fail(_):
        raise RuntimeError("can't start new thread")

    def done():
        pass

    tell(story, tmp_path)
    assert caplog.text.count("it is not done, retrying: no thread can be started") == 1


def test_saving_tables_starts_no_thread_while_serving(tmp_path, monkeypatch):
    async def story(broker):
        client = await broker.connect()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(threading.Thread, "start", fail)
            assert await client.put("new topic")
            broker.move(10)
            await broker.until(lambda: saved(tmp_path, "topics.json", "topicConfigTable"))

    start = threading.Thread.start

    def fail(thread):
        if "Housekeeping" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    tell(story, tmp_path)
