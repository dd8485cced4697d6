"""``rocketpoll consume``: start positions, filters, following; it changes no group's offsets."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients

from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.codes import RequestCode
from rocketpoll import EmbeddedBroker

QUEUES = 200
ROCKETPOLL = [sys.executable, "-m", "rocketpoll"]


@pytest.fixture
def filled(cluster):
    """Fill a topic of two queues round-robin with the bodies 0 to 9; even ones have the tag red."""
    topic = cluster.topic(queues=2)
    for number in range(10):
        cluster.send(
            topic,
            number,
            queue_id=number % 2,
            TAGS=("red", "blue")[number % 2],
            KEYS=f"k{number}",
            size=str(number),
        )
    return topic


def bodies(ran):
    assert ran.code == 0, ran.err
    return [int(line) for line in ran.lines]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), range(10)),
        (("-n", "3"), [0, 1, 2]),
        (("--offset", "-2"), [6, 7, 8, 9]),
        (("--offset", "+4"), [8, 9]),
        (("--offset", "3"), [6, 7, 8, 9]),
        (("--offset", "end"), []),
        (("--offset", "@-1h"), range(10)),
        (("--offset", "@2020-01-01", "-q", "1"), [1, 3, 5, 7, 9]),
        (("--tags", "red"), [0, 2, 4, 6, 8]),
        (("--tags", "red || blue", "-n", "1"), [0]),
        (("--sql", "size >= 8"), [8, 9]),
        (("--until", "-2"), [0, 1, 2, 3, 4, 5]),
        (("--from", "+1", "--until", "+3"), [2, 3, 4, 5]),
        (("--from", "-2", "--until", "+1"), []),
        (("--until", "@2020-01-01"), []),
        (("--from", "@2020-01-01", "--until", "end", "-q", "1"), [1, 3, 5, 7, 9]),
        (("--key", "k3", "--until", "@2020-01-01"), []),
        (("--key", "k3"), [3]),
        (("--key", "k3", "--tags", "red"), []),
    ],
)
def test_consume_prints_messages_from_a_position_in_stored_order(run, filled, more, expected):
    assert bodies(run("consume", filled, "-o", "raw", *more)) == list(expected)


def test_messages_of_several_topics_are_printed_in_stored_order(run, cluster):
    topics = [cluster.topic(queues=2) for _ in range(2)]
    for number in range(8):
        cluster.send(topics[number % 2], number, queue_id=number % 4 // 2)
    assert bodies(run("consume", *topics, "-o", "raw")) == list(range(8))
    followed = run("consume", *topics, "-o", "raw", "--follow", "-n", 8)
    assert bodies(followed) == list(range(8))
    refused = run("consume", *topics, "--key", "k")
    assert (refused.code, "--key needs one TOPIC" in refused.err) == (2, True)


def committed(cluster, group, topic):
    return [cluster.stored_offset(group, topic, queue_id) for queue_id in range(2)]


def test_member_of_a_group_prints_from_its_offsets_on_and_commits_what_it_printed(
    run, filled, cluster
):
    group = cluster.group()
    first = run("consume", filled, "--group", group, "-o", "raw", "-n", 4)
    assert len(set(bodies(first))) == 4
    assert f"a member of {group}: reads 2 of 2 queues of {filled}" in first.err
    assert sum(each or 0 for each in committed(cluster, group, filled)) == 4
    second = run("consume", filled, "--group", group, "-o", "raw")
    assert sorted(bodies(first) + bodies(second)) == list(range(10))
    assert committed(cluster, group, filled) == [5, 5]
    assert bodies(run("consume", filled, "-g", group, "-o", "raw")) == []
    late = run("consume", filled, "-g", cluster.group(), "--offset", "end", "-o", "raw")
    assert bodies(late) == []


def test_member_of_a_group_commits_nothing_that_it_could_not_print(filled, cluster):
    group = cluster.group()
    command = [*ROCKETPOLL, "consume", filled, "--group", group, "-o", "raw"]
    with open("/dev/full", "w", encoding="ascii") as full:  # noqa: PTH123  # a device
        done = subprocess.run(
            [*command, "--namesrv", cluster.name_server], stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert not any(committed(cluster, group, filled))


@pytest.fixture
def popping(kind):
    if "4.9" in kind:
        pytest.skip("RocketMQ 4.9 cannot pop")


@pytest.mark.usefixtures("popping")
def test_popping_member_of_a_group_acknowledges_what_it_printed(run, filled, cluster):
    group = cluster.group()
    pop = ("consume", filled, "--group", group, "--pop", "-o", "raw")
    first = run(*pop, "-n", 4)
    assert len(set(bodies(first))) == 4
    assert f"a member of {group}: pops {filled}" in first.err
    second = run(*pop)
    assert sorted(bodies(first) + bodies(second)) == list(range(10))
    assert bodies(run(*pop)) == []
    late = run("consume", filled, "-g", cluster.group(), "--pop", "--offset", "end", "-o", "raw")
    assert bodies(late) == []
    red = run("consume", filled, "-g", cluster.group(), "--pop", "--tags", "red", "-o", "raw")
    assert sorted(bodies(red)) == [0, 2, 4, 6, 8]


@pytest.mark.usefixtures("popping")
def test_popping_member_gives_back_what_it_could_not_print(run, filled, cluster):
    pop = ["consume", filled, "--group", cluster.group(), "--pop", "-o", "raw"]
    with open("/dev/full", "w", encoding="ascii") as full:  # noqa: PTH123  # a device
        done = subprocess.run(
            [*ROCKETPOLL, *pop, "--namesrv", cluster.name_server], stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert sorted(bodies(run(*pop))) == list(range(10))


@pytest.mark.usefixtures("popping")
def test_members_that_pull_and_members_that_pop_refuse_each_other(run, filled, cluster):
    clients, pulls, pops = Clients(cluster), cluster.group(), cluster.group()
    clients.lite(pulls, filled)
    wait_until("the member", lambda: cluster.members(pulls))
    refused = run("consume", filled, "--group", pulls, "--pop")
    assert (refused.code, "Leave out --pop, stop the members" in refused.err) == (1, True)
    consumer = SimpleConsumer(pops, cluster.name_server)
    consumer.subscribe(filled)
    with consumer:
        wait_until("the member", lambda: cluster.members(pops))
        refused = run("consume", filled, "--group", pops)
        assert (refused.code, "Add --pop, stop the members" in refused.err) == (1, True)


def test_member_that_pops_continues_after_a_broker_restart():
    command = [*ROCKETPOLL, "consume", "orders", "-g", "packing", "--pop", "--follow", "-o", "raw"]
    with EmbeddedBroker() as broker, ExitStack() as stack:
        broker.send("orders", "before")
        following = stack.enter_context(
            subprocess.Popen(
                [*command, "--namesrv", broker.address],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        stack.callback(following.kill)  # a failed assertion must not wait for its end
        assert following.stdout.readline() == "before\n"
        read_past(following.stderr, "a member of packing: pops orders")
        with broker.away():
            read_past(following.stderr, "popping for packing failed, retrying: ")
        broker.send("orders", "after")
        assert following.stdout.readline() in {"after\n", "before\n"}
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
        assert "popping for packing recovered after" in following.stderr.read()


def read_past(lines, text):
    """Read lines up to the one that contains a text."""
    found = lines.readline()
    while text not in found:
        assert found, f"the command ended without {text}"
        found = lines.readline()


def test_pop_without_a_group_is_refused(run, filled):
    refused = run("consume", filled, "--pop")
    assert (refused.code, "Add --group GROUP" in refused.err) == (2, True)


def test_members_of_a_group_share_the_queues(run, filled, cluster):
    group, other = cluster.group(), Clients(cluster)
    member = other.lite(group, filled, auto_commit=False)
    wait_until("both queues", lambda: len(member.assignment()) == 2)
    ran = run("consume", filled, "--group", group, "-o", "raw")
    assert "reads 1 of 2 queues" in ran.err
    assert "other members have the rest" in ran.err
    assert len({number % 2 for number in bodies(ran)}) <= 1


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--queue", "0"), 2, "--group excludes --key, --queue and --until"),
        (("--until", "+3"), 2, "--group excludes --key, --queue and --until"),
        (("--key", "k1"), 2, "--group excludes --key, --queue and --until"),
        (("--offset", "-5"), 2, "or move the group with rocketpoll group seek"),
        (("--tags", "red"), 1, "Give the same topics and tags, stop the members, or name another"),
    ],
)
def test_consume_in_a_group_refuses_contradicting_options(run, filled, cluster, more, code, said):
    group = cluster.group()
    Clients(cluster).lite(group, filled)
    wait_until("the member", lambda: cluster.members(group))
    ran = run("consume", filled, "--group", group, *more)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_consume_from_a_time_omits_earlier_messages(run, filled, cluster):
    last = json.loads(run("consume", filled, "--offset", "-1", "-q", "1", "-o", "json").out)
    found = bodies(run("consume", filled, "-f", "%s\\n", "--offset", f"@{last['stored']}"))
    assert found[-1] == 9


def test_consume_between_two_times_prints_what_was_stored_between_them(run, filled):
    stored = [int(line) for line in run("consume", filled, "-f", "%T\\n").lines]
    times = f"@{stored[3]}", f"@{stored[7]}"
    between = run("consume", filled, "--from", times[0], "--until", times[1], "-f", "%s\\n")
    expected = [number for number in range(10) if stored[3] <= stored[number] < stored[7]]
    assert bodies(between) == expected


@pytest.mark.parametrize("more", [("--follow", "--until", "+3"), ("--key", "k3", "--until", "+3")])
def test_consume_until_is_refused_with_options_that_contradict_it(run, filled, more):
    refused = run("consume", filled, *more)
    assert refused.code == 2
    assert "--until" in refused.err


def test_consume_command_changes_no_group_offsets(run, filled, cluster):
    run("consume", filled)
    assert run("topic", "describe", filled, "-o", "json").json["groups"] == []


def test_consume_format_controls_the_output(run, filled, cluster):
    ran = run("consume", filled, "-n", "1", "-f", "%t %b %p %o %k %g %s %S %i %h%%\\t|\\n")
    assert ran.out == f"{filled} {cluster.broker_name} 0 0 k0 red 0 1 id-0 size=0%\t|\n"


@pytest.mark.parametrize("how", [("consume",), ("consume", "--follow"), ("tail",)])
@pytest.mark.parametrize("condition", ["size = 'b", "size >", "1"])
def test_invalid_sql_condition_makes_consume_print_no_message(run, filled, cluster, how, condition):
    ran = run(*how, filled, "-n", 1, "--sql", condition)
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1


def test_consume_follow_prints_new_messages(run, cluster):
    topic, other = cluster.topic(queues=1), cluster.topic(queues=1)
    cluster.send(topic, "before", queues=1)
    assert run("consume", topic, "--follow", "-n", 1, "-o", "raw").out == "before\n"
    with subprocess.Popen(
        [*ROCKETPOLL, "tail", topic, other, "-f", "%t\\n"],
        stdout=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        said = []
        reader = threading.Thread(target=lambda: said.extend(following.stdout))
        reader.start()

        def have_come():
            for each in (topic, other):
                cluster.send(each, "x", queues=1)  # tail may have started after the earlier ones
            return {f"{topic}\n", f"{other}\n"} <= set(said)

        wait_until("a message of each topic", have_come)
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
        reader.join(20)


def test_consume_follow_asks_for_at_most_two_offsets_of_each_queue(run, cluster, monkeypatch):
    asked, request = Counter(), RemotingClient.request

    def counted(self, address, command, *arguments, **more):
        asked[command.code] += 1
        return request(self, address, command, *arguments, **more)

    topic = cluster.topic(queues=QUEUES)
    cluster.send(topic, "one", queue_id=7)
    monkeypatch.setattr(RemotingClient, "request", counted)
    ran = run("consume", topic, "--follow", "-n", 1, "-o", "raw")
    assert (ran.code, ran.out) == (0, "one\n")
    ends = asked[RequestCode.GET_MIN_OFFSET] + asked[RequestCode.GET_MAX_OFFSET]
    assert ends <= 2 * QUEUES


def test_consume_follow_of_one_queue_needs_an_existing_queue(run, cluster):
    topic = cluster.topic(queues=2)
    cluster.send(topic, "other", queue_id=0)
    cluster.send(topic, "one", queue_id=1)
    assert run("consume", topic, "--follow", "-q", 1, "-n", 1, "-o", "raw").out == "one\n"
    ran = run("tail", topic, "-q", 5)
    assert (ran.code, ran.out) == (1, "")
    assert f"{topic} has no queue 5" in ran.err


def test_ctrl_c_ends_consume_quietly(cluster):
    topic = cluster.topic(queues=1)
    with subprocess.Popen(
        [*ROCKETPOLL, "consume", topic, "--follow", "-o", "raw", "--namesrv", cluster.name_server],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        cluster.send(topic, "seen", queues=1)
        assert following.stdout.readline() == "seen\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
        assert following.stderr.read() == ""


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--tags", "a", "--sql", "b > 1"), "--tags and --sql exclude each other"),
        (("--key", "k", "--offset", "-3"), "--key needs --offset start or a time"),
        (("--key", "k", "--sql", "a > 1"), "--key and --sql need --follow"),
        (("--queue", "x"), "'x' is not a queue. Write 3, or broker-a:3"),
        (("-f", "%q"), "unknown field '%q'"),
        (("-n", "0"), "0 is not a whole number of at least 1"),
    ],
)
def test_consume_refuses_contradicting_options(run, filled, more, why):
    ran = run("consume", filled, *more)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err
    assert len(ran.err.splitlines()) == 1
