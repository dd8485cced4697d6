"""Users' mistakes reach them through Spark as one line that names the option and the remedy.

`test_mistakes` has the line of each mistake.
"""

import json
import socket

import pytest
from pyspark.errors import PySparkException
from support.spark.source_fixture import complaint

pytestmark = pytest.mark.deep

NO_ROUTE = (
    "no route to topic Nowhere: the name servers know no such topic; create it, or check its name"
)
NONE = None
"""Value of an option that is left out."""


@pytest.fixture
def topic(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, "a", "b", queues=2)
    return topic


@pytest.fixture
def read(source, topic):
    """Return a function that returns the error of a read, with T in place of the topic; NONE
    removes an option."""

    def read(given, act):
        options = {"topic": topic, **given}
        options = {name: value for name, value in options.items() if value is not NONE}
        with pytest.raises(PySparkException) as raised:
            act(source.load(**options))
        return complaint(raised).replace(topic, "T")

    return read


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "Nowhere"}, f"topic: {NO_ROUTE}"),
        ({"topic": NONE, "tpic": "x"}, "tpic: there is no such option. Did you mean topic?"),
        (
            {"startingOffsets": '{"*": -2, "U": {"*": -2}}'},
            (
                "startingOffsets: it names U, but the topics read are T. Correct the name, or add "
                "it to option topic"
            ),
        ),
    ],
    ids=str,
)
def test_load_refuses_wrong_options(read, given, said):
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
    ],
    ids=str,
)
def test_first_action_refuses_wrong_options_of_batch_reads(read, topic, given, said):
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
            "GET_ROUTEINFO_BY_TOPIC within 200 ms. Check that this is the address of a name "
            "server, or of a rocketpoll broker: it accepts connections, but its program is another "
            "one, or hangs"
        )

    def test_load_without_name_server_option_is_refused(self, source):
        with pytest.raises(PySparkException) as raised:
            source.spark.read.format("rocketpoll").option("topic", "T").load()
        assert complaint(raised) == (
            "OptionError: option namesrvAddr: it is required. Give the address of a name "
            "server, for example localhost:9876, here, in a profile or in NAMESRV_ADDR"
        )


class TestStreams:
    """Mistakes that only a started stream can detect; its query fails with the same lines."""

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
