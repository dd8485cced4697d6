"""Observers receive sends, polls and listener calls."""

import pytest
from support.messages.received_messages import several

from rmq_spark.client import observer
from rmq_spark.client.consumer.dispatch.listeners import ConsumeOrderlyStatus
from rmq_spark.client.message import Message

SUCCESS = ConsumeOrderlyStatus.SUCCESS


class Notes:
    """An observer that records its calls."""

    def __init__(self):
        self.said = []

    def on_send(self, messages):
        self.said.append(("sending", len(messages)))

    def on_process(self, group, messages):
        self.said.append((group, len(messages)))
        return self

    def on_poll(self, group, messages):
        self.said.append((group, len(messages)))

    def __enter__(self):
        self.said.append("begins")

    def __exit__(self, kind, error, traceback):
        self.said.append(kind)

    def on_failure(self, reason):
        self.said.append(reason)


@pytest.fixture
def notes():
    found = Notes()
    observer.set_observer(found)
    yield found
    observer.set_observer(None)


def test_observer_without_listeners_passes_everything_through():
    messages = several(0, 1)
    assert observer.observe_send([Message("orders", b"1")]) is None
    assert observer.observe_poll("billing", messages) == list(messages)
    listen = observer.observe_listener("billing", lambda _, context: context, SUCCESS)
    assert listen(messages, "what it said") == "what it said"


def test_observer_notes_sends_and_polls(notes):
    assert observer.observe_send([Message("orders", b"1")]) is None
    observer.observe_poll("billing", several(0, 1))
    assert notes.said == [("sending", 1), ("billing", 2)]


@pytest.mark.parametrize(
    ("said", "noted"),
    [
        (None, []),
        (SUCCESS, []),
        (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, ["SUSPEND_CURRENT_QUEUE_A_MOMENT"]),
        (True, ["bool"]),
    ],
)
def test_observed_listener_reports_its_result(notes, said, noted):
    listen = observer.observe_listener("billing", lambda *_: said, SUCCESS)
    assert listen(several(0), None) is said
    assert notes.said == [("billing", 1), "begins", *noted, None]


def test_observed_listener_error_is_reported_and_raised(notes):
    def fail(messages, context):
        raise KeyError

    with pytest.raises(KeyError):
        observer.observe_listener("billing", fail, SUCCESS)(several(0), None)
    assert notes.said[-1] is KeyError
