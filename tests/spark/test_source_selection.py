"""Message selection: topics and queues, tags, properties and keys."""

import json

import pytest
from pyspark.errors import PySparkException
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import numbers
from support.spark.source_fixture import complaint

pytestmark = pytest.mark.deep


class TestTopicsAndQueues:
    @pytest.fixture
    def topics(self, source):
        topics = [source.cluster.topic(2) for _ in range(2)]
        for topic, name in zip(topics, "ab", strict=True):
            source.cluster.send(topic, f"{name}0", f"{name}1", queues=2)
        return topics

    def test_source_reads_several_topics(self, source, topics):
        assert source.bodies(subscribe=" , ".join(topics)) == ["a0", "a1", "b0", "b1"]

    def test_source_reads_queues_by_number(self, source, topics):
        first, second = topics
        assert source.bodies(assign=json.dumps({first: [1]})) == ["a1"]
        assigned = {first: {"broker-a": [0]}, second: {"*": [0, 1]}}
        assert source.bodies(assign=json.dumps(assigned)) == ["a0", "b0", "b1"]


class TestNamespaces:
    def test_namespace_option_prefixes_topics(self, source):
        name = source.cluster.topic(1)
        whole = f"eu%{name}"
        source.cluster.topic(1, name=whole)
        source.cluster.send(name, "not in it")
        rows = source.spark.createDataFrame(
            [(name, "a", "k"), (name, "b", "k")], "topic string, body string, keys string"
        )
        written = {"namesrvAddr": source.cluster.name_server, "namespace": "eu"}
        rows.write.format("rocketpoll").mode("append").options(**written).save()
        assert source.bodies(topic=whole) == ["a", "b"]
        for chosen in ({"topic": name}, {"subscribePattern": name}, {"topic": name, "key": "k"}):
            found = source.load(namespace="eu", columns="topic,body", **chosen).collect()
            assert sorted((row.topic, row.body.decode()) for row in found) == [
                (name, "a"),
                (name, "b"),
            ]


class TestFilters:
    @pytest.fixture
    def topic(self, source):
        topic = source.cluster.topic(2)
        for number, colour in enumerate(["red", "green", "blue", "red"]):
            source.cluster.send(
                topic, colour + str(number), queue_id=number % 2, TAGS=colour, n=str(number)
            )
        return topic

    def test_source_selects_by_tags(self, source, topic):
        assert source.bodies(topic=topic, tags="red || blue") == ["blue2", "red0", "red3"]
        assert source.bodies(topic=topic, tags="*") == ["blue2", "green1", "red0", "red3"]
        assert source.bodies(topic=topic, tags="yellow") == []

    def test_source_selects_by_sql_on_properties(self, source, topic):
        condition = "n BETWEEN 1 AND 3 AND TAGS IN ('red', 'green')"
        assert source.bodies(topic=topic, sql=condition) == ["green1", "red3"]

    def test_invalid_sql_condition_is_refused(self, source, topic):
        with pytest.raises(PySparkException) as raised:
            source.bodies(topic=topic, sql="n >")
        assert complaint(raised).startswith(
            "OptionError: option sql: broker broker-a does not filter by 'n >': "
        )


class TestKeys:
    KEYS = ("k1", "k2 k1", "k2", "k1")

    @pytest.fixture
    def topic(self, source):
        topic = source.cluster.topic(2)
        for body, keys in zip(numbers(4), self.KEYS, strict=True):
            source.cluster.send(topic, body, queue_id=int(body) % 2, KEYS=keys)

        def is_indexed():
            return source.bodies(topic=topic, key="k1") == ["000", "001", "003"]

        wait_until("an index of all messages", is_indexed)
        return topic

    def test_source_reads_messages_with_a_key(self, source, topic):
        assert source.bodies(topic=topic, key="k2") == ["001", "002"]
        assert source.bodies(topic=topic, key="k3") == []
