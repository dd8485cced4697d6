"""Option names: correct names, aliases, and unknown names."""

import pytest

from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.table import OptionReader, Use, check_names

READ = frozenset([Use.STREAM, Use.BATCH])


def test_option_names_are_case_insensitive_and_keep_the_users_spelling():
    given = OptionReader({"TOPIC": "T", "checkpointLocation": "/c", "tlsverify": "true"}, READ)
    assert given.names == {"subscribe", "tlsVerify"}
    assert given.text("subscribe") == "T"
    assert given.written_name("subscribe") == "topic"
    assert given.text("tags") is None
    assert given.exclusive("subscribe", "assign") == "subscribe"


def test_sink_topic_and_source_topic_are_different_options():
    assert OptionReader({"topic": "T"}, frozenset([Use.SINK])).names == {"topic"}


@pytest.mark.parametrize(
    ("given", "uses", "said"),
    [
        ({"tlsKeyPasswort": "x"}, READ, "Did you mean tlsKeyPassword?"),
        ({"kafka.ssl.truststore.location": "/x"}, READ, "It is Kafka's. Use tlsCaFile"),
        ({"kafka.ssl.cipher.suites": "x"}, READ, "It is Kafka's. Remove it"),
        ({"groupId": "g"}, READ, "It is Kafka's. Use consumerGroup"),
        ({"group.id": "g"}, READ, "It is Kafka's. Use consumerGroup"),
        ({"bootstrap.servers": "h:9092"}, READ, "It is Kafka's. Use namesrvAddr"),
        ({"kafka.auto.offset.reset": "x"}, READ, "It is Kafka's. Use startingOffsets"),
        ({"includeHeaders": "true"}, READ, "It is Kafka's. Use columns"),
        ({"rowIds": "true"}, READ, "it does not apply to the source"),
        ({"columns": "body"}, frozenset([Use.SINK]), "it does not apply to the sink"),
        ({"topic": "T", "subscribe": "T"}, READ, "it is also given as topic. Keep one of the two"),
    ],
)
def test_unsupported_option_is_refused_with_advice(given, uses, said):
    with pytest.raises(OptionError, match=said.replace("?", r"\?")):
        OptionReader(given, uses)


def test_check_names_accepts_source_and_sink_options():
    check_names({"rowIds": "true", "columns": "body", "queryName": "q"})
    with pytest.raises(OptionError, match="there is no such option"):
        check_names({"zzz": "x"})


def test_exclusive_options_and_numbers_are_checked():
    given = OptionReader({"tags": "a", "sql": "a = 1", "minPartitions": "5"}, READ)
    with pytest.raises(OptionError, match="option tags: it cannot be given together with sql"):
        given.exclusive("tags", "sql")
    assert given["minPartitions"] == 5
    assert given.get("minPartitions", lambda name, text: (name, text)) == ("minPartitions", "5")
    assert given.get("columns", None, "all") == "all"
