"""Users' mistakes with the source: one line that names the option and the remedy."""

import json
import socket

import pytest
from pyspark.errors import PySparkException
from support.spark.source_fixture import complaint
from support.suite.selection import ends

pytestmark = pytest.mark.deep

NO_ROUTE = (
    "no route to topic Nowhere: the name servers know no such topic; create it, or check its name"
)
WORDS = "earliest, latest, group, a time, -10m, -100 messages, or JSON of offsets"
TIMES = "needed milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z"
NONE = None
"""Of an option: it is not given."""


@pytest.fixture
def topic(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, "a", "b", queues=2)
    return topic


@pytest.fixture
def read(source, topic):
    """Whatever a read of the topic raises, with T for its name; NONE takes an option away."""

    def read(given, act):
        options = {"topic": topic, **given}
        options = {name: value for name, value in options.items() if value is not NONE}
        with pytest.raises(PySparkException) as raised:
            act(source.load(**options))
        return complaint(raised).replace(topic, "T")

    return read


@pytest.mark.parametrize(
    ("given", "said"),
    ends(
        [
            ({"topic": "Nowhere"}, f"topic: {NO_ROUTE}"),
            (
                {"topic": NONE},
                (
                    "topic: it is required. Give a topic, or several separated by commas; or set "
                    "subscribePattern or assign"
                ),
            ),
            (
                {"topic": "no pe"},
                "topic: topic: needed letters, digits and % | _ -, 1 to 127 of them, found 'no pe'",
            ),
            ({"topic": " "}, "topic: it is empty. Give it a value, or remove it"),
            ({"topic": "a,,b"}, "topic: there is an empty name in 'a,,b'"),
            ({"tpic": "x"}, "tpic: there is no such option. Did you mean topic?"),
            (
                {"startingoffset": "latest"},
                "startingoffset: there is no such option. Did you mean startingOffsets?",
            ),
            (
                {"kafka.bootstrap.servers": "x:1"},
                (
                    "kafka.bootstrap.servers: there is no such option. it is Kafka's. Use "
                    "namesrvAddr"
                ),
            ),
            (
                {"producerGroup": "G"},
                "producerGroup: it does not apply to the source. Remove it",
            ),
            ({"columns": "body,Body"}, "columns: body is named twice. Keep one of them"),
            (
                {"namesrvAddr": "localhost"},
                "namesrvAddr: needed host:port, for example localhost:9876, found 'localhost'",
            ),
            # conflicts
            (
                {"subscribePattern": "T.*"},
                "topic: it cannot be given together with subscribePattern. Keep one of them",
            ),
            ({"subscribe": "U"}, "subscribe: it is also given as topic. Keep one of the two"),
            (
                {"tags": "a", "sql": "n > 1"},
                "tags: it cannot be given together with sql. Keep one of them",
            ),
            (
                {"startingOffsets": "earliest", "startingTimestamp": "5"},
                (
                    "startingOffsets: it cannot be given together with startingTimestamp. "
                    "Keep one of them"
                ),
            ),
            (
                {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
                (
                    "minOffsetsPerTrigger: 6 is above maxOffsetsPerTrigger=5. Lower it, or "
                    "raise maxOffsetsPerTrigger"
                ),
            ),
            (
                {"maxTriggerDelay": "5s"},
                (
                    "maxTriggerDelay: it has no effect without minOffsetsPerTrigger. Set "
                    "minOffsetsPerTrigger, or remove this option"
                ),
            ),
            ({"secretKey": "hush"}, "accessKey: it is required together with secretKey"),
            # values
            ({"minPartitions": "0"}, "minPartitions: needed a whole number from 1 on, found '0'"),
            (
                {"maxBytesPerTrigger": "5 pounds"},
                (
                    "maxBytesPerTrigger: needed a size above 0 such as 1000000, 64k, 8m or 1g, "
                    "found '5 pounds'"
                ),
            ),
            ({"failOnDataLoss": "maybe"}, "failOnDataLoss: needed true or false, found 'maybe'"),
            (
                {"suspendTimeoutMs": "9999"},
                "suspendTimeoutMs: needed a whole number from 0 to 1500, found '9999'",
            ),
            (
                {"startingOffsets": "group"},
                "startingOffsets: group needs the name of a consumer group. Set option",
            ),
            (
                {"startingOffsets": "yesterday"},
                f"startingOffsets: needed {WORDS}, found 'yesterday'",
            ),
            (
                {"startingOffsets": "-1"},
                (
                    'startingOffsets: -1 is ambiguous. Write latest, or "-1 messages" to start '
                    "that many messages before the end"
                ),
            ),
            (
                {"startingOffsets": '{"T"'},
                (
                    "startingOffsets: not JSON "
                    "(Expecting ':' delimiter: line 1 column 5 (char 4)): '{\"T\"'. Write an "
                    'object with names in double quotes, for example {"orders": ...}'
                ),
            ),
            (
                {"startingOffsets": "{}"},
                "startingOffsets: the object is empty: name queues, or * for all others",
            ),
            (
                {"startingOffsets": '{"U": {"zero": 1}}'},
                "startingOffsets: U: needed a queue number, found 'zero'",
            ),
            (
                {"startingOffsets": '{"U": {"0": -3}}'},
                "startingOffsets: U > 0: needed an offset of -2 or more, found -3",
            ),
            (
                {"startingOffsets": '{"U": {"0": "x"}}'},
                f"startingOffsets, at U > 0: needed {WORDS}, found 'x'",
            ),
            (
                {"startingOffsets": '{"*": -2, "U": {"*": -2}}'},
                (
                    "startingOffsets: it names U, but the topics read are T. Correct the name, "
                    "or add it to option topic"
                ),
            ),
            (
                {"endingOffsets": "earliest"},
                (
                    "endingOffsets: a read that ends at the earliest offset has no rows. Give "
                    "latest, a time or offsets"
                ),
            ),
            (
                {"startingTimestamp": "noon"},
                f"startingTimestamp: {TIMES}, found 'noon'",
            ),
            (
                {"startingOffsetsByTimestamp": '{"U": {"0": "noon"}}'},
                f"startingOffsetsByTimestamp: U > 0: {TIMES}, found 'noon'",
            ),
            (
                {"topic": NONE, "subscribePattern": "("},
                (
                    "subscribePattern: not a regular expression (missing ), unterminated "
                    "subpattern at position 0): '('. Write one in Python's syntax, for example "
                    "orders.*"
                ),
            ),
        ]
    ),
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else str(value),
)
def test_mistakes_that_load_finds(read, given, said):
    assert read(given, lambda frame: frame) == f"OptionError: option {said}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"maxOffsetsPerTrigger": "5"},
            "maxOffsetsPerTrigger: it applies to streams only. Remove it",
        ),
        (
            {"startingOffsets": "latest"},
            (
                "startingOffsets: a batch read that starts at the end has no rows. "
                "Give earliest, a time or offsets"
            ),
        ),
        (
            {"startingOffsets": {"T": {"0": 1}}},
            (
                "startingOffsets: it has no position for T > broker-a > 1. Name every queue, "
                'or give all others with "*": -2 (earliest) or -1 (latest)'
            ),
        ),
        (
            {"startingOffsets": {"T": {"0": 1, "1": 1, "2": 1}}},
            "startingOffsets: it names queue 2 of T, but the queues read are 0, 1",
        ),
        (
            {
                "startingOffsets": {"T": {"broker-b": {"0": 1}, "*": {"*": -2}}},
                "retryTimeoutMs": "200",
            },
            (
                "startingOffsets: it names broker broker-b, which no name server has known for "
                "200 ms (option retryTimeoutMs); they know broker-a. Did you mean broker-a? "
                "Correct the name; or start the broker, and then this query"
            ),
        ),
        (
            {"startingOffsets": {"T": {"0": 9, "1": 0}}},
            (
                "startingOffsets: queue 0 of T on broker-a has the offsets from 0 to 1, not "
                "9. Correct the offset, or set failOnDataLoss to false to use the nearest"
            ),
        ),
        (
            {"startingOffsets": {"T": {"0": 1, "1": 0}}, "endingOffsets": {"T": {"0": 0, "1": 1}}},
            "endingOffsets: queue 0 of T on broker-a would end at 0, before it starts at 1",
        ),
        (
            {"key": "k", "startingOffsets": "earliest"},
            (
                "startingOffsets: together with key it must be a time: startingTimestamp, or "
                "for example -10m"
            ),
        ),
        (
            {"key": "k", "tags": "a"},
            "tags: it cannot be given together with key. Filter the rows instead",
        ),
    ],
    ids=str,
)
def test_mistakes_that_the_first_action_finds(read, topic, given, said):
    texts = {
        name: json.dumps(value).replace('"T"', f'"{topic}"') if isinstance(value, dict) else value
        for name, value in given.items()
    }
    assert read(texts, lambda frame: frame.collect()) == f"OptionError: option {said}"


