"""Options that contradict exactly once are refused with the reason, without a request
to a broker."""

import pytest
from support.spark.source_queries import schema_of

from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import commits_options, read_options, write_options

NEEDED = {"namesrvAddr": "localhost:9876", "topic": "orders"}
COMMITTED = {**NEEDED, "isolation": "committed"}
EXACTLY_ONCE = {**NEEDED, "delivery": "exactly_once", "checkpointLocation": "here"}


def refused(make, *arguments):
    with pytest.raises(OptionError) as raised:
        make(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"topic": "a,b"}, "option isolation: it reads the batches of one topic. Set option topic"),
        ({"sql": "a > 1"}, "option sql: it cannot be given together with isolation=committed"),
        ({"key": "k"}, "option key: it cannot be given together with isolation=committed"),
        ({"startingOffsets": "-5 messages"}, "it is a position among batches: needed earliest"),
        ({"startingOffsets": '{"orders": -2}'}, "or offsets of topic orders_COMMITS"),
        ({"startingOffsetsByTimestamp": '{"orders": 1}'}, "Use startingTimestamp"),
        ({"endingOffsetsByTimestamp": '{"orders": 1}'}, "Use endingTimestamp"),
        (
            {"onBrokerAway": "skip"},
            "option onBrokerAway: isolation=committed reads complete batches",
        ),
        ({"topic": "o" * 125}, "option topic: its commits topic would be"),
        ({"isolation": "serializable"}, "option isolation: needed uncommitted or committed"),
    ],
)
def test_options_contradicting_committed_isolation_are_refused(more, why):
    assert why in refused(read_options, {**COMMITTED, **more})


@pytest.mark.parametrize("other", [{"subscribePattern": "o.*"}, {"assign": '{"orders": [0]}'}])
def test_committed_isolation_refuses_a_selection_that_is_not_one_topic(other):
    given = {"namesrvAddr": "localhost:9876", "isolation": "committed", **other}
    assert "it cannot be given together with isolation=committed" in refused(read_options, given)


@pytest.mark.parametrize(
    "starting", ["earliest", "-10m", "group", '{"orders_COMMITS": {"broker-a": {"0": 3}}}']
)
def test_batch_position_is_a_valid_start_for_committed_reads(starting):
    given = {**COMMITTED, "startingOffsets": starting, "consumerGroup": "readers"}
    assert read_options(given).starting is not None


def test_commits_topic_options_have_no_filters_or_min_partitions():
    options = commits_options(
        read_options({**COMMITTED, "namespace": "eu", "tags": "a", "minPartitions": "4"})
    )
    assert options.selection.topics == ("eu%orders_COMMITS",)
    assert (options.expression, options.tags, options.partitions_min) == ("*", frozenset(), None)


def test_exactly_once_sink_needs_one_topic_with_a_short_enough_name():
    several = {name: text for name, text in EXACTLY_ONCE.items() if name != "topic"}
    assert "exactly once needs one topic" in refused(write_options, several).replace("_", " ")
    assert "its commits topic would be" in refused(
        write_options, {**EXACTLY_ONCE, "topic": "o" * 125}
    )


def writer(schema="body string", *, overwrite=False, without=(), **more):
    given = {name: text for name, text in EXACTLY_ONCE.items() if name not in without}
    return RocketPollDataSource({**given, **more}).streamWriter(schema_of(schema), overwrite)


def test_exactly_once_stream_without_a_checkpoint_or_with_delays_is_refused():
    assert writer()
    assert writer(without=["checkpointLocation"], CHECKPOINTLOCATION="here")
    assert "Set option checkpointLocation" in refused(
        lambda: writer(without=["checkpointLocation"])
    )
    assert "output mode complete" in refused(lambda: writer(overwrite=True))
    assert "Drop column delayLevel" in refused(lambda: writer("body string, delayLevel int"))
    assert "Drop column deliverAt" in refused(lambda: writer("body string, deliverAt timestamp"))
    assert writer("body string, delayLevel int", delivery="at_least_once")
    assert writer("body string, deliverAt timestamp", delivery="at_least_once")


@pytest.mark.parametrize("size", ["64", "300"])
def test_max_message_bytes_too_small_for_a_manifest_is_refused(size):
    said = refused(write_options, {**EXACTLY_ONCE, "maxMessageBytes": size})
    assert (
        "option maxMessageBytes: exactly_once stores a manifest of up to 526 bytes with each batch"
    ) in said
    assert f"found {size}. Raise it to the brokers' maxMessageSize" in said
    assert write_options({**NEEDED, "maxMessageBytes": size}).max_message_bytes == int(size)
    assert write_options({**EXACTLY_ONCE, "maxMessageBytes": "1k"}).max_message_bytes == 1_024


# ---- visibleTo=all


def written(**more):
    """Return the options of a sink with visibleTo=all; None removes an option."""
    given = {**EXACTLY_ONCE, "visibleTo": "all", **more}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"delivery": None}, "option visibleTo: visibleTo=all needs deliver"),
        (
            {"visibleTo": None, "sinkName": "a"},
            "option sinkName: it has no effect without visibleTo=all",
        ),
        ({"visibleTo": "readers"}, "option visibleTo: needed committed_readers or all"),
        ({"writeName": "daily"}, "option writeName: with visibleTo=all,"),
        ({"topic": None}, "option sinkName: it is required if rows name their topics"),
        ({"sinkName": "a/b"}, "option sinkName: needed letters, digits"),
        ({"sinkName": "a" * 191}, "at most 190 of them"),
        ({"namespace": "n" * 100, "sinkName": "a" * 100}, "at most 190 of them"),
        ({"maxMessageBytes": "200"}, "option maxMessageBytes: exactly_once stores a manifest"),
        ({"topic": "o" * 125}, "option topic: its commits topic would be"),
    ],
)
def test_options_contradicting_visible_to_all_are_refused(more, why):
    assert why in refused(write_options, written(**more))


def test_sink_name_defaults_to_its_topic():
    assert write_options(written()).sink_name == "orders"
    assert write_options(written(namespace="eu")).sink_name == "eu%orders"
    assert write_options(written(topic=None, sinkName="mine")).sink_name == "mine"
    assert write_options(written(namespace="eu", sinkName="mine")).sink_name == "eu%mine"
    assert write_options(EXACTLY_ONCE).sink_name is None


def test_visible_to_all_refuses_delays_and_complete_mode():
    source = RocketPollDataSource(written())
    delayed = schema_of("body string, delayLevel int")
    assert "Drop column delayLevel" in refused(lambda: source.streamWriter(delayed, False))
    plain = schema_of("body string")
    assert "output mode complete" in refused(lambda: source.streamWriter(plain, True))
