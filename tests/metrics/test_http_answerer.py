"""The HTTP port for scrapers and probes, with well-behaved and other clients."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

import pytest
from support.brokers.in_process import run
from support.brokers.metrics_endpoint import exchange, got

from rocketpoll.broker.metrics.metrics_service import (
    CLIENTS_MAX,
    EXCHANGE_SECONDS,
    HEAD_BYTES_MAX,
    HttpResponse,
    MetricsHttpServer,
)

pytestmark = pytest.mark.usefixtures("on_each_loop")


def tell(story):
    """A story of an answerer with one path that answers at once and one that waits for the test."""

    async def whole():
        kept = []
        answerer = MetricsHttpServer(
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


async def _until(condition):
    while not condition():  # noqa: ASYNC110  # nobody would set an event
        await asyncio.sleep(0.001)


def test_http_path_is_answered_at_once_or_later():
    async def story(_, port, kept):
        assert await got(port, "/now?at=once") == (200, "here\n")
        asking = asyncio.ensure_future(got(port, "/later"))
        await _until(lambda: kept)
        kept[0](HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"no\n"))
        assert await asking == (503, "no\n")

    tell(story)


def test_unknown_http_path_and_method_are_answered():
    async def story(_, port, __):
        assert await got(port, "/") == (404, "a test answers /now /later /large\n")
        post = await exchange(port, b"POST /now HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        assert post.startswith(b"HTTP/1.0 405 ")
        head = await exchange(port, b"HEAD /now HTTP/1.0\r\n\r\n")
        assert b"Content-Length: 5\r\n" in head
        assert head.endswith(b"\r\n\r\n")

    tell(story)


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
def test_malformed_http_request_is_refused(request_bytes, status):
    async def story(_, port, __):
        answer = await exchange(port, request_bytes)
        assert answer == b"" or answer.split()[1] == status  # or it has gone on sending

    tell(story)


def test_silent_http_clients_time_out():
    async def story(answerer, port, _):
        silent, saying = await asyncio.open_connection("127.0.0.1", port)
        _, asking = await asyncio.open_connection("127.0.0.1", port, limit=1)
        asking.write(b"GET /large HTTP/1.1\r\n\r\n")
        await _until(lambda: len(answerer._clients) == 2)
        asyncio.get_running_loop().move(EXCHANGE_SECONDS)
        await _until(lambda: not answerer._clients)
        with suppress(ConnectionResetError):  # whichever way the system tells of it
            assert await silent.read() == b""
        for writer in (saying, asking):
            writer.transport.abort()

    tell(story)


def test_http_connections_are_limited():
    async def story(answerer, port, _):
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS_MAX)]
        await _until(lambda: len(answerer._clients) == CLIENTS_MAX)
        assert await exchange(port, b"GET /now HTTP/1.1\r\n\r\n") == b""
        for _, writer in first:
            writer.close()
        await _until(lambda: not answerer._clients)
        assert await got(port, "/now") == (200, "here\n")

    tell(story)


def test_http_sockets_are_listed_for_forks():
    async def story(answerer, port, _):
        before = set(answerer.descriptors())
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await _until(lambda: answerer._clients)
        assert len(set(answerer.descriptors()) - before) == 1
        assert min(answerer.descriptors()) > 0
        writer.close()

    tell(story)
