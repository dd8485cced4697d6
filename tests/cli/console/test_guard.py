"""Access to the console: who may read, and who may change something."""

import pytest

from rmq_spark.cli.console.guard import (
    SESSION_SECONDS,
    SESSIONS_MAX,
    Guard,
    PageError,
    form_fields,
    is_loopback,
)
from rmq_spark.cli.console.server import Request

HOST = "127.0.0.1:5559"


def request(form=(), **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("POST", ("x",), form=tuple(form), headers={"host": HOST, **named})


@pytest.fixture
def clock():
    return [1_000.0]


@pytest.fixture
def guard(clock):
    return Guard(
        token="sesame", has_public_reads=True, is_writable=True, host_names=["cockpit.lan"],
        now=lambda: clock[0],
    )  # fmt: skip


def signed_in(guard):
    """Return a session and its cookie."""
    name, value = guard.sign_in(request(), "sesame")
    assert name == "Set-Cookie"
    assert "HttpOnly; SameSite=Strict" in value
    cookie = value.partition(";")[0]
    return guard.session_of(request(cookie=cookie)), cookie


@pytest.mark.parametrize(
    "host", ["127.0.0.1:5559", "localhost", "LOCALHOST:1", "[::1]:5559", "cockpit.lan", "10.0.0.7"]
)
def test_console_accepts_local_host_names(guard, host):
    guard.check_host(request(host=host))


OTHER_SITES = [
    {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    for site in ("cross-site", "same-site")
    for mode, dest in (("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty"))
]


@pytest.mark.parametrize("headers", [*OTHER_SITES, {"sec_fetch_site": "cross-site"}])
def test_page_of_another_site_cannot_load_console_pages(guard, headers):
    with pytest.raises(PageError, match="another site"):
        guard.check_site(request(**headers))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec_fetch_site": "none", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},
        {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
        {**OTHER_SITES[1], "sec_fetch_dest": "document"},
    ],
)
def test_console_pages_can_be_opened_and_linked_to(guard, headers):
    guard.check_site(request(**headers))


@pytest.mark.parametrize(
    "host", ["evil.com:5559", "localhost.evil.com", "", "[", "127.0.0.1.nip.io"]
)
def test_foreign_host_name_is_refused_with_advice(guard, host):
    with pytest.raises(PageError, match="does not serve the host") as refused:
        guard.check_host(request(host=host))
    assert "--allow-host" in refused.value.remedy


def test_console_session_begins_with_the_token_and_expires(guard, clock):
    with pytest.raises(PageError, match="token is wrong"):
        guard.sign_in(request(), "another")
    session, cookie = signed_in(guard)
    assert guard.check_form(request([("csrf", session.csrf)]), session) == session
    clock[0] += SESSION_SECONDS
    assert guard.session_of(request(cookie=cookie)) is None


def test_signed_out_session_ends(guard):
    session, cookie = signed_in(guard)
    assert "Max-Age=0" in guard.sign_out(request(), session)[1]
    assert guard.session_of(request(cookie=cookie)) is None
    for strange in ("", "x=y", 'rocketpoll-console-5559="', "\x00"):
        assert guard.session_of(request(cookie=strange)) is None


def test_console_without_a_token_refuses_sign_in():
    with pytest.raises(PageError, match="token is wrong"):
        Guard(token=None, has_public_reads=True, is_writable=False).sign_in(request(), "")


def test_session_cookie_name_contains_the_port(guard):
    assert guard.sign_in(request(), "sesame")[1].startswith("rocketpoll-console-5559=")
    other = guard.sign_in(request(host="127.0.0.1:5560"), "sesame")[1]
    assert other.startswith("rocketpoll-console-5560=")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.com"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:80"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_form_from_another_site_is_refused(guard, headers):
    session, _ = signed_in(guard)
    form = [("csrf", session.csrf)]
    with pytest.raises(PageError, match="another site"):
        guard.check_form(request(form, **headers), session)
    with pytest.raises(PageError, match="another site"):
        guard.sign_in(request(**headers), "sesame")
    ours = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}
    guard.check_form(request(form, **ours), session)


def test_console_form_needs_a_session_and_its_csrf_token(guard):
    session, _ = signed_in(guard)
    other, _ = signed_in(guard)
    with pytest.raises(PageError, match="not signed in"):
        guard.check_form(request([("csrf", session.csrf)]), None)
    for csrf in ("", other.csrf, "\N{EURO SIGN}"):
        with pytest.raises(PageError, match="Your session has changed"):
            guard.check_form(request([("csrf", csrf)]), session)


def test_resubmitted_form_is_refused(guard):
    session, _ = signed_in(guard)
    form = form_fields(session)
    guard.check_not_resubmitted(request(form))
    with pytest.raises(PageError, match="submitted already"):
        guard.check_not_resubmitted(request(form))
    with pytest.raises(PageError, match="submitted already"):
        guard.check_not_resubmitted(request())
    guard.check_not_resubmitted(request(form_fields(session)))


def test_console_sessions_are_limited_and_oldest_end(guard):
    first = signed_in(guard)[1]
    cookies = [signed_in(guard)[1] for _ in range(SESSIONS_MAX)]
    assert guard.session_of(request(cookie=first)) is None
    assert guard.session_of(request(cookie=cookies[0])) is not None


def test_console_writes_are_disabled_by_default(guard):
    guard.check_writable()
    with pytest.raises(PageError, match="read-only") as refused:
        Guard(token="t", has_public_reads=True, is_writable=False).check_writable()
    assert "--writes" in refused.value.remedy


@pytest.mark.parametrize(
    ("host", "is_so"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104  # no server listens
        ("cockpit", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host, is_so):
    assert is_loopback(host) is is_so
