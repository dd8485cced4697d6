"""Held pulls with expensive filters delay their own client only.

All figures are numbers of steps, which the hold service does one after the other.
"""

import pytest
from support.brokers.hold_service import Client, Codes, Hold, a_pull

from rocketpoll.broker.longpolling.hold_limits import HoldLimits

HOLDS = 4_000
QUEUES = 8


class SteppedHold(Hold):
    """A hold service that does one step of work at a time."""

    def __init__(self):
        super().__init__(HoldLimits(holds_max=20_000, holds_per_connection_and_queue=HOLDS))
        self.searching = []
        self.work = lambda steps: setattr(self, "pending", steps)
        self.pending = iter(())

    def step(self, count=1):
        for _ in range(count):
            next(self.pending, None)

    def steps_until(self, is_done):
        """Return the number of steps until a condition holds."""
        for count in range(10 * HOLDS):
            if is_done():
                return count
            next(self.pending)
        raise AssertionError("it never came true")

    def hold_filtered(self, client, count=HOLDS, topic="evil"):
        """Hold pulls with different filters, which read the messages."""
        for number in range(count):
            wants = Codes(0, needs_messages=True)
            assert self.service.suspend_pull_request(
                a_pull(client, topic, number % QUEUES, wants=wants)
            )

    def arrive_in_all(self, topic="evil", max_offset=1):
        for queue_id in range(QUEUES):
            self.service.notify_message_arriving(topic, queue_id, max_offset, [0])


@pytest.mark.parametrize("address", [bytes([127, 0, 0, 1]), bytes([10, 0, 0, 9])])
@pytest.mark.parametrize("begun_steps", [0, 100, 2 * HOLDS + 500])
def test_pull_is_woken_within_a_few_steps_beside_thousands_of_filters(address, begun_steps):
    hold = SteppedHold()
    hold.hold_filtered(Client(address))
    honest = a_pull(topic="honest")
    hold.service.suspend_pull_request(honest)
    hold.arrive_in_all()
    hold.step(begun_steps)
    hold.service.notify_message_arriving("honest", 0, 1, [0])
    assert hold.steps_until(lambda: honest in hold.woken) <= 3 * (QUEUES + 1)


def test_expired_deadline_is_served_between_two_steps_of_a_check():
    hold = SteppedHold()
    hold.hold_filtered(Client())
    honest = a_pull(topic="honest", timeout_ms=5_000)
    hold.service.suspend_pull_request(honest)
    hold.arrive_in_all()
    hold.step(100)
    assert hold.service.expire(5_000) == 1
    assert hold.steps_until(lambda: honest in hold.woken) <= 2


def test_filtered_pull_waits_for_one_search_step_of_each_client():
    hold = SteppedHold()
    for _ in range(3):
        hold.hold_filtered(Client(), HOLDS // 4)
    hold.arrive_in_all()
    hold.steps_until(lambda: len(hold.matches_from) == 20)
    honest = a_pull(topic="honest", wants=Codes(0, needs_messages=True))
    hold.service.suspend_pull_request(honest)
    hold.is_matched = True
    hold.service.notify_message_arriving("honest", 0, 1, [0])
    before = len(hold.matches_from)
    hold.steps_until(lambda: honest in hold.woken)
    assert len(hold.matches_from) - before <= 2 * 3 + 2 * (QUEUES + 1)


def test_addresses_share_wakes_whatever_the_number_of_their_connections():
    hold = SteppedHold()
    for _ in range(200):
        hold.hold_filtered(Client(bytes([10, 0, 0, 9])), 1)
    honest = a_pull(Client(bytes([10, 0, 0, 1])), topic="honest")
    hold.service.suspend_pull_request(honest)
    hold.is_matched = True
    hold.arrive_in_all()
    hold.steps_until(lambda: len(hold.woken) == 5)
    hold.service.notify_message_arriving("honest", 0, 1, [0])
    before = len(hold.woken)
    hold.steps_until(lambda: honest in hold.woken)
    assert len(hold.woken) - before <= 3 + QUEUES


def test_filters_on_the_honest_queue_itself_delay_its_pull_by_one_step_for_each_client():
    hold = SteppedHold()
    hold.hold_filtered(Client(), topic="honest")
    honest = a_pull(topic="honest")
    hold.service.suspend_pull_request(honest)
    hold.arrive_in_all("honest")
    assert hold.steps_until(lambda: honest in hold.woken) <= 4 * QUEUES


def test_messages_that_arrive_during_a_search_are_searched_as_well():
    hold = SteppedHold()
    pull = a_pull(wants=Codes(0, needs_messages=True))
    hold.service.suspend_pull_request(pull)
    hold.service.notify_message_arriving("T", 0, 1, [0])
    hold.steps_until(lambda: hold.matches_from == [0])
    hold.service.notify_message_arriving("T", 0, 2, [0])
    hold.service.notify_message_arriving("T", 0, 3, [0])
    while next(hold.pending, pull) is None:
        pass
    assert hold.matches_from[0] == 0
    assert hold.matches_from[-1] in (1, 2)
    hold.ends["T", 0] = 3
    assert hold.sweep(1) == 0
    hold.is_matched = True
    hold.service.notify_message_arriving("T", 0, 4, [0])
    hold.steps_until(lambda: pull in hold.woken)
    assert hold.matches_from[-1] == 3
    assert hold.service.rescued_total == 0


def test_search_of_a_client_that_has_gone_is_dropped():
    hold = SteppedHold()
    gone = Client()
    hold.hold_filtered(gone, 100)
    hold.arrive_in_all()
    hold.steps_until(lambda: len(hold.matches_from) == 1)
    gone.is_closed = True
    hold.service.discard(gone)
    while next(hold.pending, gone) is None:
        pass
    assert len(hold.matches_from) < 60
    assert hold.service.hold_count == 0


def test_search_of_a_group_continues_when_its_first_client_has_left():
    hold = SteppedHold()
    wants = Codes(0, needs_messages=True)
    pulls = [a_pull(wants=wants) for _ in range(2)]
    for pull in pulls:
        hold.service.suspend_pull_request(pull)
    hold.is_matched = True
    hold.service.notify_message_arriving("T", 0, 1, [0])
    hold.steps_until(lambda: hold.matches_from == [0])
    pulls[0].connection.is_closed = True
    hold.service.discard(pulls[0].connection)
    hold.steps_until(lambda: pulls[1] in hold.woken)
    assert hold.woken == [pulls[1]]
