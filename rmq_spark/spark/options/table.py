"""The option table: every option by name, and `OptionReader`, which parses a user's options.

A row of the table has an option's uses, its one-line meaning, its parser and its default. The
reader refuses unknown options, with the nearest valid name, and options without a meaning for the
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from rmq_spark.client.message import BODY_BYTES_MAX
from rmq_spark.errors import nearest_name
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.values import (
    BodyFormat,
    OnBadRecord,
    RowIds,
    boolean,
    broker_names,
    member_of,
    milliseconds,
    names,
    namespace,
    one_of,
    size_in_bytes,
    timeout_ms,
    whole_number,
    write_name,
)
from rmq_spark.wire.compression import PLAIN_BYTES_LIMIT_MAX, PLAIN_BYTES_MAX

SUSPEND_MS_MAX: Final = 1_500
"""Low enough that a query stopped while a broker holds its pulls ends within two seconds."""


class Use(Enum):
    """The uses of the connector that an option can be for."""

    STREAM = "streams"
    BATCH = "batch reads"
    SINK = "writes"


Parser = Callable[[str, str], Any]
"""A function from an option's name and its text to its value; it raises OptionError."""


class Kind(NamedTuple):
    """The parser of an option's text, and the default value."""

    parse: Parser
    default: Any = None


_TEXT: Final = Kind(lambda _, text: text)
_ON: Final = Kind(boolean, default=True)
_OFF: Final = Kind(boolean, default=False)
_COUNT: Final = Kind(partial(whole_number, least=1))


def _one_of(*words: str) -> Kind:
    return Kind(one_of(*words), words[0])


class Option(NamedTuple):
    """An entry of the table; an alias has the name of its option in ``alias_of``."""

    uses: frozenset[Use]
    meaning: str
    kind: Kind = _TEXT
    alias_of: str | None = None


_ALL: Final = frozenset(Use)
_READ: Final = frozenset([Use.STREAM, Use.BATCH])
_STREAM: Final = frozenset([Use.STREAM])
_BATCH: Final = frozenset([Use.BATCH])
_SINK: Final = frozenset([Use.SINK])

