"""A group member in its own process, which tests can kill: it writes a line for each message.

    python consuming_member.py NAME_SERVER GROUP TOPIC

After SIGTERM it leaves the group cleanly.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.wire.bodies.clients import ConsumeFromWhere


def main() -> None:
    """Consume until SIGTERM."""
    name_server, group, topic = sys.argv[1:]
    leaving = threading.Event()  # the broker may know this member before `start` returns
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    settings = LitePullSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        auto_commit_interval_ms=1_000,
        persist_consumer_offset_interval_ms=500,
    )
    consumer = LitePullConsumer(group, instance=ClientInstance(name_server), settings=settings)
    consumer.subscribe(topic)
    consumer.start()
    while not leaving.is_set():
        for message in consumer.poll(500):
            sys.stdout.write(message.body.decode() + "\n")
        sys.stdout.flush()
    consumer.shutdown()


if __name__ == "__main__":
    main()
