"""The demo's sender counts stored messages, keeps its rate and reports its fault."""

import pytest

from rmq_spark.cli.demo.clients import DemoSender


@pytest.mark.parametrize("by_table", [True, False])
def test_demo_sender_counts_stored_messages_until_stopped(
    rocketpoll_broker, rocketpoll_topic, by_table
):
    with DemoSender(rocketpoll_broker.address, rocketpoll_topic, 10, by_table=by_table) as sender:
        sender.send(7)
        sender.start(10_000)
        rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 100)
        sender.stop()
        messages = rocketpoll_broker.messages(rocketpoll_topic)
    assert sender.fault is None
    assert len(messages) == sender.sent
    assert {len(message.body) for message in messages} == {10}
    assert {message.tags for message in messages} == {"created", "paid", "sent"}
    assert {message.keys for message in messages} == {(f"order-{n}",) for n in range(sender.sent)}


def test_lowered_demo_sender_rate_holds_from_then_on(rocketpoll_broker, rocketpoll_topic):
    with DemoSender(rocketpoll_broker.address, rocketpoll_topic, 10, by_table=False) as sender:
        sender.start(10_000)
        rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 100)
        sender.per_second = 0
        sender.stop()
        assert len(rocketpoll_broker.messages(rocketpoll_topic)) == sender.sent


@pytest.mark.parametrize("by_table", [True, False])
def test_demo_sender_reports_its_fault(by_table):
    with DemoSender("127.0.0.1:1", "T", 10, by_table=by_table) as sender:
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
            sender.send(1)
        sender.start(1_000)
        sender._thread.join(60)
        assert "127.0.0.1:1" in str(sender.fault)
