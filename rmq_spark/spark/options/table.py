"""The option table: every option by name, with its uses and a one-line meaning."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Use(Enum):
    """The uses of the connector that an option can be for."""

    STREAM = "streams"
    BATCH = "batch reads"
    SINK = "writes"


class Option(NamedTuple):
    """An option's entry: its uses, its one-line meaning, and the option that it is an alias of."""

    uses: frozenset[Use]
    meaning: str
    alias_of: str | None = None


_ALL: Final = frozenset(Use)
_READ: Final = frozenset([Use.STREAM, Use.BATCH])
_STREAM: Final = frozenset([Use.STREAM])
_BATCH: Final = frozenset([Use.BATCH])
_SINK: Final = frozenset([Use.SINK])

OPTIONS: Final[Mapping[str, Option]] = {
    # who is asked
    "namesrvAddr": Option(
        _ALL, "the name servers' addresses, as host:port;host:port; or in NAMESRV_ADDR"
    ),
    "nameServer": Option(_ALL, "the same", alias_of="namesrvAddr"),
    "brokerAddresses": Option(
        _ALL, "where brokers are reached, if not where name servers say: JSON"
    ),
    "namespace": Option(
        _ALL, "what stands before the names of topics and groups, as namespace%topic"
    ),
    "accessKey": Option(_ALL, "who the client is, to brokers with access lists"),
    "secretKey": Option(_ALL, "what it signs with; never shown"),
    "securityToken": Option(_ALL, "a temporary key's token; never shown"),
    "tls": Option(_ALL, "whether name servers and brokers are spoken to under TLS"),
    "tlsCaFile": Option(_ALL, "whose certificates are trusted: a PEM file on the driver"),
    "tlsCertFile": Option(_ALL, "who the client is: its certificate, a PEM file on the driver"),
    "tlsKeyFile": Option(_ALL, "the certificate's key, if it is in a file of its own"),
    "tlsKeyPassword": Option(_ALL, "what opens the key; never shown"),
    "tlsVerify": Option(_ALL, "whether certificates are checked; false is for tests"),
    "tlsServerName": Option(_ALL, "the name that certificates bear, where it is not the address"),
    "requestTimeoutMs": Option(_ALL, "how long an answer may take"),
    "retryTimeoutMs": Option(_ALL, "how long brokers that cannot be reached are waited for"),
    # which messages
    "subscribe": Option(_READ, "a topic, or several with commas"),
    "topic": Option(
        _ALL,
        "the same; of a sink: where rows go that name no topic themselves",
        alias_of="subscribe",
    ),
    "subscribePattern": Option(_READ, "topics whose whole name matches a regular expression"),
    "assign": Option(_READ, "queues by number: JSON of topics, brokers and lists"),
    "waitForTopic": Option(_STREAM, "whether topics that are not there yet are waited for"),
    "tags": Option(_READ, "only messages with these tags: a || b"),
    "sql": Option(_READ, "only messages whose properties meet an SQL92 condition"),
    "key": Option(_BATCH, "only messages with this key, found by the broker's index"),
    "columns": Option(_READ, "the columns of the rows, with commas"),
    # what bodies are
    "bodyFormat": Option(_ALL, "what bodies are: binary, text, json, or avro"),
    "bodySchema": Option(_READ, "what bodies of json and avro hold: DDL, or JSON of a schema"),
    "bodyColumn": Option(_ALL, "the one column that holds the whole body, as a struct or a text"),
    # from where to where
    "startingOffsets": Option(_READ, "where a new query starts"),
    "startingTimestamp": Option(_READ, "the same, by the time of storing"),
    "startingOffsetsByTimestamp": Option(_READ, "the same, for each queue"),
    "startingOffsetsByTimestampStrategy": Option(
        _READ, "where no message is so new: error, or latest"
    ),
    "endingOffsets": Option(_READ, "where a batch read ends, or a stream with AvailableNow"),
    "endingTimestamp": Option(_READ, "the same, by the time of storing"),
    "endingOffsetsByTimestamp": Option(_READ, "the same, for each queue"),
    "failOnDataLoss": Option(
        _READ, "whether messages that are gone end the query, or a warning is logged"
    ),
    "onBadRecord": Option(
        _READ, "what becomes of messages that cannot be read: fail, null, or skip"
    ),
    "checkCrc": Option(_READ, "whether bodies are checked against their CRC"),
    "maxBodyBytes": Option(_READ, "how many bytes a compressed body may inflate to"),
    "localFiles": Option(_READ, "whether tasks read a broker's files themselves, where they can"),
    "onBrokerAway": Option(_STREAM, "what becomes of brokers that are away: wait, or skip"),
    "isolation": Option(
        _READ, "which rows are read: all that are stored, or committed: those of finished batches"
    ),
    "brokerNames": Option(_STREAM, "new names of brokers: JSON of old names to new ones"),
    # how much at once
    "maxOffsetsPerTrigger": Option(_STREAM, "how many messages a batch takes at most"),
    "maxBytesPerTrigger": Option(_STREAM, "how many bytes it takes, about"),
    "minOffsetsPerTrigger": Option(_STREAM, "how many messages a batch waits for"),
    "maxTriggerDelay": Option(_STREAM, "how long it waits for them"),
    "minPartitions": Option(_READ, "how many tasks read at least"),
    "maxPartitions": Option(_READ, "how many tasks read at most, a task several queues if need be"),
    "maxRecordsPerPartition": Option(_READ, "how many messages one task reads at most"),
    # how a stream runs
    "consumerGroup": Option(
        _READ, "the group in whose name is pulled; a stream commits its progress to it"
    ),
    "suspendTimeoutMs": Option(_STREAM, "how long brokers hold the pulls of an idle query"),
    "discoveryIntervalMs": Option(_STREAM, "how often new queues and topics are looked for"),
    "availableNow": Option(
        _STREAM, "ends at what is there at the start: Trigger.AvailableNow on Spark 4.0, 4.1"
    ),
    # how rows are written
    "producerGroup": Option(_SINK, "the group in whose name is sent"),
    "maxMessageBytes": Option(_SINK, "how large a body may be: the brokers' maxMessageSize"),
    "delivery": Option(
        _SINK, "at_least_once, or exactly_once: with a manifest of each batch for those who read"
    ),
    "visibleTo": Option(
        _SINK,
        "who sees that a batch counts: committed_readers, or all: every client, once it is whole",
    ),
    "sinkName": Option(
        _SINK, "what a writer is known by where batches are visible to all; by default the topic"
    ),
    "writeName": Option(
        _SINK, "what a batch write is known by: the same name gives rows the same ids"
    ),
    "txnAppId": Option(
        _SINK, "who writes, as for Delta: with txnVersion, what rows of a batch write are known by"
    ),
    "txnVersion": Option(_SINK, "which batch of txnAppId is written: the same gives the same ids"),
    "rowIds": Option(
        _SINK, "by what property ROCKETPOLL_ROW of each message is made, by which repeats are known"
    ),
}
