"""The watch detects each table in which a broker keeps something of departed clients."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.suite.selection import spread
from world.drawing import draw
from world.stage import Broken
from world.watch import Watch
from world.world import World

LEFT = {
    "unread bytes": lambda controller, _: setattr(controller.server.send_buffers, "bytes", 7),
    "readers of": lambda controller, _: controller.server.send_buffers._sizes.update({"client": 1}),
    "places of steps": lambda controller, _: setattr(
        controller.server.concurrency_limit._large, "_used", 1
    ),
    "places of waiting pulls": lambda controller, _: setattr(
        controller.hold_service._deferred, "used", 1
    ),
    "deadlines": lambda controller, _: controller.hold_service._deadlines.update({1: {}}),
    "arrivals": lambda controller, _: controller.hold_service._arrivals.update({"queue": None}),
    "parked sends": lambda controller, _: setattr(controller.processors.pending_sends, "_count", 1),
    "bytes of awaited answers": lambda controller, _: setattr(
        controller.processors.pending_replies, "bytes", 1
    ),
    "commits": lambda controller, _: setattr(
        controller.store.staged_batches, "under_way", Future()
    ),
    "members of groups": lambda controller, _: setattr(
        controller.processors.consumers._limits, "_members", 1
    ),
    "clients with subscriptions": lambda controller, _: (
        controller.processors.consumers._limits._client_bytes.update({"client": 1})
    ),
    "consumers with groups": lambda controller, _: (
        controller.processors.consumers._groups_of.update({"client": {}})
    ),
    "producers with groups": lambda controller, _: (
        controller.processors.producers._groups_of.update({"client": {}})
    ),
    "bytes of subscriptions": lambda controller, _: setattr(
        controller.processors.consumers._limits, "_group_bytes", 1
    ),
    "holders of locks": lambda controller, _: controller.processors.locks._by_connection.update(
        {"client": None}
    ),
    "descriptors": lambda _, disk: setattr(disk, "open_files", disk.files + 1),
}


@pytest.mark.parametrize("what", spread(6, LEFT))
def test_watch_reports_each_table_with_remains_of_clients(monkeypatch, what):
    look = Watch.check_nothing_is_left

    def leave_and_look(watch, controller, disk):
        LEFT[what](controller, disk)
        look(watch, controller, disk)

    monkeypatch.setattr(Watch, "check_nothing_is_left", leave_and_look)
    with pytest.raises(Broken, match=f"gone, [0-9]+ {what}"):
        World(replace(draw(1), clients=(), endings=(), troubles=())).tell()


def test_pull_rescued_in_an_earlier_life_is_detected():
    world = World(draw(1))
    world.life = None
    world.watch.check_no_rescue(SimpleNamespace(hold_service=SimpleNamespace(rescued_total=0)))
    world.watch.check_no_rescue(None)
    with pytest.raises(Broken, match="1 waiting pulls were rescued"):
        world.watch.check_no_rescue(SimpleNamespace(hold_service=SimpleNamespace(rescued_total=1)))


@pytest.fixture
def waiting():
    """Return a world whose broker serves since second 2, with a message stored at second 5."""
    world = World(replace(draw(1), troubles=()))
    world.kernel.now = 30.0
    world.threads = SimpleNamespace(wall_seconds=lambda: 1_030.0)
    world.life = SimpleNamespace(served_since=2.0, is_serving_since=lambda time: time >= 2.0)
    return world, SimpleNamespace(sent_at=4.9, stored_at=5.0, delay_seconds=3.0)


def test_late_delayed_message_is_detected(waiting):
    world, sent = waiting
    slack = world.watch.slack_seconds
    world.watch.check_lateness(sent, 1_008.0 + slack / 2, "T")
    with pytest.raises(Broken, match="s late"):
        world.watch.check_lateness(sent, 1_008.1 + slack, "T")


def test_watch_reports_late_delayed_message_after_start(waiting):
    world, sent = waiting
    sent.sent_at = sent.stored_at = 1.0
    slack = world.watch.slack_seconds
    world.watch.check_lateness(sent, 1_007.0 + slack / 2, "T")
    with pytest.raises(Broken, match="s late"):
        world.watch.check_lateness(sent, 1_007.1 + slack, "T")


@pytest.mark.parametrize("ahead", [-100.0, -1.0, 1.0, 100.0])
def test_late_delayed_message_is_detected_despite_a_moved_clock(waiting, ahead):
    world, sent = waiting
    world.kernel.now = 6.0
    world.watch.clock_moved(ahead)
    world.kernel.now = 30.0
    world.threads.wall_seconds = lambda: 1_030.0 + ahead
    slack = world.watch.slack_seconds
    world.watch.check_lateness(sent, 1_008.0 + slack / 2 + ahead, "T")
    # the latest time that the log has seen, after the clock goes back
    world.watch.check_lateness(sent, 1_006.0, "T")
    late = max(8.1 + slack, 6.1 - ahead)  # earlier, because the clock has shown that hour before
    with pytest.raises(Broken, match="s late"):
        world.watch.check_lateness(sent, 1_000.0 + late + ahead, "T")


def test_watch_knows_what_a_stop_has_flushed():
    """The next life is killed before it has flushed: a power loss takes what it wrote."""
    world = World(replace(draw(1), troubles=()))
    world.life = SimpleNamespace(served_since=1.0)
    world.kernel.now = 5.0
    world.watch.life_ended("stop")
    world.life = SimpleNamespace(served_since=6.0)
    world.kernel.now = 6.05
    world.watch.life_ended("kill")
    world.life = SimpleNamespace(served_since=None)
    world.kernel.now = 9.0
    assert world.watch.was_flushed_since(4.99)
    assert not world.watch.was_flushed_since(6.02)
