"""A consumer in BROADCASTING mode whose offset files fail once at any operation, or from then on.

It raises an error or continues correctly: after a restart, finished messages may be redelivered,
but no unfinished message counts as finished.
"""

import errno
import io
import os
import threading
from pathlib import Path

import pytest
from support.brokers.broker_kinds import wait_until
from support.suite.selection import spread

from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.errors import OffsetFileFailed
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
PATIENCE_S = 30
STORED_EVERY_MS = 20
USES = 26
"""Minimum number of file operations in the test's scenario; the last test checks it."""


class Files:
    """Counts file operations below a directory, and can make them fail."""

    def __init__(self, monkeypatch, directory):
        self.directory = str(directory)
        self._mutex = threading.Lock()
        self.uses = []
        self.failed = []
        self.heal()
        for name in ("read_bytes", "mkdir", "open", "replace"):
            self._watch(monkeypatch, Path, name, str)
        self._watch(monkeypatch, os, "open", str)
        self._watch(
            monkeypatch, os, "fsync", lambda fd: str(Path(f"/proc/self/fd/{fd}").readlink())
        )

    def _watch(self, monkeypatch, owner, name, path_of):
        real = getattr(owner, name)

        def watched(first, *arguments, **more):
            if not path_of(first).startswith(self.directory):
                return real(first, *arguments, **more)
            self._use(name, path_of(first))
            found = real(first, *arguments, **more)
            return _Watched(found, self._use) if isinstance(found, io.BufferedWriter) else found

        monkeypatch.setattr(owner, name, watched)

    def _use(self, name, path):
        with self._mutex:
            number = len(self.uses)
            self.uses.append((name, path.removeprefix(self.directory)))
            fails = self._fails(number)
            if fails:
                self.failed.append((name, path))
        if fails:
            code = [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EMFILE][number % 4]
            raise OSError(code, os.strerror(code), path)

    def fail(self, use, *, for_good):
        """Make one operation fail, or all from it on."""
        self.fail_for_good = for_good
        self._fails = lambda number: number == use or (for_good and number > use)

    def heal(self):
        self.fail_for_good = False
        self._fails = lambda _: False


class _Watched:
    def __init__(self, file, use):
        self._file, self._use = file, use

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, data):
        self._use("write", self._file.name and str(self._file.name))
        return self._file.write(data)

    def flush(self):
        self._file.flush()

    def fileno(self):
        return self._file.fileno()


class Life:
    """A consumer between its start and its end."""

    def __init__(self, address, directory, finished):
        self._finished = finished
        settings = PushSettings(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            message_model=MessageModel.BROADCASTING,
            local_offset_directory=directory,
            persist_consumer_offset_interval_ms=STORED_EVERY_MS,
        )
        self.instance = ClientInstance(address, client_id="always-the-same")
        self.consumer = PushConsumer("G", instance=self.instance, listener=self, settings=settings)
        self.consumer.subscribe("T")

    def __call__(self, messages, _):
        self._finished += [each.body.decode() for each in messages]

    def __enter__(self):
        self.consumer.start()
        return self

    def __exit__(self, *_):
        self.consumer.shutdown()
        self.instance.shutdown()


@pytest.fixture
def files(monkeypatch, tmp_path):
    return Files(monkeypatch, tmp_path / "offsets")


@pytest.fixture
def live(running_broker, api, tmp_path, caplog):
    """Return a function that sends messages one by one, each after the previous one is finished and
    perhaps stored.

    A queue whose offset cannot be read is not consumed, and the log says so.
    """
    config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, config)
    directory = tmp_path / "offsets"

    def live(files, finished, names):
        def stuck():
            return files.fail_for_good and "cannot be read" in caplog.text

        with (
            Producer("P", running_broker.address) as producer,
            Life(running_broker.address, directory, finished),
        ):
            for name in names:
                before = len(files.uses)
                producer.send(Message("T", name.encode()), QUEUE)
                wait_until(
                    "it is finished", lambda name=name: name in finished or stuck(), PATIENCE_S
                )
                if name not in finished:
                    return
                wait_until("a try to store it", lambda b=before: len(files.uses) > b, PATIENCE_S)

    return live


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("use", spread(8, range(USES)))
def test_failing_offset_file_loses_no_message_and_lets_the_consumer_shut_down(
    files, live, use, for_good, caplog
):
    finished = []
    files.fail(use, for_good=for_good)
    try:
        live(files, finished, ["0", "1", "2"])
    except OffsetFileFailed as error:  # failed at the start, so nothing was consumed
        assert finished == []
        assert str(error)
    assert files.failed
    if finished:
        assert "storing offsets failed" in caplog.text or not for_good
    first = list(finished)
    files.heal()
    caplog.clear()
    live(files, finished, ["3", "4"])
    assert set(finished) >= {*first, "3", "4"}
    stored = api_offset(files)
    assert stored <= len(set(finished))
    repeats = len(finished) - len(set(finished))
    assert for_good or repeats <= 3


def api_offset(files):
    """Return the final offset in the file."""
    [path] = {path for name, path in files.uses if path.endswith("offsets.json")}
    text = Path(files.directory + path).read_text()
    return int(text.rpartition("}:")[2].strip("}"))


def test_offset_file_operations_are_those_that_the_tests_fail(files, live):
    live(files, [], ["0", "1", "2"])
    kinds = {name for name, _ in files.uses}
    assert kinds == {"read_bytes", "mkdir", "open", "write", "fsync", "replace"}
    assert len(files.uses) >= USES
