"""Topics created, changed and deleted from the console, each after a preview."""

import pytest
from support.brokers.secured import client_of, secured_broker
from support.programs.web_console import served, staged

from rmq_spark.client.transport.remoting_client import Credentials
from rocketpoll import AclPolicy, Admin, EmbeddedBroker

ANALYST = Credentials("analyst", "password-1")


def first_form(page):
    """Return the fields of a preview's first form, which makes the change."""
    given = {}
    for name, value in page.fields:
        given.setdefault(name, value)
    return given


def settings(run, topic):
    [row] = run("topic", "describe", topic, "-o", "json").json["settings"]
    return row["read_queues"], row["write_queues"], row["perm"], row["attributes"]


@pytest.fixture
def new(cluster):
    """Return the name of a topic that does not exist."""
    return f"{cluster.topic(queues=1)}-new"


def test_topic_is_created_as_previewed(console, run, cluster, new):
    console.sign_in()
    page = console.read(f"/create-topic?name={new}&queues=3&perm=r&attributes=")
    assert f"Nothing has been created. {new} would be" in page.text
    assert f"rocketpoll topic create {new} --queues 3 --perm r --namesrv" in page.text
    assert console.get(f"/topics/{new}").status == 404
    form = first_form(page)
    assert (
        f"{new} has 3 queues on {cluster.broker_name}" in console.post("/create-topic", form).text
    )
    assert console.post("/create-topic", form).status == 409
    assert settings(run, new)[:3] == (3, 3, "r")
    again = console.get(f"/create-topic?name={new}&queues=3&perm=r")
    assert (again.status, f"{new} exists already" in again.text) == (400, True)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"name": ""}, "Enter a name."),
        ({"name": """a'"><b>"""}, "letters, digits and % | _ -"),
        ({"name": "x" * 200}, "1 to 127 of them"),
        ({"name": "TBW102"}, "RocketMQ reserves this name"),
        ({"queues": "0"}, "Enter a whole number from 1 to 65,536."),
        ({"queues": "²"}, "Enter a whole number"),
        ({"perm": "x"}, "Choose one of rw, r, w, none."),
        ({"attributes": "x"}, "has no name or no value"),
    ],
)
def test_wrong_settings_of_a_new_topic_are_named(console, new, changed, says):
    console.sign_in()
    given = {"name": new, "queues": "1", "perm": "rw", "attributes": "", **changed}
    own = first_form(console.read("/produce"))
    query = "&".join(f"{name}={value}" for name, value in given.items() if name != "name")
    for answer in (
        console.post("/create-topic", {**own, **given}),
        console.get(f"/create-topic?name=&{query}") if not given["name"] else None,
    ):
        if answer is not None:
            assert (answer.status, says in answer.text) == (400, True), answer.text
    assert console.get(f"/topics/{new}").status == 404


def test_topic_is_altered_only_if_it_is_as_previewed(console, run, cluster):
    topic = cluster.topic(queues=4)
    console.sign_in()
    at = f"/topics/{topic}/alter"
    shown = console.read(f"/topics/{topic}?tab=settings")
    assert shown.form("read_queues") == ["4"]
    page = console.read(f"{at}?read_queues=&write_queues=6&perm=r&attributes=")
    assert "Write queues 4 6" in page.text
    assert f"rocketpoll topic alter {topic} --write-queues 6 --perm r --namesrv" in page.text
    assert settings(run, topic)[:3] == (4, 4, "rw")
    run("topic", "alter", topic, "--read-queues", "5")
    late = console.post(at, first_form(page))
    assert "The settings have changed since the preview" in late.text
    assert settings(run, topic)[:3] == (5, 4, "rw")
    form = first_form(late.page)
    assert "has its new settings" in console.post(at, form).text
    assert settings(run, topic)[:3] == (5, 6, "r")
    assert console.post(at, form).status == 409
    assert "Nothing to change" in console.read(f"{at}?read_queues=5&write_queues=&perm=").text
    wrong = console.get(f"{at}?read_queues=-1&perm=rw")
    assert (wrong.status, "from 1 to 65,536" in wrong.text) == (400, True)


