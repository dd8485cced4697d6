"""Options of reads and writes: names, contradictions and defaults."""

import pickle
from itertools import product

import pytest

from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import Selection, read_options, write_options
from rmq_spark.spark.options.start_positions import (
    OffsetPosition,
    RelativeTimePosition,
    TimePosition,
)
from rmq_spark.spark.options.table import OPTIONS, Use, check_names
from rmq_spark.spark.options.values import RowIds

NEEDED = {"namesrvAddr": "localhost:9876", "topic": "orders"}


def read(**more):
    return read_options({**NEEDED, **more})


def refused(given, parse=read_options):
    with pytest.raises(OptionError) as raised:
        parse(given)
    return str(raised.value)


def test_read_options_need_only_address_and_topic():
    options = read()
    assert options.access.name_servers == ("localhost:9876",)
    assert options.selection == Selection(topics=("orders",))
    assert options.fail_on_data_loss
    assert options.limits.rows_max is None
    assert options.group == "rocketpoll-spark"


def test_option_names_are_found_in_any_case():
    assert (
        read_options(
            {"NAMESRVADDR": "a:1", "Topic": "T", "MAXOFFSETSPERTRIGGER": "5"}
        ).limits.rows_max
        == 5
    )


def test_name_server_address_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert read_options({"topic": "T"}).access.name_servers == ("a:1", "b:2")
    assert read_options({"topic": "T", "nameServer": "c:3"}).access.name_servers == ("c:3",)
    monkeypatch.delenv("NAMESRV_ADDR")
    assert "option namesrvAddr: it is required. Give" in refused({"topic": "T"})


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":9876", "localhost:x", "localhost:70000", "a:0"]
)
def test_invalid_broker_address_option_is_refused(address):
    assert "needed host:port, for example localhost:9876" in refused(
        {"topic": "T", "namesrvAddr": address}
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("topics", "Did you mean topic?"),
        ("startingOfsets", "Did you mean startingOffsets?"),
        ("maxOffsetsPerTriger", "Did you mean maxOffsetsPerTrigger?"),
        ("namesrvAdr", "Did you mean namesrvAddr?"),
        ("kafka.bootstrap.servers", "It is Kafka's. Use namesrvAddr"),
        ("kafka.group.id", "It is Kafka's. Use consumerGroup"),
        ("kafka.max.poll.records", "It is Kafka's. Remove it"),
        ("zzz", "The options are accessKey, assign,"),
        ("path", "Set option topic"),
    ],
)
def test_unknown_option_is_refused_with_the_nearest_name(name, hint):
    said = refused({**NEEDED, name: "x"})
    assert said.startswith(f"option {name}: there is no such option")
    assert hint in said
    assert refused({name: "x"}, check_names) == said


def test_options_of_the_other_side_are_refused():
    assert "option startingOffsets: it does not apply to the sink" in refused(
        {**NEEDED, "startingOffsets": "earliest"}, write_options
    )
    assert "option producerGroup: it does not apply to the source" in refused(
        {**NEEDED, "producerGroup": "P"}
    )


def test_checkpoint_location_is_accepted_as_sink_option():
    assert write_options({**NEEDED, "checkpointLocation": "/x"}).topic == "orders"


def test_options_of_streams_are_refused_in_batches_and_vice_versa():
    with pytest.raises(
        OptionError, match="option maxOffsetsPerTrigger: it applies to streams only"
    ):
        read(maxOffsetsPerTrigger="5").check_use(Use.BATCH)
    with pytest.raises(OptionError, match="option key: it applies to batch reads only"):
        read(key="a").check_use(Use.STREAM)
    read(minPartitions="5", tags="a").check_use(Use.BATCH)
    read(minPartitions="5", tags="a").check_use(Use.STREAM)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"subscribe": "T"}, "subscribe"),
        ({"subscribePattern": "T.*"}, "topic"),
        ({"assign": '{"T": [0]}'}, "topic"),
        ({"nameServer": "a:1"}, "nameServer"),
        ({"tags": "a", "sql": "a = 1"}, "tags"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "startingOffsets"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"T": 5}'}, "startingTimestamp"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingOffsets"),
        ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "6s"}, "maxTriggerDelay"),
        ({"accessKey": "a"}, "secretKey"),
        ({"secretKey": "s3cr3t"}, "accessKey"),
        ({"securityToken": "t0k3n"}, "accessKey"),
        ({"tls": "false", "tlsCaFile": "x"}, "tlsCaFile"),
        ({"tlsKeyPassword": "s3cr3t"}, "tlsKeyPassword"),
        ({"startingOffsets": "group"}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"suspendTimeoutMs": "20000"}, "suspendTimeoutMs"),
    ],
)
def test_contradicting_options_are_refused_without_showing_secrets(given, name):
    said = refused({**NEEDED, **given})
    assert said.startswith(f"option {name}: ")
    assert "s3cr3t" not in said
    assert "t0k3n" not in said


