"""Staged batches through a whole broker: the rows that consumers see, and the state
after a kill."""

import asyncio
import errno
import logging
import zlib

import pytest
from support.brokers.in_process import SMALL, run, small_broker, started, tell
from support.brokers.processes import BrokerProcess, run_broker
from support.clients.remoting_clients import BrokerClients, pull_request
from support.disks.faulty_disk import FaultyDisk
from support.stores.staged_batches import sized
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.staged_batches import (
    CommitBatchRequestBody,
    CommittedBatch,
    StagedAttempt,
)
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

ROWS = 400
QUEUES = (("StagedT", 0), ("StagedT", 1), ("StagedU", 0))


def request(code, header, body, opaque):
    ext_fields = HEADERS[code].request.encode(header)
    return RemotingCommand(code, opaque=opaque, ext_fields=ext_fields, body=body)


async def stage(client, batch_id):
    """Stage rows for all queues; return their commit request."""
    crc = 0
    for number, (topic, queue_id) in enumerate(QUEUES):
        _, _, body = sized([f"{batch_id} {row}" for row in range(ROWS)], topic, queue_id)
        header = StageChunkRequestHeader(
            "sink", batch_id, "query", "a", number, topic, queue_id, "TBW102"
        )
        answer = await client.call(request(RequestCode.STAGE_CHUNK, header, body, 100 + number))
        assert answer.code == 0, answer.remark
        crc = zlib.crc32(body, crc)
    attempt = StagedAttempt(attempt="a", chunks=len(QUEUES), rows=len(QUEUES) * ROWS, crc=crc)
    body = encode_body(CommitBatchRequestBody(attempts=(attempt,)))
    header = BatchRequestHeader("sink", batch_id, "query")
    return request(RequestCode.COMMIT_BATCH, header, body, 200)


async def seen(client, topic, queue_id):
    """Return all bodies of a queue, as an ordinary consumer pulls them."""
    found, offset = [], 0
    while True:
        answer = await client.pull(offset, topic, queue_id)
        if answer.code:
            return found
        found += answer.bodies
        offset = answer.next_offset


