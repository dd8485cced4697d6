"""The console's page of users and access lists, and its audit log."""

import pytest
from support.brokers.secured import OPERATOR, client_of, secured_broker
from support.programs.web_console import served
from support.suite.log_records import lines_of

from rmq_spark.cli.console.guard import AUDIT_LOGGER
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.wire.codes import ResponseCode
from rocketpoll import AclPolicy, Admin, EmbeddedBroker, MessageQueue

BILLING = Credentials("billing", "of billing")


@pytest.fixture(scope="module")
def broker():
    with secured_broker() as broker, Admin(instance=client_of(broker)) as admin:
        admin.create_user(BILLING.access_key, BILLING.secret_key)
        admin.create_user("analyst", "password")
        admin.update_user("analyst", is_enabled=False)
        admin.create_acl(AclPolicy("billing", "Topic:orders", ("Sub",)))
        admin.create_acl(AclPolicy("analyst", "Topic:pay*", ("Sub", "Get"), ("10.0.0.0/8",)))
        admin.create_acl(AclPolicy("analyst", "Topic:payroll*", ("All",), is_allowed=False))
        admin.create_topic("orders", 1)
        admin.set_offset("billing", MessageQueue("orders", "broker-a", 0), 0, missing_ok=True)
        yield broker


def console_of(broker, credentials):
    """Return a signed-in browser of a console that acts as a user."""
    return served(broker.address, credentials=credentials)


@pytest.fixture(scope="module")
def operator(broker):
    with console_of(broker, OPERATOR) as browser:
        yield browser


def test_access_page_shows_users_and_who_may_do_what(operator):
    page = operator.read("/access")
    for text in (
        "Users 3 Super users 1 Entries 3",
        "analyst normal disabled 2 broker-a",
        "billing normal enabled 1 broker-a",
        "operator super enabled 0 broker-a",
        "analyst Topic:pay* Sub, Get from 10.0.0.0/8 broker-a",
        "analyst Topic:payroll* denied All broker-a",
        "billing Topic:orders Sub broker-a",
        "This console acts as user operator.",
    ):
        assert text in page.text
    assert "/topics/orders" in page.links
    for secret in (OPERATOR.secret_key, BILLING.secret_key):
        assert secret not in page.text


def test_access_page_has_no_form_that_changes_something(operator):
    forms = [given for tag, given in operator.read("/access").elements if tag == "form"]
    assert not [form for form in forms if form.get("action", "").startswith("/access")]
    answer = operator.post("/access", {"user": "billing"})
    assert answer.status == 404


@pytest.mark.parametrize(("path", "status"), [("/access", 403), ("/", 200)])
def test_page_names_the_right_that_the_console_lacks_and_the_command(broker, path, status):
    with console_of(broker, BILLING) as browser:
        answer = browser.get(path)
    assert answer.status == status
    assert "User:billing has no permission to access Cluster:DefaultCluster" in answer.text
    assert "rocketpoll acl grant" in answer.text
    assert "billing Cluster:DefaultCluster --actions Get" in answer.text


def test_page_of_a_console_without_credentials_says_that_some_are_needed(broker):
    with console_of(broker, None) as browser:
        answer = browser.get("/access")
    assert answer.status == 403
    assert "Pass the access key and the secret key of a user" in answer.text


def test_access_page_of_a_broker_without_authentication_says_so():
    with EmbeddedBroker() as plain, console_of(plain, None) as browser:
        assert "No users" in browser.read("/access").text
        assert "authenticationEnabled=false" in browser.read("/access").text


# ---- audit log


@pytest.fixture
def audited(broker, caplog):
    """Return a signed-in browser, and the audit lines logged since."""
    caplog.set_level("INFO", AUDIT_LOGGER)
    with console_of(broker, OPERATOR) as browser:
        browser.sign_in()
        caplog.clear()
        yield browser, lambda: lines_of(caplog, AUDIT_LOGGER)


def seek_form(browser):
    page = browser.read("/groups/billing/seek?to=start&topic=orders")
    return {"to": "start", "topic": "orders", "seen": "", **{
        name: page.form(name)[-1] for name in ("csrf", "mark")
    }}  # fmt: skip


def test_change_is_logged_with_session_address_user_and_outcome(audited):
    browser, lines = audited
    assert browser.post("/groups/billing/seek", seek_form(browser)).status == 200
    [line] = lines()
    assert line.startswith("session ")
    assert " at 127.0.0.1 as user operator: POST /groups/billing/seek to=start topic=orders" in line
    assert line.endswith(": done")
    assert "csrf" not in line
    assert browser.cookie.partition("=")[2] not in line


def test_refused_change_is_logged_with_the_reason(audited):
    browser, lines = audited
    form = {**seek_form(browser), "csrf": "of another"}
    assert browser.post("/groups/billing/seek", form).status == 403
    [line] = lines()
    assert line.endswith(": refused: Your session has changed since this page was loaded.")


def test_failed_sign_in_is_logged_without_the_token(audited):
    browser, lines = audited
    browser.cookie = None
    browser.post("/sign-in", {"token": "a guess"})
    [line] = lines()
    assert line.startswith("no session at 127.0.0.1")
    assert "a guess" not in line


def test_pages_that_only_show_are_not_logged(audited):
    browser, lines = audited
    browser.read("/access")
    browser.read("/groups")
    assert lines() == []


def test_audit_line_stays_one_line_whatever_a_form_has(audited):
    browser, lines = audited
    form = {**seek_form(browser), "topic": "a\nsession 0 forged\x1b[2J", "to": "x" * 5_000}
    browser.post("/groups/billing/seek", form)
    [line] = lines()
    assert line.isprintable()
    assert len(line) < 1_000


def test_access_page_says_what_a_broker_that_stores_no_users_lacks(monkeypatch):
    """RocketMQ 5 answers so without authenticationMetadataProvider."""

    def refuse(_):
        remark = "An system error occurred, please try again later"
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, remark, "mq-1:10911", 0)

    with EmbeddedBroker() as broker, served(broker.address) as browser:
        monkeypatch.setattr(Admin, "users", refuse)
        text = browser.read("/access").text
    assert "Users cannot be listed The broker at mq-1:10911 says: An system error" in text
    assert "set authenticationMetadataProvider" in text
