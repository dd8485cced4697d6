import threading
import time

import pytest
from source_parts import queue_of, queues_of, send

from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.client.name_server_calls import NameServerCalls
from rmq_spark.client.routes import TopicRoute
from rmq_spark.spark.errors import OptionError


def test_the_queues_of_a_topic_are_found(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        assert queues.discover() == {queue_of(rocketpoll_topic, number) for number in range(4)}


def test_new_queues_are_found_when_it_is_time_or_asked_for(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic, discoveryIntervalMs="3600000") as queues:
        assert len(queues.discover()) == 4
        rocketpoll_broker.create_topic(rocketpoll_topic, 6)
        assert len(queues.discover()) == 4
        assert len(queues.discover(now=True)) == 6


def test_a_pattern_matches_whole_names_and_none_of_the_brokers_own(rocketpoll_broker):
    for name in ("pat-1", "pat-2", "pat-22"):
        rocketpoll_broker.create_topic(name, 1)
    with queues_of(rocketpoll_broker, None, subscribePattern="pat-.") as queues:
        assert {queue.topic for queue in queues.discover()} == {"pat-1", "pat-2"}
    with queues_of(rocketpoll_broker, None, subscribePattern=".*") as queues:
        topics = {queue.topic for queue in queues.discover()}
        assert {"pat-1", "pat-22"} <= topics
        assert not {"TBW102", "SCHEDULE_TOPIC_XXXX"} & topics


def test_assigned_queues_are_just_these(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, None, assign=f'{{"{rocketpoll_topic}": [1, 3]}}') as queues:
        assert queues.discover() == {queue_of(rocketpoll_topic, 1), queue_of(rocketpoll_topic, 3)}
    assign = f'{{"{rocketpoll_topic}": {{"broker-a": [1, 9]}}}}'
    with (
        queues_of(rocketpoll_broker, None, assign=assign) as queues,
        pytest.raises(OptionError, match=r"option assign: topic .* has no queue 9 on broker broker-a"),
    ):
        queues.discover()


def test_what_a_name_server_that_has_just_started_does_not_list_stays_known(
    rocketpoll_broker, monkeypatch, caplog
):
    for name in ("young-1", "young-2"):
        rocketpoll_broker.create_topic(name, 1)
    with queues_of(rocketpoll_broker, None, subscribePattern="young-.") as queues:
        known = queues.discover()
        rocketpoll_broker.delete_topic("young-2")
        monkeypatch.setattr(NameServerCalls, "topics", lambda _: ["young-1"])
        assert queues.discover(now=True) == queues.discover(now=True) == known
    assert [record.message for record in caplog.records] == [
        "no name server knows topic young-2 at the moment"
    ]


def test_assigned_queues_stay_known_while_their_broker_is_not(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    with queues_of(rocketpoll_broker, None, assign=f'{{"{rocketpoll_topic}": [1, 3]}}') as queues:
        known = queues.discover()
        monkeypatch.setattr(TopicRoute, "subscribe_queues", ())
        assert queues.discover(now=True) == known


def test_where_queues_begin_and_end(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 1, "a", "b", "c")
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        which = queues.discover()
        assert queues.ends(which) == {queue_of(rocketpoll_topic, n): 3 if n == 1 else 0 for n in range(4)}
        assert set(queues.starts(which, every=True).values()) == {0}


def test_single_messages_have_a_time_and_a_size(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b" * 100)
    message = rocketpoll_broker.messages(rocketpoll_topic)[1]
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        found = queues.stored({queue: 1, queue_of(rocketpoll_topic, 1): 5, queue_of(rocketpoll_topic, 2): -1})
        assert set(found) == {queue}
        assert found[queue].timestamp_ms == message.store_timestamp
        assert 190 < found[queue].size < 500


def test_the_first_message_since_a_time_is_found_exactly(rocketpoll_broker, rocketpoll_topic):
    for text in "abcdefgh":
        send(rocketpoll_broker, rocketpoll_topic, 0, text)
        time.sleep(0.002)
    times = [message.store_timestamp for message in rocketpoll_broker.messages(rocketpoll_topic)]
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        for ms in range(times[0] - 2, times[-1] + 3):
            expected = sum(each < ms for each in times)
            assert queues.first_since(queue, ms, 0, len(times)) == expected
        assert queues.first_since(queue, times[-1], 0, 3) == 3


def test_a_group_has_its_progress(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        assert queues.committed(queue, "unit-group") is None
        queues.commit("unit-group", {queue: 2})
        rocketpoll_broker.wait_until_consumed("unit-group", rocketpoll_topic)
        assert queues.committed(queue, "unit-group") == 2


def test_waiting_ends_with_a_message(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        sender = threading.Timer(0.05, send, (rocketpoll_broker, rocketpoll_topic, 2, "a"))
        sender.start()
        queues.wait(ends, 30_000)
        sender.join()
        assert queues.ends(ends)[queue_of(rocketpoll_topic, 2)] == 1


def test_waiting_ends_with_its_time(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        queues.wait(ends, 30)
        assert queues.ends(ends) == ends


def test_messages_that_the_filter_leaves_out_wake_nobody(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic, tags="wanted") as queues:
        ends = queues.ends(queues.discover())
        both = threading.Event()

        def send_both():
            send(rocketpoll_broker, rocketpoll_topic, 0, "no", tags="other")
            both.set()
            send(rocketpoll_broker, rocketpoll_topic, 1, "yes", tags="wanted")

        sender = threading.Timer(0.05, send_both)
        sender.start()
        queues.wait(ends, 30_000)
        assert both.is_set()
        sender.join()


def test_a_broker_that_is_away_is_waited_for_and_then_given_up(rocketpoll_topic):
    from broker.embedded import EmbeddedBroker  # noqa: PLC0415  # a broker of its own, to be stopped

    with EmbeddedBroker() as broker:
        broker.create_topic(rocketpoll_topic, 1)
        with queues_of(broker, rocketpoll_topic, retryTimeoutMs="0", requestTimeoutMs="200") as queues:
            which = queues.discover()
            broker.stop()
            assert queues.discover(now=True) == which
            assert queues.ends(which) == {}
            with pytest.raises(ConnectionFailed):
                queues.ends(which, every=True)
