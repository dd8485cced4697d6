"""Topic creation: many topics on one broker, with few requests and few flushes of its disk.

RocketMQ from 5.3 on, and our broker, take lists of topics (UPDATE_AND_CREATE_TOPIC_LIST). Others
get a request for each topic, many at a time.

RocketMQ stops at the first topic of a list that exists with the same settings, changes nothing, and
reports success. So after each list, its table of topics is read; what a list did not create or
change is sent again without the topics that exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Final

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import NotSupported
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import TopicConfig

_LIST_BYTES_MAX: Final = 200_000
"""Most bytes of a list; brokers of ours take 262,144 (maxJsonBodyBytes)."""
_REQUESTS_MAX: Final = 32
"""Most requests that one broker has at a time: it needs some 20 ms for each in a large table."""


def create_topics(api: BrokerApi, address: str, configs: Sequence[TopicConfig]) -> None:
    """Create topics on a broker, or change those that exist."""
    left = configs
    with suppress(NotSupported):
        while len(left) > 1:
            for part in _lists(left):
                api.admin.create_topic_list(address, part)
            if api.agreement(address).extensions:
                return
            unchanged = _unchanged(left, api.admin.topic_configs(address))
            if len(unchanged) == len(left):
                break
            left = unchanged
    _create_each(api, address, left)


def _lists(configs: Iterable[TopicConfig]) -> Iterator[list[TopicConfig]]:
    part: list[TopicConfig] = []
    part_bytes = 0
    for config in configs:
        config_bytes = len(encode_body(config)) + 1
        if part and part_bytes + config_bytes > _LIST_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(config)
        part_bytes += config_bytes
    yield part


def _unchanged(
    configs: Iterable[TopicConfig], known: Mapping[str, TopicConfig]
) -> list[TopicConfig]:
    """Return the topics that the broker does not have with these settings."""
    return [
        config
        for config in configs
        if (found := known.get(config.topic_name)) is None
        or replace(found, attributes=None) != replace(config, attributes=None)
        or not (config.attributes or {}).items() <= (found.attributes or {}).items()
    ]


def _create_each(api: BrokerApi, address: str, configs: Iterable[TopicConfig]) -> None:
    pending: deque[Future[None]] = deque()
    for config in configs:
        if len(pending) == _REQUESTS_MAX:
            pending.popleft().result()
        pending.append(api.admin.create_topic_async(address, config))
    while pending:
        pending.popleft().result()