def test_empty_option_is_refused():
    for name in sorted(set(OPTIONS) - {"nameServer", "subscribe"}):
        given = {
            **({} if name in ("subscribePattern", "assign") else NEEDED),
            "namesrvAddr": "a:1",
            name: " ",
        }
        parse = read_options if OPTIONS[name].uses - {Use.SINK} else write_options
        said = refused(given, parse)
        assert said == f"option {name}: it is empty. Give it a value, or remove it"


def test_topic_options_are_a_list_a_pattern_or_queues():
    assert read_options({"namesrvAddr": "a:1", "subscribe": "a, b ,a"}).selection.topics == (
        "a",
        "b",
    )
    assert (
        read_options({"namesrvAddr": "a:1", "subscribePattern": "a|b"}).selection.pattern == "a|b"
    )
    selection = read_options(
        {"namesrvAddr": "a:1", "assign": '{"T": [0, 2], "U": {"b": [1]}}'}
    ).selection
    assert selection.topics == ("T", "U")
    assert selection.assigned == {"T": {"*": frozenset([0, 2])}, "U": {"b": frozenset([1])}}


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": "a,,b"},
        {"subscribe": "a b"},
        {"subscribePattern": "("},
        {"assign": "[]"},
        {"assign": "{}"},
        {"assign": '{"T": []}'},
        {"assign": '{"T": [-1]}'},
        {"assign": '{"T": {"b": 0}}'},
        {"assign": '{"T": ["0"]}'},
    ],
)
def test_likely_mistakes_in_topic_options_are_refused(given):
    refused({"namesrvAddr": "a:1", **given})


def test_missing_topic_option_is_refused():
    assert refused({"namesrvAddr": "a:1"}).startswith("option topic: it is required. Give")


def test_limit_and_time_options_are_parsed():
    options = read(
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="2m",
        maxBytesPerTrigger="8m",
        startingOffsets="-10m",
        endingTimestamp="2023-11-14T22:13:20Z",
    )
    limits = options.limits
    assert (limits.rows_max, limits.rows_min, limits.wait_ms_max, limits.bytes_max) == (
        100,
        10,
        120_000,
        8 << 20,
    )
    assert options.starting.common == RelativeTimePosition(600_000)
    assert options.ending.common == TimePosition(1_700_000_000_000)


@pytest.mark.parametrize(("text", "at_end"), [("error", False), ("latest", True)])
def test_starting_offsets_by_timestamp_strategy_is_error_or_latest(text, at_end):
    assert read(startingOffsetsByTimestampStrategy=text).starts_at_end_without_match is at_end
    assert "needed error or latest" in refused(
        {**NEEDED, "startingOffsetsByTimestampStrategy": "earliest"}
    )


def test_position_options_by_queue_are_parsed():
    starting = read(startingOffsets='{"orders": {"b": {"0": 5}}}').starting
    assert starting.position_of("orders", "b", 0) == OffsetPosition(5)


def test_secret_options_are_kept_and_never_shown():
    options = read(accessKey="me", secretKey="s3cr3t", securityToken="t0k3n")
    assert options.access.credentials == Credentials("me", "s3cr3t", "t0k3n")
    assert "s3cr3t" not in repr(options)
    assert "t0k3n" not in repr(options)


def test_options_survive_pickling():
    options = read(
        accessKey="me", secretKey="s3cr3t", startingOffsets='{"orders": -2}', tags="a || b"
    )
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  # as Spark does


@pytest.mark.parametrize(
    ("given", "expression", "is_sql"),
    [({}, "*", False), ({"tags": "a"}, "a", False), ({"sql": "a = 1"}, "a = 1", True)],
)
def test_filter_options_give_one_expression(given, expression, is_sql):
    options = read(**given)
    assert (options.expression, options.is_sql) == (expression, is_sql)


def test_invalid_group_option_is_refused():
    assert read(consumerGroup="G").group == "G"
    assert "option consumerGroup: group: needed letters" in refused(
        {**NEEDED, "consumerGroup": "a b"}
    )
    assert "option producerGroup" in refused({**NEEDED, "producerGroup": "a b"}, write_options)


def test_write_options_parse_message_size_and_row_ids():
    options = write_options({**NEEDED, "checkpointLocation": "/c", "queryName": "q"})
    assert options.max_message_bytes == 4 * 1024 * 1024
    assert options.row_ids is RowIds.POSITIONS
    options = write_options({**NEEDED, "maxMessageBytes": "8m", "rowIds": "false"})
    assert options.max_message_bytes == 8 * 1024 * 1024
    assert options.row_ids is RowIds.NONE
    assert write_options({**NEEDED, "rowIds": "Keys"}).row_ids is RowIds.KEYS


