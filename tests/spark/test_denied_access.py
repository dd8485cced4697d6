"""The user of a source or sink lacks a right: the query fails with one line that names
the remedy."""

import pyarrow as pa
import pytest
from support.brokers.secured import client_of, secured_broker
from support.spark.streaming_engine import SCHEMA, Engine

from rmq_spark.client.errors import AccessDenied
from rmq_spark.spark.bodies.columns import source_schema, with_body_schema
from rmq_spark.spark.errors import OptionError, WriteError
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.preflight import check_with_brokers, check_writable
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.write import sender
from rmq_spark.spark.write.reports import WriteTask
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import AclPolicy, Admin, Message, Producer

GROUP = AclPolicy("billing", "Group:rocketpoll-spark", ("Sub",))
MAY_READ = AclPolicy("billing", "Topic:orders", ("Sub", "Get"))


@pytest.fixture
def broker():
    with secured_broker() as broker:
        yield broker


@pytest.fixture
def admin(broker):
    """Return the operator's admin, which has created a topic with a message, and a user without
    rights."""
    operator = client_of(broker)
    with Admin(instance=operator) as admin, Producer("feeder", instance=operator) as producer:
        admin.create_user("billing", "hush-hush-4711")
        admin.create_topic("orders", 1)
        producer.send(Message("orders", b"one"))
        yield admin


@pytest.fixture
def options(broker, monkeypatch, tmp_path):
    """Return the options of a query whose keys are in a profile."""
    profiles = tmp_path / "profiles.ini"
    lines = f"namesrv = {broker.address}\naccess-key = billing\nsecret-key = hush-hush-4711\n"
    profiles.write_text(f"[prod]\n{lines}", encoding="utf-8")
    profiles.chmod(0o600)
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
    return {"profile": "prod", "topic": "orders", "startingOffsets": "earliest"}


def test_load_names_the_topic_that_the_user_may_not_see(admin, options):
    with pytest.raises(OptionError) as raised:
        check_with_brokers(read_options(options))
    said = str(raised.value)
    assert said.startswith("option topic: ")
    assert "User:billing has no permission to access Topic:orders" in said
    assert "rocketpoll acl grant billing Topic:orders --actions Pub; Sub or Get suffices" in said
    assert "hush-hush-4711" not in said


def test_load_with_a_wrong_secret_names_the_option(admin, options):
    with pytest.raises(OptionError, match=r"^option accessKey: .*Correct the secret key"):
        check_with_brokers(read_options({**options, "secretKey": "wrong"}))


def test_sink_without_the_right_is_refused_at_its_start(admin, options):
    wanted = {"profile": "prod", "topic": "orders"}
    with pytest.raises(OptionError, match=r"^option topic: .*no permission to access Topic:orders"):
        check_writable(write_options(wanted))


def test_query_with_a_revoked_right_fails_and_continues_after_a_grant(broker, admin, options):
    for policy in (GROUP, MAY_READ):
        admin.create_acl(policy)
    query = Engine(broker.address)
    query.options, query.schema = options, SCHEMA
    query.start()
    query.run()
    assert [row.body for row in query.rows()] == ["one"]
    admin.delete_acl("billing", MAY_READ.resource)
    with Producer("feeder", instance=client_of(broker)) as producer:
        producer.send(Message("orders", b"two"))
    with pytest.raises(AccessDenied, match="Topic:orders"):
        query.run()
    query.stop()
    admin.create_acl(MAY_READ)
    query.start()
    query.run()
    assert sorted(row.body for row in query.rows()) == ["one", "two"]
    query.stop()


def test_task_of_a_sink_without_the_right_fails_at_once_and_says_which(admin, options, monkeypatch):
    made = {}
    monkeypatch.setattr(sender, "_producers", made)
    admin.create_acl(AclPolicy("billing", "Topic:orders", ("Get",)))  # it may read the route
    given = {"profile": "prod", "topic": "orders", "retryTimeoutMs": "600000"}
    waits = []
    with pytest.raises(WriteError) as raised:
        sender.send_rows(
            write_options(given),
            [SinkColumn("body", 0, "binary")],
            WriteTask("q", 0, 2),
            [pa.record_batch({"body": [b"x"]})],
            sleep=waits.append,
        )
    for producer in made.values():
        producer.shutdown()
    said = str(raised.value)
    assert "User:billing has no permission to access Topic:orders" in said
    assert "Have an operator run rocketpoll acl grant billing Topic:orders --actions Pub" in said
    assert "perm 6" not in said
    assert len(said.splitlines()) == 1
    assert waits == []


@pytest.mark.usefixtures("own_producers")
def test_dead_letters_need_the_right_to_send_and_have_the_keys_of_the_source(
    admin, options, broker
):
    options |= {"bodyFormat": "json", "bodySchema": "id INT", "columns": "id"}
    options |= {"onBadRecord": "dead_letter", "deadLetterTopic": "orders-dead"}
    admin.create_topic("orders-dead", 1)
    admin.create_acl(GROUP)
    admin.create_acl(MAY_READ)
    parsed = with_body_schema(read_options(options), source_schema(read_options(options)))
    rows = pa.schema([("id", pa.int32())])
    place = OffsetRange(MessageQueue("orders", "broker-a", 0), 0, 1)
    with pytest.raises(WriteError) as raised:
        list(read_range(parsed, rows, place))
    said = str(raised.value)
    assert said.startswith("dead letters of orders for topic orders-dead: ")
    assert "User:billing has no permission to access Topic:orders-dead" in said
    admin.create_acl(AclPolicy("billing", "Topic:orders-dead", ("Pub",)))
    assert list(read_range(parsed, rows, place)) == []
    assert [each["body"] for each in admin.read_table("orders-dead").to_pylist()] == [b"one"]