def test_preview_warns_of_messages_in_queues_that_are_no_longer_read(console, cluster):
    stage = staged(cluster)
    page = console.sign_in().read(f"/topics/{stage.topic}/alter?read_queues=1")
    assert "Consumers would no longer read 6 messages" in page.text
    assert f"They are in {stage.broker}:1." in page.text


def test_topic_is_deleted_after_its_name_is_typed(console, run, cluster):
    stage = staged(cluster)
    at = f"/topics/{stage.topic}/delete"
    page = console.sign_in().read(at)
    assert "Messages 12 Queues 2" in page.text
    assert f"{stage.group} 0" in page.text
    form = first_form(page)
    for name in ("", stage.topic.lower(), f"{stage.topic}x"):
        wrong = console.post(at, {**form, "name": name})
        assert (wrong.status, f"Type {stage.topic} to confirm." in wrong.text) == (400, True)
        form = first_form(wrong.page)
    assert len(run("consume", stage.topic).lines) == 12
    assert "with 12 messages" in console.post(at, {**form, "name": stage.topic}).text
    assert console.get(f"/topics/{stage.topic}").status == 404
    assert console.get("/topics/TBW102/delete").status == 400


def test_read_only_console_shows_commands_and_changes_no_topic(addresses, run, cluster):
    topic = cluster.topic(queues=1)
    pages = {
        f"/topics/{topic}/alter?write_queues=2": f"rocketpoll topic alter {topic} --write-queues 2",
        f"/topics/{topic}/delete": f"rocketpoll topic delete {topic} --namesrv",
        "/create-topic?name=other&queues=1&perm=rw": "rocketpoll topic create other --queues 1",
    }
    with served(addresses[0], writes=False) as browser:
        for signs_in in (False, True):
            if signs_in:
                browser.sign_in()
            for path, command in pages.items():
                text = browser.read(path).text
                assert command in text
                assert "read-only" in text
                assert browser.post(path, {"name": topic, "write_queues": "2"}).status == 403
    assert settings(run, topic)[:3] == (1, 1, "rw")


def test_error_for_a_user_without_rights_names_the_right_and_nothing_changes():
    with secured_broker() as broker, Admin(instance=client_of(broker)) as admin:
        admin.create_topic("orders", 1)
        admin.create_user(ANALYST.access_key, ANALYST.secret_key)
        admin.create_acl(AclPolicy("analyst", "Topic:orders", ("Get", "Sub")))
        admin.create_acl(AclPolicy("analyst", "Cluster:*", ("Get", "List")))
        with served(broker.address, credentials=ANALYST) as browser:
            own = first_form(browser.sign_in().read("/produce?topic=orders"))
            message = {**own, "topic": "orders", "format": "text", "body": "x", "delay": "0",
                       "flag": "0"}  # fmt: skip
            answer = browser.post("/produce", message)
            assert answer.status == 403
            assert "Pub" in answer.text
            assert "x" in answer.text
            for path, fields in (
                ("/create-topic", {"name": "other", "queues": "1", "perm": "rw"}),
                ("/topics/orders/delete", {"name": "orders"}),
            ):
                own = first_form(browser.read("/produce?topic=orders"))
                assert browser.post(path, {**own, **fields}).status == 403
        assert "orders" in admin.topics()
        assert "other" not in admin.topics()
        assert sum(each.max_offset for each in admin.topic_offsets("orders").values()) == 0


def test_broker_that_is_away_is_named_and_the_message_can_be_sent_again():
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=1)
        with served(broker.address) as browser:
            own = first_form(browser.sign_in().read("/produce?topic=orders"))
            message = {"topic": "orders", "format": "text", "body": "late", "delay": "0",
                       "flag": "0"}  # fmt: skip
            page = browser.post("/produce/preview", {**own, **message}).page
            with broker.away():
                answer = browser.post("/produce", first_form(page))
                assert answer.status == 502
                assert "late" in answer.text
            again = {**first_form(answer.page), **message}
            assert "One message was sent" in browser.post("/produce", again).text
            assert [each.body for each in broker.messages("orders")] == [b"late"]
