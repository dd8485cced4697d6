"""Clients created before a fork work in the child as if created there, or raise an error; the
parent's keep working."""

import multiprocessing
import pickle
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from support.programs.python_programs import last_line_of
from support.suite.selection import spread

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import Admin, ClientInstance, LitePullConsumer, Producer, PushConsumer

PROGRAMS = Path(__file__).with_name("forking_programs.py")
PATIENCE_S = 90
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def topic(cluster):
    return cluster.topic()


@pytest.fixture
def run(cluster, topic):
    def run(program):
        about = (cluster.name_server, cluster.address, topic, cluster.group())
        return last_line_of(str(PROGRAMS), program, *about, seconds=PATIENCE_S)

    return run


@pytest.fixture
def stored(cluster, topic):
    """Return a function that reads a queue's content by offset."""

    def stored():
        queue = cluster.queue(topic)
        end = cluster.api.max_offset(cluster.address, queue)
        return {
            message.queue_offset: message
            for chunk in BulkPull(cluster.api, cluster.address, "Readers", queue, 0, end)
            for message in decode_messages(chunk.records, "broker-a")
        }

    return stored


def check_sent(found, log):
    """Check each acknowledgement: the message is at its offset, once, under its own id."""
    sent = [each for process in found for each in process["sent"]]
    assert [log[offset].body.decode() for _, offset, _ in sent] == [body for body, _, _ in sent]
    bodies = Counter(message.body for message in log.values())
    assert {body for body, count in bodies.items() if count > 1} <= {b"before"}
    ids = Counter(message.message_id for message in log.values())
    assert set(ids.values()) == {1}
    clients = [process["client"] for process in found if "client" in process]
    assert len(set(clients)) == len(clients)


@pytest.mark.parametrize(
    "program",
    spread(2, ["producer_made_before", "producer_started_before", "instance_started_before"]),
)
def test_parent_and_children_send_as_if_they_were_alone(run, stored, program):
    found = run(program)
    assert all("sent" in child for child in found["children"]), found["children"]
    check_sent([found["parent"], *found["children"]], stored())
    assert found.get("connection is kept", True)


def test_child_sends_requests_of_its_own_while_those_of_the_parent_wait(run):
    found = run("requests_of_the_parent")
    assert (found["parent"], found["child"]["own"]) == ("11", "22")
    assert found["child"]["refused"].startswith("ClientShutDown: ")
    assert found["child"]["waiting"] == 0


@pytest.mark.parametrize("program", ["preloaded_workers", "pool_of_forks"])
def test_servers_and_pools_may_make_their_clients_before_they_fork(run, stored, program):
    """With the calls of gunicorn and Celery; `test_hosts` runs both programs."""
    found = run(program)
    assert len(found["children"]) in {4, 6}
    check_sent([found["parent"], *found["children"]], stored())
    assert found.get("codes", [7]) in ([7], [7] * 4)


def test_futures_of_the_parent_complete_in_the_parent_after_fork(run):
    found = run("futures_of_the_parent")
    assert len(found["parent"]) == len(set(found["parent"])) == 100
    assert found["child"]["own"] == "SEND_OK"
    assert found["child"]["called here"] == 0
    assert len(found["child"]["refused"]) == found["waited"]
    for refused in found["child"]["refused"]:
        assert refused.startswith("ClientShutDown: the response goes to the parent")


@pytest.mark.parametrize("program", ["lite_made_before", "push_made_before"])
def test_consumers_started_in_children_are_members_of_their_own(run, program):
    found = run(program)
    assert len(set(found["clients"])) == 2
    assert all(found["seen"]), "one member had nothing"
    assert sorted(chain(*found["seen"])) == sorted(found["sent"])


@pytest.mark.parametrize("program", ["lite_started_before", "push_started_before"])
def test_running_consumer_is_refused_in_a_forked_child(run, program):
    found = run(program)
    for refused in found["child"]["refused"]:
        assert "was started before this process was forked: make a new one here" in refused
        assert "\n" not in refused
    assert not found["child"]["is_running"]
    assert found["child"].get("seen", []) == []
    assert sorted(found["seen"]) == sorted(found["sent"])
    assert found["members"] == 1


