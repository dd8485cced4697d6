"""``rocketpoll group``: why a group is stuck, and seeks to other offsets."""

import re
import sys
from itertools import product
from types import SimpleNamespace

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients, Listener
from support.programs.terminals import written_to_a_terminal

from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rocketpoll import SimpleConsumer


@pytest.fixture
def clients(cluster):
    return Clients(cluster)


@pytest.fixture
def billing(cluster):
    """Create a group at offset 2 of 5 in queue 0 and at 1 of 3 in queue 1; return it
    and its topic."""
    topic, group = cluster.topic(queues=2), cluster.group()
    for queue_id, count in enumerate((5, 3)):
        cluster.send(topic, *range(count), queue_id=queue_id)
        cluster.store_offset(group, topic, 2 - queue_id, queue_id)
    return group, topic


def offsets(cluster, group, topic):
    return [cluster.stored_offset(group, topic, each) for each in range(2)]


def test_group_list_shows_a_group_with_its_lag(run, billing):
    group, topic = billing
    [row] = [each for each in run("group", "list", "-o", "json").json if each["group"] == group]
    assert (row["members"], row["topics"], row["behind"]) == (0, [topic], 5)
    assert row["state"] == "offline"
    assert "TOOLS_CONSUMER" not in run("group", "list").out
    assert "TOOLS_CONSUMER" in run("group", "list", "--all").out


def test_group_list_shows_the_groups_that_match_its_patterns(run, cluster):
    topic, prefix = cluster.topic(queues=1), cluster.group()
    for name in ("a", "b", "c"):
        cluster.store_offset(f"{prefix}-{name}", topic, 0)

    def listed(*patterns):
        rows = run("group", "list", *patterns, "-o", "json").json
        return [row["group"].removeprefix(prefix) for row in rows]

    assert listed(f"{prefix}-*") == ["-a", "-b", "-c"]
    assert listed(f"{prefix}-[bc]", f"{prefix}-b") == ["-b", "-c"]
    assert listed(f"{prefix}-a") == ["-a"]
    none = run("group", "list", f"{prefix}-aa")
    assert (none.code, none.out) == (1, "")
    assert f"no group matches {prefix}-aa. Did you mean {prefix}-a? List all with" in none.err


def test_group_describe_shows_each_queue(run, billing):
    group, topic = billing
    found = run("group", "describe", group, "-o", "json").json
    assert (found["members"], found["behind"], found["dead_letters"]) == (0, 5, 0)
    assert [(row["committed"], row["end"], row["behind"]) for row in found["queues"]] == [
        (2, 5, 3), (1, 3, 2),
    ]  # fmt: skip
    for row in found["queues"]:
        assert row["last_consumed"] <= row["waiting_since"]
        assert (row["topic"], row["member"], row["last_tried"]) == (topic, None, None)
    assert found["diagnosis"]["title"] == "No consumer is online"


def test_group_describe_fits_the_terminal_and_ends_with_the_diagnosis(
    run, cluster, clients, billing
):
    group, topic = billing
    many = cluster.topic(queues=16)
    cluster.send(many, *range(16), queues=16)
    for queue_id in range(16):
        cluster.store_offset(group, many, 0, queue_id)
    clients.lite(cluster.group(), topic)
    command = [sys.executable, "-m", "rocketpoll", "group", "describe", group]
    for columns, flags in product(("80", "120"), ([], ["--queues"], ["--lag-only"])):
        text = written_to_a_terminal(
            [*command, *flags], COLUMNS=columns, NAMESRV_ADDR=cluster.name_server
        )
        lines = re.sub("\x1b[^m]*m", "", text).splitlines()
        assert max(map(len, lines)) <= int(columns)
        assert lines[0].startswith(f"{group}: 0 members online, 21 behind,")
        assert lines[-2:] == [
            "No consumer is online.", "Messages wait for a consumer. Start the group's consumers.",
        ]  # fmt: skip
        queue_rows = [line for line in lines if re.match(r"Topic\S+ +\d+ +\d+ +\d+ +\d+", line)]
        assert len(queue_rows) == (18 if flags else 10)
        assert ("10 of 18 queues" in text) == (not flags)


def test_group_describe_of_a_topic_shows_only_that_topic(run, cluster):
    first, second, unread = cluster.topic(), cluster.topic(), cluster.topic()
    group = cluster.group()
    for topic, count in ((first, 3), (second, 5)):
        cluster.send(topic, *(f"{number}" for number in range(count)))
        cluster.store_offset(group, topic, 0)
    assert run("group", "describe", group, "-o", "json").json["behind"] == 8
    one = run("group", "describe", group, "--topic", second, "-o", "json").json
    assert one["behind"] == 5
    assert {row["topic"] for row in one["queues"]} == {second}
    none = run("group", "describe", group, "--topic", unread)
    assert (none.code, none.out) == (1, "")
    assert f"{group} has no offsets in {unread}. It has offsets in {first}, {second}" in none.err


