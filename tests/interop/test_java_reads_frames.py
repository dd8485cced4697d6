"""RocketMQ's own classes read our frames: every command, and every field of every header, in both
codecs.

All frames of a test go to one JVM, and the values that Java read are compared with the originals.
The tables list where a version of Java knows fewer fields than we do.
"""

from __future__ import annotations

import zlib
from random import Random
from types import NoneType
from typing import Any, NamedTuple, get_args

import pytest
from support.rocketmq import java_vectors

from rmq_spark.wire.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.headers import HeaderCodec, Int32, Int64
from rmq_spark.wire.headers.codec import fields_of
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

pytestmark = pytest.mark.interop


def javas_codecs(code: int) -> tuple[SerializeType, ...]:
    """Return Java's header codecs for a code; the binary one has 16 bits for it."""
    is_short = code <= 0x7FFF
    return (SerializeType.JSON, SerializeType.ROCKETMQ) if is_short else (SerializeType.JSON,)


NON_ASCII = "\u00fc \u5024 \U0001f680"
BYTES = bytes(range(256))

# Java accepts only listed values for these three.
LEGAL = {"topic_filter_type": "MULTI_TAG", "commit_or_rollback": 12, "boundary_type": "UPPER"}

# Headers that occur in no frame of the vectors, by code and whether they are responses.
BEYOND_THE_VECTORS = {
    "4.9.7": {(RequestCode.GET_BROKER_CONFIG, True): "GetBrokerConfigResponseHeader"},
    "5.5.0": {
        (RequestCode.GET_BROKER_CONFIG, True): "GetBrokerConfigResponseHeader",
        (RequestCode.GET_ALL_TOPIC_CONFIG, False): "GetAllTopicConfigRequestHeader",
        (
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            False,
        ): "GetAllSubscriptionGroupRequestHeader",
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, False): "QueryTopicsByConsumerRequestHeader",
        (
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
            False,
        ): "QuerySubscriptionByConsumerRequestHeader",
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, False): "RegisterTopicRequestHeader",
    },
}
# Our own, and those of pops and recalls, which occur in no frame of the vectors.
OURS = {code for code in RequestCode if code >= RequestCode.EXTENSIONS} | {
    RequestCode.RECALL_MESSAGE
}
OURS -= {RequestCode.ALL_SINKS, RequestCode.BATCH_ACK_MESSAGE}  # without a header
AUTH = {code for code in RequestCode if code.name.startswith("AUTH_")}
# Requests without a header class in a version: 5.x added them, or they are our own.
WITHOUT_A_CLASS = {
    "4.9.7": {
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        *AUTH,
        *OURS,
    },
    "5.5.0": OURS,
}
# Fields of ours that a header class of a version lacks: Java ignores them.
UNKNOWN_FIELDS = {
    "4.9.7": {
        "CheckTransactionStateRequestHeader": {"topic"},
        "ConsumeMessageDirectlyResultRequestHeader": {"topic", "topicSysFlag", "groupSysFlag"},
        "CreateTopicRequestHeader": {"attributes", "force"},
        "DeleteSubscriptionGroupRequestHeader": {"cleanOffset"},
        "EndTransactionRequestHeader": {"topic"},
        "GetConsumeStatsRequestHeader": {"topicList"},
        "GetMaxOffsetRequestHeader": {"committed"},
        "PullMessageRequestHeader": {"maxMsgBytes", "requestSource", "proxyFrowardClientId"},
        "PullMessageResponseHeader": {
            "offsetDelta",
            "topicSysFlag",
            "groupSysFlag",
            "forbiddenType",
        },
        "QueryConsumerOffsetRequestHeader": {"setZeroIfNotFound"},
        "QueryMessageRequestHeader": {"indexType", "lastKey", "_UNIQUE_KEY_QUERY"},
        "RegisterBrokerRequestHeader": {"heartbeatTimeoutMillis", "enableActingMaster"},
        "ResetOffsetRequestHeader": {"queueId", "offset"},
        "ResumeCheckHalfMessageRequestHeader": {"topic"},
        "SearchOffsetRequestHeader": {"boundaryType"},
        "SendMessageResponseHeader": {"batchUniqId", "recallHandle", "MSG_REGION", "TRACE_ON"},
        "ViewMessageRequestHeader": {"topic"},
    },
    "5.5.0": {
        "DeleteSubscriptionGroupRequestHeader": {"removeOffset"},
        "QueryMessageRequestHeader": {
            "_UNIQUE_KEY_QUERY"
        },  # read from the ext fields, not the header
        "RecallMessageResponseHeader": {"MSG_REGION"},  # read from the ext fields, not the header
        # read from the ext fields, not the header
        "SendMessageResponseHeader": {"MSG_REGION", "TRACE_ON"},
    },
}
# Java's defaults for absent fields, if neither null nor false nor 0.
DEFAULTS = {
    "4.9.7": {},
    "5.5.0": {
        "GetMaxOffsetRequestHeader": {"committed": True},
        "ResetOffsetRequestHeader": {"queueId": -1},
    },
}
# Read as null by both codecs of the version.
UNKNOWN_LANGUAGES = {"4.9.7": {LanguageCode.NODE_JS}, "5.5.0": set()}


