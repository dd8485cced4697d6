"""Options: the options of source and sink, parsed and checked once, on the driver.

`OPTIONS` lists every option, its uses, and its meaning; docs/options.md has the long version, and a
test compares the two. Names are those of Spark's Kafka source if the meaning is the same. An error
names the option and the remedy; secrets are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from rmq_spark.client.arguments import check_group, check_send_topic, check_topic
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.manifest import commits_topic_name, manifest_bytes_needed
from rmq_spark.client.subscriptions import by_sql, by_tag, subscription_data
from rmq_spark.spark.errors import OptionError, no_effect_without
from rmq_spark.spark.options import values
from rmq_spark.spark.options.access import BrokerAccess, access_of, add_connection_defaults
from rmq_spark.spark.options.bodies import BINARY_BODIES, BodyOptions, read_body, write_body
from rmq_spark.spark.options.start_positions import (
    EARLIEST,
    CountPosition,
    OffsetPosition,
    Positions,
    TimePosition,
    check_is_time,
    parse_positions,
    parse_times,
)
from rmq_spark.spark.options.table import OPTIONS, OptionReader, Use, of_option
from rmq_spark.spark.options.values import OnBadRecord, RowIds
from rmq_spark.wire.bodies.clients import SQL92_EXPRESSION, TAG_EXPRESSION
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.names import (
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOPIC_CHARACTERS_MAX,
    without_namespace,
    wrap_namespace,
)

# ---- Checks of the exactly-once options of source and sink for contradictions.

_SINK_NAME: Final = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9_.-]*")
_SINK_NAME_CHARS_MAX: Final = 190
"""Brokers accept 200; the sink of batch writes has a longer name than that of streams."""

_ONE_TOPIC: Final = (
    "it reads the batches of one topic. Set option topic to it, and combine several topics with "
    "union()"
)
_NOT_WITH_COMMITTED: Final[Mapping[str, str]] = {
    "subscribePattern": _ONE_TOPIC,
    "assign": "a batch has rows in all queues of its topic. Set option topic instead",
    "sql": "a filter of the broker would hide lost rows. Filter the DataFrame with .where()",
    "key": (
        "the broker's index does not know batches. Read the topic, and filter the DataFrame with "
        ".where()"
    ),
    "startingOffsetsByTimestamp": "batches are in one queue. Use startingTimestamp",
    "endingOffsetsByTimestamp": "batches are in one queue. Use endingTimestamp",
}
_NOT_WITH_KEY: Final = (
    "tags",
    "sql",
    "assign",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
)


def check_committed(
    options: OptionReader, topics: tuple[str, ...], *positions: Positions | None
) -> None:
    """Refuse options that contradict ``isolation=committed``."""
    for name, why in _NOT_WITH_COMMITTED.items():
        if name in options.names:
            raise OptionError(name, f"it cannot be given together with isolation=committed: {why}")
    if len(topics) != 1:
        raise OptionError("isolation", _ONE_TOPIC)
    if options["onBrokerAway"] == "skip":
        raise OptionError(
            "onBrokerAway",
            "isolation=committed reads complete batches, and cannot skip a broker. Remove this "
            "option",
        )
    commits = _commits_topic_of(topics[0])
    for each in positions:
        if each is None:
            continue
        if isinstance(each.common, CountPosition) or (each.topics or {commits}) != {commits}:
            raise OptionError(
                each.option,
                "with isolation=committed it is a position among batches: needed earliest, "
                f"latest, a time such as -10m, or offsets of topic {commits}",
            )


def sink_name_of(
    options: OptionReader, topic: str | None, namespace: str | None, *, is_exactly_once: bool
) -> str | None:
    """Return the name by which a broker knows a sink, or None unless batches are staged."""
    is_staged = options["visibleTo"] == "all"
    name = options.text("sinkName")
    if is_staged and not is_exactly_once:
        raise OptionError("visibleTo", "visibleTo=all needs delivery=exactly_once. Set both")
    if not is_staged:
        if name is not None:
            raise no_effect_without("sinkName", "visibleTo=all")
        return None
    if options.text("writeName") is not None:
        raise OptionError(
            "writeName",
            "with visibleTo=all, sinkName and the number of the batch identify a write. Remove "
            "this option",
        )
    if name is None and topic is None:
        raise OptionError(
            "sinkName",
            "it is required if rows name their topics. Give a name that no other query has and "
            "that never changes, for example orders-by-country",
        )
    if name is None:
        return topic
    full_name = wrap_namespace(namespace, name.strip())
    if not _SINK_NAME.fullmatch(name.strip()) or len(full_name) > _SINK_NAME_CHARS_MAX:
        raise OptionError(
            "sinkName",
            "needed letters, digits and _ - . only, with the namespace at most "
            f"{_SINK_NAME_CHARS_MAX} of them, found {name!r}",
        )
    return full_name


def check_exactly_once(
    topic: str | None, write_name: str | None, message_bytes: int, *, is_staged: bool = False
) -> None:
    """Refuse options that contradict ``delivery=exactly_once``."""
    if topic is None and not is_staged:
        raise OptionError(
            "delivery",
            "exactly_once needs one topic for all rows, because one manifest in its commits topic "
            "commits a batch. Set option topic, and write each topic with its own query, or its "
            "own write in foreachBatch; or set visibleTo=all (rocketpoll brokers)",
        )
    if topic is not None:
        _commits_topic_of(topic)
    needed = manifest_bytes_needed(topic or "t" * TOPIC_CHARACTERS_MAX, write_name or "")
    if message_bytes < needed:
        raise OptionError(
            "maxMessageBytes",
            f"exactly_once stores a manifest of up to {needed} bytes with each batch, found "
            f"{message_bytes}. Raise it to the brokers' maxMessageSize, or remove it",
        )


def _commits_topic_of(topic: str) -> str:
    commits = commits_topic_name(topic)
    try:
        return check_topic(commits)
    except MessageRejected as error:
        raise OptionError(
            "topic", f"its commits topic would be {commits}, which is not a valid topic: {error}"
        ) from None


DEFAULT_GROUP: Final = "rocketpoll-spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The queues to read: all of the named topics, all of topics that match, or assigned ones.

    ``assigned`` gives queue ids by topic and broker; the broker may be ``*``. ``option`` is the
    option that selected them. Topics have their full names; the pattern is matched against the
    names that clients of the namespace use.
    """

    option: str = "topic"
    namespace: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits of one batch: rows, bytes, and how long to wait for a minimum of rows."""

    rows_max: int | None = of_option("maxOffsetsPerTrigger")
    bytes_max: int | None = of_option("maxBytesPerTrigger")
    rows_min: int | None = of_option("minOffsetsPerTrigger")
    wait_ms_max: int = of_option("maxTriggerDelay")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of a source."""

    access: BrokerAccess
    selection: Selection
    waits_for_topic: bool = False
    """True if a stream starts although topics do not exist yet."""
    consumer_group: str | None = None
    expression: str = "*"
    is_sql: bool = False
    key: str | None = of_option("key")
    columns: tuple[str, ...] = of_option("columns")
    body: BodyOptions = BINARY_BODIES
    starting: Positions | None = None
    ending: Positions | None = None
    starts_at_end_without_match: bool = False
    fail_on_data_loss: bool = of_option("failOnDataLoss")
    is_committed: bool = False
    """True if only rows named by manifests are read, see `committed_planner`."""
    skips_unavailable: bool = False
    """True if a stream continues without brokers that do not answer."""
    broker_names: Mapping[str, str] = field(default_factory=dict)
    """The present names of brokers, by their former names."""
    on_bad_record: OnBadRecord = of_option("onBadRecord")
    dead_letter_topic: str | None = None
    """The full name of the topic to which unreadable messages are sent."""
    checks_crc: bool = of_option("checkCrc")
    max_body_bytes: int = of_option("maxBodyBytes")
    reads_files: bool = True
    """True if tasks that run on a broker's machine may read the files of its log."""
    warns_without_files: bool = False
    """True if the user has asked for reading files, and gets a warning where that is impossible."""
    limits: BatchLimits = BatchLimits()
    partitions_min: int | None = of_option("minPartitions")
    partitions_max: int | None = None
    partition_rows_max: int | None = of_option("maxRecordsPerPartition")
    suspend_ms: int = of_option("suspendTimeoutMs")
    discovery_ms: int = of_option("discoveryIntervalMs")
    available_now: bool = of_option("availableNow")
    given: frozenset[str] = frozenset()
    """The names of the options that were given."""

    @property
    def expression_type(self) -> str:
        """The kind of the filter, in RocketMQ's words."""
        return SQL92_EXPRESSION if self.is_sql else TAG_EXPRESSION

    @property
    def tags(self) -> frozenset[str]:
        """The tags of which a message must have one; empty if there is no such condition."""
        if self.is_sql:
            return frozenset()
        return subscription_data("any", by_tag(self.expression), 0).tags_set

    @property
    def group(self) -> str:
        """The consumer group in pull requests."""
        return self.consumer_group or wrap_namespace(self.selection.namespace, DEFAULT_GROUP)

    def check_use(self, use: Use) -> None:
        """Refuse options that have no meaning for a stream, or for a batch."""
        for name in sorted(self.given):
            if use not in OPTIONS[name].uses:
                other = "batch reads" if use is Use.STREAM else "streams"
                raise OptionError(name, f"it applies to {other} only. Remove it")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The parsed options of a sink."""

    access: BrokerAccess
    namespace: str | None = None
    topic: str | None = None
    producer_group: str = DEFAULT_GROUP
    max_message_bytes: int = of_option("maxMessageBytes")
    write_name: str | None = of_option("writeName")
    """The name from which the row ids of a batch write are made."""
    transaction: tuple[str, int] | None = None
    """The txnAppId and txnVersion that identify the rows of a batch write."""
    row_ids: RowIds = RowIds.POSITIONS
    is_exactly_once: bool = False
    """True if a manifest commits each batch, see `manifest_commit`."""
    sink_name: str | None = None
    """The name under which a broker publishes staged batches of this sink, see `staged_commit`;
    None if batches are committed by manifests only."""
    body: BodyOptions = BINARY_BODIES


def read_options(raw_options: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options of a source."""
    options = OptionReader(raw_options, frozenset([Use.STREAM, Use.BATCH]))
    add_connection_defaults(options)
    expression = options.exclusive("tags", "sql")
    limits = _limits(options)
    namespace = options["namespace"]
    starting = _positions(options, "starting", namespace)
    ending = _positions(options, "ending", namespace)
    group = options.get("consumerGroup", partial(_group, namespace=namespace))
    for each in (starting, ending):
        if each is not None and each.uses_group and group is None:
            raise OptionError(
                each.option, "group needs the name of a consumer group. Set option consumerGroup"
            )
    if ending is not None and ending.common == OffsetPosition(EARLIEST):
        raise OptionError(
            ending.option,
            "a read that ends at the earliest offset has no rows. Give latest, a time or offsets",
        )
    selection = _selection(options, namespace)
    if options.text("key") is not None:
        _check_key_read(options)
    is_committed = options["isolation"] == "committed"
    if is_committed:
        check_committed(options, selection.topics, starting, ending)
    else:
        _check_topics_read(selection, starting, ending)
    access, reads_files = access_of(options), options["localFiles"]
    return ReadOptions(
        access=access,
        selection=selection,
        waits_for_topic=_waits_for_topic(options, selection),
        dead_letter_topic=_dead_letter_topic(options, selection, is_committed=is_committed),
        consumer_group=group,
        expression=_expression(options, expression),
        is_sql=expression == "sql",
        body=read_body(options, _only_topic(selection.topics, namespace)),
        starting=starting,
        ending=ending,
        starts_at_end_without_match=options["startingOffsetsByTimestampStrategy"] == "latest",
        is_committed=is_committed,
        skips_unavailable=options["onBrokerAway"] == "skip",
        broker_names=options["brokerNames"] or {},
        reads_files=not access.is_secured if reads_files is None else reads_files,
        warns_without_files=bool(reads_files),
        limits=limits,
        partitions_max=_partitions_max(options),
        **options.fields(ReadOptions),
        given=options.names,
    )


