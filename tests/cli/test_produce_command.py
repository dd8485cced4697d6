"""``rocketpoll produce``: lines, files and JSON lines."""

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.repliers import replying
from support.programs.terminals import new_terminal, terminal_environment


@pytest.fixture
def bodies_in(run):
    def of(topic, count):
        def shown():
            lines = run("consume", topic, "-o", "raw").lines
            return sorted(lines) if len(lines) >= count else None

        return wait_until(f"{count} messages, which RocketMQ shows soon", shown)

    return of


def test_produce_command_sends_each_line_as_a_message(run, cluster, bodies_in):
    topic = cluster.topic(queues=1)
    done = run("produce", topic, "-k", "k1", "-t", "red", "-p", "a=b", stdin=b"one\n\ntwo\r\nthree")
    assert done.code == 0
    assert done.out.startswith(f"3 messages were sent to {topic}; the last one is ")
    assert bodies_in(topic, 3) == ["one", "three", "two"]
    message = json.loads(run("consume", topic, "-n", 1, "-o", "json").out)
    assert (message["tags"], message["keys"], message["properties"]) == ("red", ["k1"], {"a": "b"})


def test_produce_reads_files_by_line_or_whole(run, cluster, bodies_in, tmp_path):
    topic = cluster.topic(queues=1)
    (tmp_path / "lines").write_text("1\n2\n", encoding="utf-8")
    run("produce", topic, tmp_path / "lines", "-", stdin=b"3\n")
    assert bodies_in(topic, 3) == ["1", "2", "3"]
    whole = cluster.topic(queues=1)
    run("produce", whole, "--whole", tmp_path / "lines")
    assert run("consume", whole, "-o", "hex").out == b"1\n2\n".hex() + "\n"
    missing = run("produce", topic, tmp_path / "nothing")
    assert missing.code == 1
    assert "nothing: No such file" in missing.err


@pytest.mark.parametrize(("more", "place"), [((), " line 1"), (("--whole",), "")])
def test_produce_reads_no_more_than_the_message_limit(run, cluster, tmp_path, more, place):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    done = run("produce", cluster.topic(), *more, tmp_path / "huge")
    assert done.code == 1
    assert f"huge{place} has more than 67108864 bytes" in done.err


def test_produce_batches_are_split_by_sharding_key(run, cluster):
    topic = cluster.topic()
    keys = ["a", "a", "b", None, "a"]
    lines = [json.dumps({"body": f"{at}", "sharding_key": key}) for at, key in enumerate(keys)]
    done = run(
        "produce", topic, "--json", "--batch", 10, "-o", "json", stdin="\n".join(lines).encode()
    )
    assert [each["messages"] for each in map(json.loads, done.lines)] == [2, 1, 1, 1]


def test_produce_in_batches_loses_no_message(run, cluster, bodies_in):
    topic = cluster.topic()
    lines = [f"{number:03}" for number in range(25)]
    done = run("produce", topic, "--batch", 10, "-o", "json", stdin="\n".join(lines).encode())
    sent = [json.loads(line) for line in done.lines]
    assert [each["messages"] for each in sent] == [10, 10, 5]
    assert len({each for result in sent for each in result["ids"]}) == 25
    assert bodies_in(topic, len(lines)) == lines


def test_consume_json_output_can_be_produced_again(run, cluster):
    topic, copy = cluster.topic(queues=1), cluster.topic(queues=1)
    lines = [
        {"body": "text", "keys": ["a", "b"], "tags": "red", "properties": {"size": "5"}},
        {"body_base64": "/w==", "sharding_key": "s"},
        {"body": {"an": "object"}},
    ]
    run("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)).encode())
    printed = run("consume", topic, "-o", "json").out
    assert run("produce", copy, "--json", stdin=printed.encode()).code == 0
    places = ("topic", "broker", "queue", "offset", "id", "stored", "born", "born_host")
    first, again = (
        [
            {name: value for name, value in json.loads(line).items() if name not in places}
            for line in text.splitlines()
        ]
        for text in (printed, run("consume", copy, "-o", "json").out)
    )
    assert first == again
    assert first[2]["body"] == '{"an":"object"}'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object"),
        ('{"bdy": "x"}', "line 2: unknown field 'bdy'"),
        ('{"keys": ["x"]}', "line 2: no body, or two"),
        ('{"body_base64": "?"}', "line 2: body_base64: "),
        ('{"body": ""}', "line 2: body: needed at least one byte"),
        ('{"body": "x", "properties": {"TAGS": "x"}}', "line 2: properties: needed names"),
        ('{"body": "x", "tags": 1}', "line 2: tags: "),
        ('{"body": "x", "keys": [1]}', "line 2: one of keys: needed a string"),
        ('{"body": "x", "properties": {"a": 1}}', "line 2: property a: needed a string"),
        ('{"body": "x", "properties": {"a": "\\u0002"}}', "line 2: properties: needed strings"),
    ],
)
def test_produce_names_the_bad_line_and_sends_earlier_ones(run, cluster, bodies_in, line, why):
    topic = cluster.topic(queues=1)
    done = run(
        "produce", topic, "--json", "--batch", 5, stdin=f'{{"body": "1"}}\n{line}\n'.encode()
    )
    assert (done.code, done.out) == (1, "")
    assert why in done.err
    assert f"1 message was sent to {topic}" in done.err
    assert bodies_in(topic, 1) == ["1"]


