"""A console of a cluster, a small browser for its pages, and prepared topics and groups."""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import quote, urlencode

from rmq_spark.cli.console.guard import Guard
from rmq_spark.cli.console.history import History
from rmq_spark.cli.console.server import ConsoleServer
from rmq_spark.cli.console.site import Site
from rmq_spark.cli.shell.connection import ClusterAccess
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.wire.message.message_id import RecallHandle

TOKEN = "open sesame"  # noqa: S105  # the access token of all tests


class Document(HTMLParser):
    """The visible text and the links of a page."""

    def __init__(self, text):
        super().__init__()
        self.words, self.links, self.fields, self.elements = [], [], [], []
        self.feed(text)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def form(self, name):
        """Return the values of the form with this name."""
        return [value for key, value in self.fields if key == name]

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag == "a":
            self.links.append(given.get("href"))
        if tag == "input":
            self.fields.append((given.get("name"), given.get("value") or ""))

    def handle_data(self, data):
        self.words.append(data)


class Answer:
    """A complete HTTP response."""

    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def page(self):
        return Document(self.body.decode())

    @property
    def text(self):
        return self.page.text


class Browser:
    """Sends requests to a console, and keeps its cookie after signing in."""

    def __init__(self, port, guard, site):
        self.port, self.guard, self.site = port, guard, site
        self.cookie = None

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            given = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, body, {**given, **headers})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def post(self, path, fields, **headers):
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, urlencode(fields), **{**kind, **headers})

    def read(self, path):
        """Return an existing page."""
        __tracebackhide__ = True
        answer = self.get(path)
        assert answer.status == 200, (path, answer.status, answer.text)
        return answer.page

    def sign_in(self):
        __tracebackhide__ = True
        answer = self.post("/sign-in", {"token": TOKEN})
        assert answer.status == 303, answer.text
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        return self


@contextmanager
def served(
    name_server,
    *,
    writes=True,
    reads_are_open=True,
    checkpoints=(),
    names=(),
    access=None,
    credentials=None,
):
    """Yield a console in this process, and a browser for it."""
    guard = Guard(
        token=TOKEN, has_public_reads=reads_are_open, is_writable=writes, host_names=names
    )
    history = History()
    instance = ClientInstance(name_server, credentials=credentials, request_timeout_ms=5_000)
    with Admin(instance=instance) as admin:
        settings = {"namesrv": name_server}
        if credentials is not None:
            settings["access-key"] = credentials.access_key
        options = ("--namesrv", name_server)
        access = access or ClusterAccess(settings, options, None, credentials is not None)
        site = Site(admin, guard, history, checkpoints, access)
        with ConsoleServer("127.0.0.1", 0, site.respond) as server:
            serving = threading.Thread(target=server.serve_forever, args=(0.01,))
            serving.start()
            yield Browser(server.server_address[1], guard, site)
            server.shutdown()
            serving.join()
        site.stop()


class Staged(NamedTuple):
    """Names of the prepared topic, group and messages."""

    topic: str
    group: str
    broker: str


def staged(cluster, count=12):
    """Create a topic with messages in two queues; a group has consumed two messages."""
    topic, group = cluster.topic(queues=2), cluster.group()
    cluster.send(topic, *range(count), queues=2, KEYS="order-42", TAGS="paid", colour="red")
    cluster.store_offset(group, topic, 2)
    cluster.store_offset(group, topic, count // 2, 1)
    return Staged(topic, group, cluster.broker_name)


def with_topics(directory, count, *, queues=1, groups=0, committed=()):
    """Create the store of a broker that has many topics and groups from its start.

    Each group has offset 0 in the first ``committed`` queues of the first topic.
    """
    names = [f"topic-{number:05}" for number in range(count)]
    topics = {
        name: {
            "order": False, "perm": 6, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG",
            "topicName": name, "topicSysFlag": 0, "writeQueueNums": queues,
        }
        for name in names
    }  # fmt: skip
    subscriptions = {f"group-{n:05}": {"groupName": f"group-{n:05}"} for n in range(groups)}
    offsets = {f"{names[0]}@{group}": dict.fromkeys(committed, 0) for group in subscriptions}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    (directory / "config").mkdir(parents=True)
    for name, table in (
        ("topics", {"topicConfigTable": topics}),
        ("subscriptionGroup", {"subscriptionGroupTable": subscriptions}),
        ("consumerOffset", {"offsetTable": offsets if committed else {}}),
    ):
        text = json.dumps({"dataVersion": version, **table})
        (directory / "config" / f"{name}.json").write_text(text, encoding="utf-8")
    return directory


def requests_of(browser, path):
    """Return the number of requests that a page sends to brokers and name servers,
    without surveys."""
    connections = browser.site._admin.instance.connections
    sent, request = [], connections.request

    def count(*arguments, **more):
        sent.append(threading.current_thread().name)
        return request(*arguments, **more)

    connections.request = count
    try:
        browser.read(path)
    finally:
        del connections.request
    return sum(name not in ("GroupConditions", "TopicSizes", "DeadLetterCounts") for name in sent)


def _handle(stage, later_s):
    """Return the handle of a message that is due after this time."""
    due_ms = int(time.time() + later_s) * 1_000
    return quote(RecallHandle(stage.topic, stage.broker, due_ms, "0" * 32).encode(), safe="")


def paths(stage):
    """Return a path of each kind of page."""
    topic, group = quote(stage.topic, safe=""), quote(stage.group, safe="")
    at = f"/topics/{topic}"
    return [
        *("/", "/topics", f"/topics?q={topic}", "/topics?sort=sizes", "/topics?all=yes&page=1"),
        *(at, f"{at}?tab=queues", f"{at}?tab=groups", f"{at}?tab=settings", f"{at}?tab=nothing"),
        *(f"{at}?tab=timers", f"/recall?handle={_handle(stage, 3_600)}"),
        *(f"/recall?handle={_handle(stage, -3_600)}", "/topics?q=none-of-them"),
        *(
            f"{at}?by=key&for=order-42",
            f"{at}?by=tag&for=paid",
            f"{at}?by=text&for=zz&before=-1s",
            f"{at}?queue=0",
        ),
        *(
            f"{at}?by=id&for=id-3",
            f"{at}/{stage.broker}/0/0",
            "/groups",
            "/groups?state=stuck",
            f"/groups/{group}",
        ),
        *(f"/groups/{group}/seek?to=start", "/dead-letters", f"/dead-letters/{group}"),
        *("/checkpoints", "/access", "/charts", "/find?q=e", "/find?q=none-of-them", "/sign-in"),
        *("/groups?q=none-of-them", f"/groups/{group}/seek?to=%2B1&topic={topic}&queue=0"),
        "/produce",
        *(f"/produce?topic={topic}", f"{at}/{stage.broker}/0/0/copy?to={topic}"),
        *(f"{at}/{stage.broker}/0/0/edit", f"/create-topic?name={topic}-2&queues=4&perm=rw"),
        *(f"{at}/alter?read_queues=1&write_queues=1&perm=r", f"{at}/delete", "/create-topic"),
    ]