def write_options(raw_options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a sink."""
    options = OptionReader(raw_options, frozenset([Use.SINK]))
    add_connection_defaults(options)
    namespace = options["namespace"]
    topic = options.get(
        "topic", lambda name, text: _topic(name, text.strip(), namespace, check_send_topic)
    )
    is_exactly_once = options["delivery"] == "exactly_once"
    sink_name = sink_name_of(options, topic, namespace, is_exactly_once=is_exactly_once)
    if is_exactly_once:
        name, is_staged = sink_name or options["writeName"], sink_name is not None
        check_exactly_once(topic, name, options["maxMessageBytes"], is_staged=is_staged)
    return WriteOptions(
        access=access_of(options),
        namespace=namespace,
        topic=topic,
        producer_group=options.get(
            "producerGroup",
            partial(_group, namespace=namespace),
            wrap_namespace(namespace, DEFAULT_GROUP),
        ),
        transaction=_transaction(
            options, is_exactly_once=is_exactly_once, is_staged=sink_name is not None
        ),
        row_ids=options["rowIds"] or (RowIds.POSITIONS if sink_name is None else RowIds.NONE),
        is_exactly_once=is_exactly_once,
        sink_name=sink_name,
        body=write_body(options, _only_topic([topic] if topic else [], namespace)),
        **options.fields(WriteOptions),
    )


# ---- parts


def _check_key_read(options: OptionReader) -> None:
    for name in _NOT_WITH_KEY:
        if name in options.names:
            raise OptionError(name, "it cannot be given together with key. Filter the rows instead")


def _selection(options: OptionReader, namespace: str | None) -> Selection:
    chosen = options.exclusive("subscribe", "subscribePattern", "assign")
    if chosen is None:
        needed = (
            "it is required. Give a topic, or several separated by commas; or set "
            "subscribePattern or assign"
        )
        raise OptionError("topic", needed + options.table_hint)
    text = options.text(chosen) or ""
    option = options.written_name(chosen)
    if chosen == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(
                option,
                f"not a regular expression ({error}): {text!r}. Write one in Python's syntax, for "
                "example orders.*",
            ) from None
        return Selection(option=option, namespace=namespace, pattern=text)
    if chosen == "subscribe":
        topics = [_topic(option, name, namespace) for name in values.names(option, text)]
        return Selection(option=option, namespace=namespace, topics=tuple(dict.fromkeys(topics)))
    assigned = _assigned(values.json_object(option, text), namespace)
    return Selection(option=option, namespace=namespace, topics=tuple(assigned), assigned=assigned)


def _dead_letter_topic(
    options: OptionReader, selection: Selection, *, is_committed: bool
) -> str | None:
    name = "deadLetterTopic"
    text, is_wanted = options.text(name), options["onBadRecord"] is OnBadRecord.DEAD_LETTER
    if text is None and is_wanted:
        raise OptionError(name, "it is required with onBadRecord=dead_letter. Give a topic")
    if text is None:
        return None
    if not is_wanted:
        raise no_effect_without(name, "onBadRecord=dead_letter")
    topic = _topic(name, text.strip(), selection.namespace, check_send_topic)
    if is_broker_topic(without_namespace(selection.namespace, topic)):
        raise OptionError(
            name, f"{topic} belongs to the brokers or to a group. Give a topic of your own"
        )
    commits = [commits_topic_name(each) for each in selection.topics] if is_committed else []
    if selects(selection, topic) or topic in commits:
        raise OptionError(
            name,
            f"the query reads {topic} itself, and would read its own dead letters again and "
            f"again. Give another topic, or leave this one out of option {selection.option}",
        )
    return topic


def _only_topic(topics: Collection[str], namespace: str | None) -> str | None:
    """Return the name of the only topic without its namespace; None if there are several."""
    return without_namespace(namespace, *topics) if len(topics) == 1 else None


def _waits_for_topic(options: OptionReader, selection: Selection) -> bool:
    if not options["waitForTopic"]:
        return False
    if selection.pattern is not None:
        raise OptionError(
            "waitForTopic",
            f"it has no effect, because {selection.option} finds new topics anyway. Remove it",
        )
    if selection.assigned:
        raise OptionError(
            "waitForTopic",
            "the queues that assign names must exist. Set option topic instead of assign",
        )
    return True


def _check_topics_read(selection: Selection, *positions: Positions | None) -> None:
    """Refuse positions of topics that are not read, so that a typo is not ignored."""
    for each in positions:
        unread = sorted(each.topics - set(selection.topics)) if each is not None else []
        if each is not None and unread and selection.pattern is None:
            read = ", ".join(sorted(selection.topics))
            raise OptionError(
                each.option,
                f"it names {', '.join(unread)}, but the topics read are {read}. Correct the "
                f"name, or add it to option {selection.option}",
            )


def _assigned(
    tree: Mapping[str, Any], namespace: str | None
) -> Mapping[str, Mapping[str, frozenset[int]]]:
    """Parse queue ids as ``{"orders": [0, 1]}`` or ``{"orders": {"broker-a": [0, 1]}}``."""
    if not tree:
        raise OptionError(
            "assign", 'it names no topic. Write for example {"orders": {"broker-a": [0, 1]}}'
        )
    assigned = {}
    for topic, below in tree.items():
        brokers = below if isinstance(below, dict) else {"*": below}
        for broker, numbers in brokers.items():
            is_list = isinstance(numbers, list) and numbers
            if not is_list or any(
                isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers
            ):
                where = topic if broker == "*" else f"{topic} > {broker}"
                raise OptionError(
                    "assign",
                    f"{where}: needed a list of queues, for example [0, 1], found {numbers!r}",
                )
        assigned[_topic("assign", topic, namespace)] = {
            name: frozenset(numbers) for name, numbers in brokers.items()
        }
    return assigned


def _limits(options: OptionReader) -> BatchLimits:
    limits = BatchLimits(**options.fields(BatchLimits))
    rows, rows_min = limits.rows_max, limits.rows_min
    if rows is not None and rows_min is not None and rows_min > rows:
        raise OptionError(
            "minOffsetsPerTrigger",
            f"{rows_min} is above maxOffsetsPerTrigger={rows}. Lower it, or raise "
            "maxOffsetsPerTrigger",
        )
    if "maxTriggerDelay" in options.names and rows_min is None:
        raise no_effect_without("maxTriggerDelay", "minOffsetsPerTrigger")
    return limits


def _partitions_max(options: OptionReader) -> int | None:
    options.exclusive("maxPartitions", "maxRecordsPerPartition")
    most: int | None
    least: int | None
    most, least = options["maxPartitions"], options["minPartitions"]
    if most is not None and least is not None and least > most:
        raise OptionError(
            "maxPartitions",
            f"{most} is below minPartitions={least}. Raise it, or lower minPartitions",
        )
    return most


def _positions(options: OptionReader, side: str, namespace: str | None) -> Positions | None:
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    chosen = options.exclusive(*names)
    if chosen is None:
        return None
    text = options.text(chosen) or ""
    if chosen == names[1]:
        check_is_time(chosen, text, names[0])
        return Positions(chosen, common=TimePosition(values.timestamp(chosen, text)))
    found = parse_positions(chosen, text) if chosen == names[0] else parse_times(chosen, text)
    return found.with_namespace(namespace)


def _expression(options: OptionReader, name: str | None) -> str:
    """Return tags or a condition as the broker expects it: stripped, and * for all."""
    if name is None:
        return "*"
    text = options.text(name) or ""
    select = by_sql if name == "sql" else by_tag
    try:
        return subscription_data("any", select(text), 0).sub_string
    except MessageRejected as error:
        raise OptionError(name, str(error)) from None


def _transaction(
    options: OptionReader, *, is_exactly_once: bool, is_staged: bool
) -> tuple[str, int] | None:
    app_id = options["txnAppId"]
    version = options["txnVersion"]
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        given, missing = (
            ("txnVersion", "txnAppId") if app_id is None else ("txnAppId", "txnVersion")
        )
        raise OptionError(missing, f"it is required together with {given}")
    if options.text("writeName") is not None:
        raise OptionError(
            "txnAppId",
            "it cannot be given together with writeName. Keep one of them; a second write of the "
            "same batch needs another name",
        )
    if is_exactly_once and not is_staged:
        raise OptionError(
            "txnAppId",
            "delivery=exactly_once does not use it. Set option writeName to a name that contains "
            "the number of the batch; or set visibleTo=all (rocketpoll brokers)",
        )
    return app_id, version


def _topic(
    option: str, name: str, namespace: str | None, check: Callable[[str], str] = check_topic
) -> str:
    try:
        return check(wrap_namespace(namespace, name))
    except MessageRejected as error:
        raise OptionError(option, str(error)) from None


def _group(option: str, name: str, namespace: str | None) -> str:
    try:
        return check_group(wrap_namespace(namespace, name.strip()))
    except MessageRejected as error:
        raise OptionError(option, str(error)) from None


def commits_options(options: ReadOptions) -> ReadOptions:
    """Return the options by which the commits topic of a source's topic is read."""
    (topic,) = options.selection.topics
    selection = replace(options.selection, option="isolation", topics=(commits_topic_name(topic),))
    return replace(
        options,
        selection=selection,
        expression="*",
        on_bad_record=OnBadRecord.FAIL,
        dead_letter_topic=None,
        checks_crc=True,
        columns=(),
        body=BINARY_BODIES,
        partitions_min=None,
        partitions_max=None,
        partition_rows_max=None,
    )


def dead_letter_options(options: ReadOptions) -> WriteOptions | None:
    """Return the options by which dead letters of a source are sent; None if it sends none.

    Only brokers limit the size of dead letters, because they have accepted these messages before.
    """
    if options.dead_letter_topic is None:
        return None
    namespace = options.selection.namespace
    return WriteOptions(
        access=options.access,
        namespace=namespace,
        topic=options.dead_letter_topic,
        producer_group=wrap_namespace(namespace, DEFAULT_GROUP),
        max_message_bytes=PLAIN_BYTES_MAX,
    )


# ---- Topic selection: which topics a query reads, by name.

_BROKER_TOPIC_PREFIXES: Final = (
    *SYSTEM_TOPICS,
    SYSTEM_TOPIC_PREFIX,
    *("%", "RMQ_SYS_", "DefaultCluster", "DefaultHeartBeatSyncerTopic"),
)
"""Beginnings of topic names that no pattern matches."""


def selects(selection: Selection, topic: str) -> bool:
    """Return whether a selection names a topic, or its pattern matches it."""
    if selection.pattern is None:
        return topic in selection.topics
    name = without_namespace(selection.namespace, topic)
    if selection.namespace is not None and name == topic:
        return False  # not in this namespace
    return re.fullmatch(selection.pattern, name) is not None and not is_broker_topic(name)


def is_broker_topic(topic: str) -> bool:
    """Return whether brokers have created a topic for themselves or for groups."""
    return topic.startswith(_BROKER_TOPIC_PREFIXES)