class Sent(NamedTuple):
    """A command with a header, the class with which Java reads it, and the expected values."""

    command: RemotingCommand
    java_class: str | None
    fields: dict[str, Any]


def test_java_reads_every_field_of_every_header(java):
    sent = all_headers(java.version)
    without_a_class = {each.command.code for each in sent.values() if not each.java_class}
    assert without_a_class == WITHOUT_A_CLASS[java.version]
    read = java.read(
        "frame",
        {name: each.command.encode() for name, each in sent.items()},
        {name: each.java_class for name, each in sent.items() if each.java_class},
    )
    assert {name: without_absent_fields(answer) for name, answer in read.items()} == {
        name: as_read(each.command) | ({"header": each.fields} if each.java_class else {})
        for name, each in sent.items()
    }


def test_java_reads_every_command(java):
    request = RemotingCommand(RequestCode.PULL_MESSAGE, opaque=7)
    commands = {
        **{f"request {code.name}": RemotingCommand(code, opaque=code) for code in RequestCode},
        **{
            f"answer {code.name}": request.respond(code, f"{code.name}: {NON_ASCII}")
            for code in ResponseCode
        },
        **{
            f"language {language.name}": RemotingCommand(RequestCode.HEART_BEAT, language)
            for language in LanguageCode
            if language not in UNKNOWN_LANGUAGES[java.version]
        },
        **{
            f"opaque {opaque}": RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque)
            for opaque in (0, 1, -1, (1 << 31) - 1, -1 << 31)
        },
        "one-way": RemotingCommand(RequestCode.END_TRANSACTION, flag=CommandFlag.ONE_WAY),
        "another version": RemotingCommand(RequestCode.HEART_BEAT, version=513),
        "no remark": request.respond(ResponseCode.SUCCESS),
        "remark with controls": request.respond(
            ResponseCode.SYSTEM_ERROR, 'a\0b\tc\nd"e\\f\x7f\u2028'
        ),
        "long remark": request.respond(ResponseCode.SYSTEM_ERROR, "r\u00e9" * 20_000),
        "error with fields and body": request.respond(
            ResponseCode.PULL_OFFSET_MOVED, "moved", {"minOffset": "5"}, BYTES
        ),
        "non-ASCII ext": request.respond(
            ResponseCode.SUCCESS, ext_fields={NON_ASCII: NON_ASCII, "a": "1"}
        ),
        "ext with controls": request.respond(
            ResponseCode.SUCCESS, ext_fields={"p": "K\x01v\x02\0\n"}
        ),
        "many ext fields": request.respond(
            ResponseCode.SUCCESS,
            ext_fields={f"key{number}": f"value{number}" for number in range(128)},
        ),
        "large body": request.respond(ResponseCode.SUCCESS, body=Random(5).randbytes(100_000)),
    }
    commands = {
        f"{name}, {serialize_type.name}": command._replace(serialize_type=serialize_type)
        for name, command in commands.items()
        for serialize_type in javas_codecs(command.code)
    }
    read = java.read("frame", {name: command.encode() for name, command in commands.items()})
    assert read == {name: as_read(command) for name, command in commands.items()}


