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
TIMES = "needed milliseconds since 1970 or a time as 2026-01-31T12:00:00Z"
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
                    "topic: it is needed: a topic, or several with commas (or subscribePattern, "
                    "assign)"
                ),
            ),
            (
                {"topic": "no pe"},
                "topic: topic: needed letters, digits and % | _ -, 1 to 127 of them, found 'no pe'",
            ),
            ({"topic": " "}, "topic: it is empty: leave it out, or give it a value"),
            ({"topic": "a,,b"}, "topic: there is an empty name in 'a,,b'"),
            ({"tpic": "x"}, "tpic: there is no such option; did you mean topic?"),
            (
                {"startingoffset": "latest"},
                "startingoffset: there is no such option; did you mean startingOffsets?",
            ),
            (
                {"kafka.bootstrap.servers": "x:1"},
                (
                    "kafka.bootstrap.servers: there is no such option; that is Kafka's; here "
                    "it is namesrvAddr"
                ),
            ),
            (
                {"producerGroup": "G"},
                "producerGroup: it has no meaning for the source: leave it out",
            ),
            ({"columns": "body,Body"}, "columns: body is named twice: keep one"),
            (
                {"namesrvAddr": "localhost"},
                "namesrvAddr: needed host:port, as localhost:9876, found 'localhost'",
            ),
            # conflicts
            (
                {"subscribePattern": "T.*"},
                "topic: it cannot be given together with subscribePattern: keep one",
            ),
            ({"subscribe": "U"}, "subscribe: it is given as topic, too: keep one"),
            ({"tags": "a", "sql": "n > 1"}, "tags: it cannot be given together with sql: keep one"),
            (
                {"startingOffsets": "earliest", "startingTimestamp": "5"},
                "startingOffsets: it cannot be given together with startingTimestamp: keep one",
            ),
            (
                {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
                (
                    "minOffsetsPerTrigger: it is above maxOffsetsPerTrigger (6 and 5): lower it, "
                    "or raise the other"
                ),
            ),
            (
                {"maxTriggerDelay": "5s"},
                (
                    "maxTriggerDelay: it bounds the wait for minOffsetsPerTrigger: give that, "
                    "too, or leave this out"
                ),
            ),
            ({"secretKey": "hush"}, "accessKey: it is needed as well as secretKey"),
            # values
            ({"minPartitions": "0"}, "minPartitions: needed a whole number from 1 on, found '0'"),
            (
                {"maxBytesPerTrigger": "5 pounds"},
                (
                    "maxBytesPerTrigger: needed a size above 0 as 1000000, 64k, 8m or 1g, found '5 "
                    "pounds'"
                ),
            ),
            ({"failOnDataLoss": "maybe"}, "failOnDataLoss: needed true or false, found 'maybe'"),
            (
                {"suspendTimeoutMs": "9999"},
                "suspendTimeoutMs: needed a whole number from 0 to 1500, found '9999'",
            ),
            (
                {"startingOffsets": "group"},
                "startingOffsets: group needs the name of a consumer group: set option",
            ),
            (
                {"startingOffsets": "yesterday"},
                f"startingOffsets: needed {WORDS}, found 'yesterday'",
            ),
            (
                {"startingOffsets": "-1"},
                (
                    "startingOffsets: -1 could be either: write latest, or -1 messages for those "
                    "before the end"
                ),
            ),
            (
                {"startingOffsets": '{"T"'},
                (
                    "startingOffsets: this is no JSON "
                    "(Expecting ':' delimiter: line 1 column 5 (char 4)): '{\"T\"'; write an "
                    'object with names in double quotes, as {"orders": ...}'
                ),
            ),
            (
                {"startingOffsets": "{}"},
                "startingOffsets: the object is empty: name queues, or * for all others",
            ),
            (
                {"startingOffsets": '{"U": {"zero": 1}}'},
                "startingOffsets: U: needed the number of a queue, found 'zero'",
            ),
            (
                {"startingOffsets": '{"U": {"0": -3}}'},
                "startingOffsets: U > 0: needed an offset from -2 on, found -3",
            ),
            (
                {"startingOffsets": '{"U": {"0": "x"}}'},
                f"startingOffsets, at U > 0: needed {WORDS}, found 'x'",
            ),
            (
                {"startingOffsets": '{"*": -2, "U": {"*": -2}}'},
                (
                    "startingOffsets: it names U, but the topics read are T: correct it, or name "
                    "it in option topic"
                ),
            ),
            (
                {"endingOffsets": "earliest"},
                (
                    "endingOffsets: a read cannot end at the earliest offset: there would be "
                    "nothing; give latest, a time or offsets"
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
                    "subscribePattern: this is no regular expression (missing ), unterminated "
                    "subpattern at position 0): '('; write one of Python's, as orders.*"
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
            "maxOffsetsPerTrigger: it is for streams only: leave it out here",
        ),
        (
            {"startingOffsets": "latest"},
            "startingOffsets: a batch read that starts at the end has no rows",
        ),
        (
            {"startingOffsets": {"T": {"0": 1}}},
            (
                "startingOffsets: it does not say where T > broker-a > 1 are: name every queue, or "
                'the others by "*": -2 (earliest) or -1 (latest)'
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
                "Correct the name, or start the broker, and then this query"
            ),
        ),
        (
            {"startingOffsets": {"T": {"0": 9, "1": 0}}},
            (
                "startingOffsets: queue 0 of T on broker-a has the offsets from 0 to 1, not 9; "
                "correct it, or set failOnDataLoss to false to take the nearest"
            ),
        ),
        (
            {"startingOffsets": {"T": {"0": 1, "1": 0}}, "endingOffsets": {"T": {"0": 0, "1": 1}}},
            "endingOffsets: queue 0 of T on broker-a would end at 0, before it starts at 1",
        ),
        (
            {"key": "k", "startingOffsets": "earliest"},
            "startingOffsets: together with key it has to be a time, as startingTimestamp or -10m",
        ),
        (
            {"key": "k", "tags": "a"},
            "tags: it cannot be given together with key: filter the rows instead",
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
            "OptionError: option namesrvAddr: it is needed: the name server's address, as "
            "localhost:9876, here, in a profile or in NAMESRV_ADDR"
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
            "OptionError: option key: it is for batch reads only: leave it out here"
        )

    def test_ending_offsets_on_a_continuous_stream_are_refused(self, source, topic):
        with pytest.raises(PySparkException) as raised:
            source.start(source.stream(topic=topic, endingOffsets="latest")).caught_up()
        assert complaint(raised) == (
            "OptionError: option endingOffsets: a stream ends there only with "
            ".trigger(availableNow=True), before Spark 4.2 with option availableNow=true: add "
            "that, or leave this out"
        )

    def test_starting_offsets_without_all_queues_are_refused(self, source, topic):
        stream = source.stream(topic=topic, startingOffsets=json.dumps({topic: {"0": 0}}))
        assert self.failure(source, stream) == (
            f"OptionError: option startingOffsets: it does not say where {topic} > broker-a > 1 "
            'are: name every queue, or the others by "*": -2 (earliest) or -1 (latest)'
        )

    def test_source_schema_with_an_unknown_column_is_refused(self, source, topic):
        stream = source.stream("price double", topic=topic)
        assert self.failure(source, stream).startswith(
            "SchemaError: the schema given to the source does not fit: there is no column price. "
            "It chooses"
        )

    def test_checkpoint_of_another_topic_or_a_newer_release_is_refused(self, source, topic):
        checkpoint, other = source.checkpoint(), source.cluster.topic(1)
        source.run(source.stream(topic=topic, startingOffsets="earliest"), checkpoint)

        assert self.failure(source, source.stream(topic=other), checkpoint) == (
            f"CheckpointError: the checkpoint is of {topic}, and option topic names {other}: give "
            "this query a checkpointLocation of its own, or name the topics that it has read so far"
        )

        newest = max(
            (checkpoint / "offsets").iterdir(), key=lambda file: (file.name.isdigit(), file.name)
        )
        newest.write_text(newest.read_text().replace('"v": 1', '"v": 2').replace('"v":1', '"v":2'))
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
        assert self.failure(source, source.stream(topic=topic), checkpoint) == (
            "CheckpointError: the checkpoint's offset has version 2, and this release of "
            "rocketpoll reads 1: run it with the release that has written it, or a newer one"
        )
