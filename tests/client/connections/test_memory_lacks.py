"""A MemoryError at any line of the connection threads: every waiting caller gets an error.

The threads that read and write serve many callers. If one ended here, all callers would wait for
ever, for example in a container with little memory.
"""

import threading

import pytest
from support.faults.memory_errors import MemoryFault
from support.servers.fake_servers import FakeServer, answering, silent

from rmq_spark.client.errors import ConnectionClosed, RequestTimeout
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.wire.remoting.command import RemotingCommand

READING = ("transport/connection.py", "transport/pending_requests.py", "wire/remoting/framing.py")
WRITING = ("transport/frame_writer.py",)
ASK = RemotingCommand(105, body=b"x")
REQUESTS = 4
MINUTE_MS = 60_000
PATIENCE_S = 20


def echo(request):
    return request.respond(0, "echo", request.ext_fields, bytes(request.body))


def answers_to_some(peer):
    """Answer all requests but the first in one write, and close."""
    requests = [peer.receive() for _ in range(REQUESTS)]
    peer.send(b"".join(echo(request).encode() for request in requests[1:]))


def outcome(answer):
    """Return the outcome of a request: the response's body, the type of its error, or None if
    pending."""
    if not answer.done():
        return None
    error = answer.exception(0)
    return bytes(answer.result(0).body) if error is None else type(error)


def assert_all_are_told(files, work, usually):
    """Run work repeatedly, with a MemoryError at each of its lines in turn; the work returns
    outcomes."""
    none = MemoryFault(files)
    assert work(none) == usually
    for number in none.first_and_last_of_each():
        fault = MemoryFault(files, number)
        outcomes = work(fault)
        assert None not in outcomes, f"without memory at {fault.where}: {outcomes}"


@pytest.fixture
def read_on(monkeypatch):
    """Return the body of the reading thread, which the test runs itself."""
    read_on = RemotingConnection._run
    monkeypatch.setattr(RemotingConnection, "_run", lambda _: None)
    return read_on


def test_out_of_memory_in_the_reader_fails_all_waiters(read_on):
    def ask(fault):
        connection = RemotingConnection.connect(server.address)
        answers = [connection.request_async(ASK, MINUTE_MS) for _ in range(REQUESTS)]
        with fault:
            read_on(connection)
        assert connection.is_closed
        connection._socket.close()  # closing may itself have run out of memory
        return [outcome(each) for each in answers]

    with FakeServer(answers_to_some) as server:
        assert_all_are_told(READING, ask, [ConnectionClosed, b"x", b"x", b"x"])


def test_out_of_memory_in_the_reader_at_a_timeout_fails_all_waiters(read_on):
    """The reader expires requests whose callers are not waiting at the moment."""

    def wait_in_vain(fault):
        connection = RemotingConnection.connect(server.address)
        answers = [connection.request_async(ASK, MINUTE_MS) for _ in range(REQUESTS)]
        connection._pending.next_deadline, late = 0.0, connection.clock() + MINUTE_MS / 1000
        connection.clock = lambda: late
        connection._read_once = lambda *_: None
        with fault:
            read_on(connection)
        connection._socket.close()  # closing may itself have run out of memory
        return [outcome(each) for each in answers]

    with FakeServer(silent) as server:
        usually = [RequestTimeout] + [ConnectionClosed] * (REQUESTS - 1)
        assert_all_are_told(READING, wait_in_vain, usually)


def test_out_of_memory_in_the_writer_fails_all_waiters():
    def gather(fault):
        connection = RemotingConnection.connect(server.address)
        # so that the writer starts no thread
        connection._writer._thread = threading.current_thread()
        answers = [
            connection.request_async(ASK, MINUTE_MS, may_batch=True) for _ in range(REQUESTS)
        ]
        told = threading.Semaphore(0)
        for each in answers:
            each.add_done_callback(lambda _: told.release())

        def end_it():
            for _ in answers:
                told.acquire(timeout=PATIENCE_S)
            connection.close()

        ender = threading.Thread(target=end_it)
        ender.start()
        with fault:
            connection._writer._run()
        outcomes = [outcome(each) for each in answers]
        connection.close()
        ender.join()
        return outcomes

    with FakeServer(answering(echo)) as server:
        assert_all_are_told(WRITING, gather, [b"x"] * REQUESTS)
