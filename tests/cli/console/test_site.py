"""The console over a real broker: login, every page, and the message when no
broker is reachable.
"""

import html
import json
import re
import shlex
from importlib import resources

import click
import pytest
from support.brokers.broker_kinds import wait_until
from support.programs.cli_commands import EVERY
from support.programs.web_console import TOKEN, paths, served, staged
from support.servers.fake_servers import FakeServer, answering
from support.servers.joining_name_server import JoiningNameServer
from support.suite.selection import spread

from rmq_spark.cli.console.markup.components import sign_in_path
from rmq_spark.cli.main import main
from rmq_spark.cli.shell import connection
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import ClusterInfo, TopicList
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll import Admin, EmbeddedBroker

READS = (
    "/",
    "/topics",
    "/topics?sort=sizes",
    "/groups",
    "/dead-letters",
    "/access",
    "/charts",
    "/find?q=x",
)


def test_console_pages_have_the_common_frame(console, cluster):
    for path in paths(staged(cluster)):
        page = console.read(path)
        assert ("main", {"id": "content", "tabindex": "-1"}) in page.elements, path
        assert "/charts" in page.links


def test_console_pages_contain_no_inline_script_or_style(console, cluster):
    for path in paths(staged(cluster)):
        for tag, given in console.read(path).elements:
            assert "style" not in given
            assert not [name for name in given if name.startswith("on")]
            assert tag != "style"
            assert tag != "script" or given["src"].startswith("/static/")


def test_static_files_of_pages_exist_and_are_cacheable(console):
    page = console.read("/")
    paths = [given["src"] for tag, given in page.elements if tag == "script"]
    paths += [given["href"] for tag, given in page.elements if tag == "link"]
    for path in paths:
        answer = console.get(path)
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
    assert console.get("/static/nothing.js").status == 404
    assert console.get("/static/%2e%2e/command.py").status == 404


def test_overview_page_shows_brokers_and_a_healthy_state(console, cluster):
    staged(cluster)
    page = console.read("/")
    assert "Brokers: ok Every broker answers." in page.text
    assert "Groups most behind" in page.text
    assert cluster.address in page.text
    assert cluster.broker_name in page.text


def test_foreign_host_header_is_refused(console):
    for path in READS:
        answer = console.get(path, Host="evil.com")
        assert answer.status == 403
        assert "does not serve the host evil.com" in answer.text
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert "127.0.0.1" not in answer.text


