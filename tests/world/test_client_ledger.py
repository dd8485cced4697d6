"""A client that lies is found out: each lie once, told to a ledger by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from world.clients.ledger import Ledger
from world.stage import Broken

QUEUE = ("T0", "broker-a", 0)


class Scene:
    """A ledger, a clock, and a group of two processes."""

    def __init__(self, *, is_orderly=False):
        self.kernel = SimpleNamespace(now=100.0)
        self.ledger = Ledger(self)
        self.reader = self.ledger.reader(
            "G", group="G", topics=("T0",), is_orderly=is_orderly, tries_max=2
        )
        self.processes = [SimpleNamespace(is_alive=True, host=number) for number in range(2)]
        for offset in range(3):
            self.ledger.sends(body(offset), "T0")
            self.ledger.audited(QUEUE, offset, body(offset))

    def complain(self, what):
        raise Broken(what)

    def queues(self):
        return [QUEUE]

    def moves_to(self, offset):
        """An operator moves the group, which takes a second."""
        with self.ledger.moves.moving("G", [QUEUE]) as moved:
            self.kernel.now += 1
            moved(QUEUE, offset)

    def begins(self, *offsets, process=0):
        self.kernel.now += 1
        messages = [SimpleNamespace(queue_offset=offset, body=body(offset)) for offset in offsets]
        return self.ledger.begins(self.reader, self.processes[process], QUEUE, messages), messages

    def consumes(self, *offsets, done=None):
        call, messages = self.begins(*offsets)
        self.kernel.now += 1
        self.ledger.ends(call, messages, len(offsets) if done is None else done)

    def commits(self, offset):
        self.kernel.now += 1
        self.ledger.committed("G", QUEUE, offset)


def body(offset):
    return f"m{offset}".encode()


def test_what_was_finished_may_be_committed_and_all_is_well():
    scene = Scene(is_orderly=True)
    scene.consumes(0)
    scene.consumes(1, 2)
    scene.commits(3)
    scene.ledger.check()
    assert scene.ledger.outstanding() == []


def test_an_offset_past_what_nobody_has_finished_is_found_out():
    scene = Scene()
    scene.consumes(0, 1)
    scene.commits(3)
    scene.consumes(2)  # too late
    with pytest.raises(Broken, match="committed 3"):
        scene.ledger.check()


def test_what_a_listener_has_failed_at_was_given_back_and_may_be_committed():
    scene = Scene()
    scene.consumes(0, 1, done=1)
    scene.commits(2)
    scene.ledger.check()
    assert scene.ledger.outstanding() == ["G: m1 of T0", "G: m2 of T0"]


def test_a_dead_letter_need_not_come_any_more():
    scene = Scene()
    scene.consumes(0, 1, 2, done=2)
    scene.ledger.audited(("%DLQ%G", "broker-a", 0), 0, body(2))
    assert scene.ledger.outstanding() == []


def test_a_message_once_more_is_found_out_unless_something_has_happened():
    scene = Scene()
    scene.consumes(0)
    with pytest.raises(Broken, match="once more"):
        scene.begins(0)
    scene.ledger.disturbed(1.0, "another group")
    with pytest.raises(Broken, match="once more"):
        scene.begins(0)
    scene.ledger.disturbed(1.0, "G")
    scene.begins(0)
    assert scene.reader.repeats == 3


RETRIED = ("%RETRY%G", "broker-a", 0)


def test_what_is_finished_and_comes_by_the_retry_topic_is_found_out_unless_it_had_failed():
    scene = Scene()
    scene.consumes(0, 1, done=1)
    message = SimpleNamespace(queue_offset=0, body=body(1))
    call = scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])
    scene.ledger.ends(call, [message], 1)
    message.queue_offset = 1  # as it failed once, it may have been given back twice
    scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])
    message.body, message.queue_offset = body(0), 2
    with pytest.raises(Broken, match="once more"):
        scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])
    scene.ledger.disturbed(1.0, "G")
    scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])


def test_what_came_is_counted_and_so_is_what_came_once_more():
    scene = Scene()
    scene.consumes(0, 1)
    scene.ledger.disturbed(10.0, "G")
    scene.consumes(1, 2)
    delivered, repeats, settled = scene.ledger.counts().values()
    assert (delivered, repeats, settled) == (4, 1, 2)


def test_two_orderly_listeners_at_one_queue_are_found_out_unless_one_is_dead():
    scene = Scene(is_orderly=True)
    scene.begins(0)
    with pytest.raises(Broken, match="both at"):
        scene.begins(0, process=1)
    scene.processes[0].is_alive = False
    scene.begins(0, process=1)


def test_a_broker_that_has_ended_has_forgotten_who_was_alone():
    scene = Scene(is_orderly=True)
    scene.ledger.broker_ended("broker-a")
    scene.begins(0)
    scene.begins(0, process=1)


def test_an_orderly_listener_that_gets_the_second_before_the_first_is_done_is_found_out():
    scene = Scene(is_orderly=True)
    scene.consumes(0, done=0)
    scene.consumes(1)
    scene.consumes(0)
    with pytest.raises(Broken, match="before it"):
        scene.ledger.check()


def test_what_was_tried_often_enough_keeps_nothing_behind_it_back():
    scene = Scene(is_orderly=True)
    scene.consumes(0, done=0)
    scene.consumes(0, done=0)
    scene.consumes(1)
    scene.ledger.check()


def test_what_somebody_has_skipped_need_not_come():
    scene = Scene(is_orderly=True)
    scene.ledger.skips("G", QUEUE, 2)
    scene.commits(2)
    scene.consumes(2)
    scene.ledger.check()
    assert scene.ledger.outstanding() == []


def test_what_was_acknowledged_and_is_not_there_is_found_out():
    scene = Scene()
    scene.ledger.sends(b"lost", "T0")
    scene.ledger.is_acknowledged(b"lost", (*QUEUE, 7))
    with pytest.raises(Broken, match="where it is not"):
        scene.ledger.check()
    assert "G: lost of T0" in scene.ledger.outstanding()


def test_what_nobody_has_sent_is_found_out():
    scene = Scene()
    with pytest.raises(Broken, match="nobody has sent"):
        scene.begins(9)


def test_who_is_moved_back_has_to_get_all_behind_that_once_more():
    scene = Scene()
    scene.consumes(0, 1, 2)
    scene.ledger.disturbed(1_000)
    scene.moves_to(1)
    scene.consumes(1)
    [missing] = scene.ledger.outstanding()
    assert missing.startswith("G: 2 of")
    scene.consumes(2)
    assert scene.ledger.outstanding() == []
    scene.ledger.check()


def test_what_lies_before_where_a_group_was_moved_must_not_come_any_more():
    scene = Scene()
    scene.moves_to(2)
    scene.consumes(2)
    scene.ledger.check()
    scene.kernel.now += 10
    scene.consumes(1)
    with pytest.raises(Broken, match="was moved to 2"):
        scene.ledger.check()


def test_of_a_move_beside_another_or_beside_a_broker_that_dies_nothing_is_promised():
    for happens in (
        lambda scene: scene.ledger.moves.disturb("G", QUEUE),
        lambda scene: scene.ledger.moves.troubled(1.0, QUEUE[1]),
    ):
        scene = Scene()
        scene.consumes(0, 1, 2)
        scene.moves_to(0)
        assert len(scene.ledger.outstanding()) == 3
        happens(scene)
        assert scene.ledger.outstanding() == []


def test_an_offset_that_a_broker_was_not_told_is_found_out():
    scene = Scene()
    scene.commits(1)
    scene.ledger.check_committed("G", QUEUE, 1, scene.kernel.now)
    for offset, since in ((2, scene.kernel.now), (1, scene.kernel.now + 1)):
        with pytest.raises(Broken, match="nobody stored"):
            scene.ledger.check_committed("G", QUEUE, offset, since)


def test_what_was_finished_before_a_shutdown_must_not_come_once_more():
    scene = Scene()
    scene.consumes(0)
    scene.begins(1)
    scene.kernel.now += 10
    finished = scene.ledger.finished_by(scene.reader)
    assert finished == {QUEUE: 1}
    scene.ledger.was_shut_down(scene.reader, finished, scene.kernel.now)
    scene.ledger.disturbed(1_000)
    scene.begins(1)
    with pytest.raises(Broken, match="once more, which was finished"):
        scene.begins(0)


def test_what_a_member_does_not_want_need_not_come_and_soon_must_not():
    scene = Scene()
    scene.reader.filters.set(0, "T0", "red", scene.kernel.now)
    scene.begins(0)
    assert len(scene.ledger.outstanding()) == 0
    scene.kernel.now += 10
    scene.ledger.sends(body(0), "T0", "blue")
    with pytest.raises(Broken, match="does not want"):
        scene.begins(0)
    scene.begins(0, process=1)


def test_who_may_begin_anywhere_has_to_say_where_and_gets_all_behind_that():
    scene = Scene()
    scene.reader.begins_anywhere = True
    assert f"G: an offset of {QUEUE}" in scene.ledger.outstanding()
    scene.commits(1)
    assert len(scene.ledger.outstanding()) == 2
    scene.consumes(1, 2)
    assert scene.ledger.outstanding() == []
    scene.ledger.check()


def test_of_a_topic_that_is_made_again_only_what_is_sent_behind_that_counts():
    scene = Scene()
    scene.ledger.recreated_topics["T0"] = scene.kernel.now + 1
    scene.ledger.is_acknowledged(body(0), (*QUEUE, 0))
    assert scene.ledger.outstanding() == []
    scene.kernel.now += 2
    scene.ledger.sends(b"new", "T0")
    scene.ledger.is_acknowledged(b"new", (*QUEUE, 0))
    assert len(scene.ledger.outstanding()) == 1
    scene.ledger.check()
