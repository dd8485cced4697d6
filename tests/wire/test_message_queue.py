"""Text form of a queue, as errors and logs show it."""

from rmq_spark.wire.message_queue import MessageQueue


def test_queue_as_text_has_number_topic_and_broker():
    assert str(MessageQueue("orders", "broker-a", 3)) == "queue 3 of orders on broker-a"


def test_queue_as_text_is_one_line_whatever_its_names_contain():
    text = str(MessageQueue("orders\nERROR", "broker\x1b[31m", 3))
    assert text == r"queue 3 of 'orders\nERROR' on 'broker\x1b[31m'"
