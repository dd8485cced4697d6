import time

from source_parts import queue_of, queues_of, send

from rmq_spark.spark.queues import Place, Since


def test_where_queues_begin_and_end(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 1, "a", "b", "c")
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        which = queues.discover()
        assert queues.ends(which) == {
            queue_of(rocketpoll_topic, n): 3 if n == 1 else 0 for n in range(4)
        }
        assert set(queues.starts(which).values()) == {0}


def test_single_messages_have_a_time_and_a_size(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b" * 100)
    message = rocketpoll_broker.messages(rocketpoll_topic)[1]
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        places = [
            Place(queue, 1),
            Place(queue_of(rocketpoll_topic, 1), 5),
            Place(queue_of(rocketpoll_topic, 2), -1),
        ]
        found = queues.stored(places)
        assert list(found) == places[:1]
        assert found[places[0]].timestamp_ms == message.store_timestamp
        assert 190 < found[places[0]].size < 500


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
            assert queues.first_since({queue: Since(ms, 0, len(times))}) == {queue: expected}
        assert queues.first_since({queue: Since(times[-1], 0, 3)}) == {queue: 3}


def test_a_group_has_its_progress(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        assert queues.committed([queue], "unit-group") == {queue: None}
        queues.commit("unit-group", {queue: 2})
        rocketpoll_broker.wait_until_consumed("unit-group", rocketpoll_topic)
        assert queues.committed([queue], "unit-group") == {queue: 2}
