"""The waiting lines of held pops, and the pops that an arrival wakes."""

from types import SimpleNamespace

from rocketpoll.broker.longpolling.pop_request import PopWaiters, polling_key


class Lines:
    """The waiting pops of a hold service that only counts."""

    def __init__(self):
        self.held = {}
        self.notified = []
        self.waiters = PopWaiters(
            lambda *arrival: self.notified.append(arrival), lambda line: self.held.get(line, 0)
        )

    def hold(self, topic, group, queue_id=-1, *, is_notification=False):
        line = polling_key(topic, group, queue_id, is_notification=is_notification)
        self.held[line] = self.held.get(line, 0) + 1
        header = SimpleNamespace(topic=topic, consumer_group=group, queue_id=queue_id)
        self.waiters.register(SimpleNamespace(header=header, queue=line))


def test_arrival_notifies_pops_of_the_topic_and_of_its_queue_only():
    lines = Lines()
    for topic, queue_id in (("T", -1), ("T", 2), ("T", 3), ("U", -1)):
        lines.hold(topic, "G", queue_id)
    lines.waiters.arriving("T", 2, [7])
    assert lines.notified == [("T@G", -1, 1, [7]), ("T@G", 2, 1, [7])]


def test_arrival_in_a_retry_topic_notifies_pops_of_that_group_whatever_their_filter():
    lines = Lines()
    for group in ("G", "H"):
        lines.hold("T", group, 3)
    for number, topic in enumerate(("%RETRY%G_T", "%RETRY%G+T"), 1):
        lines.waiters.arriving(topic, 0, [7])
        assert lines.notified.pop() == ("T@G", 3, number, None)
    assert lines.notified == []


def test_empty_pop_lines_are_removed():
    lines = Lines()
    for number in range(25_000):
        lines.hold(f"T{number}", "G")
        lines.held.clear()
    assert len(lines.waiters._keys) <= 3 * 10_001
    lines.waiters.arriving("T24999", 0)
    assert lines.notified == []


def test_pops_and_notifications_of_a_line_are_both_woken_when_messages_are_left():
    lines = Lines()
    lines.hold("T", "G")
    lines.hold("T", "G", is_notification=True)
    lines.waiters.wake_next("T", "G", -1)
    assert {line for line, *_ in lines.notified} == {"T@G", "T@G@"}
