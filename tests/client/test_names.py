import pytest

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.names import check_client_id, check_group, check_topic, check_topic_to_send_to
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


@pytest.mark.parametrize("client_id", ["10.0.0.1@42#7", "...", "büro 3", "x" * 255, r"DOMAIN\user"])
def test_a_clients_id_may_be_what_a_directorys_name_may_be(client_id):
    assert check_client_id(client_id) == client_id


@pytest.mark.parametrize(
    "client_id",
    [
        "",
        " ",
        ".",
        "..",
        "../../etc",
        "/etc",
        "a/b",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 256,
        "ü" * 128,
    ],
)
def test_a_clients_id_that_leads_elsewhere_is_refused(client_id):
    with pytest.raises(MessageRejected, match=r"client_id: needed .*, found ") as raised:
        check_client_id(client_id)
    assert str(raised.value).isprintable()


def test_a_name_is_refused_as_the_argument_that_it_was_given_as():
    with pytest.raises(MessageRejected, match="producer_group: needed"):
        check_group("no group", "producer_group")
    with pytest.raises(TypeError, match="create_topic_key: needed"):
        check_topic(5, "create_topic_key")
