"""The client ledger detects each wrong event of a client; tests report the events by hand."""

from types import SimpleNamespace

import pytest
from world.clients.ledger import Ledger
from world.stage import Broken

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.pop import AckMsg, BatchAckMsg
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.pop import POP_CK, PopReceipt

QUEUE = ("T0", "broker-a", 0)


class Scene:
    """A ledger, a clock, and a group of two processes."""

    def __init__(self, *, is_orderly=False):
        self.kernel = SimpleNamespace(now=100.0)
        self.renumbered = set()
        self.ledger = Ledger(self)
        self.reader = self.ledger.reader(
            "G", group="G", topics=("T0",), is_orderly=is_orderly, tries_max=2
        )
        self.processes = [SimpleNamespace(is_alive=True, host=number) for number in range(2)]
        for offset in range(3):
            self.ledger.sends(body(offset), "T0")
            self.ledger.audited(QUEUE, offset, body(offset))

        self.stored_offsets = {}

    def complain(self, what):
        raise Broken(what)

    def stored_offset(self, group, queue):
        return self.stored_offsets.get((group, queue))

    def queues(self):
        return [QUEUE]

    def moves_to(self, offset):
        """Move the group as an operator, which takes a second."""
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


def test_ledger_accepts_commit_of_finished_messages():
    scene = Scene(is_orderly=True)
    scene.consumes(0)
    scene.consumes(1, 2)
    scene.commits(3)
    scene.ledger.check()
    assert scene.ledger.outstanding() == []


def test_ledger_reports_offset_committed_past_unfinished_message():
    scene = Scene()
    scene.consumes(0, 1)
    scene.commits(3)
    scene.consumes(2)  # too late
    with pytest.raises(Broken, match="committed 3"):
        scene.ledger.check()


def test_ledger_accepts_commit_past_message_given_back_for_retry():
    scene = Scene()
    scene.consumes(0, 1, done=1)
    scene.commits(2)
    scene.ledger.check()
    assert scene.ledger.outstanding() == ["G: m1 of T0", "G: m2 of T0"]


def test_ledger_does_not_expect_a_dead_letter_again():
    scene = Scene()
    scene.consumes(0, 1, 2, done=2)
    scene.ledger.audited(("%DLQ%G", "broker-a", 0), 0, body(2))
    assert scene.ledger.outstanding() == []


def test_repeated_message_without_a_disturbance_is_detected():
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


def test_ledger_reports_redelivery_by_retry_topic_of_finished_message():
    scene = Scene()
    scene.consumes(0, 1, done=1)
    message = SimpleNamespace(queue_offset=0, body=body(1))
    call = scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])
    scene.ledger.ends(call, [message], 1)
    message.queue_offset = 1  # after its failure, it may have been sent back twice
    scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])
    message.body, message.queue_offset = body(0), 2
    with pytest.raises(Broken, match="once more"):
        scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])
    scene.ledger.disturbed(1.0, "G")
    scene.ledger.begins(scene.reader, scene.processes[0], RETRIED, [message])


def test_ledger_counts_deliveries_and_repeats():
    scene = Scene()
    scene.consumes(0, 1)
    scene.ledger.disturbed(10.0, "G")
    scene.consumes(1, 2)
    delivered, repeats, settled = scene.ledger.counts().values()
    assert (delivered, repeats, settled) == (4, 1, 2)


def test_two_live_orderly_listeners_of_a_queue_are_detected():
    scene = Scene(is_orderly=True)
    scene.begins(0)
    with pytest.raises(Broken, match="both at"):
        scene.begins(0, process=1)
    scene.processes[0].is_alive = False
    scene.begins(0, process=1)


def test_ended_broker_allows_a_second_orderly_consumer():
    scene = Scene(is_orderly=True)
    scene.ledger.broker_ended("broker-a")
    scene.begins(0)
    scene.begins(0, process=1)


def test_orderly_listener_getting_messages_out_of_order_is_detected():
    scene = Scene(is_orderly=True)
    scene.consumes(0, done=0)
    scene.consumes(1)
    scene.consumes(0)
    with pytest.raises(Broken, match="before it"):
        scene.ledger.check()


def test_ledger_lets_orderly_queue_advance_after_max_tries():
    scene = Scene(is_orderly=True)
    scene.consumes(0, done=0)
    scene.consumes(0, done=0)
    scene.consumes(1)
    scene.ledger.check()


def test_ledger_does_not_require_skipped_messages():
    scene = Scene(is_orderly=True)
    scene.ledger.skips("G", QUEUE, 2)
    scene.commits(2)
    scene.consumes(2)
    scene.ledger.check()
    assert scene.ledger.outstanding() == []


def test_ledger_reports_acknowledged_message_that_is_lost():
    scene = Scene()
    scene.ledger.sends(b"lost", "T0")
    scene.ledger.is_acknowledged(b"lost", (*QUEUE, 7))
    with pytest.raises(Broken, match="where it is not"):
        scene.ledger.check()
    assert "G: lost of T0" in scene.ledger.outstanding()


def test_ledger_reports_message_that_was_never_sent():
    scene = Scene()
    with pytest.raises(Broken, match="nobody has sent"):
        scene.begins(9)