OPTIONS: Final[Mapping[str, Option]] = {
    # connections to brokers
    "namesrvAddr": Option(
        _ALL, "addresses of name servers, host:port;host:port [default: $NAMESRV_ADDR]"
    ),
    "nameServer": Option(_ALL, "the same as namesrvAddr", alias_of="namesrvAddr"),
    "profile": Option(
        _ALL,
        "section of the driver's profiles file with defaults for addresses, keys and TLS",
    ),
    "brokerAddresses": Option(
        _ALL, "addresses of brokers that replace those of the routes, as JSON"
    ),
    "namespace": Option(
        _ALL,
        "prefix of the names of topics and groups: namespace%topic",
        Kind(namespace),
    ),
    "accessKey": Option(_ALL, "access key for brokers with ACLs; needs secretKey"),
    "secretKey": Option(_ALL, "secret key that signs requests; never shown"),
    "securityToken": Option(_ALL, "token of a temporary key; never shown"),
    "tls": Option(_ALL, "whether connections to name servers and brokers use TLS", _OFF),
    "tlsCaFile": Option(_ALL, "trusted certificate authorities, a PEM file on the driver"),
    "tlsCertFile": Option(_ALL, "client certificate, a PEM file on the driver"),
    "tlsKeyFile": Option(_ALL, "private key of the certificate, if it is in another file"),
    "tlsKeyPassword": Option(_ALL, "password of the private key; never shown"),
    "tlsVerify": Option(_ALL, "whether certificates are verified; false is for tests only", _ON),
    "tlsServerName": Option(_ALL, "name in the brokers' certificates, if it is not the address"),
    "requestTimeoutMs": Option(_ALL, "timeout of a request", Kind(timeout_ms, 3_000)),
    "retryTimeoutMs": Option(
        _ALL, "how long unreachable brokers are retried", Kind(whole_number, 60_000)
    ),
    # which messages
    "subscribe": Option(_READ, "a topic, or several separated by commas"),
    "topic": Option(
        _ALL,
        "for reads the same as subscribe; for writes the topic of all rows",
        alias_of="subscribe",
    ),
    "subscribePattern": Option(_READ, "topics whose whole name matches a regular expression"),
    "assign": Option(_READ, "queues to read: JSON of topics, brokers and lists of queue numbers"),
    "waitForTopic": Option(_STREAM, "whether a stream may start before its topics exist", _OFF),
    "tags": Option(_READ, "only messages with one of these tags: a || b"),
    "sql": Option(_READ, "only messages whose properties match an SQL92 condition"),
    "key": Option(_BATCH, "only messages with this key, found by the broker's index"),
    "columns": Option(_READ, "columns of the rows, separated by commas", Kind(names, ())),
    # formats of bodies
    "bodyFormat": Option(
        _ALL,
        "format of bodies: binary, text, json, avro, msgpack or protobuf",
        Kind(member_of(BodyFormat), BodyFormat.BINARY),
    ),
    "bodySchema": Option(_READ, "schema of json, avro or msgpack bodies: DDL, or in JSON"),
    "bodyDescriptor": Option(
        _ALL, "file of protobuf descriptors on the driver: protoc --descriptor_set_out"
    ),
    "bodyMessage": Option(_ALL, "name of the protobuf message that bodies are"),
    "bodyRegistry": Option(_ALL, "URL of the schema registry whose header bodies have"),
    "bodyRegistryUser": Option(_ALL, "user of the registry's basic authentication"),
    "bodyRegistryPassword": Option(_ALL, "password of this user; never shown"),
    "bodyRegistryCaFile": Option(
        _ALL, "certificate authorities trusted for the registry, a PEM file on the driver"
    ),
    "bodySubject": Option(
        _ALL, "subject whose newest schema gives the columns [default: TOPIC-value]"
    ),
    "bodyRegister": Option(
        _SINK, "whether the sink registers the schema of its columns under the subject", _OFF
    ),
    "bodyColumn": Option(_ALL, "name of one column for the whole body, a struct or a string"),
    # start and end of a read
    "startingOffsets": Option(_READ, "where a new query starts reading"),
    "startingTimestamp": Option(_READ, "store time at which a new query starts reading"),
    "startingOffsetsByTimestamp": Option(_READ, "startingTimestamp for each queue, as JSON"),
    "startingOffsetsByTimestampStrategy": Option(
        _READ,
        "for a queue without a message that new: error, or latest (start at its end)",
        Kind(one_of("error", "latest"), "error"),
    ),
    "endingOffsets": Option(_READ, "where a batch read, or a stream with AvailableNow, ends"),
    "endingTimestamp": Option(_READ, "store time before which a read ends"),
    "endingOffsetsByTimestamp": Option(_READ, "endingTimestamp for each queue, as JSON"),
    "failOnDataLoss": Option(
        _READ, "whether lost messages fail the query; false logs a warning", _ON
    ),
    "onBadRecord": Option(
        _READ,
        "for unreadable messages: fail the query, return a null body, skip, or dead_letter (send "
        "them to deadLetterTopic)",
        Kind(member_of(OnBadRecord), OnBadRecord.FAIL),
    ),
    "deadLetterTopic": Option(_READ, "topic of dead letters, for onBadRecord=dead_letter"),
    "checkCrc": Option(_READ, "whether the CRC of each body is verified", _ON),
    "maxBodyBytes": Option(
        _READ,
        "maximum size of a decompressed body",
        Kind(partial(size_in_bytes, most=PLAIN_BYTES_LIMIT_MAX), PLAIN_BYTES_MAX),
    ),
    "localFiles": Option(
        _READ, "whether tasks on the broker's machine read its log files directly", Kind(boolean)
    ),
    "onBrokerAway": Option(
        _STREAM,
        "for unavailable brokers: wait, or skip (continue without them)",
        _one_of("wait", "skip"),
    ),
    "isolation": Option(
        _READ,
        "committed reads only rows of committed batches of an exactly-once sink",
        _one_of("uncommitted", "committed"),
    ),
    "brokerNames": Option(
        _STREAM, "renamed brokers: JSON of old names to new names", Kind(broker_names)
    ),
    # limits of batches and tasks
    "maxOffsetsPerTrigger": Option(_STREAM, "maximum number of messages of a batch", _COUNT),
    "maxBytesPerTrigger": Option(
        _STREAM, "approximate maximum number of bytes of a batch", Kind(size_in_bytes)
    ),
    "minOffsetsPerTrigger": Option(_STREAM, "minimum number of messages of a batch", _COUNT),
    "maxTriggerDelay": Option(
        _STREAM, "how long a batch waits for minOffsetsPerTrigger", Kind(milliseconds, 15 * 60_000)
    ),
    "minPartitions": Option(_READ, "minimum number of tasks that read", _COUNT),
    "maxPartitions": Option(
        _READ, "maximum number of tasks that read; a task may read several queues", _COUNT
    ),
    "maxRecordsPerPartition": Option(_READ, "maximum number of messages of one task", _COUNT),
    # how a stream runs
    "consumerGroup": Option(
        _READ, "consumer group of the pulls; a stream commits its offsets to it"
    ),
    "suspendTimeoutMs": Option(
        _STREAM,
        "how long brokers hold the pulls of an idle query",
        Kind(partial(whole_number, most=SUSPEND_MS_MAX), 1_000),
    ),
    "discoveryIntervalMs": Option(
        _STREAM, "interval between searches for new queues and topics", Kind(whole_number, 5_000)
    ),
    "availableNow": Option(
        _STREAM,
        "reads what is available at the start, then ends: Trigger.AvailableNow for Spark 4.0 and "
        "4.1",
        _OFF,
    ),
    # how rows are written
    "producerGroup": Option(_SINK, "producer group of the sink"),
    "maxMessageBytes": Option(
        _SINK,
        "maximum size of a body; set it to the brokers' maxMessageSize",
        Kind(partial(size_in_bytes, most=PLAIN_BYTES_MAX), BODY_BYTES_MAX),
    ),
    "delivery": Option(
        _SINK,
        "delivery guarantee: at_least_once, or exactly_once (commits each batch with a manifest)",
        _one_of("at_least_once", "exactly_once"),
    ),
    "visibleTo": Option(
        _SINK,
        "who sees only committed batches: committed_readers, or all (every client)",
        _one_of("committed_readers", "all"),
    ),
    "sinkName": Option(
        _SINK, "name of the sink at the broker, for visibleTo=all [default: the topic]"
    ),
    "writeName": Option(
        _SINK,
        "name of a batch write; the same name gives rows the same ids",
        Kind(write_name),
    ),
    "txnAppId": Option(
        _SINK,
        "application that writes, as in Delta Lake; with txnVersion it identifies a batch write",
        Kind(write_name),
    ),
    "txnVersion": Option(
        _SINK,
        "number of the batch of txnAppId; the same number gives rows the same ids",
        Kind(whole_number),
    ),
    "rowIds": Option(
        _SINK,
        "what the row id (property ROCKETPOLL_ROW) is made of, by which readers drop duplicates",
        Kind(member_of(RowIds)),
    ),
}


