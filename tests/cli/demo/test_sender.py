from rmq_spark.cli.demo.sender import Sender


def test_it_sends_until_it_is_stopped_and_counts_what_is_stored(
    rocketpoll_broker, rocketpoll_topic
):
    sender = Sender(rocketpoll_broker.address, rocketpoll_topic, 10_000, 10)
    sender.start()
    rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 100)
    sender.stop()
    messages = rocketpoll_broker.messages(rocketpoll_topic)
    assert sender.fault is None
    assert len(messages) == sender.sent
    assert {len(message.body) for message in messages} == {10}
    assert {message.keys for message in messages} == {(f"order-{n}",) for n in range(sender.sent)}


def test_what_stops_it_can_be_asked_for(rocketpoll_broker):
    sender = Sender("127.0.0.1:1", "T", 10_000, 10)
    sender.start()
    sender.stop()
    assert sender.fault is None or "127.0.0.1:1" in str(sender.fault)
