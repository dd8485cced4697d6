"""A web service that sends posted orders to a topic and streams them to browsers.

    pip install fastapi uvicorn
    rocketpoll broker &
    uvicorn --app-dir examples/web orders:app
    curl -N localhost:8000/orders &
    curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"id": 1}'

Each stream is a consumer with its own group: it gets all orders that arrive after its start.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from rocketpoll import Message, aio

TOPIC = "orders"
_CLIENT: dict[str, Any] = {}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Keep one client and one producer while the application runs."""
    address = os.environ.get("NAMESRV_ADDR", "localhost:9876")
    async with aio.Client(address) as client, aio.Producer("shop", client=client) as producer:
        _CLIENT.update(client=client, producer=producer)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def send(order: dict[str, Any]) -> dict[str, Any]:
    """Send an order and respond when it is stored."""
    result = await _CLIENT["producer"].send(Message(TOPIC, json.dumps(order).encode()))
    return {"queue": result.queue.queue_id, "offset": result.queue_offset}


@app.get("/orders")
async def stream() -> StreamingResponse:
    """Stream orders as server-sent events until the browser disconnects."""
    return StreamingResponse(events(), media_type="text/event-stream")


async def events() -> AsyncIterator[str]:
    """Yield an event for each new order."""
    async with aio.Consumer(f"browser-{uuid.uuid4().hex}", client=_CLIENT["client"]) as consumer:
        await consumer.assign(await consumer.fetch_message_queues(TOPIC))
        for queue in consumer.assignment():
            await consumer.seek_to_end(queue)
        yield ": ready\n\n"
        async for message in consumer:
            yield f"data: {message.body.decode()}\n\n"
