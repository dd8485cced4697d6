"""The example of a web service does what it says: orders are sent, and streamed to who listens."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest
from async_stories import told_in_a_loop

from rocketpoll import EmbeddedBroker

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

ORDERS = Path(__file__).parent.parent / "examples" / "web" / "orders.py"


@told_in_a_loop
async def test_an_order_that_is_posted_is_streamed(monkeypatch):
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
