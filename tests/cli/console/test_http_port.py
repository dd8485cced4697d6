"""The console's HTTP port: strict headers on every response, and a limit on request sizes."""

import http.client
import socket
import threading
from contextlib import suppress
from http import HTTPStatus

import pytest

from rmq_spark.cli.console import server
from rmq_spark.cli.console.server import ConsoleServer, Response, redirect
from rmq_spark.http_server import CLIENTS_MAX

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def port():
    def answer(request):
        if request.segments == ("fails",):
            raise RuntimeError("secret")
        if request.segments == ("leads",):
            return redirect("/there", ("Set-Cookie", "a=b"))
        return Response(
            HTTPStatus.OK,
            repr((request.method, request.segments, request.query, request.form)).encode(),
        )

    with ConsoleServer("127.0.0.1", 0, answer) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    said = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, said


@pytest.mark.parametrize("said", ["GET /x HTTP/1.1\r\nX: ", "POST /x HTTP/1.1\r\n"])
def test_slow_console_requests_do_not_block_others(port, said):
    if said.startswith("POST"):
        said += f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: 999\r\n\r\nto="
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * CLIENTS_MAX)]
    for each in slow:
        with suppress(ConnectionError):  # the oldest connections were closed
            each.sendall(said.encode())
    assert ask(port, "GET", "/x")[0] == 200
    for each in slow:
        each.close()


def test_console_form_must_arrive_before_its_timeout(port, monkeypatch, caplog):
    monkeypatch.setattr(server._ConsoleHandler, "request_seconds", 0.3)
    head = f"POST /x HTTP/1.1\r\nContent-Type: {FORM['Content-Type']}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
        slow.sendall(f"{head}Content-Length: 999\r\n\r\nto=".encode())
        slow.settimeout(0.02)
        for _ in range(500):
            with suppress(TimeoutError):
                assert slow.recv(1) == b""
                break
            slow.sendall(b"a")
        else:
            raise AssertionError("the console waits for a byte now and then")
    assert [each for each in caplog.records if each.name.startswith("rmq_spark")] == []


def test_http_request_is_parsed_into_method_path_query_and_form(port):
    _, _, said = ask(port, "GET", "/topics/%25DLQ%25a%2Fb/?q=a+b&q=&x=%ff")
    assert said == repr(
        ("GET", ("topics", "%DLQ%a/b"), (("q", "a b"), ("q", ""), ("x", "\ufffd")), ())
    )
    _, _, said = ask(port, "POST", "/x", "to=%2B1&csrf=c", FORM)
    assert said == repr(("POST", ("x",), (), (("to", "+1"), ("csrf", "c"))))
    assert ask(port, "HEAD", "/x")[2] == ""


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/x"), ("GET", "/fails"), ("PUT", "/x"), ("GET", "/leads")]
)
def test_console_response_headers_keep_other_sites_out(port, method, path):
    _, headers, _ = ask(port, method, path)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]


def test_page_error_is_answered_without_details(port):
    status, headers, said = ask(port, "GET", "/fails")
    assert (status, said) == (500, "the console failed to answer this request. See its log\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_redirect_response_has_location_and_cookie(port):
    status, headers, _ = ask(port, "GET", "/leads")
    assert (status, headers["Location"], headers["Set-Cookie"]) == (303, "/there", "a=b")


@pytest.mark.parametrize("location", ["https://evil.com", "//evil.com", "/a\r\nX: y", "", "x"])
def test_redirect_to_another_site_is_refused(location):
    with pytest.raises(ValueError, match="not a path of this site"):
        redirect(location)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Content-Type": "application/json"}, 415),
        ("a=b", {}, 415),
        ("a=" + "b" * 1_100_000, FORM, 413),
        ("&".join(["a=b"] * 600), FORM, 400),
        (None, {**FORM, "Content-Length": "-1"}, 411),
    ],
)
def test_invalid_form_is_refused(port, body, headers, status):
    assert ask(port, "POST", "/x", body, headers)[0] == status


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_http_request_is_answered(port, sent):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(sent)
        assert b"Traceback" not in peer.recv(1 << 16)
    assert ask(port, "GET", "/x")[0] == 200
