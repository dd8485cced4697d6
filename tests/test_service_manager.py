"""A supervisor gets the broker's states over its notification socket."""

import asyncio
import logging
import socket

import pytest

from rocketpoll.broker.process.service_manager import ServiceManager, StartProgress


@pytest.fixture(params=["path", "abstract"])
def supervisor(request, tmp_path):
    """Return a listening socket, and the address that a process gets."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path.name}-notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing:
        hearing.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        hearing.settimeout(10)
        yield hearing, name


def test_service_manager_gets_each_state_in_one_datagram(supervisor):
    hearing, name = supervisor
    ServiceManager({"NOTIFY_SOCKET": name}).notify("READY=1", "STATUS=listens")
    assert hearing.recv(100) == b"READY=1\nSTATUS=listens"


def test_watchdog_is_notified_while_the_loop_runs_and_not_after_stop(supervisor):
    hearing, name = supervisor

    async def story():
        manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000"})
        manager.start_watchdog(asyncio.get_running_loop())
        for _ in range(3):
            await asyncio.get_running_loop().run_in_executor(None, hearing.recv, 100)
        manager.stop()

    asyncio.run(story())


def test_service_manager_without_a_supervisor_sends_nothing():
    async def story():
        manager = ServiceManager({"WATCHDOG_USEC": "2000"})
        manager.notify("READY=1")
        manager.start_watchdog(asyncio.get_running_loop())
        assert manager._timer is None
        manager.stop()

    asyncio.run(story())


def test_missing_notify_socket_is_logged_and_ignored(tmp_path, caplog):
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify("READY=1")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "READY=1" in caplog.text


def test_start_progress_of_a_small_store_has_a_unit_that_fits(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    watch = StartProgress(ServiceManager({}), lambda: now[0])
    watch("makes queues", 0, 3_500)
    now[0] += 100
    watch("makes queues", 0, 3_500)
    assert caplog.messages == ["the start makes queues: 0% of 3.4 KiB"]


def test_start_progress_reports_extend_the_start_timeout(supervisor, caplog):
    hearing, name = supervisor
    caplog.set_level(logging.INFO)
    now = [100.0]
    watch = StartProgress(ServiceManager({"NOTIFY_SOCKET": name}), lambda: now[0])
    assert not watch("makes queues", 0, 200 * 10**9)
    assert caplog.messages == []  # a short start logs nothing
    now[0] += 100
    assert not watch("makes queues", 50 * 10**9, 200 * 10**9)
    said = "the start makes queues: 25% of 186.3 GiB, about 5 min left"
    assert caplog.messages == [said]
    assert hearing.recv(1000).decode() == f"EXTEND_TIMEOUT_USEC=600000000\nSTATUS={said}"
    now[0] += 9
    watch("makes queues", 51 * 10**9, 200 * 10**9)
    assert len(caplog.messages) == 1
    now[0] += 1
    watch("makes queues", 190 * 10**9, 200 * 10**9)
    assert caplog.messages[1].endswith("95% of 186.3 GiB, about 6 s left")
    watch.request_stop()
    assert watch("makes queues", 191 * 10**9, 200 * 10**9)
