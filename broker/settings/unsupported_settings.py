"""Unsupported settings: what RocketMQ's other settings are for, and what to do instead here.

A user with a broker.conf of RocketMQ, or a guessed setting name, learns from these texts what to
write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_ACCESS_LISTS: Final = (
    "RocketMQ has it to ask clients who they are, and this broker asks nobody: leave it out, and "
    "let bindAddress keep other machines away, as it does by default"
)
_SINGLE_DIRECTORY: Final = (
    "RocketMQ has it to keep some files elsewhere, and this broker keeps all below one directory: "
    "set storePathRootDir"
)
_NO_SLAVES: Final = (
    "RocketMQ has it for masters and slaves, and this broker stands alone: leave it out"
)
_NO_TRANSACTIONS: Final = (
    "RocketMQ has it for transactional messages, which this broker does not take: leave it out"
)

_METRICS: Final = (
    "RocketMQ has it for its metrics, which this broker shows at metricsHost and metricsPort: set "
    "metricsPort=5557"
)

UNSUPPORTED: Final[Mapping[str, str]] = {
    "namesrvAddr": (
        "RocketMQ has it to find name servers, and this broker is one itself: leave it out, and "
        "give clients the address of this broker"
    ),
    "aclEnable": _NO_ACCESS_LISTS,
    "authenticationEnabled": _NO_ACCESS_LISTS,
    "authorizationEnabled": _NO_ACCESS_LISTS,
    "brokerId": _NO_SLAVES,
    "brokerIP2": _NO_SLAVES,
    "haListenPort": _NO_SLAVES,
    "haMasterAddress": _NO_SLAVES,
    "storePathCommitLog": _SINGLE_DIRECTORY,
    "storePathConsumeQueue": _SINGLE_DIRECTORY,
    "storePathIndex": _SINGLE_DIRECTORY,
    "transactionCheckInterval": _NO_TRANSACTIONS,
    "transactionTimeOut": _NO_TRANSACTIONS,
    "metricsExporterType": _METRICS,
    "metricsPromExporterPort": _METRICS,
    "metricsPromExporterHost": _METRICS,
    "queues": (
        "topics that are made by their first message have defaultTopicQueueNums=; "
        "create_topic(name, queues=2) makes one with a number of its own"
    ),
}
