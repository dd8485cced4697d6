"""Option names: correct ones, aliases, and unknown ones."""

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
        ({"tlsKeyPasswort": "x"}, READ, "did you mean tlsKeyPassword?"),
        ({"kafka.ssl.truststore.location": "/x"}, READ, "that is Kafka's; here it is tlsCaFile"),
        ({"kafka.ssl.cipher.suites": "x"}, READ, "that is Kafka's: leave it out"),
        ({"groupId": "g"}, READ, "that is Kafka's; here it is consumerGroup"),
        ({"group.id": "g"}, READ, "that is Kafka's; here it is consumerGroup"),
        ({"bootstrap.servers": "h:9092"}, READ, "that is Kafka's; here it is namesrvAddr"),
        ({"kafka.auto.offset.reset": "x"}, READ, "that is Kafka's; here it is startingOffsets"),
        ({"includeHeaders": "true"}, READ, "that is Kafka's; here it is columns"),
        ({"rowIds": "true"}, READ, "it has no meaning for the source"),
        ({"columns": "body"}, frozenset([Use.SINK]), "it has no meaning for the sink"),
        ({"topic": "T", "subscribe": "T"}, READ, "it is given as topic, too: keep one"),
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
    with pytest.raises(
        OptionError, match="option tags: it cannot be given together with sql: keep one"
    ):
        given.exclusive("tags", "sql")
    assert given["minPartitions"] == 5
    assert given.get("minPartitions", lambda name, text: (name, text)) == ("minPartitions", "5")
    assert given.get("columns", None, "all") == "all"
