"""Topics in the console: the list, a topic's page, searches, messages, and hostile content."""

import json
import time
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest
from support.brokers.broker_kinds import NAME, wait_until
from support.programs.web_console import requests_of, served, staged, with_topics

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.pages import message_search
from rmq_spark.cli.console.pages.message_search import json_condition
from rocketpoll import EmbeddedBroker, Message, Producer

SCRIPT = "<script>alert(1)</script>"


def rows(page):
    """Return the links of the page's table rows."""
    return [given["data-href"] for tag, given in page.elements if "data-href" in given]


def test_topic_list_page_is_filtered_and_links_to_topics(console, cluster):
    topic = staged(cluster).topic
    page = console.read(f"/topics?q={topic.lower()}")
    assert rows(page) == [f"/topics/{topic}"]
    assert f"{topic} 2 12" in page.text
    assert "No topic has nothing-like-it" in console.read("/topics?q=nothing-like-it").text
    assert "TBW102" not in console.read("/topics").text
    assert "TBW102" in console.read("/topics?all=yes&q=tbw").text


def test_topic_list_page_loads_sizes_in_background_and_sorts_by_size(console, cluster):
    small, great = cluster.topic(queues=1, name="size-a"), cluster.topic(queues=1, name="size-b")
    cluster.send(small, "x", queue_id=0)
    cluster.send(great, "x" * 10_000, queue_id=0)

    def shown():
        return rows(console.read("/topics?sort=sizes&q=size-"))

    wait_until("all sizes", lambda: shown() == ["/topics/size-b", "/topics/size-a"])


def test_topic_page_lists_newest_messages_first_and_links_to_older_ones(console, cluster):
    stage = staged(cluster, count=50)
    seen, path = [], f"/topics/{stage.topic}"
    while path:
        page = console.read(path)
        seen += rows(page)
        path = next((link for link in page.links if "ends=" in link), None)
    assert len(seen) == len(set(seen)) == 50
    at = f"/topics/{stage.topic}/{stage.broker}"
    assert seen == [f"{at}/{number % 2}/{number // 2}" for number in reversed(range(50))]


@pytest.mark.parametrize(
    ("by", "wanted", "count"),
    [
        ("key", "k-3", 1),
        ("key", "K-3", 0),
        ("tag", "odd", 6),
        ("tag", "nothing", 0),
        ("id", "id-5", 1),
        ("id", "id-99", 0),
        ("text", "body+1", 3),
        ("text", "Body+1", 0),
        ("json", "$.n+=+3", 1),
        ("json", "n=3&queue=0", 0),
        ("tag", "odd&queue=1", 6),
        ("tag", "odd&queue=0", 0),
        ("", "&before=-0s", 12),
        ("", "&queue=1", 6),
        ("id", "id-5&before=2020-01-01", 0),
        ("", "&before=2020-01-01", 0),
    ],
)
def test_topic_page_searches_messages(console, cluster, by, wanted, count):
    topic = cluster.topic(queues=2)
    for number in range(12):
        tag = "odd" if number % 2 else "even"
        body = number if by == "id" else json.dumps({"n": number, "text": f"body {number}"})
        cluster.send(topic, body, queue_id=number % 2, KEYS=f"k-{number}", TAGS=tag)
    if "before=-0s" in wanted:
        stored = time.time()
        wait_until("the next millisecond", lambda: time.time() > stored + 0.002)

    def found():
        return len(rows(console.read(f"/topics/{topic}?by={by}&for={wanted}")))

    wait_until(f"{count} messages", lambda: found() == count)


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("before=soon", 400, "That is not a time."),
        ("queue=x", 400, "'x' is not a queue"),
        ("queue=77", 404, "has no queue 77"),
        ("by=json&for=%24.a", 400, "$.a is not a condition on JSON."),
    ],
)
def test_invalid_search_is_refused_with_the_reason_and_keeps_its_form(
    console, cluster, query, status, says
):
    answer = console.get(f"/topics/{staged(cluster).topic}?{query}")
    assert (answer.status, says in answer.text) == (status, True), answer.text
    typed = dict(parse_qsl(query))
    assert {name: answer.page.form(name)[0] for name in ("for", "queue", "before")} == {
        "for": typed.get("for", ""),
        "queue": typed.get("queue", ""),
        "before": typed.get("before", ""),
    }


def test_message_search_goes_back_in_time_windows_to_the_first_message(
    console, cluster, monkeypatch
):
    monkeypatch.setattr(message_search, "SCANNED_MESSAGES_MAX", 5)
    topic = cluster.topic(queues=2)
    for number in range(12):
        tag = "paid" if number < 2 else "created"
        cluster.send(topic, number, queue_id=number % 2, TAGS=tag)
    path, seen, read = f"/topics/{topic}?by=tag&for=paid", [], []
    while path:
        page = console.read(path)
        seen.append(next((each for each in SCOPES if each in page.text), page.text))
        read += rows(page)
        path = next((link for link in page.links if "ends=" in link), None)
    assert seen == SCOPES
    assert len(read) == 2


SCOPES = [
    "None among the newest 5 messages",
    "None among the newest 10 messages",
    "Searched all 12 messages.",
]


