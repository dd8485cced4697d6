"""A consumer that replies to requests (request-reply)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rmq_spark.client.consumer.lite_pull_consumer import Consumer
from rmq_spark.client.producer.producer import Producer


@contextmanager
def replying(name_server: str, topic: str, group: str, **more: str) -> Iterator[None]:
    """Reply to each request of a topic with its body in upper case."""
    ended = threading.Event()

    def reply() -> None:
        while not ended.is_set():
            for message in consumer.poll(100):
                producer.reply(message, message.body.upper())

    with (
        Producer(f"{group}-replies", name_server, **more) as producer,
        Consumer(group, name_server, start="earliest", **more) as consumer,
    ):
        consumer.subscribe(topic)
        thread = threading.Thread(target=reply)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