def of_batches(*batch_ids):
    return [f"{batch_id} {row}" for batch_id in batch_ids for row in range(ROWS)]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_pulls_that_wait_get_rows_of_all_topics_when_the_batch_is_committed(tmp_path, flush):
    async def story(broker):
        client, other = await broker.connect(), await broker.connect()
        await client.agree(Extension.STAGED_BATCHES)
        commit = await stage(client, 0)
        waiting = [await broker.connect() for _ in QUEUES]
        for each, queue in zip(waiting, QUEUES, strict=True):
            each.send(pull_request(0, *queue, suspend_ms=20_000))
        for queue in QUEUES:
            assert await seen(other, *queue) == []
        answer, _ = await asyncio.gather(client.call(commit), other.put("beside", topic="StagedT"))
        assert answer.code == 0, answer.remark
        committed = decode_body(CommittedBatch, answer.body)
        assert (committed.batch_id, committed.rows) == (0, ROWS * len(QUEUES))
        for each in waiting:
            assert (await each.receive()).code == 0
        for topic, queue_id in QUEUES:
            found = [body for body in await seen(other, topic, queue_id) if body != "beside"]
            assert found == of_batches(0)

    tell(story, tmp_path, flushDiskType=flush)


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill])
def test_broker_with_a_damaged_batch_journal_does_not_roll_back_the_batch(tmp_path, end):
    """A bit of the batch's entry is flipped; the advice in the error helps."""
    journal = tmp_path / "store" / "config" / "stagedBatches.journal"
    settings = {**SMALL, "storePathRootDir": tmp_path / "store", "flushDiskType": "SYNC_FLUSH"}

    async def life(broker, *, commits):
        async with BrokerClients(broker.port) as clients:
            client = await clients.connect()
            await client.agree(Extension.STAGED_BATCHES)
            if commits:
                answer = await client.call(await stage(client, 0))
                assert answer.code == 0, answer.remark
            whole = of_batches(0)
            assert [await seen(client, *queue) for queue in QUEUES] == [whole] * len(QUEUES)

    with BrokerProcess(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        asyncio.run(life(broker, commits=True))
        end(broker)
    data = bytearray(journal.read_bytes())
    data[data.rindex(b"spans")] ^= 1
    journal.write_bytes(data)
    code, _, told = run_broker(*(f"{name}={value}" for name, value in settings.items()))
    assert (code, told.count("Traceback")) == (1, 0)
    assert f"{journal} does not say which batches are committed" in told
    for path in journal.parent.glob("stagedBatches.*"):
        path.unlink()
    with BrokerProcess(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        asyncio.run(life(broker, commits=False))


async def stop_amid_a_commit(root, disk, wait, *, is_gone):
    """Stage and commit a batch, and stop after ``wait``; return what the stop reports as unsaved.
    The disk continues a little later; the client may be gone by then."""
    async with started(small_broker(root, flushDiskType="SYNC_FLUSH"), disk) as broker:
        client = await broker.connect()
        await client.agree(Extension.STAGED_BATCHES)
        await client.put("before", topic="StagedT")
        commit = await stage(client, 0)
        disk.keep_waiting()
        client.send(commit)
        await wait(broker)
        if is_gone:
            client.close()
            await broker.until(lambda: not broker.controller.server.connections)
        stopping = asyncio.ensure_future(broker.controller.stop())
        await asyncio.sleep(0.1)
        disk.let_go()
        return await stopping


async def starts_in_order_and_commits(root):
    async with started(small_broker(root)) as broker:
        assert not broker.store.state().recovered_from_crash
        client = await broker.connect()
        await client.agree(Extension.STAGED_BATCHES)
        answer = await client.call(await stage(client, 0))
        assert answer.code == 0, answer.remark
        for queue in QUEUES:
            rows = [body for body in await seen(client, *queue) if body != "before"]
            assert rows == of_batches(0)


ROLLED_BACK = (
    "batch 0 of sink sink is rolled back, and its sink can commit it again: the broker is stopping"
)


@pytest.mark.parametrize("is_gone", [False, True], ids=["client there", "client gone"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 6, 8, 10, 14, 20, 30])
def test_stop_during_a_batch_commit_is_clean(tmp_path, caplog, turns, is_gone):
    async def some_turns(_):
        for _ in range(turns):
            await asyncio.sleep(0)

    async def whole():
        disk = FaultyDisk(slow="none")
        assert await stop_amid_a_commit(tmp_path, disk, some_turns, is_gone=is_gone) is None
        await starts_in_order_and_commits(tmp_path)

    caplog.set_level(logging.WARNING)
    run(whole())
    assert set(lines_of(caplog)) <= {ROLLED_BACK}


@pytest.mark.parametrize("is_gone", [False, True], ids=["client there", "client gone"])
@pytest.mark.parametrize("directory", ["commitlog", "config"])
def test_stop_waits_for_a_slow_disk_to_finish_a_batch_commit(tmp_path, caplog, directory, is_gone):
    disk = FaultyDisk(slow=directory)

    async def waits(broker):
        await broker.until(disk.is_waiting.is_set)

    async def whole():
        assert await stop_amid_a_commit(tmp_path, disk, waits, is_gone=is_gone) is None
        await starts_in_order_and_commits(tmp_path)

    caplog.set_level(logging.WARNING)
    run(whole())
    assert set(lines_of(caplog)) <= {ROLLED_BACK}


class FullBehindTheCopy(FaultyDisk):
    """A disk that is full when the end of a batch is to be recorded."""

    is_full = False

    def _run(self, call):
        if self.is_full and call.path.name == "stagedBatches.journal":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super()._run(call)


def test_stop_gives_up_waiting_for_a_batch_commit_on_a_full_disk(tmp_path, caplog):
    disk = FullBehindTheCopy(slow="commitlog")
    passing = []

    async def time_passes(loop):
        while True:
            await asyncio.sleep(0)
            loop.move(0.1)

    async def is_refused(broker):
        await broker.until(disk.is_waiting.is_set)
        disk.is_full = True
        disk.let_go()
        await broker.until(lambda: broker.store.staged_batches.degradation.text)
        passing.append(asyncio.ensure_future(time_passes(asyncio.get_running_loop())))

    async def whole():
        assert await stop_amid_a_commit(tmp_path, disk, is_refused, is_gone=False) is None
        passing.pop().cancel()
        await starts_in_order_and_commits(tmp_path)

    caplog.set_level(logging.WARNING)
    run(whole())
    hindered, rolled_back = lines_of(caplog)
    assert (
        "a batch can be neither committed nor rolled back, retrying: the disk is full" in hindered
    )
    assert "the broker stopped while batch 0 of sink sink was being committed" in rolled_back
