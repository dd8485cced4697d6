"""A consumer's state changes by compare-and-set, also in a forked child."""

import threading
from types import SimpleNamespace

import pytest

from rmq_spark.client.consumer.group_lifecycle import ServiceState, ServiceStateMachine
from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.client.namespace import Namespace
from rocketpoll import SimpleConsumer

CREATED, STARTING, RUNNING, FAILED, OVER, OF_THE_PARENT = ServiceState


def life_in(state):
    life = ServiceStateMachine()
    life.state = state
    return life


def test_concurrent_starts_are_decided_by_compare_and_set():
    life, together, first = ServiceStateMachine(), threading.Barrier(8), []

    def start():
        together.wait(10)
        if life.compare_and_set(CREATED, STARTING):
            first.append(True)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert first == [True]
    assert life.state is STARTING


def test_compare_and_set_from_another_state_changes_nothing():
    life = life_in(OVER)
    assert not life.compare_and_set(STARTING, RUNNING)
    assert life.state is OVER


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (CREATED, CREATED),
        (STARTING, OF_THE_PARENT),
        (RUNNING, OF_THE_PARENT),
        (FAILED, FAILED),
        (OVER, OVER),
    ],
)
def test_service_state_changes_to_that_of_the_parent_in_a_forked_child(before, behind):
    life = life_in(before)
    life.after_fork()
    assert life.state is behind


def test_service_state_lock_held_at_fork_is_released_in_the_child():
    life = ServiceStateMachine()
    life._state_lock.acquire()  # as by a thread that the fork has removed
    life.after_fork()
    changed = threading.Thread(target=life.compare_and_set, args=(CREATED, STARTING))
    changed.start()
    changed.join(10)
    assert life.state is STARTING


def test_final_service_states_advise_to_make_a_new_one():
    for state in (FAILED, OVER, OF_THE_PARENT):
        assert ": make a new one" in state.value


class Instance:
    """A shared instance that records requests; its heartbeats fail."""

    is_shut_down = False
    namespace = Namespace(None)
    name_servers = None
    routes = SimpleNamespace(require=lambda _: None)

    def __init__(self):
        self.calls = []
        self.on_heartbeat = lambda: None

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")

    def register_consumer(self, group, _):
        self.calls.append(f"register {group}")

    def unregister_consumer(self, group):
        self.calls.append(f"unregister {group}")

    def heartbeat(self):
        self.on_heartbeat()
        raise ConnectionFailed("a:1", "no")


def test_consumer_closed_during_a_start_that_fails_leaves_its_group_once():
    instance = Instance()
    consumer = SimpleConsumer("G", instance=instance)
    instance.on_heartbeat = consumer.close
    with pytest.raises(ConnectionFailed):
        consumer.start()
    consumer.close()
    assert instance.calls == ["start", "register G", "unregister G", "stop"]
