"""Topics missing from an older topic table: no acknowledged message is lost."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.brokers.in_process import on_broker, tell
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import ConsumerSendMsgBackRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.runtime.table_reconciliation import TableReconciliation

pytestmark = pytest.mark.usefixtures("on_each_loop")

DELAYED = {"DELAY": "1"}


@pytest.fixture
def older_table(tmp_path):
    """Return a function that replaces the table of topics by its first version."""
    path = tmp_path / "config" / "topics.json"
    copy = tmp_path / "older.json"

    def keep():
        copy.write_bytes(path.read_bytes())

    def put_back():
        path.with_name("topics.json.bak").unlink()
        path.write_bytes(copy.read_bytes())

    return keep, put_back


def made_again(topic):
    """Return the log line of a restored topic."""
    return (
        f"topic {topic} was missing, and is restored with messages. If you deleted it, "
        "delete it again"
    )


async def give_back(client, topic):
    (message,) = (await client.pull(0, topic, count=1)).messages
    header = ConsumerSendMsgBackRequestHeader(message.physical_offset, "G", 1)
    codec = HEADERS[RequestCode.CONSUMER_SEND_MSG_BACK].request
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=codec.encode(header))
    assert (await client.call(request)).code == 0


def test_delayed_message_recreates_topic_missing_in_an_older_table(tmp_path, older_table, caplog):
    keep, put_back = older_table

    async def first(broker):
        await (await broker.connect()).put("old", topic="Old")

    async def second(broker):
        keep()
        client = await broker.connect()
        await client.heartbeat("G", "Old")
        await client.put("later", topic="New", queue_id=2, properties=DELAYED)
        await client.put("later, too", topic="New", queue_id=2, properties=DELAYED)
        await give_back(client, "Old")

    async def third(broker):
        assert not {"New", "%RETRY%G"} & set(broker.controller.tables.topics.topics)
        client = await broker.connect()
        broker.move(2)
        await broker.until(lambda: broker.store.queue_offsets("New", 2) == (0, 2))
        await broker.until(lambda: broker.store.queue_offsets("%RETRY%G", 0) == (0, 1))
        assert (await client.pull(0, "New", 2)).bodies == ["later", "later, too"]
        assert (await client.pull(0, "%RETRY%G", 0)).bodies == ["old"]

    tell(first, tmp_path)
    tell(second, tmp_path)
    put_back()
    caplog.clear()
    tell(third, tmp_path)
    assert sorted(lines_of(caplog)) == [made_again(topic) for topic in ("%RETRY%G", "New")]


@on_broker
async def test_topic_being_deleted_is_not_recreated_before_it_is_gone(broker):
    broker.make_topic("T")
    topics = broker.controller.tables.topics
    topics.save()
    lost_topics = TableReconciliation(broker.controller.store, broker.controller.tables, 2)
    topics.begin_deletion("T")
    topics.delete("T")
    assert lost_topics.recreate_topic("T", 1) is None
    assert topics.get("T") is None
    topics.save()
    assert lost_topics.recreate_topic("T", 1) == 2


@pytest.mark.parametrize(("read", "write"), [(1, 4), (4, 1)])
@on_broker
async def test_older_topic_table_does_not_narrow_a_topic_below_its_messages(broker, read, write):
    topics = broker.controller.tables.topics
    topics.put(TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write))
    store = SimpleNamespace(queue_nums=lambda: {"T": 3})
    TableReconciliation(store, broker.controller.tables, 2).restore_missing_topics()
    found = topics.get("T")
    assert min(found.read_queue_nums, found.write_queue_nums) == 3


def test_topic_missing_in_its_table_returns_with_its_messages(tmp_path, caplog):
    async def first(broker):
        client = await broker.connect()
        await client.put("a", topic="Sent", queue_id=2, queue_nums=3)
        await client.put("b", topic="Wide", queue_id=6, queue_nums=8)
        broker.make_topic("Kept", queues=7)
        for topic in ("Sent", "Wide"):
            broker.controller.tables.topics.delete(topic)  # the last save does not contain them

    async def second(broker):
        client = await broker.connect()
        assert (await client.pull(0, "Sent", 2)).bodies == ["a"]
        assert (await client.pull(0, "Wide", 6)).bodies == ["b"]
        topics = broker.controller.tables.topics
        assert [topics.get(name).read_queue_nums for name in ("Sent", "Wide", "Kept")] == [4, 7, 7]

    tell(first, tmp_path)
    tell(second, tmp_path)
    assert "topic Sent was missing" in caplog.text


@pytest.mark.parametrize("becomes_of_it", [Path.unlink, lambda path: path.write_bytes(b"{{{")])
def test_messages_in_queues_missing_in_an_older_topic_table_are_read(
    tmp_path, caplog, becomes_of_it
):
    table = tmp_path / "config" / "topics.json"
    older = []

    async def first(broker):
        topics = broker.controller.tables.topics
        for queue_nums in (1, 8):
            broker.make_topic("T", queues=queue_nums)
            topics.save()
            older.append(table.read_bytes())
        await (await broker.connect()).put("a", queue_id=5)

    async def second(broker):
        assert (await (await broker.connect()).pull(0, queue_id=5)).bodies == ["a"]
        config = broker.controller.tables.topics.get("T")
        assert (config.read_queue_nums, config.write_queue_nums) == (6, 6)

    tell(first, tmp_path)
    table.with_name("topics.json.bak").write_bytes(older[0])
    becomes_of_it(table)
    tell(second, tmp_path)
    assert "topic T is restored to 6 queues, which have messages" in caplog.text
    caplog.clear()
    tell(second, tmp_path)
    assert lines_of(caplog) == []


def test_queues_that_an_operator_has_taken_away_stay_away_over_a_restart(tmp_path, caplog):
    async def first(broker):
        broker.make_topic("T", queues=8)
        await (await broker.connect()).put("a", queue_id=5)
        broker.make_topic("T", queues=1)

    async def second(broker):
        assert broker.controller.tables.topics.get("T").read_queue_nums == 1

    tell(first, tmp_path)
    tell(second, tmp_path)
    assert lines_of(caplog) == []


def test_deleted_topic_does_not_return_after_a_restart(tmp_path, caplog):
    async def first(broker):
        client = await broker.connect()
        await client.put("a")
        assert (await client.ask(215, ext_fields={"topic": "T"})).code == 0

    async def second(broker):
        assert broker.controller.tables.topics.get("T") is None
        assert (await (await broker.connect()).pull(0)).code == 17

    tell(first, tmp_path)
    tell(second, tmp_path)
    assert lines_of(caplog) == []