def test_visible_to_all_rows_have_no_ids_by_default():
    once = {**NEEDED, "delivery": "exactly_once", "topic": "T"}
    assert write_options(once).row_ids is RowIds.POSITIONS
    assert write_options({**once, "visibleTo": "all"}).row_ids is RowIds.NONE
    assert write_options({**once, "visibleTo": "all", "rowIds": "true"}).row_ids


@pytest.mark.parametrize("name", ["a:b", "a\n", "a\x01b", "x" * 256])
def test_write_name_is_trimmed_and_restricted_to_id_characters(name):
    assert write_options({**NEEDED, "writeName": " totals-17 "}).write_name == "totals-17"
    assert "option writeName: needed a name of at most 255" in refused(
        {**NEEDED, "writeName": f"x{name}x"}, write_options
    )


def test_sink_topic_reserved_for_brokers_is_refused():
    problem = refused({**NEEDED, "topic": "SCHEDULE_TOPIC_XXXX"}, write_options)
    assert "option topic: topic: needed a topic that the broker does not reserve" in problem


def test_namespace_option_applies_to_topics_and_groups():
    options = read_options(
        {
            "namesrvAddr": "localhost:9876",
            "namespace": "eu",
            "assign": '{"orders": [0], "eu%paid": [1], "%RETRY%billing": [0]}',
            "consumerGroup": "billing",
            "startingOffsets": '{"orders": 5, "*": -2}',
        }
    )
    assert options.selection.topics == ("eu%orders", "eu%paid", "%RETRY%eu%billing")
    assert options.group == "eu%billing"
    assert options.starting.topics == {"eu%orders"}
    assert read(namespace="eu").group == "eu%rocketpoll-spark"
    sink = write_options({**NEEDED, "namespace": "eu"})
    assert (sink.topic, sink.producer_group) == ("eu%orders", "eu%rocketpoll-spark")


@pytest.mark.parametrize("namespace", ["a%b", "a b", "%"])
def test_invalid_namespace_option_is_refused(namespace):
    with pytest.raises(OptionError, match="option namespace: needed letters, digits and"):
        read(namespace=namespace)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            {"subscribePattern": "a.*"},
            "it has no effect, because subscribePattern finds new topics anyway. Remove it",
        ),
        ({"assign": '{"a": [0]}'}, "the queues that assign names must exist"),
    ],
)
def test_wait_for_topic_needs_topics_by_name(chosen, said):
    with pytest.raises(OptionError, match=f"option waitForTopic: {said}"):
        read_options({"namesrvAddr": "localhost:9876", "waitForTopic": "true", **chosen})


@pytest.mark.parametrize(
    "text", ['{"broker-a": "localhost"}', '{"broker-a": 5}', '{"a:1": "http://b:1"}', '{"a": ":1"}']
)
def test_broker_addresses_option_refuses_malformed_text(text):
    with pytest.raises(
        OptionError, match="option brokerAddresses: needed the addresses of brokers"
    ):
        read(brokerAddresses=text)


@pytest.mark.parametrize("text", ["0", "1", "99999999999", "9" * 18, "9" * 40, "-1", "0x1"])
def test_numeric_option_error_names_its_option(text):
    """The client's check has another name for the setting."""
    for name, parse in product(sorted(OPTIONS), (read_options, write_options)):
        try:
            options = parse({"namesrvAddr": "localhost:1", "topic": "orders", name: text})
            instance_for(options.access).shutdown()
        except OptionError as error:  # noqa: PERF203  # options have different checks
            assert name in str(error)  # the option may also accept it


def test_read_without_options_explains_how_a_table_gets_them():
    assert "SELECT * FROM t WITH (" in refused({})
    assert "WITH" not in refused({"namesrvAddr": "localhost:9876"})


KEYS = {"accessKey": "me", "secretKey": "s3cr3t"}


@pytest.mark.parametrize(
    ("given", "reads", "wants"),
    [
        ({}, True, False),
        ({"localFiles": "true"}, True, True),
        ({"localFiles": "false"}, False, False),
        ({"tls": "true"}, False, False),
        (KEYS, False, False),
        ({"tls": "true", "localFiles": "true"}, True, True),
        ({**KEYS, "localFiles": "true"}, True, True),
        ({**KEYS, "localFiles": "false"}, False, False),
    ],
)
def test_local_files_are_read_over_tls_only_on_request(given, reads, wants):
    options = read(**given)
    assert (options.reads_files, options.warns_without_files) == (reads, wants)