def of_option(name: str) -> Any:
    """Declare a dataclass field for an option's value, which `OptionReader.fields` returns."""
    return field(default=OPTIONS[name].kind.default, metadata={"option": name})


_SPARK_OPTIONS: Final = frozenset(["checkpointlocation", "queryname"])
"""Options that Spark hands to a sink although they are meant for Spark."""

_KAFKA_OPTIONS: Final = {
    "bootstrap.servers": "namesrvAddr",
    "bootstrapservers": "namesrvAddr",
    "group.id": "consumerGroup",
    "groupid": "consumerGroup",
    "groupidprefix": "consumerGroup",
    "security.protocol": "tls",
    "ssl.truststore.location": "tlsCaFile",
    "ssl.keystore.location": "tlsCertFile",
    "auto.offset.reset": "startingOffsets",
    "includeheaders": "columns",
}
"""Correct names for options that Kafka users write, with or without ``kafka.``."""


NO_TABLE_OPTIONS: Final = (
    "Spark does not pass the OPTIONS of a table to Python sources. Give them in each query: "
    "SELECT * FROM t WITH ('namesrvAddr' = 'localhost:9876', 'topic' = 'orders'), or once in a "
    "view (docs/sql.md)"
)
_CATALOG_PROPERTY: Final = "provider"
"""A property of a catalog's table, which Spark adds to the options in ``CREATE TABLE``."""


def is_table_definition(raw_options: Mapping[str, str]) -> bool:
    """Return whether Spark asks for the columns of a ``CREATE TABLE`` that names none."""
    return _CATALOG_PROPERTY in raw_options


