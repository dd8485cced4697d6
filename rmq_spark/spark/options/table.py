"""The option table: every option by name, and `OptionReader`, which parses a user's options.

A row has an option's uses, its one-line meaning, how its text becomes a value, and the value if it
is not given. Unknown options, and options that have no meaning for a use, are refused with the
closest valid name.
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
    """An option's entry; ``alias_of`` names the option that it is another name of."""

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
    # who is asked
    "namesrvAddr": Option(
        _ALL, "the name servers' addresses, as host:port;host:port; or in NAMESRV_ADDR"
    ),
    "nameServer": Option(_ALL, "the same", alias_of="namesrvAddr"),
    "profile": Option(
        _ALL,
        "a section of the driver's file of profiles, for what is not given: addresses, keys, TLS",
    ),
    "brokerAddresses": Option(
        _ALL, "where brokers are reached, if not where name servers say: JSON"
    ),
    "namespace": Option(
        _ALL,
        "what stands before the names of topics and groups, as namespace%topic",
        Kind(namespace),
    ),
    "accessKey": Option(_ALL, "who the client is, to brokers with access lists"),
    "secretKey": Option(_ALL, "what it signs with; never shown"),
    "securityToken": Option(_ALL, "a temporary key's token; never shown"),
    "tls": Option(_ALL, "whether name servers and brokers are spoken to under TLS", _OFF),
    "tlsCaFile": Option(_ALL, "whose certificates are trusted: a PEM file on the driver"),
    "tlsCertFile": Option(_ALL, "who the client is: its certificate, a PEM file on the driver"),
    "tlsKeyFile": Option(_ALL, "the certificate's key, if it is in a file of its own"),
    "tlsKeyPassword": Option(_ALL, "what opens the key; never shown"),
    "tlsVerify": Option(_ALL, "whether certificates are checked; false is for tests", _ON),
    "tlsServerName": Option(_ALL, "the name that certificates bear, where it is not the address"),
    "requestTimeoutMs": Option(_ALL, "how long an answer may take", Kind(timeout_ms, 3_000)),
    "retryTimeoutMs": Option(
        _ALL, "how long brokers that cannot be reached are waited for", Kind(whole_number, 60_000)
    ),
    # which messages
    "subscribe": Option(_READ, "a topic, or several with commas"),
    "topic": Option(
        _ALL,
        "the same; of a sink: where rows go that name no topic themselves",
        alias_of="subscribe",
    ),
    "subscribePattern": Option(_READ, "topics whose whole name matches a regular expression"),
    "assign": Option(_READ, "queues by number: JSON of topics, brokers and lists"),
    "waitForTopic": Option(_STREAM, "whether topics that are not there yet are waited for", _OFF),
    "tags": Option(_READ, "only messages with these tags: a || b"),
    "sql": Option(_READ, "only messages whose properties meet an SQL92 condition"),
    "key": Option(_BATCH, "only messages with this key, found by the broker's index"),
    "columns": Option(_READ, "the columns of the rows, with commas", Kind(names, ())),
    # what bodies are
    "bodyFormat": Option(
        _ALL,
        "what bodies are: binary, text, json, or avro",
        Kind(member_of(BodyFormat), BodyFormat.BINARY),
    ),
    "bodySchema": Option(_READ, "what bodies of json and avro hold: DDL, or JSON of a schema"),
    "bodyColumn": Option(_ALL, "the one column that holds the whole body, as a struct or a text"),
    # from where to where
    "startingOffsets": Option(_READ, "where a new query starts"),
    "startingTimestamp": Option(_READ, "the same, by the time of storing"),
    "startingOffsetsByTimestamp": Option(_READ, "the same, for each queue"),
    "startingOffsetsByTimestampStrategy": Option(
        _READ,
        "where no message is so new: error, or latest",
        Kind(one_of("error", "latest"), "error"),
    ),
    "endingOffsets": Option(_READ, "where a batch read ends, or a stream with AvailableNow"),
    "endingTimestamp": Option(_READ, "the same, by the time of storing"),
    "endingOffsetsByTimestamp": Option(_READ, "the same, for each queue"),
    "failOnDataLoss": Option(
        _READ, "whether messages that are gone end the query, or a warning is logged", _ON
    ),
    "onBadRecord": Option(
        _READ,
        "what becomes of messages that cannot be read: fail, null, or skip",
        Kind(member_of(OnBadRecord), OnBadRecord.FAIL),
    ),
    "checkCrc": Option(_READ, "whether bodies are checked against their CRC", _ON),
    "maxBodyBytes": Option(
        _READ,
        "how many bytes a compressed body may inflate to",
        Kind(partial(size_in_bytes, most=PLAIN_BYTES_LIMIT_MAX), PLAIN_BYTES_MAX),
    ),
    "localFiles": Option(
        _READ, "whether tasks read a broker's files themselves, where they can", Kind(boolean)
    ),
    "onBrokerAway": Option(
        _STREAM, "what becomes of brokers that are away: wait, or skip", _one_of("wait", "skip")
    ),
    "isolation": Option(
        _READ,
        "which rows are read: all that are stored, or committed: those of finished batches",
        _one_of("uncommitted", "committed"),
    ),
    "brokerNames": Option(
        _STREAM, "new names of brokers: JSON of old names to new ones", Kind(broker_names)
    ),
    # how much at once
    "maxOffsetsPerTrigger": Option(_STREAM, "how many messages a batch takes at most", _COUNT),
    "maxBytesPerTrigger": Option(_STREAM, "how many bytes it takes, about", Kind(size_in_bytes)),
    "minOffsetsPerTrigger": Option(_STREAM, "how many messages a batch waits for", _COUNT),
    "maxTriggerDelay": Option(
        _STREAM, "how long it waits for them", Kind(milliseconds, 15 * 60_000)
    ),
    "minPartitions": Option(_READ, "how many tasks read at least", _COUNT),
    "maxPartitions": Option(
        _READ, "how many tasks read at most, a task several queues if need be", _COUNT
    ),
    "maxRecordsPerPartition": Option(_READ, "how many messages one task reads at most", _COUNT),
    # how a stream runs
    "consumerGroup": Option(
        _READ, "the group in whose name is pulled; a stream commits its progress to it"
    ),
    "suspendTimeoutMs": Option(
        _STREAM,
        "how long brokers hold the pulls of an idle query",
        Kind(partial(whole_number, most=SUSPEND_MS_MAX), 1_000),
    ),
    "discoveryIntervalMs": Option(
        _STREAM, "how often new queues and topics are looked for", Kind(whole_number, 5_000)
    ),
    "availableNow": Option(
        _STREAM,
        "ends at what is available at the start: Trigger.AvailableNow on Spark 4.0, 4.1",
        _OFF,
    ),
    # how rows are written
    "producerGroup": Option(_SINK, "the group in whose name is sent"),
    "maxMessageBytes": Option(
        _SINK,
        "how large a body may be: the brokers' maxMessageSize",
        Kind(partial(size_in_bytes, most=PLAIN_BYTES_MAX), BODY_BYTES_MAX),
    ),
    "delivery": Option(
        _SINK,
        "at_least_once, or exactly_once: with a manifest of each batch for those who read",
        _one_of("at_least_once", "exactly_once"),
    ),
    "visibleTo": Option(
        _SINK,
        "who sees that a batch counts: committed_readers, or all: every client, once it is whole",
        _one_of("committed_readers", "all"),
    ),
    "sinkName": Option(
        _SINK, "what a writer is known by where batches are visible to all; by default the topic"
    ),
    "writeName": Option(
        _SINK,
        "what a batch write is known by: the same name gives rows the same ids",
        Kind(write_name),
    ),
    "txnAppId": Option(
        _SINK,
        "who writes, as for Delta: with txnVersion, what rows of a batch write are known by",
        Kind(write_name),
    ),
    "txnVersion": Option(
        _SINK, "which batch of txnAppId is written: the same gives the same ids", Kind(whole_number)
    ),
    "rowIds": Option(
        _SINK,
        "by what property ROCKETPOLL_ROW of each message is made, by which repeats are known",
        Kind(member_of(RowIds)),
    ),
}