def test_ledger_requires_redelivery_after_offset_reset_backwards():
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


def test_ledger_reports_delivery_before_the_reset_offset():
    scene = Scene()
    scene.moves_to(2)
    scene.consumes(2)
    scene.ledger.check()
    scene.kernel.now += 10
    scene.consumes(1)
    with pytest.raises(Broken, match="was moved to 2"):
        scene.ledger.check()


def test_ledger_requires_nothing_of_reset_during_another_reset_or_broker_kill():
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


def test_ledger_reports_committed_offset_that_was_never_stored():
    scene = Scene()
    scene.commits(1)
    scene.ledger.check_committed("G", QUEUE, 1, scene.kernel.now)
    for offset, since in ((2, scene.kernel.now), (1, scene.kernel.now + 1)):
        with pytest.raises(Broken, match="nobody stored"):
            scene.ledger.check_committed("G", QUEUE, offset, since)


def test_ledger_reports_redelivery_of_message_finished_before_shutdown():
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


def test_ledger_does_not_require_filtered_messages_and_soon_forbids_them():
    scene = Scene()
    scene.reader.filters.set(0, "T0", "red", scene.kernel.now)
    scene.begins(0)
    assert len(scene.ledger.outstanding()) == 0
    scene.kernel.now += 10
    scene.ledger.sends(body(0), "T0", "blue")
    with pytest.raises(Broken, match="does not want"):
        scene.begins(0)
    scene.begins(0, process=1)


def test_ledger_requires_all_past_the_first_commit_of_member_without_start_offset():
    scene = Scene()
    scene.reader.begins_anywhere = True
    assert f"G: an offset of {QUEUE}" in scene.ledger.outstanding()
    scene.commits(1)
    assert len(scene.ledger.outstanding()) == 2
    scene.consumes(1, 2)
    assert scene.ledger.outstanding() == []
    scene.ledger.check()


def test_ledger_counts_only_messages_sent_after_topic_was_recreated():
    scene = Scene()
    scene.ledger.recreated_topics["T0"] = scene.kernel.now + 1
    scene.ledger.is_acknowledged(body(0), (*QUEUE, 0))
    assert scene.ledger.outstanding() == []
    scene.kernel.now += 2
    scene.ledger.sends(b"new", "T0")
    scene.ledger.is_acknowledged(b"new", (*QUEUE, 0))
    assert len(scene.ledger.outstanding()) == 1
    scene.ledger.check()


def popped(scene, *offsets, pop_time=5, in_order=False):
    """Let group P pop messages of `QUEUE` and send acknowledgements; return the messages."""
    pops = scene.ledger.pops
    pops.joins("P", in_order=in_order)
    batch = [
        SimpleNamespace(
            topic="T0",
            body=body(offset),
            queue=MessageQueue(*QUEUE),
            queue_offset=offset,
            properties={
                POP_CK: PopReceipt(
                    0, pop_time, 1_000, 999 if in_order else 3, "0", "broker-a", 0, offset
                ).encode()
            },
        )
        for offset in offsets
    ]
    known = pops.received("P", batch, scene.kernel.now, 1_000)
    deliveries = [(message, known[message.body]) for message in batch]
    pops.acknowledging("P", deliveries)
    return [each for _, each in deliveries]


def stores(scene, ack_type, offset, pop_time=5):
    """Record an acknowledgement that the auditor found in the revive topic."""
    fields = {"start_offset": 0, "consumer_group": "P", "topic": "T0", "queue_id": 0}
    tag = "ack" if ack_type is AckMsg else "bAck"
    which = {"ack_offset": offset} if ack_type is AckMsg else {"ack_offset_list": (offset,)}
    content = ack_type(**fields, **which, pop_time=pop_time, broker_name="broker-a")
    scene.ledger.pops.audited("broker-a", SimpleNamespace(tags=tag, body=encode_body(content)))


def outstanding_pops(scene):
    return sorted(each for each in scene.ledger.outstanding() if each.startswith("P: "))


@pytest.mark.parametrize("ack_type", [AckMsg, BatchAckMsg])
def test_ledger_requires_pop_with_unanswered_ack_again_unless_the_ack_is_stored(ack_type):
    scene = Scene()
    known = popped(scene, 0, 1, 2)
    scene.ledger.pops.acknowledged(known[:1])
    assert outstanding_pops(scene) == ["P: b'm1'", "P: b'm2'"]
    stores(scene, ack_type, 1, pop_time=4)  # of an earlier pop
    assert outstanding_pops(scene) == ["P: b'm1'", "P: b'm2'"]
    stores(scene, ack_type, 1)
    assert outstanding_pops(scene) == ["P: b'm2'"]
    scene.ledger.disturbed(1_000)
    popped(scene, 1, pop_time=6)
    assert outstanding_pops(scene) == ["P: b'm1'", "P: b'm2'"]


def test_ledger_requires_unanswered_ordered_pop_again_unless_the_group_is_past_it():
    scene = Scene()
    popped(scene, 0, 1, 2, in_order=True)
    assert outstanding_pops(scene) == ["P: b'm0'", "P: b'm1'", "P: b'm2'"]
    scene.stored_offsets["P", QUEUE] = 2
    assert outstanding_pops(scene) == ["P: b'm2'"]