class TestAddresses:
    def test_load_without_listening_name_server_names_the_option(self, source):
        with pytest.raises(PySparkException) as raised:
            source.load(namesrvAddr="127.0.0.1:1", topic="T")
        assert complaint(raised) == (
            "OptionError: option namesrvAddr: no name server answers: cannot connect to "
            "127.0.0.1:1: Connection refused; check that a broker listens there"
        )

    def test_load_with_silent_name_server_names_the_timeout(self, source):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(PySparkException) as raised:
                source.load(namesrvAddr=address, topic="T", requestTimeoutMs=200)
        assert complaint(raised) == (
            f"OptionError: option namesrvAddr: no name server answers: {address} did not answer "
            "GET_ROUTEINFO_BY_TOPIC within 200 ms"
        )

    def test_load_without_name_server_option_is_refused(self, source):
        with pytest.raises(PySparkException) as raised:
            source.spark.read.format("rocketpoll").option("topic", "T").load()
        assert complaint(raised) == (
            "OptionError: option namesrvAddr: it is required. Give the address of a name "
            "server, for example localhost:9876, here, in a profile or in NAMESRV_ADDR"
        )


class TestStreams:
    """What only a stream that has started can know; its query fails with the same lines."""

    def failure(self, source, stream, checkpoint=None):
        with pytest.raises(PySparkException) as raised:
            source.run(stream, checkpoint)
        return complaint(raised)

    def test_batch_only_option_on_a_stream_is_refused(self, source, topic):
        stream = source.stream(topic=topic, key="a")
        assert self.failure(source, stream) == (
            "OptionError: option key: it applies to batch reads only. Remove it"
        )

    def test_ending_offsets_on_a_continuous_stream_are_refused(self, source, topic):
        with pytest.raises(PySparkException) as raised:
            source.start(source.stream(topic=topic, endingOffsets="latest")).caught_up()
        assert complaint(raised) == (
            "OptionError: option endingOffsets: it has no effect without "
            ".trigger(availableNow=True) (before Spark 4.2, option availableNow=true). "
            "Add that, or remove this option"
        )

    def test_starting_offsets_without_all_queues_are_refused(self, source, topic):
        stream = source.stream(topic=topic, startingOffsets=json.dumps({topic: {"0": 0}}))
        assert self.failure(source, stream) == (
            f"OptionError: option startingOffsets: it has no position for {topic} > "
            'broker-a > 1. Name every queue, or give all others with "*": -2 (earliest) '
            "or -1 (latest)"
        )

    def test_source_schema_with_an_unknown_column_is_refused(self, source, topic):
        stream = source.stream("price double", topic=topic)
        assert self.failure(source, stream).startswith(
            "SchemaError: the schema given to the source does not fit: there is no column price. "
            ".schema(...) selects columns"
        )

    def test_checkpoint_of_another_topic_or_a_newer_release_is_refused(self, source, topic):
        checkpoint, other = source.checkpoint(), source.cluster.topic(1)
        source.run(source.stream(topic=topic, startingOffsets="earliest"), checkpoint)

        assert self.failure(source, source.stream(topic=other), checkpoint) == (
            f"CheckpointError: the checkpoint is of {topic}, but option topic names "
            f"{other}. Give this query its own checkpointLocation, or name the topics "
            "that it has read so far"
        )

        newest = max(
            (checkpoint / "offsets").iterdir(), key=lambda file: (file.name.isdigit(), file.name)
        )
        newest.write_text(newest.read_text().replace('"v": 1', '"v": 2').replace('"v":1', '"v":2'))
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
        assert self.failure(source, source.stream(topic=topic), checkpoint) == (
            "CheckpointError: the checkpoint's offset has version 2, and this release of "
            "rocketpoll reads 1. Run the query with the release that wrote it, or a "
            "newer one"
        )