def test_shutdown_requested_before_a_fork_does_not_run_in_the_child(run):
    assert run("lite_whose_end_was_asked_for") == {"child": False, "members": [1]}


def test_consumer_being_changed_during_a_fork_is_usable_in_the_child(run):
    assert run("lite_that_another_thread_changes") == {"child": [1, 2], "parent": 1}


def test_child_forked_by_a_listener_consumes_nothing(run):
    found = run("listener_that_forks")
    assert sorted(found["calls"]) == sorted(found["sent"])
    assert sorted(found["seen"]) == sorted(found["sent"])


def test_client_with_a_given_id_gets_another_id_in_each_child(run):
    found = run("instance_with_a_given_id")
    clients = [child["client"] for child in found["children"]]
    assert len({"given", *clients}) == 3
    assert all(client.startswith("given@") for client in clients)
    assert {child["lasting"] for child in found["children"]} == {"given"}
    seen = [body for child in found["children"] for body in child["seen"]]
    assert set(seen) == set(found["sent"])


def test_client_instance_in_a_with_block_is_usable_in_the_child(run):
    found = run("instance_in_a_with_statement")
    assert found["child"] == {"sent": ["SEND_OK", "SEND_OK"], "is over": False}


def test_child_forked_by_a_callback_runs_no_other_callbacks_and_exits(run):
    found = run("callback_that_forks")
    assert found["ended"]
    assert set(found["calls"]) == {str(found["pid"])}
    assert len(found["calls"]) % 20 == 0


def test_call_interrupted_by_a_forking_signal_is_refused_in_the_child(run):
    found = run("signal_that_forks")
    assert found["parent"].startswith("TimeoutError")
    assert found["child"].startswith("ClientShutDown: the response goes to the parent")


def test_consumer_created_before_the_fork_consumes_in_the_child(run):
    found = run("queues_watched_before")
    assert sorted(found["seen"]) == sorted(found["sent"])


@pytest.mark.deep
def test_fork_during_consumer_construction_is_safe(run):
    assert run("consumers_made_while_it_forks") == {"children": ["SEND_OK"] * 20}


@pytest.mark.deep
def test_admin_and_bulk_pull_used_before_a_fork_work_in_the_child(run):
    found = run("admin_and_api_used_before")
    assert found["before"] == found["child"] == found["parent"] == [True, 0]
    found = run("bulk_pull_half_way")
    assert found["first"] < 100
    assert found["child"] == found["parent"] == 100


def test_broker_notices_the_death_of_a_forked_childs_parent(run):
    assert run("parent_that_is_killed") == {"before": 1}


def test_fork_at_any_moment_is_safe(run):
    found = run("threads_that_fork")
    assert Counter(found["children"]) == {"SEND_OK": 40}
    assert found["failures"] == []


# ---- clients and other processes: pickling, spawn, daemons


def things(address):
    instance = ClientInstance(address)
    connections = RemotingClient()
    return [
        instance,
        connections,
        Producer("P", instance=instance),
        LitePullConsumer("G", instance=instance),
        PushConsumer("G", instance=instance, listener=lambda *_: None),
        Admin(instance=instance),
        BulkPull(BrokerApi(connections), address, "G", QUEUE, 0, 1),
    ]


@pytest.mark.parametrize("number", range(7))
def test_client_objects_cannot_be_pickled(number):
    thing = things("127.0.0.1:1")[number]
    with pytest.raises(TypeError, match="cannot be sent to another process: make one there"):
        pickle.dumps(thing)


def sends_one(name_server, topic, body):
    with Producer("P", name_server) as producer:
        return producer.send(Message(topic, body), MessageQueue(topic, "broker-a", 0)).send_status


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.deep)])
def test_spawned_process_creates_its_own_clients(cluster, topic, method, stored):
    bodies = [b"%d" % number for number in range(4)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        sent = pool.starmap(sends_one, [(cluster.name_server, topic, body) for body in bodies])
    assert [each.name for each in sent] == ["SEND_OK"] * 4
    assert sorted(message.body for message in stored().values()) == bodies
