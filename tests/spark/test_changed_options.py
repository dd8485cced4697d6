"""A query restarted with a changed option behaves as each row of the table in docs/restarts.md
says."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from support.spark.exactly_once_sink import CommittingSink
from support.spark.protobuf_files import descriptor_set, file_of
from support.spark.streaming_engine import SCHEMA, Crashed, Engine, send

from rmq_spark.errors import RocketPollError
from rmq_spark.spark.errors import CheckpointError, DataLoss, OptionError
from rmq_spark.spark.options.table import OPTIONS, Use
from rocketpoll import Message

PAGE = (Path(__file__).parents[2] / "docs" / "restarts.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Options that change between two starts\n")[2].partition("\n## ")[0]


def _verdicts(table):
    rows = re.findall(r"^\| (`.+?`) \| ([a-z ]+) \|", table, re.MULTILINE)
    return {name: verdict for names, verdict in rows for name in re.findall(r"`(\w+)`", names)}


OF_STREAMS, OF_WRITES = map(_verdicts, SECTION.split("\n| option of a write |"))
STREAMS = [name for name, option in OPTIONS.items() if Use.STREAM in option.uses]
WRITES = [name for name, option in OPTIONS.items() if Use.SINK in option.uses]
OF_REGISTRY = {"bodySubject", *(name for name in OPTIONS if name.startswith("bodyRegistry"))}
"""Options of a registry; `test_body_registry` tests their changes."""

OF_BODIES = {"bodyDescriptor", "bodyMessage", "bodyRegister", *OF_REGISTRY}
"""Options of bodies, which the rows of these writes are not."""

OF_BOTH = ("topic", "bodyFormat", "bodyColumn", *OF_BODIES)
"""Options with another meaning in writes; all others common to both lead to the brokers."""

TLS = {name for name in STREAMS if name.startswith("tls")}
"""TLS options, which need other brokers; `test_source_over_tls` tests them."""

QUEUES = 2

pytestmark = pytest.mark.rocketpoll_topic(queues=QUEUES)
TOPIC, OTHER = "{topic}", "{topic}-other"
PLACES = {"topic": TOPIC}
TEXT = StructType([*SCHEMA.fields[:3], StructField("body", StringType())])
OBJECT = StructType([*SCHEMA.fields, StructField("name", StringType())])
KEYS = StructType([*SCHEMA.fields, StructField("keys", StringType())])
_JSON = {"bodyFormat": "json", "bodySchema": "name string", "columns": ",".join(OBJECT.names)}
_PROTOBUF = {"bodyFormat": "protobuf", "columns": ",".join(SCHEMA.names)}


class Change(NamedTuple):
    """The options before and after a restart, besides the topic, and the column types."""

    after: dict
    before: dict = PLACES
    schema: StructType = SCHEMA
    leaves_out: str | None = None
    """Bodies of the messages that the new options exclude."""


def _more(**after):
    return Change({**PLACES, **after})


CHANGES = {
    "namesrvAddr": _more(namesrvAddr="{address};127.0.0.1:1"),
    "nameServer": _more(nameServer="{address}", namesrvAddr=None),
    "profile": _more(profile="prod", namesrvAddr=None),
    "brokerAddresses": _more(brokerAddresses='{"broker-a": "{address}"}'),
    "namespace": _more(namespace="eu"),
    "accessKey": _more(accessKey="somebody", secretKey="something"),
    "secretKey": _more(accessKey="somebody", secretKey="something"),
    "securityToken": _more(accessKey="somebody", secretKey="something", securityToken="token"),
    "requestTimeoutMs": _more(requestTimeoutMs=5_000),
    "retryTimeoutMs": _more(retryTimeoutMs=5_000),
    "subscribe": Change({"subscribe": f"{TOPIC},{OTHER}"}),
    "topic": Change({"topic": f"{OTHER},{TOPIC}"}),
    "subscribePattern": Change({"subscribePattern": TOPIC}),
    "assign": Change({"assign": '{"{topic}": [0, 1]}'}),
    "waitForTopic": _more(waitForTopic="true"),
    "tags": Change({**PLACES, "tags": "A"}, leaves_out="behind"),
    "sql": Change({**PLACES, "sql": "colour = 'red'"}, leaves_out="behind"),
    "columns": Change({**PLACES, "columns": ",".join(KEYS.names)}, schema=KEYS),
    "bodyFormat": Change({**PLACES, "bodyFormat": "text"}, schema=TEXT),
    "bodySchema": Change({**PLACES, **_JSON}, schema=OBJECT),
    "bodyColumn": Change({**PLACES, "bodyFormat": "text", "bodyColumn": "body"}, schema=TEXT),
    "bodyDescriptor": _more(**_PROTOBUF, bodyDescriptor="{descriptor}"),
    "bodyMessage": _more(**_PROTOBUF, bodyDescriptor="{descriptor}", bodyMessage="shop.M"),
    "startingOffsets": _more(startingOffsets="latest"),
    "startingTimestamp": _more(startingTimestamp="2100-01-01T00:00:00Z", startingOffsets=None),
    "startingOffsetsByTimestamp": _more(
        startingOffsetsByTimestamp='{"{topic}": {"*": 4102444800000}}', startingOffsets=None
    ),
    "startingOffsetsByTimestampStrategy": _more(
        startingTimestamp="2100-01-01T00:00:00Z",
        startingOffsetsByTimestampStrategy="latest",
        startingOffsets=None,
    ),
    "endingOffsets": _more(endingOffsets='{"{topic}": {"*": 1000}}'),
    "endingTimestamp": _more(endingTimestamp="2100-01-01T00:00:00Z"),
    "endingOffsetsByTimestamp": _more(endingOffsetsByTimestamp='{"{topic}": {"*": 4102444800000}}'),
    "failOnDataLoss": _more(failOnDataLoss="false"),
    "onBadRecord": _more(onBadRecord="skip"),
    "deadLetterTopic": _more(onBadRecord="dead_letter", deadLetterTopic="dead"),
    "checkCrc": _more(checkCrc="false"),
    "maxBodyBytes": _more(maxBodyBytes="64m"),
    "localFiles": _more(localFiles="false"),
    "onBrokerAway": _more(onBrokerAway="skip"),
    "isolation": _more(isolation="committed"),
    "brokerNames": _more(brokerNames='{"broker-z": "broker-a"}'),
    "maxOffsetsPerTrigger": _more(maxOffsetsPerTrigger=1),
    "maxBytesPerTrigger": _more(maxBytesPerTrigger=1),
    "minOffsetsPerTrigger": _more(minOffsetsPerTrigger=2),
    "maxTriggerDelay": _more(minOffsetsPerTrigger=2, maxTriggerDelay="1s"),
    "minPartitions": _more(minPartitions=7),
    "maxPartitions": _more(maxPartitions=1),
    "maxRecordsPerPartition": _more(maxRecordsPerPartition=1),
    "consumerGroup": _more(consumerGroup="another"),
    "suspendTimeoutMs": _more(suspendTimeoutMs=50),
    "discoveryIntervalMs": _more(discoveryIntervalMs=100),
    "availableNow": _more(availableNow="true"),
}


class Query:
    """One query, restarted with other options."""

    def __init__(self, broker, topic, **places):
        self._places = {"topic": topic, "address": broker.address, **places}
        self.engine = Engine(broker.address)
        self._usual = dict(self.engine.options)

    def run(self, options, schema=SCHEMA):
        """Start the query, read the available messages, and stop it."""
        given = {**self._usual, **options}
        self.engine.options = {
            name: self._filled(str(value)) for name, value in given.items() if value is not None
        }
        self.engine.schema = schema
        is_bounded = any(name.startswith("ending") for name in given)
        try:
            self.engine.start(available_now=is_bounded)
            self.engine.run()
        finally:
            self.engine.stop()

    def bodies(self):
        return sorted(row.body for row in self.engine.rows())

    def _filled(self, text):
        for name, place in self._places.items():
            text = text.replace(f"{{{name}}}", place)
        return text


@pytest.fixture
def query(rocketpoll_broker, rocketpoll_topic, monkeypatch, tmp_path):
    profiles = tmp_path / "profiles.ini"
    profiles.write_text(f"[prod]\nnamesrv = {rocketpoll_broker.address}\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
    rocketpoll_broker.create_topic(f"{rocketpoll_topic}-other", QUEUES)
    rocketpoll_broker.create_topic(f"eu%{rocketpoll_topic}", QUEUES)
    descriptor = tmp_path / "m.desc"
    descriptor_set(file_of({"M": {"v": "string"}}), path=descriptor)
    return Query(rocketpoll_broker, rocketpoll_topic, descriptor=str(descriptor))


@pytest.fixture
def write(rocketpoll_broker, rocketpoll_topic):
    """Return a function that sends messages, some with a tag and a property, and returns their
    bodies."""
    with rocketpoll_broker.producer() as producer:

        def sent(name):
            bodies = [f'{{"name": "{name} {number}"}}' for number in range(6)]
            for body in bodies:
                more = {} if name == "behind" else {"tags": "A", "properties": {"colour": "red"}}
                producer.send(Message(rocketpoll_topic, body.encode(), **more))
            return bodies

        yield sent


def test_restart_option_tables_list_all_options():
    assert set(OF_STREAMS) == set(STREAMS)
    assert set(OF_STREAMS) - set(CHANGES) == TLS | OF_REGISTRY
    assert set(OF_WRITES) == set(WRITES) - set(STREAMS) | set(OF_BOTH)
    assert set(OF_WRITES) - OF_BODIES == set(CHANGED_WRITES)


class Topics:
    """Another topic, and the messages sent to it."""

    def __init__(self, broker, topic):
        self._broker, self._other = broker, f"{topic}-other"
        self.of_other = []

    def send_to_other(self, name):
        self.of_other += send(self._broker, self._other, 3, name)
        return self.of_other


@pytest.fixture
def topics(rocketpoll_broker, rocketpoll_topic):
    return Topics(rocketpoll_broker, rocketpoll_topic)


@pytest.mark.parametrize("name", CHANGES)
def test_stream_restarted_with_a_changed_option_continues_or_is_refused(name, query, write):
    change = CHANGES[name]
    bodies = write("before")
    query.run(change.before)
    more = write("behind")
    if OF_STREAMS[name] != "no":
        query.run(change.after, change.schema)
        left_out = more if change.leaves_out == "behind" else []
        assert query.bodies() == sorted({*bodies, *more} - {*left_out})
        return
    with pytest.raises(CheckpointError, match="checkpoint") as raised:
        query.run(change.after, change.schema)
    assert "\n" not in str(raised.value)
    query.run(change.before)
    assert query.bodies() == sorted([*bodies, *more])


STARTS = [name for name, verdict in OF_STREAMS.items() if verdict == "without effect"]
NOWHERE = {
    "startingOffsets": {"startingOffsets": '{"{topic}": {"*": 1000}}'},
    "startingTimestamp": CHANGES["startingTimestamp"].after,
    "startingOffsetsByTimestamp": CHANGES["startingOffsetsByTimestamp"].after,
    "startingOffsetsByTimestampStrategy": {
        **CHANGES["startingOffsetsByTimestampStrategy"].after,
        "startingOffsetsByTimestampStrategy": "error",
    },
}
"""Starting positions that do not exist; a new query refuses them."""


@pytest.mark.parametrize("name", STARTS)
def test_start_that_no_queue_has_is_of_no_account_to_a_first_batch_that_runs_again(
    name, query, write
):
    bodies = write("before")
    query.engine.crash_at = "sink"
    with pytest.raises(Crashed):
        query.run(PLACES)
    query.run({**PLACES, **NOWHERE[name]})
    assert query.bodies() == sorted(bodies)
    assert len(query.engine.offsets) == 1
    query.engine.offsets.clear()
    query.engine.commits = 0
    with pytest.raises(OptionError) as raised:
        query.run({**PLACES, **NOWHERE[name]})
    assert raised.value.option in NOWHERE[name]


class TestTopicsAndQueues:
    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            ({"topic": f"{TOPIC},{OTHER}"}, PLACES, "the checkpoint also has"),
            (PLACES, {"assign": '{"{topic}": [0]}'}, "queue 1 of .* is no longer readable"),
        ],
        ids=["topics", "queues"],
    )
    def test_fewer_assigned_queues_are_data_loss(self, query, write, topics, before, after, said):
        bodies = [*write("before"), *topics.send_to_other("early")]
        query.run(before)
        more = write("behind")
        with pytest.raises(DataLoss, match=said) as raised:
            query.run(after)
        assert "\n" not in str(raised.value)
        query.run({**after, "failOnDataLoss": "false"})
        assert {*more} & {*query.bodies()}
        query.run(before)
        wanted = {*bodies, *more} if before != PLACES else {*bodies, *more} - {*topics.of_other}
        assert query.bodies() == sorted(wanted)


@pytest.mark.usefixtures("own_producers")
class TestIsolation:
    @pytest.fixture
    def committed(self, monkeypatch, rocketpoll_broker, rocketpoll_topic):
        sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic)
        partitions = sink.rows(3)
        sink.commit(0, sink.send(0, partitions))
        return [row for rows in partitions for row in rows]

    @pytest.mark.parametrize("names", [PLACES, {"subscribePattern": f"{TOPIC}.*"}])
    def test_restart_without_isolation_committed_is_refused(self, query, committed, names):
        query.run({**PLACES, "isolation": "committed"})
        with pytest.raises(CheckpointError, match="isolation=committed") as raised:
            query.run(names)
        assert "\n" not in str(raised.value)
        query.run({**PLACES, "isolation": "committed"})
        assert query.bodies() == sorted(committed)

    @pytest.mark.usefixtures("committed")
    def test_restart_with_planned_committed_batch_is_refused(self, query):
        query.run({**PLACES, "isolation": "committed"})
        query.engine.commits -= 1
        with pytest.raises(CheckpointError, match="isolation=committed"):
            query.run({"subscribePattern": f"{TOPIC}.*"})


CHANGED_WRITES = {
    "producerGroup": {"producerGroup": "another"},
    "maxMessageBytes": {"maxMessageBytes": "1m"},
    "bodyFormat": {"bodyFormat": "text"},
    "bodyColumn": {"bodyFormat": "text", "bodyColumn": "body"},
    "topic": {"topic": OTHER},
    "rowIds": {"rowIds": "false"},
    "writeName": {"writeName": "again"},
    "txnAppId": {"txnAppId": "app", "txnVersion": "1", "writeName": None},
    "txnVersion": {"txnAppId": "app", "txnVersion": "1", "writeName": None},
    "delivery": {"delivery": "at_least_once"},
    "visibleTo": {"visibleTo": "all", "delivery": "exactly_once"},
    "sinkName": {"visibleTo": "all", "delivery": "exactly_once", "sinkName": f"{TOPIC}-sink"},
}


@pytest.mark.parametrize("name", CHANGED_WRITES)
def test_sink_restarted_with_a_changed_option_continues(
    name, query, monkeypatch, rocketpoll_broker, rocketpoll_topic, own_producers
):
    assert OF_WRITES[name] == "yes"
    before = {}
    if name == "topic":
        before = {"delivery": None}
    if name in ("writeName", "txnAppId", "txnVersion"):  # for writes in foreachBatch
        before = {"delivery": None, "writeName": "first"}
    if name == "sinkName":
        before = {"visibleTo": "all"}
    sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, **before)
    write = sink.write_batch if sink.is_batch_write else sink.write
    first, second = sink.rows(2, 1), sink.rows(1, 2)
    write(0, first)
    given = {**sink.options, **CHANGED_WRITES[name]}
    sink.options = {
        name: text.replace(TOPIC, rocketpoll_topic) for name, text in given.items() if text
    }
    write(1, second)
    found = {
        topic: sorted(message.text for message in rocketpoll_broker.messages(topic))
        for topic in (rocketpoll_topic, f"{rocketpoll_topic}-other")
    }
    rows = [sorted(row for part in parts for row in part) for parts in (first, second)]
    if name == "topic":
        assert list(found.values()) == rows
    else:
        assert found[rocketpoll_topic] == sorted([*rows[0], *rows[1]])


def test_sink_switched_to_exactly_once_names_the_missing_commits_topic(
    query, monkeypatch, rocketpoll_broker, rocketpoll_topic, own_producers
):
    sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, delivery=None)
    sink.commit(0, sink.send(0, sink.rows(1)))
    sink.options.update(delivery="exactly_once", retryTimeoutMs="1000")
    with pytest.raises(RocketPollError, match="COMMITS"):
        sink.commit(1, sink.send(1, sink.rows(1)))
