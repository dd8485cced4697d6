"""Topics, queues and filters are checked at the brokers before a query starts."""

import traceback

import pytest
from support.spark.source_queries import options_for

from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import write_options
from rmq_spark.spark.preflight import check_with_brokers, check_writable
from rocketpoll.broker.embedded import EmbeddedBroker


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "no-such-topic"}, "option topic: no route to topic no-such-topic"),
        ({"namesrvAddr": "127.0.0.1:1"}, "option namesrvAddr: no name server answers"),
        ({"sql": "n >"}, "option sql: broker broker-a does not filter by 'n >': "),
    ],
)
def test_queues_missing_on_brokers_are_refused_before_the_query_starts(
    rocketpoll_broker, rocketpoll_topic, given, said
):
    topic = given.get("topic", rocketpoll_topic)
    more = {name: value for name, value in given.items() if name != "topic"}
    with pytest.raises(OptionError, match=said) as raised:
        check_with_brokers(options_for(rocketpoll_broker, topic, **more))
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1


def test_missing_topic_is_refused_with_the_nearest_existing_name():
    with EmbeddedBroker() as broker:  # without other tests' topics, whose names may be more similar
        broker.create_topic("Orders", 1)
        with pytest.raises(
            OptionError,
            match=r"(?m)topic order: the name servers know .*\. Did you mean Orders\?$",
        ):
            check_with_brokers(options_for(broker, "order"))
        with pytest.raises(OptionError, match=r"(?m)or check its name$"):
            check_with_brokers(options_for(broker, "SCHEDULE_TOPIC_XXX"))


@pytest.mark.parametrize("given", [{}, {"tags": "a || b"}])
def test_existing_queues_and_tags_pass_the_broker_checks(
    rocketpoll_broker, rocketpoll_topic, given
):
    check_with_brokers(options_for(rocketpoll_broker, rocketpoll_topic, **given))


def test_sink_topic_must_exist_or_be_auto_created(rocketpoll_broker):
    check_writable(write_options({"namesrvAddr": rocketpoll_broker.address}))
    check_writable(
        write_options({"namesrvAddr": rocketpoll_broker.address, "topic": "not-there-yet"})
    )
    with pytest.raises(OptionError, match="option namesrvAddr: no name server answers"):
        check_writable(write_options({"namesrvAddr": "127.0.0.1:1", "topic": "T"}))
    with EmbeddedBroker(autoCreateTopicEnable=False) as broker:
        broker.create_topic("T")
        check_writable(write_options({"namesrvAddr": broker.address, "topic": "T"}))
        with pytest.raises(
            OptionError, match="option topic: no route to topic U: it does not exist, and no broker"
        ):
            check_writable(write_options({"namesrvAddr": broker.address, "topic": "U"}))
