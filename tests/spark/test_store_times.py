"""Store times and sizes of given positions."""

from support.spark.source_queries import queue_of, queues_of, send

from rmq_spark.spark.brokers.queue_client import mark_of
from rmq_spark.spark.plan.queue_identity import StoreTimeLookup
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset
from rmq_spark.wire.message.record import body_crc_of


def test_positions_have_the_time_at_which_the_message_before_them_was_stored(
    rocketpoll_broker, rocketpoll_topic
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    queue, empty = queue_of(rocketpoll_topic), queue_of(rocketpoll_topic, 1)
    last = rocketpoll_broker.messages(rocketpoll_topic)[-1]
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        times = StoreTimeLookup(queues)
        found = times.positions_at({queue: 2, empty: 0})
        assert found.positions == {
            queue: QueuePosition(
                2, last.store_timestamp, mark_of(body_crc_of(last.body), last.born_timestamp)
            ),
            empty: QueuePosition(0, None),
        }
        assert list(times.sizes) == [queue]


def test_known_store_times_are_not_asked_again(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    queue = queue_of(rocketpoll_topic)
    stored_ms = rocketpoll_broker.messages(rocketpoll_topic)[0].store_timestamp
    known = SourceOffset({queue: QueuePosition(1, 5)})
    other = SourceOffset({queue: QueuePosition(7, 6)})
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        times = StoreTimeLookup(queues)
        assert times.positions_at({queue: 1}, known, other).positions[queue].stored_ms == 5
        assert (
            times.positions_at({queue: 1}, None, known, excluding=[queue])
            .positions[queue]
            .stored_ms
            == stored_ms
        )


def test_mean_message_size_follows_recent_sizes(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b" * 1000)
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        times = StoreTimeLookup(queues)
        times.measure({queue: 0})
        first = times.sizes[queue]
        times.measure({queue: 1})
        assert times.sizes[queue] == (first * 3 + first + 999) / 4