def test_produce_keeps_the_rate(run, cluster, monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    run("produce", cluster.topic(), "--rate", 0.001, stdin=b"1\n2\n")
    assert slept[-1] > 900


def test_produce_shows_progress_in_a_terminal(cluster):
    terminal, theirs = new_terminal()
    arguments = ["produce", cluster.topic(), "--namesrv", cluster.name_server]
    with subprocess.Popen(
        [sys.executable, "-m", "rocketpoll", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, env=terminal_environment(),
    ) as sending:  # fmt: skip
        os.close(theirs)
        out, _ = sending.communicate(b"1\n2\n")
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert sending.returncode == 0
    assert out.startswith(b"2 messages were sent to ")
    assert "2 messages, " in shown


def test_produce_refuses_contradicting_options(run, cluster):
    assert "--whole needs files" in run("produce", "T", "--whole").err
    assert "--property x has no name or no =" in run("produce", "T", "-p", "x").err


def test_request_prints_the_reply_to_each_line_as_consume_does(run, cluster):
    topic = cluster.topic(1)
    with replying(cluster.name_server, topic, cluster.group()):
        line = ("request", topic, "-t", "paid", "-k", "k", "--timeout", "20s")
        assert run(*line, "-f", "%s\\n", stdin=b"one\ntwo\n") == (0, "ONE\nTWO\n", "")
        found = [json.loads(each) for each in run(*line, "-o", "json", stdin=b"x").out.splitlines()]
        assert [each["body"] for each in found] == ["X"]
    sent = json.loads(run("consume", topic, "-n", 1, "-o", "json").out)
    assert (sent["tags"], sent["keys"], sent["body"]) == ("paid", ["k"], "one")


def test_request_within_a_namespace_is_answered_there(run, cluster):
    topic = f"T{cluster.group()}"
    cluster.topic(1, f"eu%{topic}")
    with replying(cluster.name_server, topic, cluster.group(), namespace="eu"):
        ran = run("request", topic, "--namespace", "eu", "--timeout", "20s", "-f", "%s", stdin=b"x")
    assert (ran.code, ran.out) == (0, "X")


def test_request_without_a_reply_ends_with_code_1_and_says_where_it_is_stored(run, cluster):
    topic = cluster.topic(1)
    ran = run("request", topic, "--timeout", "300ms", stdin=b"x\n")
    assert (ran.code, ran.out) == (1, "")
    assert f"no reply from a consumer of {topic} within 300ms: the request is stored" in ran.err
    assert "raise --timeout" in ran.err
    assert "needed" in run("request", topic, "--timeout", "soon", stdin=b"x").err


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["rocketpoll"], scope="module")  # RocketMQ allows no recall
def test_recalled_messages_never_arrive_and_later_ones_do(run, cluster):
    topic, at = cluster.topic(queues=1), datetime.now(timezone.utc) + timedelta(seconds=20)
    line = ("produce", topic, "--at", at.isoformat(), "-o", "json")
    sent = [run(*line, stdin=body).out for body in (b"one", b"two", b"three")]
    handles = [json.loads(each)["recall_handle"] for each in sent]
    ids = [json.loads(each)["ids"][0] for each in sent]
    done = run("recall", handles[0], "-", stdin=f"{sent[1]}\n{handles[2]}\n".encode())
    assert (done.code, done.lines) == (0, [f"recalled {each}" for each in ids])
    later = (at + timedelta(milliseconds=1)).isoformat()
    run("produce", topic, "--at", later, stdin=b"four")
    found = run("consume", topic, "--follow", "-n", 1, "-o", "raw")
    assert found.lines == ["four"]


def test_recall_of_a_line_without_a_handle_is_refused(run):
    refused = run("recall", "-", stdin=b'\n{"ids": []}\n')
    assert refused.code == 1
    assert "line 2 has no recall_handle. Give lines that produce -o json" in refused.err
    assert "recall_handle" in run("recall", "none").err


@pytest.mark.parametrize("verb", ["produce", "request"])
def test_produce_refuses_an_invalid_topic_name_before_reading_input(run, verb):
    refused = run(verb, "bad topic!", stdin=b"")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.endswith("found 'bad topic!'. Write for example bad_topic\n")
