"""The web service example accepts orders and streams them to its listeners."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest
from support.clients.asyncio_tests import told_in_a_loop, until

from rocketpoll import EmbeddedBroker

httpx = pytest.importorskip("httpx2")
pytest.importorskip("fastapi")

ORDERS = Path(__file__).parent.parent / "examples" / "web" / "orders.py"


@told_in_a_loop
async def test_posted_order_is_streamed_by_the_web_example(monkeypatch):
    spec = importlib.util.spec_from_file_location("orders", ORDERS)
    orders = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(orders)
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", 1)
        monkeypatch.setenv("NAMESRV_ADDR", broker.address)
        transport = httpx.ASGITransport(orders.app)
        async with (
            orders.lifespan(orders.app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as browser,
        ):
            first = await browser.post("/orders", json={"id": 1})
            assert first.json() == {"queue": 0, "offset": 0}
            events = orders.events()
            assert await anext(events) == ": ready\n\n"
            coming = asyncio.create_task(anext(events))
            await browser.post("/orders", json={"id": 2})
            assert await coming == 'data: {"id": 2}\n\n'
            await events.aclose()


@told_in_a_loop
async def test_web_example_ends_the_consumer_of_a_disconnected_browser(monkeypatch):
    """Over real connections: a browser that disconnects ends its consumer."""
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.syspath_prepend(str(ORDERS.parent))
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", 1)
        monkeypatch.setenv("NAMESRV_ADDR", broker.address)
        settings = uvicorn.Config("orders:app", port=0, log_level="warning", lifespan="on")
        server = uvicorn.Server(settings)
        serving = asyncio.create_task(server.serve())
        await until("the server", lambda: server.started)
        [[listening, *_]] = [each.sockets for each in server.servers]
        shop = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=shop, timeout=30) as browser:
            for number in range(2):
                async with browser.stream("GET", "/orders") as stream:
                    lines = stream.aiter_lines()
                    assert await anext(lines) == ": ready"
                    sent = await browser.post("/orders", json={"id": number})
                    assert sent.json() == {"queue": 0, "offset": number}
                    assert await anext(lines) == ""
                    assert await anext(lines) == f'data: {{"id": {number}}}'
                    users = sys.modules["orders"]._CLIENT["client"]._users
                    assert len(users) == 3  # the client itself, its producer and the stream
                await until("the end of the consumer", lambda users=users: len(users) == 2)
        server.should_exit = True
        await serving