def test_error_for_a_topic_in_place_of_a_group_says_that_it_is_a_topic(run, cluster):
    topic = cluster.topic()
    asked = run("group", "describe", topic)
    assert asked.code == 1
    assert f"{topic} is a topic: rocketpoll topic describe {topic} lists its groups" in asked.err


def test_group_describe_takes_several_groups_and_patterns(run, cluster):
    topic, prefix = cluster.topic(queues=1), cluster.group()
    for name in ("a", "b"):
        cluster.store_offset(f"{prefix}-{name}", topic, 0)
    found = run("group", "describe", f"{prefix}-*", "-o", "json").json
    assert [each["group"] for each in found] == [f"{prefix}-a", f"{prefix}-b"]
    csv = run("group", "describe", f"{prefix}-b", f"{prefix}-a", "-o", "csv").lines
    assert [line.split(",")[0] for line in csv] == ["group", f"{prefix}-b", f"{prefix}-a"]
    text = run("group", "describe", f"{prefix}-*").out
    assert text.index(f"{prefix}-a:") < text.index(f"{prefix}-b:")
    none = run("group", "describe", "no-such-*")
    assert (none.code, none.out) == (1, "")
    assert "no group matches no-such-*. List all with rocketpoll group list" in none.err


def test_group_describe_shows_members_and_their_queues(run, cluster, clients):
    topic, group = cluster.topic(queues=2), cluster.group()
    consumer = clients.lite(group, topic)
    wait_until("both queues", lambda: len(consumer.assignment()) == 2)
    found = run("group", "describe", group, "-o", "json").json
    [member] = found["online"]
    assert (found["members"], member["queues"]) == (1, 2)
    assert [row["member"] for row in found["queues"]] == [member["client"]] * 2
    assert all(row["last_tried"] for row in found["queues"])


def test_group_describe_counts_the_messages_in_flight_of_a_group_that_pops(run, cluster):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *"abc", queues=1)
    with SimpleConsumer(group, cluster.name_server, start="earliest") as consumer:
        consumer.subscribe(topic)
        held = []
        wait_until("3 messages", lambda: held.extend(consumer.receive(3)) or len(held) == 3)
        consumer.ack(held[0])
        found = run("group", "describe", group, "-o", "json").json
        assert (found["in_flight"], found["behind"]) == (2, 0)
        assert [row["in_flight"] for row in found["queues"]] == [2]
        text = run("group", "describe", group).out
        assert "0 behind, 2 in flight," in text
        assert "2 messages are in flight: received, and not acknowledged yet." in text


def test_group_seek_skips_one_message(run, cluster, billing):
    group, topic = billing
    ran = run("group", "seek", group, "--queue", 0, "--to", "+1", "--yes", "-o", "json")
    assert ran.json == [
        {
            "topic": topic, "broker": cluster.broker_name, "queue": 0,
            "committed": 2, "to": 3, "moves": 1, "behind": 2,
        }
    ]  # fmt: skip
    assert offsets(cluster, group, topic) == [3, 1]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("start", [0, 0]),
        ("end", [5, 3]),
        ("-1", [1, 0]),
        ("-9", [0, 0]),
        ("+2", [4, 3]),
        ("2", [2, 2]),
        ("@2020-01-01", [0, 0]),
        ("@-0s", [5, 3]),
    ],
)
def test_group_seek_moves_an_offline_group(run, cluster, billing, place, expected):
    group, topic = billing
    dry = run("group", "seek", group, "--to", place, "--dry-run", "-o", "json")
    assert [row["to"] for row in dry.json] == expected
    assert offsets(cluster, group, topic) == [2, 1]
    run("group", "seek", group, "--to", place, "--yes")
    assert offsets(cluster, group, topic) == expected


REPLACING = {
    "seek": lambda group: ("seek", group, "--to", "start"),
    "clone": lambda group: ("clone", f"{group}-source", group),
    "delete": lambda group: ("delete", group),
}
"""Commands that replace or delete a group's committed offsets."""


