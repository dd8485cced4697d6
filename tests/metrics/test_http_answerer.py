"""The HTTP port for scrapers and probes, with well-behaved and other clients."""

import asyncio
import socket
from contextlib import suppress
from http import HTTPStatus

import pytest
from support.brokers.in_process import run
from support.brokers.metrics_endpoint import exchange, got
from support.suite.coroutine_tests import run_by

from rocketpoll.broker.metrics.metrics_service import (
    CLIENTS_MAX,
    EXCHANGE_SECONDS,
    HEAD_BYTES_MAX,
    HEAD_SECONDS,
    HttpResponse,
    MetricsHttpServer,
)

pytestmark = pytest.mark.usefixtures("on_each_loop")


class Answerer(MetricsHttpServer):
    """Counts its clients: each uses a descriptor, like the listener."""

    async def listen(self, address, port):
        found = await super().listen(address, port)
        self.of_the_port = len(self.descriptors())
        return found

    @property
    def clients(self):
        return len(self.descriptors()) - self.of_the_port


def tell(story):
    """Run a scenario with one path that answers at once, and one that waits for the test."""

    async def whole():
        kept = []
        answerer = Answerer(
            asyncio.get_running_loop(),
            {
                "/now": lambda give: give(HttpResponse(HTTPStatus.OK, b"here\n")),
                "/later": kept.append,
                "/large": lambda give: give(HttpResponse(HTTPStatus.OK, b"x" * (32 << 20))),
            },
            name="a test",
        )
        port = await answerer.listen("127.0.0.1", 0)
        try:
            await story(answerer, port, kept)
        finally:
            answerer.close()

    run(whole())


on_http_server = run_by(tell, given=3)


async def _until(condition):
    while not condition():  # noqa: ASYNC110  # no event signals it
        await asyncio.sleep(0.001)


@on_http_server
async def test_http_path_is_answered_at_once_or_later(answerer, port, kept):
    assert await got(port, "/now?at=once") == (200, "here\n")
    asking = asyncio.ensure_future(got(port, "/later"))
    await _until(lambda: kept)
    kept[0](HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"no\n"))
    assert await asking == (503, "no\n")


@on_http_server
async def test_unknown_http_path_and_method_are_answered(answerer, port, kept):
    assert await got(port, "/") == (404, "a test answers /now /later /large\n")
    post = await exchange(port, b"POST /now HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
    assert post.startswith(b"HTTP/1.0 405 ")
    head = await exchange(port, b"HEAD /now HTTP/1.0\r\n\r\n")
    assert b"Content-Length: 5\r\n" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /now\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\n\n", b"400"),
        (b"GET /" + b"a" * HEAD_BYTES_MAX + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET /now HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX, b"431"),
    ],
)
@on_http_server
async def test_malformed_http_request_is_refused(answerer, port, kept, request_bytes, status):
    answer = await exchange(port, request_bytes)
    assert answer == b"" or answer.split()[1] == status  # or the client was still sending


@on_http_server
async def test_silent_http_clients_time_out(answerer, port, kept):
    silent, saying = await asyncio.open_connection("127.0.0.1", port)
    _, asking = await asyncio.open_connection("127.0.0.1", port, limit=1)
    asking.write(b"GET /large HTTP/1.1\r\n\r\n")
    await _until(lambda: answerer.clients == 2)
    asyncio.get_running_loop().move(EXCHANGE_SECONDS)
    await _until(lambda: not answerer.clients)
    with suppress(ConnectionResetError):  # how the system reports it varies
        assert await silent.read() == b""
    for writer in (saying, asking):
        writer.transport.abort()


@on_http_server
async def test_http_port_limits_concurrent_responses(answerer, port, kept):
    asking = [asyncio.ensure_future(got(port, "/later")) for _ in range(CLIENTS_MAX)]
    await _until(lambda: len(kept) == CLIENTS_MAX)
    assert await exchange(port, b"GET /now HTTP/1.1\r\n\r\n") == b""
    for give in kept:
        give(HttpResponse(HTTPStatus.OK, b"at last\n"))
    assert await asyncio.gather(*asking) == [(200, "at last\n")] * CLIENTS_MAX
    await _until(lambda: not answerer.clients)
    assert await got(port, "/now") == (200, "here\n")


@pytest.mark.parametrize("said", [b"", b"GET /now HT", b"GET /now HTTP/1.1\r\nX: "])
@on_http_server
async def test_probe_is_answered_though_an_attacker_holds_all_connections(
    answerer, port, kept, said
):
    attackers = []
    for number in range(3 * CLIENTS_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        attackers.append((reader, writer))
        if number >= CLIENTS_MAX:
            assert await got(port, "/now") == (200, "here\n")
        assert answerer.clients <= CLIENTS_MAX
    for _, writer in attackers:
        writer.transport.abort()


@on_http_server
async def test_silent_client_of_the_greediest_address_gives_way(answerer, port, kept):
    honest = await asyncio.open_connection("127.0.0.1", port)
    await _until(lambda: answerer.clients)
    others = [
        await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        for _ in range(2 * CLIENTS_MAX)
    ]
    await _until(lambda: answerer.clients == CLIENTS_MAX)
    honest[1].write(b"GET /now HTTP/1.1\r\n\r\n")
    assert (await honest[0].read()).endswith(b"here\n")
    for _, writer in (honest, *others):
        writer.transport.abort()


@on_http_server
async def test_slow_http_reader_is_closed_for_a_new_client(answerer, port, kept):
    slow = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in range(CLIENTS_MAX)]
    for _, writer in slow:
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    await _until(lambda: all(client.is_handled for client in answerer._clients))
    assert answerer.clients == CLIENTS_MAX
    asyncio.get_running_loop().move(HEAD_SECONDS)
    assert await got(port, "/now") == (200, "here\n")
    for _, writer in slow:
        writer.transport.abort()


@pytest.mark.parametrize("said", [b"", b"GET /now HTTP/1.1\r\nX: "])
@on_http_server
async def test_http_request_head_must_arrive_within_two_seconds(answerer, port, kept, said):
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    await _until(lambda: answerer.clients)
    asyncio.get_running_loop().move(HEAD_SECONDS / 2)
    writer.write(b"a")
    await asyncio.sleep(0.01)
    assert answerer.clients
    asyncio.get_running_loop().move(HEAD_SECONDS / 2)
    await _until(lambda: not answerer.clients)
    writer.transport.abort()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:5557", 200),
        ("localhost", 200),
        ("a.localhost:1", 200),
        ("[::1]:5557", 200),
        ("", 200),
        (socket.gethostname(), 200),
        ("evil.example", 403),
        ("evil.example:5557", 403),
        ("127.0.0.1.evil.example", 403),
        ("[bad", 403),
    ],
)
@on_http_server
async def test_page_of_another_site_cannot_read_what_loopback_serves(
    answerer, port, kept, host, status
):
    answer = await exchange(port, f"GET /now HTTP/1.1\r\nhOst: {host}\r\n\r\n".encode())
    assert int(answer.split()[1]) == status
    assert (b"here" in answer) is (status == 200)


@on_http_server
async def test_http_sockets_are_listed_for_forks(answerer, port, kept):
    before = set(answerer.descriptors())
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await _until(lambda: answerer.clients)
    assert len(set(answerer.descriptors()) - before) == 1
    assert min(answerer.descriptors()) > 0
    writer.close()
