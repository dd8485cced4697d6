"""The ledger detects each wrong response of a broker; tests report the responses by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from world.acts.pulls import Asked, Told
from world.ledger import Ledger
from world.stage import Broken

from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage


class Scene:
    """A ledger, and a world with nothing but a clock."""

    def __init__(self, *, is_sync=True):
        self.kernel = SimpleNamespace(now=100.0)
        self.crashed = False
        self.lives = 1
        self.log_begins_at = 0
        self.watch = SimpleNamespace(
            may_expire=False,
            is_gone_from_log=lambda place: place < self.log_begins_at,
            crashed_since=lambda time: self.crashed,
            delays_pass_since=lambda time: True,
            check_lateness=lambda *_: None,
            was_flushed_since=lambda time: time < self.kernel.now - 2,
        )
        self.ledger = Ledger(self, is_sync=is_sync)
        self.client = object()

    def send(self, topic="T0", queue_id=0, size=20, **more):
        return self.ledger.send(self.client, topic, queue_id, size, {"KEYS": "k"}, **more)

    def put(self, queue_offset, *, waits=True, **more):
        sent = self.send(**more)
        self.ledger.stored(sent, queue_offset, waits=waits)
        return sent

    def stored(self, sent, queue_offset, **changed):
        message = StoredMessage(
            topic=sent.topic,
            body=sent.body,
            properties_text=encode_properties(sent.properties),
            queue_id=sent.queue_id,
            queue_offset=queue_offset,
        )
        return replace(message, **changed)

    def pulled(self, *messages, start=0, next_offset=None, low=0, high=10, code=0):
        asked = Asked("T0", 0, start)
        must = self.ledger.expected("T0", 0, start)
        on = next_offset if next_offset is not None else start + len(messages)
        self.ledger.pulled(asked, must, Told(code, "", list(messages), on, low, high))

    def told_first(self, first):
        self.ledger.told_first("T0", 0, self.ledger.expected("T0", 0, 0), first)

    def audited(self, *found, low=0, high=None, must=None):
        must = self.ledger.expected("T0", 0, 0) if must is None else must
        self.ledger.audited(
            "T0", 0, must, set(found), low, high if high is not None else len(found)
        )


@pytest.fixture
def scene():
    return Scene()


def test_truthful_broker_story_breaks_no_rule(scene):
    first, second = scene.put(0), scene.put(1)
    scene.pulled(scene.stored(first, 0), scene.stored(second, 1))
    scene.ledger.life_ended("power")
    scene.audited(0, 1)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (lambda s, m: s.stored(m, 0, body=b"1:other"), "another body"),
        (lambda s, m: s.stored(m, 0, body=b"999:nobody's"), "nobody sent"),
        (lambda s, m: s.stored(m, 0, body=b"no number"), "nobody sent"),
        (lambda s, m: s.stored(m, 0, properties_text=""), "has properties"),
        (lambda s, m: s.stored(m, 0, queue_id=1), "is in T0/1"),
        (lambda s, m: s.stored(m, 0, topic="T1"), "is in T1/0"),
        (lambda s, m: s.stored(m, 1), "is at 1, and at 0"),
        (lambda s, m: s.stored(m, 0, topic="%RETRY%G0"), "nobody asked for"),
    ],
)
def test_ledger_finds_a_message_with_wrong_content_or_place(scene, lie, complaint):
    sent = scene.put(0)
    with pytest.raises(Broken, match=complaint):
        scene.ledger.saw(lie(scene, sent))


def test_two_messages_at_one_offset_are_detected(scene):
    scene.put(0)
    with pytest.raises(Broken, match="where message 1"):
        scene.put(0)


def test_messages_of_one_client_out_of_order_are_detected(scene):
    scene.put(5)
    with pytest.raises(Broken, match="of the same client"):
        scene.put(4)


def test_seen_refused_message_is_detected(scene):
    sent = scene.send()
    scene.ledger.refused(sent)
    with pytest.raises(Broken, match="was refused"):
        scene.ledger.saw(scene.stored(sent, 0))


@pytest.mark.parametrize("kind", ["stop", "kill", "power"])
def test_lost_acknowledged_message_is_detected(scene, kind):
    scene.put(0)
    scene.ledger.life_ended(kind)
    with pytest.raises(Broken, match="lost"):
        scene.audited()


@pytest.mark.parametrize("kind", ["stop", "kill", "power"])
def test_ledger_finds_a_message_lost_after_it_was_seen(scene, kind):
    scene.ledger.saw(scene.stored(scene.send(), 0))
    scene.ledger.life_ended(kind)
    with pytest.raises(Broken, match="lost"):
        scene.audited()


@pytest.mark.parametrize(
    ("kind", "may_be_lost"), [("stop", False), ("kill", False), ("power", True)]
)
def test_ledger_lets_an_unflushed_message_be_lost_only_where_allowed(scene, kind, may_be_lost):
    scene.put(0, waits=False)
    scene.ledger.life_ended(kind)
    if may_be_lost:
        scene.audited()
        scene.put(0)
    else:
        with pytest.raises(Broken, match="lost"):
            scene.audited()


@pytest.mark.parametrize(
    ("kind", "is_seen", "may_be_lost"),
    [("stop", False, False), ("kill", True, False), ("kill", False, True)],
)
def test_unflushed_message_may_be_lost_after_a_kill_until_it_was_seen(
    scene, kind, is_seen, may_be_lost
):
    sent = scene.put(0, waits=False)
    scene.ledger.life_ended(kind)
    if is_seen:
        scene.ledger.saw(scene.stored(sent, 0))
    scene.ledger.life_ended("power")
    if may_be_lost:
        scene.audited()
    else:
        with pytest.raises(Broken, match="lost"):
            scene.audited()


def test_async_flush_power_loss_may_lose_only_recent_messages():
    scene = Scene(is_sync=False)
    scene.put(0)
    scene.kernel.now += 10
    scene.put(1)
    scene.ledger.life_ended("power")
    scene.audited(0)
    with pytest.raises(Broken, match="lost"):
        scene.audited()


def test_gap_between_messages_is_detected(scene):
    scene.put(0)
    scene.put(2)
    with pytest.raises(Broken, match="has nothing at 1"):
        scene.audited(0, 2, high=3)


def test_gap_after_a_power_loss_is_accepted_once(scene):
    scene.put(0)
    scene.ledger.life_ended("power")
    scene.ledger.saw(scene.stored(scene.send(), 2))
    scene.audited(0, 2, high=3)
    scene.audited(0, 2, high=3)
    with pytest.raises(Broken, match="has nothing at 3"):
        scene.audited(0, 2, high=4)


def test_pull_sent_back_before_a_seen_message_is_detected(scene):
    first, second = scene.put(0), scene.put(1)
    scene.pulled(scene.stored(first, 0), scene.stored(second, 1))
    with pytest.raises(Broken, match="was sent back"):
        scene.pulled(start=1, next_offset=0, low=0, high=0, code=21)


def test_pull_passing_over_a_message_is_detected(scene):
    first, _, third = scene.put(0), scene.put(1), scene.put(2)
    with pytest.raises(Broken, match="passed over"):
        scene.pulled(scene.stored(first, 0), scene.stored(third, 2), next_offset=3)


def test_ledger_reports_queue_start_past_a_message(scene):
    scene.put(0)
    scene.told_first(0)
    with pytest.raises(Broken, match="said to begin at 1: message 1 to T0/0 is at 0"):
        scene.told_first(1)


def test_ledger_accepts_queue_start_past_expired_messages_only(scene):
    scene.watch.may_expire = True
    for queue_offset, place in enumerate((100, 200, None, 300)):
        scene.put(queue_offset).physical_offset = place
    scene.log_begins_at = 201
    scene.told_first(3)
    with pytest.raises(Broken, match="at 3 of T0/0 and at 300 of the log, which still holds that"):
        scene.told_first(4)


@pytest.mark.parametrize("places", [(1, 0), (0, 0), (0, 7)])
def test_ledger_reports_pull_out_of_order_or_past_next_offset(scene, places):
    sents = scene.put(0), scene.put(1)
    with pytest.raises(Broken, match="goes on at"):
        scene.pulled(*(scene.stored(sents[at > 0], at) for at in places), next_offset=2)


def test_ledger_finds_a_message_served_after_its_topic_was_deleted(scene):
    sent = scene.put(0)
    scene.ledger.deleting("T0")
    scene.ledger.deleted("T0")
    with pytest.raises(Broken, match="deleted with its topic"):
        scene.ledger.saw(scene.stored(sent, 0))


def test_message_sent_during_topic_deletion_may_exist_or_not(scene):
    early = scene.send()
    scene.ledger.deleting("T0")
    late = scene.send()
    scene.ledger.deleted("T0")
    scene.audited()
    for number, sent in enumerate((early, late)):
        scene.ledger.stored(sent, number)
        scene.ledger.saw(scene.stored(sent, number))


def test_delayed_message_early_twice_or_never_is_detected(scene):
    sent = scene.send(delay_seconds=5.0)
    scene.ledger.stored(sent, 17)
    scene.kernel.now += 4.9
    with pytest.raises(Broken, match=r"0\.100 s early"):
        scene.ledger.saw(scene.stored(sent, 0))
    with pytest.raises(Broken, match="never delivered"):
        scene.ledger.check_deliveries()
    scene.kernel.now += 0.2
    scene.ledger.saw(scene.stored(sent, 0))
    scene.ledger.check_deliveries()
    with pytest.raises(Broken, match="delivered twice"):
        scene.ledger.saw(scene.stored(sent, 1))
    scene.crashed = True
    scene.ledger.saw(scene.stored(sent, 1))


def test_ledger_reports_wrong_early_surplus_or_missing_retries(scene):
    sent = scene.put(0)
    given = scene.ledger.returns.send_back("G0", sent, 0, delay_seconds=3.0, is_last=False)
    scene.ledger.returns.answered(given, is_done=True)
    again = scene.stored(sent, 0, topic="%RETRY%G0", reconsume_times=1)
    with pytest.raises(Broken, match="0 times to"):
        scene.ledger.check_deliveries()
    with pytest.raises(Broken, match="early"):
        scene.ledger.saw(again)
    scene.kernel.now += 3
    with pytest.raises(Broken, match="nobody asked for"):
        scene.ledger.saw(replace(again, reconsume_times=2))
    with pytest.raises(Broken, match="nobody asked for"):
        scene.ledger.saw(replace(again, topic="%DLQ%G0"))
    scene.ledger.saw(again)
    scene.ledger.check_deliveries()
    with pytest.raises(Broken, match="came as try 1"):
        scene.ledger.saw(replace(again, queue_offset=1))