def test_console_sign_in_and_sign_out(console):
    assert console.post("/sign-in", {"token": "wrong"}).status == 403
    assert "Sign in" in console.read("/").text
    page = console.sign_in().read("/")
    assert "Sign out" in page.text
    for asked, led in (
        ("/groups/g/seek?to=%2B1", "/groups/g/seek?to=%2B1"),
        ("https://evil.com", "/"),
        ("//evil.com", "/"),
        ("/\\evil.com", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
    ):
        answer = console.post("/sign-in", {"token": TOKEN, "next": asked})
        assert (answer.status, answer.headers["Location"]) == (303, led)
        assert len(answer.headers.get_all("Set-Cookie")) == 1
    assert console.post("/sign-out", {"csrf": page.form("csrf")[0]}).status == 303
    assert "Sign out" not in console.read("/").text


@pytest.mark.parametrize("path", ["/topics?q=%2B%26", "/groups?q=a%2Fb", "/nowhere/%2F"])
def test_console_sign_in_returns_to_the_previous_page(console, path):
    [sign_in] = [each for each in console.get(path).page.links if each.startswith("/sign-in")]
    assert sign_in == sign_in_path(path)
    answer = console.post("/sign-in", {"token": TOKEN, "next": path})
    assert answer.headers["Location"] == path


def test_remote_pages_require_the_token(addresses):
    with served(addresses[0], writes=False, reads_are_open=False) as browser:
        for path in READS:
            answer = browser.get(path)
            assert (answer.status, answer.headers["Location"]) == (303, sign_in_path(path))
        assert addresses[0] not in browser.read("/sign-in").text
        browser.sign_in()
        assert "Brokers: ok" in browser.read("/").text
        refused = browser.post("/groups/g/seek", {})
        assert refused.status == 403
        assert "read-only" in refused.text


def test_unknown_page_is_answered_404(console):
    for path in ("/nothing", "/topics/a/b", "/groups/a/b/c", "/checkpoints/0", "/checkpoints/x"):
        answer = console.get(path)
        assert (answer.status, "Not found" in answer.text) == (404, True), path
    assert console.post("/topics", {}).status == 404


def test_unreachable_cluster_is_one_panel_with_advice():
    with served("127.0.0.1:1") as browser:
        for path in READS:
            answer = browser.get(path)
            assert answer.status == 502
            assert "The cluster does not answer" in answer.text
            assert "cannot connect to 127.0.0.1:1: Connection refused" in answer.text
            assert "rocketpoll broker" in answer.text


def test_console_on_a_port_of_another_program_shows_one_panel():
    def speak_http(peer):
        peer.socket.recv(1 << 16)
        peer.send("HTTP/1.1 400 Bad Request\r\n\r\n")

    with FakeServer(speak_http) as server, served(server.address) as browser:
        answer = browser.get("/topics")
        assert answer.status == 502
        assert "Give the port of a name server" in answer.text


def test_pages_without_brokers_advise_to_start_one():
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo(),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(),
    }

    def answer(request):
        if request.code in bodies:
            return request.respond(ResponseCode.SUCCESS, body=encode_body(bodies[request.code]))
        return request.respond(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")

    with FakeServer(answering(answer)) as server, served(server.address) as browser:
        assert "No brokers" in browser.read("/").text
        for path in ("/topics", "/topics/orders", "/dead-letters", "/groups", "/groups/billing"):
            answer = browser.get(path)
            assert (answer.status, "Start a broker that registers there" in answer.text) == (
                502,
                True,
            )


def test_console_recovers_when_its_broker_restarts(tmp_path):
    with EmbeddedBroker(tmp_path / "store", own_process=True) as broker:
        broker.send("orders", "one")
        with served(broker.address) as browser:
            assert "orders" in browser.read("/topics").text
            broker.kill()
            assert browser.get("/topics").status == 502
            broker.restart()
            assert "orders" in browser.read("/topics").text


def test_search_redirects_to_topic_group_or_message(console, cluster):
    stage = staged(cluster)

    def leads(wanted):
        answer = console.get(f"/find?q={wanted}")
        return answer.headers["Location"] or answer.text

    assert leads(stage.topic) == f"/topics/{stage.topic}"
    assert leads(stage.group) == f"/groups/{stage.group}"
    assert leads("") == "/"
    queue = cluster.queue(stage.topic, 1)
    found = cluster.api.peek(cluster.address, "TOOLS_CONSUMER", queue, 1).first_message(queue)
    place = f"/topics/{stage.topic}/{stage.broker}/1/1"
    assert leads(found.offset_message_id) == place
    assert stage.topic in leads(stage.topic[:-2].lower())
    assert "Nothing found for" in leads("nothing-like-it")


def test_page_names_the_unreachable_half_of_a_cluster():
    with (
        EmbeddedBroker(brokerName="a") as first,
        EmbeddedBroker(own_process=True, brokerName="b") as second,
    ):
        first.create_topic("orders")
        second.create_topic("orders")
        with JoiningNameServer(first, second) as servers, served(servers.address) as browser:
            assert "2 of 2" in browser.read("/").text
            for path in READS:
                browser.get(path)
            away = second.address
            second.kill()
            text = browser.read("/").text
            assert "1 of 2" in text
            assert f"Restart it at {away}" in text
            answer = browser.get("/topics/orders")
            assert answer.status == 502
            assert f"cannot connect to {away}" in answer.text
            second.restart()


def test_unreadable_topic_page_shows_its_settings(console, cluster, run):
    topic = cluster.topic()
    run("topic", "alter", topic, "--perm", "w")
    wait_until(
        "the change of its route",
        lambda: "cannot be read" in console.read(f"/topics/{topic}").text,
    )
    assert "Permission w" in console.read(f"/topics/{topic}?tab=settings").text


@pytest.mark.parametrize("path", ["/topics/orders", "/topics/orders?tab=settings"])
def test_unknown_topic_page_suggests_the_nearest(console, cluster, path):
    cluster.topic(name="orderz")
    answer = console.get(path)
    assert answer.status == 404
    assert "There is no topic orders" in answer.text
    assert "Did you mean orderz?" in answer.text


def test_error_page_leads_back_and_keeps_the_case_of_names(console, cluster):
    stage = staged(cluster)
    gone = console.get(f"/topics/{stage.topic}/{stage.broker}/0/999")
    assert gone.status == 404
    assert f"There is no message in {stage.topic} {stage.broker}:0 at 999." in gone.text
    assert f"/topics/{stage.topic}" in gone.page.links
    group = cluster.group()
    with Admin(cluster.name_server) as admin:
        admin.create_group(group)
    nothing = console.get(f"/groups/{group}/seek?to=start")
    assert nothing.status == 404
    assert f"{group} has committed no offsets. Name a topic in the form" in nothing.text
    assert f"/groups/{group}" in nothing.page.links
    fields = [given for tag, given in console.read(f"/groups/{group}").elements if tag == "input"]
    assert any(given.get("name") == "topic" for given in fields)


def test_stylesheet_defines_each_colour_once():
    look = (resources.files("rmq_spark.cli.console") / "static" / "console.css").read_text()
    names = re.findall(r"^ +(--[\w-]+):", look, re.MULTILINE)
    assert len(names) > 15
    assert len(set(names)) == len(names)


@pytest.fixture
def stage(cluster, tmp_path):
    """Create objects for each page that shows a command: dead letters, a checkpoint,
    empty topics."""
    stage = staged(cluster)
    cluster.topic(name="empty")
    letters = f"%DLQ%{stage.group}"
    cluster.topic(name=letters, queues=1)
    cluster.send(letters, "bad", queues=1, RETRY_TOPIC=stage.topic)
    place = json.dumps({"v": 1, "offsets": {stage.topic: {stage.broker: {"0": 1, "1": 1}}}})
    for folder, lines in (("offsets", ("v1", "{}", place)), ("commits", ("v1", "{}"))):
        (tmp_path / "it's a query" / folder).mkdir(parents=True)
        file = tmp_path / "it's a query" / folder / "0"
        file.write_text("\n".join(lines), encoding="utf-8")
    return stage


def pages_with_commands(stage, broker):
    """Return paths of pages that show a command, and of others that name one in a sentence."""
    seek = f"/groups/{stage.group}/seek"
    return [
        *paths(stage),
        *("/topics/empty", f"/topics/{stage.topic}?tab=settings", "/topics?q=no-such"),
        *(f"{seek}?to=-10", f"{seek}?to=start&topic={stage.topic}&queue={broker}:0"),
        f"/dead-letters/{stage.group}/resend?at={broker}:0:0",
        *("/checkpoints", "/checkpoints/0"),
        *("/topics/no-such", "/groups/no-such", f"/groups/{stage.group}/seek?to=1&topic=no-such"),
        *("/dead-letters/no-such", f"{seek}?to=1&topic={stage.topic}&queue=99"),
    ]


def commands_on(answer):
    found = re.findall("<pre><code>(.*?)</code></pre>", answer.body.decode())
    return [html.unescape(re.sub("<.*?>", "", each)) for each in found]


@pytest.mark.parametrize("start", spread(1, ["--namesrv", "--profile", "environment"]))
def test_commands_shown_by_console_pages_name_the_pages_cluster(
    cluster, stage, run, tmp_path, monkeypatch, start
):
    profiles = tmp_path / "profiles.ini"
    profiles.write_text(f"[here]\nnamesrv = {cluster.name_server}\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
    options = {
        "--namesrv": ("--namesrv", cluster.name_server),
        "--profile": ("--profile", "here"),
        "environment": (),
    }[start]
    command = click.command()(connection.connection_options(lambda access: access))
    access = command.main([*options], standalone_mode=False)  # NAMESRV_ADDR is the cluster's
    checkpoint = str(tmp_path / "it's a query")
    shown, sentences = [], []
    for checkpoints in ((checkpoint,), ()):
        with served(cluster.name_server, access=access, checkpoints=checkpoints) as browser:
            for path in pages_with_commands(stage, cluster.broker_name):
                answer = browser.get(path)
                shown += commands_on(answer)
                sentences.append(answer.text)
    with EmbeddedBroker() as empty, served(empty.address, access=access) as browser:
        shown += commands_on(browser.get("/topics"))
    found = {line.partition("rocketpoll ")[2].split(" ")[0] for line in shown}
    assert found == {"topic", "produce", "group", "dlq", "checkpoint", "console", "consume"}

    class Parsed(Exception):
        """Raised to stop the parsing of a command line once its connection is known."""

    def parsed(given, profile, real=connection._resolve_access):
        raise Parsed(real(given, profile).name_servers)

    monkeypatch.setattr(connection, "_resolve_access", parsed)
    monkeypatch.setenv("NAMESRV_ADDR", "another-cluster:9876")
    commands = [part for line in shown for part in re.split(" [|>] ", line) if "rocketpoll" in part]
    assert len(commands) > len(shown)
    for line in commands:
        words = shlex.split(line)
        if words[0].startswith("ROCKETPOLL_PROFILES="):
            words.pop(0)
        assert words.pop(0) == "rocketpoll"
        with pytest.raises(Parsed, match=f"^{cluster.name_server}$"):
            main(words)
    named = [
        sentence[found.end() :].lstrip()
        for name in EVERY
        for sentence in sentences
        for found in re.finditer(rf"\brocketpoll {name}\b", sentence)
        if name in ("topic list", "group list", "dlq list", "topic describe")
    ]
    assert len(named) >= 4
    for rest in named:
        assert shlex.join(access.options) in rest.partition(" Copy")[0], rest


def test_command_shown_without_credentials_says_so(cluster, stage):
    access = connection.ClusterAccess(
        {"namesrv": cluster.name_server}, ("--namesrv", cluster.name_server), needs_credentials=True
    )
    with served(cluster.name_server, access=access) as browser:
        text = browser.read(f"/groups/{stage.group}/seek?to=start").text
    assert "omits the console's credentials" in text
    assert "ROCKETPOLL_ACCESS_KEY" in text
