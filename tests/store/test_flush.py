"""Flushes: waiting, sharing, and failures."""

import errno
import threading

import pytest
from support.stores.small_store import components_of, message, open_store

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import StoreClosed, StoreFailed
from rocketpoll.broker.store.log.flusher import FlushService

SECONDS_MAX = 10


class Log:
    """A log whose flush blocks until released."""

    def __init__(self):
        self.written_name = 0
        self.flushes = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.error = None

    def flush(self):
        end = self.written_name
        self.entered.release()
        assert self.gate.acquire(timeout=SECONDS_MAX)
        if self.error:
            raise self.error
        self.flushes.append(end)
        return end


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def failures():
    return []


@pytest.fixture
def service(log, failures):
    service = FlushService(log.flush, lambda: None, failures.append, None)
    service.start()
    yield service
    log.gate.release(100)
    service.stop()


def test_flush_serves_all_waiting_futures(service, log):
    log.written_name = 1
    first = service.flush_future(1)
    assert log.entered.acquire(timeout=SECONDS_MAX)
    log.written_name = 10
    others = [service.flush_future(end) for end in range(2, 11)]
    log.gate.release()
    first.result(SECONDS_MAX)
    assert not any(future.done() for future in others)  # written after that flush had begun
    log.gate.release()
    for future in others:
        future.result(SECONDS_MAX)
    assert log.flushes == [1, 10]


def test_wait_flushed_waits_for_a_slow_disk(service, log):
    log.written_name = 5
    settling = threading.Thread(target=service.wait_flushed, args=(5,))
    settling.start()
    assert log.entered.acquire(timeout=SECONDS_MAX)
    assert settling.is_alive()
    log.gate.release()
    settling.join(SECONDS_MAX)
    assert log.flushes == [5]


def test_wait_flushed_does_not_wait_while_the_disk_is_full(service, log):
    """Otherwise a broker could not be stopped while its disk is full."""
    log.error = OSError(errno.ENOSPC, "full")
    log.written_name = 5
    log.gate.release(100)
    service.wait_flushed(5)
    assert log.flushes == []


def test_wait_flushed_waits_again_after_disk_space_is_back(service, log):
    log.written_name, log.error = 5, OSError(errno.ENOSPC, "no room")
    first = service.flush_future(5)
    log.gate.release()
    while not service._is_degraded:
        assert log.entered.acquire(timeout=SECONDS_MAX)
    log.error = None
    log.gate.release()
    first.result(SECONDS_MAX)
    log.written_name = 9
    settling = threading.Thread(target=service.wait_flushed, args=(9,))
    settling.start()
    assert log.entered.acquire(timeout=SECONDS_MAX)
    assert settling.is_alive()
    log.gate.release()
    settling.join(SECONDS_MAX)
    assert log.flushes == [5, 9]


def test_flush_failure_is_reported_to_owner_before_waiting_futures(service, log, failures):
    log.error = StoreFailed("no disk")
    log.written_name = 5
    future = service.flush_future(5)
    known = []
    future.add_done_callback(lambda _: known.extend(failures))
    log.gate.release()
    with pytest.raises(StoreFailed, match="no disk"):
        future.result(SECONDS_MAX)
    assert (
        known == failures == [log.error]
    )  # the store accepts nothing more before the first waiter gets its error


@pytest.mark.parametrize("place", ["flush", "behind it"])
def test_unexpected_flush_error_fails_all_waiters_and_the_owner(log, failures, place):
    """R17: current waiters, later ones and the owner all get the error."""
    told = (lambda: None) if place == "flush" else (lambda: {}["gone"])
    service = FlushService(log.flush, told, failures.append, None)
    service.start()
    log.written_name = 5
    log.error = KeyError("gone") if place == "flush" else None
    first = service.flush_future(5)
    assert log.entered.acquire(timeout=SECONDS_MAX)
    second = service.flush_future(5)
    log.gate.release()
    for future in (first, second, service.flush_future(6)):
        with pytest.raises(StoreFailed, match="KeyError"):
            future.result(SECONDS_MAX)
    assert len(failures) == 1
    assert str(failures[0]).count("restart the broker") == 1
    service.stop()


def test_flush_future_of_flushed_offset_is_done_at_once(service, log):
    log.written_name = 5
    log.gate.release()
    service.flush_future(5).result(SECONDS_MAX)
    assert service.flush_future(3).done()
    assert service.flush_future(5).done()
    assert log.flushes == [5]


def test_cancelled_flush_future_does_not_cancel_others(service, log):
    log.written_name = 5
    given_up, other = service.flush_future(5), service.flush_future(5)
    given_up.cancel()
    log.gate.release(2)
    other.result(SECONDS_MAX)


@pytest.mark.parametrize("broken", ["files", "wake_reput"])
def test_unexpected_flush_error_closes_the_store_for_messages(tmp_path, monkeypatch, broken):
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    owner, name = (
        (components_of(store).log.files._group, "flush")
        if broken == "files"
        else (store.flusher, "_on_flushed")
    )
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, lambda: {}["gone"])
        assert (
            store.wait_until_stored(store.put_message(message("x"))).status.name
            == "SERVICE_NOT_AVAILABLE"
        )
    assert "gone" in store.state().failure
    assert store.put_message(message("y")).status.name == "SERVICE_NOT_AVAILABLE"
    store.shutdown()


def test_flush_service_stop_flushes_for_waiters_and_refuses_new_ones(log, failures):
    service = FlushService(log.flush, lambda: None, failures.append, None)
    service.start()
    log.written_name = 3
    future = service.flush_future(3)
    log.gate.release(10)
    service.stop()
    future.result(0)
    with pytest.raises(StoreClosed):
        service.flush_future(4).result(0)


def test_flush_interval_flushes_without_waiters(log, failures):
    log.gate.release(1000)
    service = FlushService(log.flush, lambda: None, failures.append, 0.001)
    service.start()
    for _ in range(3):
        assert log.entered.acquire(timeout=SECONDS_MAX)
    service.stop()


def test_finished_flush_calls_back(log):
    told = threading.Event()
    service = FlushService(log.flush, told.set, [].append, None)
    service.start()
    log.gate.release(10)
    log.written_name = 1
    service.flush_future(1)
    assert told.wait(SECONDS_MAX)
    service.stop()


def test_sixteen_writers_lose_nothing_and_share_flushes(tmp_path):
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    results = []

    def write(writer):
        for number in range(10):
            result = store.wait_until_stored(
                store.put_message(message(f"{writer}-{number}", queue_id=writer))
            )
            results.append(result)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {result.status.name for result in results} == {"PUT_OK"}
    store.shutdown()
    again = open_store(tmp_path)
    for writer in range(16):
        assert again.queue_offsets("T", writer) == (0, 10)
    again.shutdown()