@pytest.mark.parametrize("command", REPLACING)
def test_group_commands_replacing_offsets_need_yes_without_a_terminal(
    run, cluster, billing, command
):
    group, topic = billing
    cluster.store_offset(f"{group}-source", topic, 0)
    words = REPLACING[command](group)
    ran = run("group", *words)
    assert (ran.code, ran.out) == (2, "")
    assert f"{group}" in ran.err
    assert "Add --yes" in ran.err
    assert offsets(cluster, group, topic) == [2, 1]
    assert run("group", *words, "--yes").code == 0
    assert offsets(cluster, group, topic) != [2, 1]


@pytest.mark.parametrize("answer", [True, False])
def test_group_seek_on_a_terminal_shows_its_moves_and_asks(
    run, cluster, billing, monkeypatch, answer
):
    group, topic = billing
    asked = []

    def confirm(question, **_):
        asked.append((question, offsets(cluster, group, topic)))
        return answer

    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(
        "rmq_spark.cli.shell.failures.sys",
        SimpleNamespace(stdin=terminal, stdout=sys.stdout, stderr=sys.stderr),
    )
    monkeypatch.setattr("click.confirm", confirm)
    ran = run("group", "seek", group, "--to", "start")
    assert asked == [(f"move {group} in 2 queues?", [2, 1])]
    assert ran.out.count(topic) == 2
    assert offsets(cluster, group, topic) == ([0, 0] if answer else [2, 1])
    assert ran.code == (0 if answer else 1)
    assert ("moved" if answer else "nothing was changed") in ran.err


def test_group_seek_notifies_an_online_group(run, cluster, clients, kind):
    topic, group = cluster.topic(queues=1), cluster.group()
    listener = Listener(lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    clients.push(listener, group, topic)
    cluster.send(topic, "one", "two", queues=1)
    listener.wait_for(["one", "two"])
    if kind != "rocketpoll":  # RocketMQ does not reset a group without committed offsets
        wait_until("its offsets", lambda: cluster.stored_offset(group, topic) == 2)
    ran = run("group", "seek", group, "--topic", topic, "--to", "start", "--yes")
    assert ran.code == 0, ran.err
    wait_until("both once more", lambda: listener.bodies.count("two") == 2)


def test_relative_seek_without_committed_offset_is_refused(run, cluster, kind):
    if kind == "4.9.7":
        pytest.skip("it says 0 of a young queue in which nothing was committed")
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *range(3), queues=1)
    cluster.store_offset(group, cluster.topic(), 0)
    ran = run("group", "seek", group, "--topic", topic, "--to", "+1")
    assert (ran.code, ran.out) == (1, "")
    assert "has committed no offset in" in ran.err


def test_group_clone_and_group_delete(run, cluster, billing):
    group, topic = billing
    rows = run("group", "clone", group, f"{group}-copy", "-o", "json").json
    assert [(row["topic"], row["committed"]) for row in rows] == [(topic, 2), (topic, 1)]
    assert run("group", "delete", f"{group}-copy").code == 2
    gone = run("group", "delete", f"{group}-copy", "--yes")
    assert gone.out == f"deleted {group}-copy with its offsets and 0 dead letters\n"
    assert f"{group}-copy" not in run("group", "list").out


def test_group_delete_and_clone_refuse_an_online_group(run, cluster, clients, billing):
    online = cluster.group()
    clients.lite(online, billing[1])
    for command in (("delete", online, "--yes"), ("clone", billing[0], online)):
        ran = run("group", *command)
        assert ran.code == 1
        assert "has 1 member online. Stop its consumers first" in ran.err


@pytest.mark.parametrize(
    "command",
    [
        ("describe", "biling"),
        ("seek", "biling", "--to", "end"),
        ("seek", "biling", "--to", "end", "--topic", "T"),
        ("clone", "biling", "other"),
        ("delete", "biling", "--yes"),
    ],
)
def test_unknown_group_suggests_the_nearest_name(run, cluster, command):
    cluster.store_offset("billing", cluster.topic(name="T"), 0)
    ran = run("group", *command)
    assert (ran.code, ran.out) == (1, "")
    assert (
        "there is no group biling. Did you mean billing? List all with rocketpoll group list"
        in ran.err
    )


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g"])
def test_retry_or_dlq_topic_name_suggests_its_group(run, cluster, name):
    for group in ("g", "%RETRY%x", "gg"):
        cluster.store_offset(group, cluster.topic(), 0)
    assert f"there is no group {name}. Did you mean g? " in run("group", "describe", name).err


def test_group_seek_with_a_queue_needs_its_topic(run, cluster):
    group = cluster.group()
    for _ in range(2):
        cluster.store_offset(group, cluster.topic(), 0)
    ran = run("group", "seek", group, "--queue", 0, "--to", "end")
    assert ran.code == 2
    assert f"--queue needs --topic: {group} consumes several. Name one of Topic" in ran.err
