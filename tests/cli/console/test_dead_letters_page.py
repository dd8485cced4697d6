"""Dead letters in the console: groups that have some, their content, and resending."""

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients
from support.programs.web_console import served

from rmq_spark.cli.messages.dead_letters import resend_dead_letters
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import Admin


@pytest.fixture
def letters(run, cluster):
    """Return a topic, and a group with two dead letters of it."""
    topic, group = cluster.topic(queues=1), cluster.group()
    run("produce", topic, "-t", "red", "-k", "k", "-p", "a=b", stdin=b"bad 1\nbad 2\n")
    consumer = Clients(cluster).push(
        lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER, group, topic, max_reconsume_times=0
    )
    wait_until("two dead letters", lambda: cluster.dead_letters(group) == 2)
    consumer.shutdown()
    return group, topic


def test_dead_letters_are_listed_and_sent_once_more(console, run, letters):
    group, topic = letters
    assert f"{group} 2" in console.read("/dead-letters").text
    page = console.sign_in().read(f"/dead-letters/{group}")
    assert f"{topic} 1 k bad 2" in page.text
    one, two = page.form("at")

    dry = console.read(f"/dead-letters/{group}/resend?at={two}&at={two}")
    assert "Resend 1 message" in dry.text
    assert f"rocketpoll dlq resend {group}" in dry.text
    assert len(run("consume", topic).lines) == 2
    form = [(name, value) for name, value in dry.fields if name in ("at", "csrf", "mark")]
    sent = console.post(f"/dead-letters/{group}/resend", form)
    assert "1 of 1 was sent" in sent.text
    [again] = run("consume", topic, "--offset", "2", "-f", "%s %g %k %h\\n").lines
    assert again in ("bad 1 red k a=b", "bad 2 red k a=b")
    assert console.post(f"/dead-letters/{group}/resend", form).status == 409
    assert len(run("consume", topic).lines) == 3
    assert one != two


def test_message_page_and_dead_letter_page_name_each_other(console, cluster, letters):
    group, topic = letters
    page = console.read(f"/topics/{topic}/{cluster.broker_name}/0/0")
    assert f"{group} dead letter resend" in page.text
    assert f"/dead-letters/{group}" in page.links
    letter = console.read(f"/topics/%25DLQ%25{group}/{cluster.broker_name}/0/0")
    assert f"Dead letter of {group}" in letter.text


def test_dead_letter_resend_errors_are_shown(console, letters):
    group, _ = letters
    at = f"/dead-letters/{group}/resend"
    assert "No dead letters are selected." in console.get(at).text
    assert console.get(f"{at}?at=x").status == 404
    assert "cannot reach broker nobody" in console.get(f"{at}?at=nobody:0:0").text
    many = "&".join(f"at=b:0:{number}" for number in range(101))
    assert "Too many are selected" in console.get(f"{at}?{many}").text
    assert "nobody has no dead letters" in console.read("/dead-letters/nobody").text


def test_dead_letter_resend_needs_session_and_writable_console(console, addresses, run, letters):
    group, topic = letters
    at = f"/dead-letters/{group}/resend"
    place = console.read(f"/dead-letters/{group}").form("at")[0]
    assert "Sign in to apply" in console.read(f"{at}?at={place}").text
    assert console.post(at, {"at": place}).status == 403
    with served(addresses[0], writes=False) as browser:
        assert "read-only" in browser.read(f"{at}?at={place}").text
        assert browser.sign_in().post(at, {"at": place}).status == 403
    assert len(run("consume", topic).lines) == 2


def test_concurrent_resends_of_two_browsers_send_each_dead_letter_once(console, cluster, letters):
    group, topic = letters
    with Admin(cluster.name_server) as admin:
        queue = MessageQueue(f"%DLQ%{group}", cluster.broker_name, 0)
        chosen = [admin.message_at(queue, queue_offset) for queue_offset in range(2)]
        first, second = (resend_dead_letters(admin, chosen) for _ in range(2))
        results = [next(first), next(second), next(second), next(first)]
    assert [each.result.queue.topic for each in results] == [topic] * 4
