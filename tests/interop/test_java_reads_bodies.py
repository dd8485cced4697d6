"""RocketMQ's own classes read our JSON bodies: every member of every class.

All bodies of a test go to one JVM, and the values that Java read are compared with the originals.
The tables list where a version of Java knows fewer or more members than we do.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import zlib
from collections.abc import Mapping
from random import Random
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from rmq_spark.wire.bodies import clients, configs, encode_body, operators
from rmq_spark.wire.codes import LanguageCode

pytestmark = pytest.mark.interop

NON_ASCII = "\u00fc \u5024 \U0001f680"

BODY_CLASSES = {
    name: member
    for module in (clients, configs, operators)
    for name, member in vars(module).items()
    if dataclasses.is_dataclass(member) and member.__module__ == module.__name__
} | {"UnlockBatchRequestBody": clients.LockBatchRequestBody}

# Classes that a version lacks, or that the program does not find in its packages:
# DelayOffsetSerializeWrapper, those of timers, and those within AclInfo. RecentLoss is our own.
UNKNOWN_CLASSES = {
    "4.9.7": {
        "AclInfo",
        "CreateTopicListRequestBody",
        "DelayOffsetSerializeWrapper",
        "MessageQueueAssignment",
        "QueryAssignmentRequestBody",
        "QueryAssignmentResponseBody",
        "PolicyEntryInfo",
        "PolicyInfo",
        "QuerySubscriptionResponseBody",
        "RecentLoss",
        "SubscriptionGroupList",
        "TimerMetric",
        "TimerMetricsSerializeWrapper",
        "UserInfo",
    },
    "5.5.0": {
        "DelayOffsetSerializeWrapper",
        "PolicyEntryInfo",
        "PolicyInfo",
        "RecentLoss",
        "TimerMetric",
        "TimerMetricsSerializeWrapper",
    },
}
# Members of ours that a class of a version lacks.
UNKNOWN_MEMBERS = {
    "4.9.7": {
        "BrokerData": {"enableActingMaster", "zoneName"},
        "CheckClientRequestBody": {"namespace"},
        "ConsumeStatsList": {"totalInflightDiff"},
        "ConsumerOffsetSerializeWrapper": {"dataVersion"},
        "DataVersion": {"stateVersion"},
        "HeartbeatData": {"heartbeatFingerprint", "withoutSub"},
        "LockBatchRequestBody": {"onlyThisBroker"},
        "OffsetWrapper": {"pullOffset"},
        "SubscriptionGroupConfig": {
            "attributes",
            "consumeMessageOrderly",
            "consumeTimeoutMinute",
            "groupRetryPolicy",
            "groupSysFlag",
            "subscriptionDataSet",
        },
        "SubscriptionGroupWrapper": {"forbiddenTable"},
        "TopicConfig": {"attributes"},
        "TopicStatsTable": {"topicPutTps"},
    },
    "5.5.0": {},
}
# Members of Java's that our bodies do not have: of pop consumption and of static topics.
NOT_OURS = {
    "mappingDataVersion",
    "mqPopTable",
    "topicQueueMappingDetailMap",
    "topicQueueMappingInfoMap",
    "userConsumerInfo",
}
# Members that are an int in Java, but a long in ours.
INTS = {
    "cached_msg_count",
    "cached_msg_size_in_mi_b",
    "code_set",
    "consume_timeout_minute",
    "forbidden_table",
    "group_sys_flag",
    "heartbeat_fingerprint",
    "perm",
    "physic_size",
    "queue_id",
    "read_queue_nums",
    "retry_max_times",
    "retry_queue_nums",
    "topic_sys_flag",
    "transaction_msg_count",
    "version",
    "write_queue_nums",
}
FLOATS = (0.1, -2.5, 12.0, 1.25e-5, 1.5e10, 12_345_678.9)
# Texts that name a constant, and values that RocketMQ reads unchanged.
GIVEN = {
    "language": LanguageCode.PYTHON.name,
    "group_retry_policy": {"type": "CUSTOMIZED"},
    "subscription_data_set": [
        {"topic": "T", "expression": "a", "expressionType": "TAG", "version": 7}
    ],
}

# Members that can hold a constant of each enum.
HOLDERS = {
    clients.ConsumeType: ("ConsumerConnection", "consumeType"),
    clients.MessageModel: ("ConsumerConnection", "messageModel"),
    clients.ConsumeFromWhere: ("ConsumerConnection", "consumeFromWhere"),
    operators.ConsumeResult: ("ConsumeMessageDirectlyResult", "consumeResult"),
    configs.TopicFilterType: ("TopicConfig", "topicFilterType"),
    LanguageCode: ("Connection", "language"),
}
# Java reads them as null.
UNKNOWN_CONSTANTS = {
    "4.9.7": {
        clients.ConsumeType.CONSUME_POP,
        clients.MessageModel.LITE_SELECTIVE,
        LanguageCode.NODE_JS,
    },
    "5.5.0": set(),
}


def test_java_reads_every_member_of_every_body(java):
    bodies = {
        f"{java_class} with {elements}": (java_class, Filler(elements).value(body_class))
        for java_class, body_class in BODY_CLASSES.items()
        for elements in (0, 1, 2)
        if java_class not in UNKNOWN_CLASSES[java.version]
    }
    read = java.read(
        "body",
        {name: encode_body(body) for name, (_, body) in bodies.items()},
        {name: java_class for name, (java_class, _) in bodies.items()},
    )
    assert without_what_is_not_ours(read) == {
        name: as_dumped(body, type(body), java.version) for name, (_, body) in bodies.items()
    }


def test_unknown_body_classes_are_absent_in_rocketmqs_jars(java):
    lacking = UNKNOWN_CLASSES[java.version]
    read = java.read("body", dict.fromkeys(lacking, b"{}"), {name: name for name in lacking})
    assert read == {
        name: f"refused: java.lang.IllegalArgumentException: no class {name}" for name in lacking
    }


def test_java_reads_every_constant(java):
    constants = {
        constant.name: (java_class, member)
        for enum_class, (java_class, member) in HOLDERS.items()
        for constant in enum_class
        if constant not in UNKNOWN_CONSTANTS[java.version]
    }
    read = java.read(
        "body",
        {name: json.dumps({member: name}).encode() for name, (_, member) in constants.items()},
        {name: java_class for name, (java_class, _) in constants.items()},
    )
    assert {name: read[name].get(member) for name, (_, member) in constants.items()} == {
        name: name for name in constants
    }


def test_java_reads_every_character_and_every_digit(java):
    texts = ("".join(map(chr, range(0x800))), "\u2028\u2029\ufeff\ufffe\uffff\U00010000\U0010ffff")
    # As a key, fastjson2 refuses a text that needs both an escape and four bytes of UTF-8.
    tables = {f"text {number}": {text: text} for number, text in enumerate(texts)}
    random = Random(5)
    numbers = (
        -0.0,
        5e-324,
        1e-7,
        0.1 + 0.2,
        1 / 3,
        1e16,
        2.0**53 + 2,
        1e22,
        1.7976931348623157e308,
    )
    numbers += tuple(random.uniform(-1e9, 1e9) for _ in range(100))
    floats = {f"float {number!r}": number for number in numbers}
    read = java.read(
        "body",
        {name: encode_body(operators.KVTable(table=table)) for name, table in tables.items()}
        | {
            name: encode_body(operators.BrokerStatsItem(tps=number))
            for name, number in floats.items()
        },
        dict.fromkeys(tables, "KVTable") | dict.fromkeys(floats, "BrokerStatsItem"),
    )
    assert read == {name: {"table": table} for name, table in tables.items()} | {
        name: {"sum": 0, "tps": number, "avgpt": 0.0} for name, number in floats.items()
    }


@dataclasses.dataclass(frozen=True)
class Filler:
    """Fills body classes; collections and maps get a given number of elements.

    Values depend on the field's name and on the places of the elements around it. Of two elements
    the second comes later in every order, so that Java's dump, which sorts sets, has the same
    order.
    """

    elements: int

    def value(self, hint: Any, name: str = "", place: int = 0) -> Any:
        if name in GIVEN and hint in (str, Any):
            return GIVEN[name]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is UnionType:
            return self.value(arguments[0], name, place)
        places = [10 * place + element + 1 for element in range(self.elements)]
        if origin in (tuple, frozenset):
            return origin(self.value(arguments[0], name, each) for each in places)
        if origin is not None:
            key, item = arguments
            return {self._key(key, name, each): self.value(item, name, each) for each in places}
        if dataclasses.is_dataclass(hint):
            hints = get_type_hints(hint)
            return hint(
                **{each.name: self.member(each, hints, place) for each in dataclasses.fields(hint)}
            )
        return scalar(hint, name, place)

    def member(self, field: dataclasses.Field[Any], hints: dict[str, Any], place: int) -> Any:
        """Return a value that is not the default."""
        hint = hints[field.name]
        if bool in (hint, *get_args(hint)):
            return field.default is not True
        if isinstance(field.default, enum.Enum):
            return next(
                constant for constant in type(field.default) if constant is not field.default
            )
        return self.value(hint, field.name, place)

    def _key(self, hint: Any, name: str, place: int) -> Any:
        return place if hint is int else self.value(hint, f"{name}_key", place)


def scalar(hint: Any, name: str, place: int) -> Any:
    if hint is int:
        size = 10_000 * number_of(name) + place if name in INTS else (number_of(name) << 40) + place
        return -size if number_of(name) % 3 == 0 else size
    if hint is float:
        return FLOATS[number_of(name) % len(FLOATS)]
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    return f"{name}-{place} {NON_ASCII}"


def as_dumped(value: Any, hint: Any, version: str) -> Any:
    """Return a body in the form of the vectors, as far as a version of Java has its members."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (hint,) = (argument for argument in arguments if argument is not NoneType)
        return as_dumped(value, hint, version)
    if origin is tuple:
        return [as_dumped(item, arguments[0], version) for item in value]
    if origin is frozenset:
        return sorted((as_dumped(item, arguments[0], version) for item in value), key=json.dumps)
    if origin is not None:
        return map_as_dumped(value, *arguments, version)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        unknown = UNKNOWN_MEMBERS[version].get(hint.__name__, set())
        return {
            json_name(each): as_dumped(getattr(value, each.name), hints[each.name], version)
            for each in dataclasses.fields(hint)
            if json_name(each) not in unknown and getattr(value, each.name) is not None
        }
    return value.name if isinstance(value, enum.Enum) else value


def map_as_dumped(value: Mapping[Any, Any], key_hint: Any, item_hint: Any, version: str) -> Any:
    items = {key: as_dumped(item, item_hint, version) for key, item in value.items()}
    if not dataclasses.is_dataclass(key_hint):
        return {str(key): item for key, item in items.items()}
    return [
        {"key": as_dumped(key, key_hint, version), "value": item} for key, item in items.items()
    ]


def json_name(field: dataclasses.Field[Any]) -> str:
    first, *rest = field.name.split("_")
    return field.metadata.get("json name") or first + "".join(word.capitalize() for word in rest)


def without_what_is_not_ours(dump: Any) -> Any:
    if isinstance(dump, list):
        return [without_what_is_not_ours(item) for item in dump]
    if isinstance(dump, dict):
        return {
            name: without_what_is_not_ours(item)
            for name, item in dump.items()
            if name not in NOT_OURS
        }
    return dump


def number_of(name: str) -> int:
    """Return a number of five digits that depends on a name."""
    return zlib.crc32(name.encode()) % 90_000 + 10_000