def check_table_definition(raw_options: Mapping[str, str]) -> None:
    """Refuse options in ``CREATE TABLE``: Spark passes them to no query."""
    right_names = {name.lower(): name for name in OPTIONS}
    for name in raw_options:
        known = right_names.get(name.lower().removeprefix("option."))
        if known is not None:
            raise OptionError(known, NO_TABLE_OPTIONS)


class OptionReader:
    """The options that a user wrote, by their canonical names."""

    def __init__(self, raw_options: Mapping[str, str], uses: frozenset[Use]) -> None:
        self._uses = uses
        right_names = {name.lower(): name for name in OPTIONS}
        self._texts: dict[str, str] = {}
        self._written: dict[str, str] = {}
        for name, text in raw_options.items():
            known = right_names.get(name.lower())
            if known is None:
                if name.lower() in _SPARK_OPTIONS:
                    continue
                raise OptionError(name, _unknown_option(name))
            if not uses & OPTIONS[known].uses:
                raise OptionError(
                    known,
                    f"it does not apply to the {'sink' if Use.SINK in uses else 'source'}. Remove "
                    "it",
                )
            right = OPTIONS[known].alias_of
            if right is None or not uses & OPTIONS[right].uses:
                right = known
            if right in self._texts:
                raise OptionError(
                    known, f"it is also given as {self._written[right]}. Keep one of the two"
                )
            self._texts[right] = text
            self._written[right] = known
        self.names: Final = frozenset(self._texts)
        """The canonical names of the options that were given."""

    def add_defaults(self, texts: Mapping[str, str], origin: str) -> None:
        """Add texts of options that were not given, if they have a meaning for the use.

        Errors call such an option by its ``origin``.
        """
        for name, text in texts.items():
            if name not in self._texts and self._uses & OPTIONS[name].uses:
                self._texts[name], self._written[name] = text, origin

    @property
    def table_hint(self) -> str:
        """The advice to add to an error if no option was given, as in a query of a table."""
        return "" if self._texts else f". No option is given at all; {NO_TABLE_OPTIONS}"

    def written_name(self, name: str) -> str:
        """Return an option's name as the user wrote it."""
        return self._written.get(name, name)

    def text(self, name: str) -> str | None:
        """Return the text given for an option, or None if it was not given."""
        found = self._texts.get(name)
        if found is not None and not found.strip():
            raise OptionError(self.written_name(name), "it is empty. Give it a value, or remove it")
        return found

    def get(self, name: str, parse: Parser, default: Any = None) -> Any:
        """Return an option parsed by ``parse(name, text)``, or ``default`` if it was not given."""
        text = self.text(name)
        return default if text is None else parse(self.written_name(name), text)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option, parsed as its row of the table says."""
        return self.get(name, *OPTIONS[name].kind)

    def fields(self, kind: type[Any]) -> dict[str, Any]:
        """Return the values of the fields of a dataclass that `of_option` has declared."""
        named = ((each.name, each.metadata.get("option")) for each in fields(kind))
        return {name: self[option] for name, option in named if option is not None}

    def exclusive(self, *names: str) -> str | None:
        """Return which of these mutually exclusive options was given, or None."""
        given = [name for name in names if name in self._texts]
        if len(given) > 1:
            first, *others = map(self.written_name, given)
            raise OptionError(
                first, f"it cannot be given together with {', '.join(others)}. Keep one of them"
            )
        return given[0] if given else None


def check_names(raw_options: Mapping[str, str]) -> None:
    """Refuse names that are not options of source or sink."""
    OptionReader(raw_options, frozenset(Use))


def _unknown_option(name: str) -> str:
    word = name.lower()
    if word == "path":
        return "there is no such option: load(), save() and start() take no path. Set option topic"
    if word.startswith("kafka.") or word in _KAFKA_OPTIONS:
        known = _KAFKA_OPTIONS.get(word.removeprefix("kafka."))
        hint = f"It is Kafka's. Use {known}" if known else "It is Kafka's. Remove it"
        return f"there is no such option. {hint}"
    near = nearest_name(word, OPTIONS)
    hint = f"Did you mean {near}?" if near else f"The options are {', '.join(sorted(OPTIONS))}"
    return f"there is no such option. {hint}"