def as_read(command: RemotingCommand) -> dict[str, Any]:
    """Return the command in the form of the vectors, where empty and absent are equal."""
    return {
        "code": command.code,
        "serializeType": command.serialize_type.name,
        "language": command.language.name,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark,
        "ext": dict(command.ext_fields) or None,
        "body": command.body.hex() or None,
    }


def all_headers(version: str) -> dict[str, Sent]:
    """Return each header with all fields, and with the required ones only, in both codecs."""
    class_of = header_classes(version)
    sent = {}
    for (code, is_answer), codec in codecs().items():
        java_class = class_of.get((code, is_answer))
        direction = "answer" if is_answer else "request"
        for variant, fill in (("filled", filled), ("least", least)):
            header = fill(codec.header_type)
            fields = known_fields(dict(zip(codec.keys, header, strict=True)), java_class, version)
            for kind in javas_codecs(code):
                command = RemotingCommand(
                    code,
                    opaque=len(sent),
                    flag=int(is_answer),
                    ext_fields=codec.encode(header),
                    body=BYTES,
                )
                name = f"{code.name} {direction}, {variant}, {kind.name}"
                sent[name] = Sent(command._replace(serialize_type=kind), java_class, fields)
    return sent


def codecs() -> dict[tuple[RequestCode, bool], HeaderCodec[Any]]:
    """Return the header codecs by code, for requests and for responses."""
    return {
        (RequestCode(code), is_answer): codec
        for code, exchange in HEADERS.items()
        for is_answer, codec in ((False, exchange.request), (True, exchange.response))
        if codec is not None
    }


def header_classes(version: str) -> dict[tuple[int, bool], str]:
    """Return the simple names of Java's header classes."""
    return BEYOND_THE_VECTORS[version] | {
        (frame["requestCode"], frame["kind"] == "response"): frame["headerClass"]
        for frame in java_vectors.load(version, "frames")
        if frame["headerClass"]
    }


def filled(header_type: Any) -> Any:
    """Return a header in which no field has a default value, 0 or False."""
    hints = fields_of(header_type).items()
    return header_type(**{name: header_value(name, hint) for name, (_, hint) in hints})


def least(header_type: Any) -> Any:
    """Return a header with the required fields only."""
    names = [name for name in header_type._fields if name not in header_type._field_defaults]
    return header_type(**{name: getattr(filled(header_type), name) for name in names})


def header_value(name: str, hint: Any) -> Any:
    if name in LEGAL:
        return LEGAL[name]
    if NoneType in get_args(hint):
        hint = get_args(hint)[0]
    if hint is bool:
        return True
    sign = -1 if number_of(name) % 3 == 0 else 1
    if hint == Int32:
        return sign * ((1 << 31) - number_of(name))
    if hint == Int64:
        return sign * ((1 << 63) - number_of(name))
    return f"{name}=\x01\x02 {NON_ASCII}"


def known_fields(fields: dict[str, Any], java_class: str | None, version: str) -> dict[str, Any]:
    """Return the values of these fields that Java should read."""
    unknown = UNKNOWN_FIELDS[version].get(java_class, set())
    known = {key: value for key, value in fields.items() if key not in unknown}
    return DEFAULTS[version].get(java_class, {}) | present(known)


def without_absent_fields(answer: Any) -> Any:
    has_header = isinstance(answer, dict) and "header" in answer
    return answer | {"header": present(answer["header"])} if has_header else answer


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set: in Java's classes the others are null, False or 0."""
    return {key: value for key, value in fields.items() if value}


def number_of(name: str) -> int:
    """Return a number of five digits that depends on a name."""
    return zlib.crc32(name.encode()) % 90_000 + 10_000