BODY = {"id": 42, "a b": {"c": [{"d": "x"}, None]}, "on": True, "text": "42", "one": 1}


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        *(("$.id = 42", True), ("id=42.0", True), ("id == 42", True), ('id="42"', False)),
        *(("text=42", True), ('text = "42"', True), ("text=43", False), ("$=1", None)),
        *(('["a b"].c[0].d=x', True), ('$["a b"].c[1]=null', True), ("id.c=1", False)),
        *(("c[0]=1", False), ('["a b"].c[9]=1', False), ('["a b"]["c"][0]={"d":"x"}', True)),
        *(("on=true", True), ("on=1", False), ("one=true", False), ("id", None), ("=1", None)),
        *(("id =", None), ("a" * 50_000, None), ("a b=1", None), ("[1=1", None)),
    ],
)
def test_json_condition_compares_the_value_at_a_path(text, is_met):
    if is_met is None:
        with pytest.raises(PageError, match="is not a condition on JSON"):
            json_condition(text)
        return
    condition = json_condition(text)
    assert condition(SimpleNamespace(body=json.dumps(BODY).encode())) is is_met
    for body in (b"", b"no JSON", b"[" * 100_000, b"\xff", b'"' + b"x" * 100 + b'"'):
        assert not condition(SimpleNamespace(body=body))


def test_topic_page_has_tabs_for_queues_groups_and_settings(console, cluster):
    stage = staged(cluster)
    at = f"/topics/{stage.topic}?tab="
    assert f"{stage.broker}:0 0 6 6" in console.read(f"{at}queues").text
    page = console.read(f"{at}groups")
    assert f"{stage.group} 0 4 offline, behind" in page.text
    assert "Write queues 2 Permission rw" in console.read(f"{at}settings").text
    assert "No messages yet" in console.read(f"/topics/{cluster.topic()}").text


def test_message_page_shows_body_properties_and_group_state(console, cluster):
    stage = staged(cluster)
    cluster.send(stage.topic, json.dumps({"id": 1}), queue_id=0, KEYS="a b", colour="red")
    at = f"/topics/{stage.topic}/{stage.broker}/0"
    text = console.read(f"{at}/6").text
    assert '{ "id" : 1 }' in text
    assert "colour red" in text
    assert f"{stage.group} waiting 4 before it; the group is at 2" in text
    assert f"{stage.group} consumed" in console.read(f"{at}/1").text
    assert console.get(f"{at}/7").status == 404
    for strange in ("x", "-1", "9" * 30, "0" * 25 + "9" * 25, "9" * 18):
        assert console.get(f"{at}/{strange}").status == 404


def test_message_page_shows_recorded_traces(console, cluster):
    topic = cluster.topic(queues=1)
    with Producer("Traced", cluster.name_server, enable_trace=True) as producer:
        sent = producer.send(Message(topic, b"x"))
    path = f"/topics/{topic}/{sent.queue.broker_name}/0/{sent.queue_offset}"
    wait_until("a trace", lambda: "Sent by Traced" in console.read(path).text)
    assert f" ms to {cluster.address}" in console.read(path).text


def test_hostile_message_content_is_escaped(console, cluster):
    topic = cluster.topic(queues=1)
    cluster.send(
        topic, SCRIPT, queue_id=0, KEYS=SCRIPT, TAGS="<b>", **{SCRIPT: "\u202e'\"><img src=x>\x07"}
    )
    for path in (f"/topics/{topic}", f"/topics/{topic}/{cluster.broker_name}/0/0"):
        answer = console.get(path)
        assert SCRIPT in answer.text
        assert SCRIPT.encode() not in answer.body
        tags = [tag for tag, _ in answer.page.elements]
        assert tags.count("script") == 1
        assert "img" not in tags
        assert "b" not in tags
    assert "\\u202e'\"><img src=x>\\x07" in answer.text
    for path in ("/topics?q={}", "/groups?q={}", "/find?q={}", "/topics/{}", "/groups/{}", "/{}"):
        answer = console.get(path.format("%3Cscript%3Ealert(1)%3C%2Fscript%3E%FF"))
        assert answer.status in (200, 404, 502), path
        assert SCRIPT.encode() not in answer.body


def test_topic_page_shows_large_and_damaged_bodies(console):
    with EmbeddedBroker(brokerName=NAME) as broker, served(broker.address) as browser:
        broker.create_topic("big", 1)
        with Producer("shop", broker.address) as producer:
            for body in (b"\xff\xfe\xc3(", b"x" * 3_000_000, b'{"a": "' + b"y" * 900_000 + b'"}'):
                producer.send(Message("big", body))
        assert len(browser.get("/topics/big").body) < 20_000
        for offset, kind in enumerate(("bytes", "text", "JSON")):
            answer = browser.get(f"/topics/big/{NAME}/0/{offset}")
            assert kind in answer.text
            assert len(answer.body) < 200_000
        whole = browser.get(f"/topics/big/{NAME}/0/1/body")
        assert len(whole.body) == 3_000_000
        assert whole.headers["Content-Disposition"].startswith("attachment")
        assert whole.headers["Content-Type"] == "application/octet-stream"


def test_ten_thousand_topics_cost_no_more_than_a_page(tmp_path):
    store = with_topics(tmp_path / "store", 10_000)
    with EmbeddedBroker(store, maxTopics=20_000) as broker, served(broker.address) as browser:
        sent = requests_of(browser, "/topics?page=7")
        assert 50 <= sent < 3 * 50
        page = browser.read("/topics?page=7")
        assert rows(page)[0] == "/topics/topic-00300"
        assert "301-350 of 10,000" in page.text
        assert rows(browser.read("/topics?q=9999")) == ["/topics/topic-09999"]
        assert requests_of(browser, "/topics/topic-00007") < 50
