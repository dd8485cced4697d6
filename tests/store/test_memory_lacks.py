"""A MemoryError at any line of putting messages: each caller gets a true result, and none hangs."""

import os
import shutil

import pytest
from support.faults.memory_errors import MemoryFault
from support.stores.small_store import crash, message, open_store, read_all

from rocketpoll.broker.store.append.record_encoding import (
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
)
from rocketpoll.broker.store.config import FlushDiskType

FAULTS = int(os.environ.get("ROCKETPOLL_MEMORY_FAULTS", "60"))
PUTTING = (
    "broker/store/append/message_appender.py",
    "broker/store/log/commit_log.py",
    "broker/store/message_store.py",
)
FILES = (
    "broker/store/files/mapped_file_queue.py",
    "broker/store/files/file_pool.py",
    "broker/store/errors.py",
)
CARRYING = (
    "broker/store/dispatch/reput.py",
    "broker/store/dispatch/dispatcher.py",
    "broker/store/records/recent_writes.py",
)
QUEUES = ("broker/store/queues/consume_queue.py", "broker/store/queues/queue_table.py")


class Senders:
    """Senders that put messages in every way, and record the results."""

    def __init__(self, store):
        self.store = store
        self.told = {}
        self.refused = set()
        self.doubtful = set()
        self._later = []

    def put(self, text, queue_id=0):
        try:
            result = self.store.put_message(message(text, queue_id=queue_id))
        except MemoryError:
            self.doubtful.add(text)
        else:
            self._tell(text, queue_id, result)

    def put_buffered(self, text, queue_id=0):
        draft = draft_of(message(text, queue_id=queue_id))
        try:
            fault = self.store.put_buffered(RecordTemplate(draft), draft.body, draft.properties, 5)
        except MemoryError:
            self.refused.add(text)
        else:
            if fault is None:
                self._later.append((text, queue_id))
            else:
                self._tell(text, queue_id, fault)

    def put_batch(self, *texts):
        draft = draft_of(message(""))
        flags, properties = (0,) * len(texts), (b"",) * len(texts)
        parts = UniformParts(flags, tuple(text.encode() for text in texts), properties)
        try:
            batch = RecordRun.uniform(RecordTemplate(draft), parts, 5)
            result = self.store.put_batch(batch)
        except MemoryError:
            self.doubtful.update(texts)
        else:
            for number, text in enumerate(texts):
                self._tell(text, 0, result, number)

    def end_turn(self):
        """Write the buffered puts; each must get the result of its own message, now or
        next time."""
        try:
            results = self.store.write_buffered()
        except MemoryError:
            return
        if results:
            for (text, queue_id), result in zip(self._later, results, strict=True):
                self._tell(text, queue_id, result)
            self._later = []

    def _tell(self, text, queue_id, result, number=0):
        if result.status.name == "PUT_OK":
            self.told[queue_id, result.queue_offset + number] = text
        else:
            assert "memory" in result.remark
            self.refused.add(text)

    def check(self, store):
        for queue_id in (0, 1):
            at = {each.queue_offset: each.body.decode() for each in read_all(store, "T", queue_id)}
            assert list(at) == list(range(len(at)))
            for (told_queue_id, queue_offset), text in self.told.items():
                if told_queue_id == queue_id:
                    assert at.get(queue_offset) == text
            assert not self.refused & set(at.values())


def work(senders, name):
    for number in range(3):
        senders.put_buffered(f"{name} later {number}", number % 2)
    senders.put(f"{name} behind")
    senders.put_buffered(f"{name} large " + "x" * 2500)
    senders.put_buffered(f"{name} too large for the rest of the file " + "x" * 2500)
    senders.end_turn()
    senders.put(f"{name} other queue", 1)
    senders.put_batch(f"{name} batch 1", f"{name} batch 2")
    senders.end_turn()


def open_async(root):
    """Open a store that dispatches in the caller's thread."""
    root.mkdir(exist_ok=True)
    return open_store(root, flush_disk_type=FlushDiskType.ASYNC_FLUSH)


ALL = (*PUTTING, *FILES, *CARRYING, *QUEUES)


def lines_of_work(root, within=""):
    """Count the lines that need memory."""
    store = open_async(root)
    with MemoryFault(ALL, within=within) as none:
        work(Senders(store), "all")
    store.shutdown()
    return none


def lack_at(root, number, within=""):
    """Run with a MemoryError at one line; all results must be true, then and later."""
    store = open_async(root)
    senders = Senders(store)
    with MemoryFault(ALL, number, within) as fault:
        work(senders, "while")
    senders.end_turn()
    work(senders, "after")
    senders.put("last")
    try:
        assert "last" in senders.told.values(), senders.refused
        store.flush_future(store.state().written_offset).result(10)
        assert store.reput()
        assert (store.state().failure, store.state().degradation) == (None, None)
        senders.check(store)
        crash(store)
        again = open_store(root)
        senders.check(again)
        again.shutdown()
    except BaseException as error:
        error.add_note(f"no memory at {fault.where}")
        raise
    assert fault.where is not None
    shutil.rmtree(root)


def test_out_of_memory_at_any_line_of_a_put_is_answered(tmp_path, dice):
    none = lines_of_work(tmp_path / "all")
    assert none.lines > 200
    for number in dice.sample(range(none.lines), min(FAULTS, none.lines)):
        lack_at(tmp_path / str(number), number)


@pytest.mark.parametrize("within", ["_write_buffered", "_append_run", "results"])
def test_out_of_memory_at_any_line_of_a_buffered_write_is_answered(tmp_path, within):
    """After the write, no line may fail; random numbers seldom hit these few lines."""
    for number in lines_of_work(tmp_path / "all", within).first_and_last_of_each():
        lack_at(tmp_path / str(number), number, within)