def of_option(name: str) -> Any:
    """Return the field of a dataclass that has an option's value, see `OptionReader.fields`."""
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
    "Spark does not pass the OPTIONS of a table to a source in Python. Give them in each query, as "
    "SELECT * FROM t WITH ('namesrvAddr' = 'localhost:9876', 'topic' = 'orders'), or once in a "
    "view (docs/sql.md)"
)
_CATALOG_PROPERTY: Final = "provider"
"""A property of a catalog's table, which Spark adds to the options in ``CREATE TABLE``."""


def is_table_definition(raw_options: Mapping[str, str]) -> bool:
    """Return whether Spark asks for the columns of a ``CREATE TABLE`` that names none."""
    return _CATALOG_PROPERTY in raw_options


def check_table_definition(raw_options: Mapping[str, str]) -> None:
    """Refuse options in ``CREATE TABLE``, which no query would have; allow all other properties."""
    right_names = {name.lower(): name for name in OPTIONS}
    for name in raw_options:
        known = right_names.get(name.lower().removeprefix("option."))
        if known is not None:
            raise OptionError(known, NO_TABLE_OPTIONS)


class OptionReader:
    """The options that a user wrote, by their canonical names."""

    def __init__(self, raw_options: Mapping[str, str], uses: frozenset[Use]) -> None:
        """Take the options that were given for these uses."""
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
                    f"it has no meaning for the {'sink' if Use.SINK in uses else 'source'}: leave "
                    "it out",
                )
            right = OPTIONS[known].alias_of
            if right is None or not uses & OPTIONS[right].uses:
                right = known
            if right in self._texts:
                raise OptionError(known, f"it is given as {self._written[right]}, too: keep one")
            self._texts[right] = text
            self._written[right] = known
        self.names: Final = frozenset(self._texts)
        """The canonical names of the options that were given."""

    def add_defaults(self, texts: Mapping[str, str], origin: str) -> None:
        """Take further texts for options that were not given, and that have a meaning here.

        Errors call such an option by its ``origin``.
        """
        for name, text in texts.items():
            if name not in self._texts and self._uses & OPTIONS[name].uses:
                self._texts[name], self._written[name] = text, origin

    @property
    def table_hint(self) -> str:
        """The advice to add to an error if no option was given, as by a query of a table."""
        return "" if self._texts else f". No option is given at all; {NO_TABLE_OPTIONS}"

    def written_name(self, name: str) -> str:
        """Return an option's name as the user wrote it."""
        return self._written.get(name, name)

    def text(self, name: str) -> str | None:
        """Return the text given for an option, or None if it was not given."""
        found = self._texts.get(name)
        if found is not None and not found.strip():
            raise OptionError(
                self.written_name(name), "it is empty: leave it out, or give it a value"
            )
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
                first, f"it cannot be given together with {', '.join(others)}: keep one"
            )
        return given[0] if given else None


def check_names(raw_options: Mapping[str, str]) -> None:
    """Refuse names that are not options of source or sink."""
    OptionReader(raw_options, frozenset(Use))


def _unknown_option(name: str) -> str:
    word = name.lower()
    if word == "path":
        return (
            "there is no such option: load(), save() and start() take no path, name the topic in "
            "option topic"
        )
    if word.startswith("kafka.") or word in _KAFKA_OPTIONS:
        known = _KAFKA_OPTIONS.get(word.removeprefix("kafka."))
        hint = f"that is Kafka's; here it is {known}" if known else "that is Kafka's: leave it out"
        return f"there is no such option; {hint}"
    near = nearest_name(word, OPTIONS)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(OPTIONS))}"
    return f"there is no such option; {hint}"
