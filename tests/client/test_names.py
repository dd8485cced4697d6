import pytest

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.names import check_group, check_topic, check_topic_to_send_to
from rmq_spark.wire import names
from rmq_spark.wire.names import dlq_topic, retry_topic


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b-c_d", "x" * 127])
def test_good_names_pass(name):
    assert check_topic(name) == check_topic_to_send_to(name) == check_group(name) == name


@pytest.mark.parametrize("name", ["", " ", "../../etc", "a.b", "ü", "T\n", "x" * 256])
def test_bad_names_are_refused_before_anything_is_sent(name):
    with pytest.raises(MessageRejected, match="topic: needed"):
        check_topic(name)
    with pytest.raises(MessageRejected, match="group: needed"):
        check_group(name)


def test_retry_topics_may_be_as_long_as_their_groups_need():
    group = "g" * names.GROUP_CHARACTERS_MAX
    assert check_topic(retry_topic(check_group(group)))
    assert check_topic(dlq_topic(group))
    with pytest.raises(MessageRejected, match="1 to 127 of them"):
        check_topic("x" * 128)


@pytest.mark.parametrize("topic", sorted(names.NOT_TO_BE_SENT_TO))
def test_the_brokers_own_topics_are_not_sent_to(topic):
    assert check_topic(topic) == topic
    with pytest.raises(MessageRejected, match="broker's own"):
        check_topic_to_send_to(topic)
