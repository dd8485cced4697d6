"""Users' mistakes with Spark options: each error names the option, the expected and the given
value, and the remedy.

Mistakes that only brokers or Spark can find are in `test_broker_checks` and
`test_source_bad_input`; those of TLS, also in the client, in `test_tls_mistakes`.
"""

import re
import traceback

import pytest

from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.options.table import OPTIONS
from rmq_spark.spark.schemas.columns import DDL_TYPES, check_columns

OF_READS = [
    (
        {"bodyFormat": "xml"},
        "bodyFormat: needed binary, text, json, avro, msgpack or protobuf, found 'xml'",
    ),
    (
        {"bodySchema": "id BIGINT"},
        (
            "bodySchema: it applies to bodyFormat json, avro and msgpack only, found binary. Set "
            "bodyFormat, or remove this option"
        ),
    ),
    (
        {"bodyFormat": "json", "bodySchema": "id BIGINTS"},
        (
            "bodySchema: needed a type of bodies (string, boolean, tinyint, "
            "smallint, int, bigint, float, double, decimal(p,s), date, timestamp, "
            "timestamp_ntz, binary, struct<...>, array<...> and map<string,...>) after "
            "'id', found 'BIGINTS': 'id BIGINTS'"
        ),
    ),
    (
        {"bodyFormat": "json", "bodySchema": "id BIGINT NOT NULL"},
        "bodySchema: id can be null, because a body may lack it: declare it without NOT NULL",
    ),
    (
        {"bodyDescriptor": "orders.desc"},
        (
            "bodyDescriptor: it applies to bodyFormat protobuf only, found binary. Set "
            "bodyFormat, or remove this option"
        ),
    ),
    (
        {"bodyFormat": "protobuf", "bodyMessage": "shop.Order"},
        (
            "bodyDescriptor: bodyFormat=protobuf needs the descriptors of the bodies. Make a file "
            "with protoc --include_imports --descriptor_set_out=FILE, and give its path"
        ),
    ),
    (
        {"bodyFormat": "protobuf", "bodyDescriptor": "/no/orders.desc"},
        (
            "bodyDescriptor: /no/orders.desc cannot be used: No such file or directory. Give a "
            "file on the driver that protoc --include_imports --descriptor_set_out=FILE has made"
        ),
    ),
    (
        {"bodyFormat": "json", "bodyMessage": "shop.Order"},
        (
            "bodyMessage: it applies to bodyFormat protobuf only, found json. Set bodyFormat, or "
            "remove this option"
        ),
    ),
    (
        {"bodyFormat": "msgpack", "bodyRegistry": "http://localhost:8081"},
        (
            "bodyRegistry: it applies to bodyFormat json, avro and protobuf only, found msgpack. "
            "Set bodyFormat, or remove this option"
        ),
    ),
    (
        {"bodyFormat": "json", "bodyRegistry": "localhost:8081"},
        "bodyRegistry: needed http://HOST:PORT or https://HOST:PORT, found 'localhost:8081'",
    ),
    (
        {"bodyFormat": "json", "bodyRegistry": "https://user:secret@registry.example"},
        (
            "bodyRegistry: needed an address without user and password, which are separate "
            "settings, found 'one with both at registry.example'"
        ),
    ),
    (
        {"bodyRegistryUser": "reader"},
        (
            "bodyRegistryUser: it has no effect without bodyRegistry. Set bodyRegistry, or remove "
            "this option"
        ),
    ),
    (
        {
            "bodyFormat": "json",
            "bodyRegistry": "http://localhost:8081",
            "bodyRegistryUser": "reader",
        },
        "bodyRegistryPassword: it is required together with bodyRegistryUser",
    ),
    (
        {
            "bodyFormat": "json",
            "bodyRegistry": "http://localhost:8081",
            "bodyRegistryCaFile": "/no/ca.pem",
        },
        (
            "bodyRegistryCaFile: /no/ca.pem cannot be used: No such file or directory. Give a PEM "
            "file with certificates on the driver"
        ),
    ),
    (
        {
            "bodyFormat": "json",
            "bodyRegistry": "http://localhost:8081",
            "topic": "a,b",
        },
        (
            "bodySubject: it is required, because there is no single topic. Give the subject of "
            "the registry that has the schema, for example orders-value"
        ),
    ),
    (
        {"bodyColumn": "value"},
        (
            "bodyColumn: it does not apply to bodyFormat binary. Set bodyFormat, or remove this "
            "option"
        ),
    ),
    (
        {"brokerAddresses": "a=b:1"},
        (
            "brokerAddresses: not JSON (Expecting value: line 1 column 1 (char 0)): "
            "'a=b:1'. Write an object with names in double quotes, for example "
            '{"orders": ...}'
        ),
    ),
    (
        {"brokerAddresses": '{"broker-a": "localhost"}'},
        (
            "brokerAddresses: needed the addresses of brokers, by broker name or by the "
            'address in the routes, for example {"broker-a": "localhost:10911"}, found '
            '{"broker-a": "localhost"}'
        ),
    ),
    (
        {"brokerAddresses": '{"broker-a": 10911}'},
        (
            "brokerAddresses: needed the addresses of brokers, by broker name or by the "
            'address in the routes, for example {"broker-a": "localhost:10911"}, found '
            '{"broker-a": 10911}'
        ),
    ),
    (
        {"endingOffsetsByTimestamp": '{"T": {"0": 1767225600}}'},
        (
            "endingOffsetsByTimestamp, at T > 0: needed milliseconds since 1970, found "
            "1767225600: if these are seconds, write 1767225600000"
        ),
    ),
    (
        {"endingOffsetsByTimestamp": '{"U": {"0": 1767225600000}}'},
        (
            "endingOffsetsByTimestamp: it names U, but the topics read are T. Correct "
            "the name, or add it to option topic"
        ),
    ),
    (
        {"isolation": "serializable"},
        "isolation: needed uncommitted or committed, found 'serializable'",
    ),
    (
        {"isolation": "committed", "sql": "n > 1"},
        (
            "sql: it cannot be given together with isolation=committed: a filter of the "
            "broker would hide lost rows. Filter the DataFrame with .where()"
        ),
    ),
    (
        {"isolation": "committed", "topic": "a,b"},
        (
            "isolation: it reads the batches of one topic. Set option topic to it, and combine "
            "several topics with union()"
        ),
    ),
    (
        {"key": " "},
        "key: it is empty. Give it a value, or remove it",
    ),
    (
        {"localFiles": "no"},
        "localFiles: needed true or false, found 'no'",
    ),
    (
        {"namespace": "a b"},
        "namespace: needed letters, digits and | _ -, found 'a b'",
    ),
    (
        {"namespace": "eu%"},
        "namespace: needed letters, digits and | _ -, found 'eu%'",
    ),
    (
        {"waitForTopic": "yes"},
        "waitForTopic: needed true or false, found 'yes'",
    ),
    (
        {"topic": None, "subscribePattern": "T.*", "waitForTopic": "true"},
        (
            "waitForTopic: it has no effect, because subscribePattern finds new topics "
            "anyway. Remove it"
        ),
    ),
    (
        {"topic": None, "assign": '{"T": [0]}', "waitForTopic": "true"},
        "waitForTopic: the queues that assign names must exist. Set option topic instead of assign",
    ),
]

OF_WRITES = [
    (
        {"delivery": "twice"},
        "delivery: needed at_least_once or exactly_once, found 'twice'",
    ),
    (
        {"delivery": "exactly_once", "topic": None},
        (
            "delivery: exactly_once needs one topic for all rows, because one manifest "
            "in its commits topic commits a batch. Set option topic, and write each "
            "topic with its own query, or its own write in foreachBatch; or set "
            "visibleTo=all (rocketpoll brokers)"
        ),
    ),
    (
        {"visibleTo": "everybody"},
        "visibleTo: needed committed_readers or all, found 'everybody'",
    ),
    (
        {"visibleTo": "all"},
        "visibleTo: visibleTo=all needs delivery=exactly_once. Set both",
    ),
    (
        {"sinkName": "s"},
        (
            "sinkName: it has no effect without visibleTo=all. Set visibleTo=all, or "
            "remove this option"
        ),
    ),
    (
        {"delivery": "exactly_once", "visibleTo": "all", "topic": None},
        (
            "sinkName: it is required if rows name their topics. Give a name that no "
            "other query has and that never changes, for example orders-by-country"
        ),
    ),
    (
        {"bodyFormat": "xml"},
        "bodyFormat: needed binary, text, json, avro, msgpack or protobuf, found 'xml'",
    ),
    (
        {"bodyColumn": "value"},
        (
            "bodyColumn: it does not apply to bodyFormat binary. Set bodyFormat, or remove this "
            "option"
        ),
    ),
    (
        {"bodyRegister": "true"},
        (
            "bodyRegister: it has no effect without bodyRegistry. Set bodyRegistry, or remove "
            "this option"
        ),
    ),
    (
        {
            "bodyFormat": "protobuf",
            "bodyRegistry": "http://localhost:8081",
            "bodyRegister": "true",
        },
        (
            "bodyDescriptor: bodyRegister needs the message to register. Give a file of "
            "descriptors and the message's name"
        ),
    ),
    (
        {"bodySchema": "id BIGINT"},
        "bodySchema: it does not apply to the sink. Remove it",
    ),
]

_TO_DO = re.compile(
    r"\b(needed|needs?|keep|remove|give|write|did you mean|correct|lower|raise|name|set|use|"
    r"choose|declare|combine|filter|read|the (options|columns) are|required|CREATE)\b",
    re.IGNORECASE,
)
"""Words of an error that tell the user what to write or leave out."""

NEEDED = {"namesrvAddr": "mq:9876", "topic": "T"}

_READ = [
    ({"tpic": "T"}, "tpic: there is no such option. Did you mean topic?"),
    ({"topics": "T"}, "topics: there is no such option. Did you mean topic?"),
    (
        {"startingoffset": "latest"},
        "startingoffset: there is no such option. Did you mean startingOffsets?",
    ),
    (
        {"startingOffset": "latest"},
        "startingOffset: there is no such option. Did you mean startingOffsets?",
    ),
    (
        {"failOnDataLos": "true"},
        "failOnDataLos: there is no such option. Did you mean failOnDataLoss?",
    ),
    (
        {"maxOffsetPerTrigger": "5"},
        "maxOffsetPerTrigger: there is no such option. Did you mean maxOffsetsPerTrigger?",
    ),
    ({"minPartition": "5"}, "minPartition: there is no such option. Did you mean minPartitions?"),
    (
        {"consumergroups": "g"},
        "consumergroups: there is no such option. Did you mean consumerGroup?",
    ),
    ({"tag": "a"}, "tag: there is no such option. Did you mean tags?"),
    ({"column": "body"}, "column: there is no such option. Did you mean columns?"),
    ({"zzz": "1"}, "zzz: there is no such option. The options are "),
    (
        {"kafka.bootstrap.servers": "h:9092"},
        "kafka.bootstrap.servers: there is no such option. It is Kafka's. Use namesrvAddr",
    ),
    (
        {"kafka.group.id": "g"},
        "kafka.group.id: there is no such option. It is Kafka's. Use consumerGroup",
    ),
    (
        {"kafka.security.protocol": "SSL"},
        "kafka.security.protocol: there is no such option. It is Kafka's. Use tls",
    ),
    (
        {"kafka.max.poll.records": "5"},
        "kafka.max.poll.records: there is no such option. It is Kafka's. Remove it",
    ),
    (
        {"kafka.ssl.truststore.location": "/x"},
        "kafka.ssl.truststore.location: there is no such option. It is Kafka's. Use tlsCaFile",
    ),
    (
        {"path": "orders"},
        (
            "path: there is no such option: load(), save() and start() take no path. Set "
            "option topic"
        ),
    ),
    ({"producerGroup": "P"}, "producerGroup: it does not apply to the source. Remove it"),
    ({"rowIds": "true"}, "rowIds: it does not apply to the source. Remove it"),
    ({"writeName": "x"}, "writeName: it does not apply to the source. Remove it"),
    ({"maxMessageBytes": "4m"}, "maxMessageBytes: it does not apply to the source. Remove it"),
    (
        {"namesrvAddr": None},
        (
            "namesrvAddr: it is required. Give the address of a name server, for example "
            "localhost:9876, here, in a profile or in NAMESRV_ADDR"
        ),
    ),
    (
        {"namesrvAddr": "localhost"},
        "namesrvAddr: needed host:port, for example localhost:9876, found 'localhost'",
    ),
    (
        {"namesrvAddr": "localhost:"},
        "namesrvAddr: needed host:port, for example localhost:9876, found 'localhost:'",
    ),
    (
        {"namesrvAddr": ":9876"},
        "namesrvAddr: needed host:port, for example localhost:9876, found ':9876'",
    ),
    (
        {"namesrvAddr": "localhost:ninety"},
        "namesrvAddr: needed host:port, for example localhost:9876, found 'localhost:ninety'",
    ),
    (
        {"namesrvAddr": "localhost:99999"},
        "namesrvAddr: needed host:port, for example localhost:9876, found 'localhost:99999'",
    ),
    (
        {"namesrvAddr": "http://localhost:9876"},
        (
            "namesrvAddr: needed host:port without a scheme (http://), because name servers speak "
            "RocketMQ's own protocol. Write localhost:9876, with the name server's port, as in "
            "localhost:9876, found 'http://localhost:9876'"
        ),
    ),
    (
        {"namesrvAddr": "rocketmq://mq:9876/"},
        (
            "namesrvAddr: needed host:port without a scheme (rocketmq://), because name servers "
            "speak RocketMQ's own protocol. Write mq:9876, with the name server's port, as in "
            "localhost:9876, found 'rocketmq://mq:9876/'"
        ),
    ),
    ({"namesrvAddr": " "}, "namesrvAddr: it is empty. Give it a value, or remove it"),
    ({"nameServer": "mq:9876"}, "nameServer: it is also given as namesrvAddr. Keep one of the two"),
    (
        {"profile": "prod"},
        (
            "profile: cannot read /nowhere/profiles.ini: No such file or directory. Create it with "
            "rocketpoll profile create prod --namesrv HOST:PORT"
        ),
    ),
    ({"accessKey": "a"}, "secretKey: it is required together with accessKey"),
    ({"secretKey": "hush"}, "accessKey: it is required together with secretKey"),
    ({"securityToken": "t"}, "accessKey: it is required together with securityToken"),
    ({"tls": "yes"}, "tls: needed true or false, found 'yes'"),
    (
        {"tlsCaFile": "/ca.pem"},
        "tlsCaFile: it has no effect without tls=true. Set tls=true, or remove this option",
    ),
    (
        {"tls": "true", "tlsCaFile": "/no/such.pem"},
        (
            "tlsCaFile: /no/such.pem cannot be read: No such file or directory; needed a PEM file "
            "on this machine. Correct the path, or put the file there"
        ),
    ),
    (
        {"tlsVerify": "false"},
        "tlsVerify: it has no effect without tls=true. Set tls=true, or remove this option",
    ),
    (
        {"requestTimeoutMs": "3s"},
        "requestTimeoutMs: needed a whole number from 1 to 2147483647, found '3s'",
    ),
    (
        {"requestTimeoutMs": "-1"},
        "requestTimeoutMs: needed a whole number from 1 to 2147483647, found '-1'",
    ),
    ({"retryTimeoutMs": "1.5"}, "retryTimeoutMs: needed a whole number from 0 on, found '1.5'"),
    (
        {"topic": None},
        (
            "topic: it is required. Give a topic, or several separated by commas; or set "
            "subscribePattern or assign"
        ),
    ),
    ({"topic": " "}, "topic: it is empty. Give it a value, or remove it"),
    (
        {"topic": "no pe"},
        (
            "topic: topic: needed letters, digits and % | _ -, 1 to 127 of them, "
            "found 'no pe'. Write for example no_pe"
        ),
    ),
    ({"topic": "a,,b"}, "topic: there is an empty name in 'a,,b'"),
    ({"subscribe": "U"}, "subscribe: it is also given as topic. Keep one of the two"),
    (
        {"subscribePattern": "T.*"},
        "topic: it cannot be given together with subscribePattern. Keep one of them",
    ),
    (
        {"topic": None, "subscribePattern": "("},
        (
            "subscribePattern: not a regular expression (missing ), unterminated "
            "subpattern at position 0): '('. Write one in Python's syntax, for example "
            "orders.*"
        ),
    ),
    (
        {"topic": None, "subscribePattern": "*"},
        (
            "subscribePattern: not a regular expression (nothing to repeat at position "
            "0): '*'. Write one in Python's syntax, for example orders.*"
        ),
    ),
    ({"assign": '{"T":[0]}'}, "topic: it cannot be given together with assign. Keep one of them"),
    (
        {"topic": None, "assign": "T"},
        (
            "assign: not JSON (Expecting value: line 1 column 1 (char 0)): 'T'. Write an "
            'object with names in double quotes, for example {"orders": ...}'
        ),
    ),
    (
        {"topic": None, "assign": "{}"},
        'assign: it names no topic. Write for example {"orders": {"broker-a": [0, 1]}}',
    ),
    (
        {"topic": None, "assign": '{"T": 0}'},
        "assign: T: needed a list of queues, for example [0, 1], found 0",
    ),
    (
        {"topic": None, "assign": '{"T": []}'},
        "assign: T: needed a list of queues, for example [0, 1], found []",
    ),
    (
        {"topic": None, "assign": '{"T": ["0"]}'},
        "assign: T: needed a list of queues, for example [0, 1], found ['0']",
    ),
    (
        {"topic": None, "assign": '{"T": {"b": [-1]}}'},
        "assign: T > b: needed a list of queues, for example [0, 1], found [-1]",
    ),
    (
        {"topic": None, "assign": '{"T": {"b": true}}'},
        "assign: T > b: needed a list of queues, for example [0, 1], found True",
    ),
    (
        {"topic": None, "assign": '{"T": [0], "T": [1]}'},
        "assign: a name occurs twice among T, T. Keep one of them",
    ),
    ({"tags": "a", "sql": "n > 1"}, "tags: it cannot be given together with sql. Keep one of them"),
    ({"tags": ""}, "tags: it is empty. Give it a value, or remove it"),
    ({"sql": " "}, "sql: it is empty. Give it a value, or remove it"),
    ({"columns": "body,Body"}, "columns: body is named twice. Keep one of them"),
    (
        {"columns": "bod"},
        f"columns: there is no bod; the columns are {', '.join(DDL_TYPES)}",
    ),
    (
        {"columns": "value"},
        f"columns: there is no value; the columns are {', '.join(DDL_TYPES)}",
    ),
    ({"columns": "body,,tags"}, "columns: there is an empty name in 'body,,tags'"),
    (
        {"startingOffsets": "yesterday"},
        (
            "startingOffsets: needed earliest, latest, group, a time, -10m, -100 messages, or "
            "JSON of offsets, found 'yesterday'"
        ),
    ),
    (
        {"startingOffsets": "-1"},
        (
            'startingOffsets: -1 is ambiguous. Write latest, or "-1 messages" to start '
            "that many messages before the end"
        ),
    ),
    (
        {"startingOffsets": "-2"},
        (
            'startingOffsets: -2 is ambiguous. Write earliest, or "-2 messages" to start '
            "that many messages before the end"
        ),
    ),
    (
        {"startingOffsets": "5"},
        (
            "startingOffsets: needed earliest, latest, group, a time, -10m, -100 messages, or "
            "JSON of offsets, found '5'. An offset is a number without quotes in JSON"
        ),
    ),
    (
        {"startingOffsets": "group"},
        "startingOffsets: group needs the name of a consumer group. Set option consumerGroup",
    ),
    (
        {"startingOffsets": "{}"},
        "startingOffsets: the object is empty: name queues, or * for all others",
    ),
    (
        {"startingOffsets": '{"T"'},
        (
            "startingOffsets: not JSON (Expecting ':' delimiter: line 1 column 5 (char 4)): "
            '\'{"T"\'. Write an object with names in double quotes, for example {"orders": ...}'
        ),
    ),
    (
        {"startingOffsets": '{"T": {"zero": 1}}'},
        "startingOffsets: T: needed a queue number, found 'zero'",
    ),
    (
        {"startingOffsets": '{"T": {"0": -3}}'},
        "startingOffsets: T > 0: needed an offset of -2 or more, found -3",
    ),
    (
        {"startingOffsets": '{"T": {"0": 1.5}}'},
        "startingOffsets: T > 0: needed an offset of -2 or more, found 1.5",
    ),
    (
        {"startingOffsets": '{"T": {"0": "x"}}'},
        (
            "startingOffsets, at T > 0: needed earliest, latest, group, a time, -10m, -100 "
            "messages, or JSON of offsets, found 'x'"
        ),
    ),
    (
        {"startingOffsets": '{"T": {"b": {"0": {"x": 1}}}}'},
        "startingOffsets: T > b > 0 is one level too deep: needed topic, broker, queue",
    ),
    (
        {"startingOffsets": '{"U": {"0": 1}}'},
        (
            "startingOffsets: it names U, but the topics read are T. Correct the name, "
            "or add it to option topic"
        ),
    ),
    (
        {"startingOffsets": "[1]"},
        (
            "startingOffsets: needed earliest, latest, group, a time, -10m, -100 messages, or "
            "JSON of offsets, found '[1]'"
        ),
    ),
    (
        {"startingOffsets": "-10x"},
        (
            "startingOffsets: needed earliest, latest, group, a time, -10m, -100 messages, or "
            "JSON of offsets, found '-10x'"
        ),
    ),
    (
        {"startingOffsets": "2026-13-01"},
        (
            "startingOffsets: needed earliest, latest, group, a time, -10m, -100 messages, or "
            "JSON of offsets, found '2026-13-01'"
        ),
    ),
    (
        {"startingOffsets": "earliest", "startingTimestamp": "1767225600000"},
        "startingOffsets: it cannot be given together with startingTimestamp. Keep one of them",
    ),
    (
        {"startingTimestamp": "noon"},
        (
            "startingTimestamp: needed milliseconds since 1970 or a time such as "
            "2026-01-31T12:00:00Z, found 'noon'"
        ),
    ),
    *(
        (
            {"startingTimestamp": text},
            (
                "startingTimestamp: needed milliseconds since 1970 or a time such as "
                f"2026-01-31T12:00:00Z, found '{text}'. Give it as startingOffsets"
            ),
        )
        for text in ("earliest", "latest", "-1h")
    ),
    (
        {"startingTimestamp": "1767225600"},
        (
            "startingTimestamp: needed milliseconds since 1970, found 1767225600: if these are "
            "seconds, write 1767225600000"
        ),
    ),
    (
        {"startingTimestamp": "-5"},
        (
            "startingTimestamp: needed milliseconds since 1970 or a time such as "
            "2026-01-31T12:00:00Z, found '-5'"
        ),
    ),
    (
        {"startingOffsetsByTimestamp": '{"T": {"0": "noon"}}'},
        (
            "startingOffsetsByTimestamp: T > 0: needed milliseconds since 1970 or a time "
            "such as 2026-01-31T12:00:00Z, found 'noon'"
        ),
    ),
    (
        {"startingOffsetsByTimestamp": '{"T": {"0": 1767225600}}'},
        (
            "startingOffsetsByTimestamp, at T > 0: needed milliseconds since 1970, found "
            "1767225600: if these are seconds, write 1767225600000"
        ),
    ),
    (
        {"startingOffsetsByTimestamp": '{"T": {"0": true}}'},
        (
            "startingOffsetsByTimestamp: T > 0: needed milliseconds since 1970 or a time "
            "such as 2026-01-31T12:00:00Z, found True"
        ),
    ),
    (
        {"startingOffsetsByTimestamp": "1767225600000"},
        "startingOffsetsByTimestamp: needed a JSON object, found '1767225600000'",
    ),
    (
        {"startingOffsetsByTimestampStrategy": "earliest"},
        "startingOffsetsByTimestampStrategy: needed error or latest, found 'earliest'",
    ),
    (
        {"endingOffsets": "earliest"},
        (
            "endingOffsets: a read that ends at the earliest offset has no rows. Give "
            "latest, a time or offsets"
        ),
    ),
    (
        {"endingOffsets": "latest", "endingTimestamp": "1767225600000"},
        "endingOffsets: it cannot be given together with endingTimestamp. Keep one of them",
    ),
    (
        {"endingTimestamp": "1767225600"},
        (
            "endingTimestamp: needed milliseconds since 1970, found 1767225600: if these are "
            "seconds, write 1767225600000"
        ),
    ),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss: needed true or false, found 'maybe'"),
    (
        {"onBadRecord": "ignore"},
        "onBadRecord: needed fail, null, skip or dead_letter, found 'ignore'",
    ),
    (
        {"onBadRecord": "dead_letter"},
        "deadLetterTopic: it is required with onBadRecord=dead_letter. Give a topic",
    ),
    (
        {"onBadRecord": "skip", "deadLetterTopic": "dead"},
        (
            "deadLetterTopic: it has no effect without onBadRecord=dead_letter. Set "
            "onBadRecord=dead_letter, or remove this option"
        ),
    ),
    (
        {"onBadRecord": "dead_letter", "deadLetterTopic": "a b"},
        (
            "deadLetterTopic: topic: needed letters, digits and % | _ -, 1 to 127 of them, "
            "found 'a b'. Write for example a_b"
        ),
    ),
    (
        {"onBadRecord": "dead_letter", "deadLetterTopic": "%RETRY%billing"},
        (
            "deadLetterTopic: %RETRY%billing belongs to the brokers or to a group. Give a topic of "
            "your own"
        ),
    ),
    (
        {"onBadRecord": "dead_letter", "deadLetterTopic": "T"},
        (
            "deadLetterTopic: the query reads T itself, and would read its own dead letters again "
            "and again. Give another topic, or leave this one out of option topic"
        ),
    ),
    (
        {
            "topic": None,
            "subscribePattern": "or.*",
            "onBadRecord": "dead_letter",
            "deadLetterTopic": "orders-dead",
        },
        (
            "deadLetterTopic: the query reads orders-dead itself, and would read its own dead "
            "letters again and again. Give another topic, or leave this one out of option "
            "subscribePattern"
        ),
    ),
    (
        {"isolation": "committed", "onBadRecord": "dead_letter", "deadLetterTopic": "T_COMMITS"},
        (
            "deadLetterTopic: the query reads T_COMMITS itself, and would read its own dead "
            "letters again and again. Give another topic, or leave this one out of option topic"
        ),
    ),
    ({"checkCrc": "1"}, "checkCrc: needed true or false, found '1'"),
    ({"maxBodyBytes": "2g"}, "maxBodyBytes: needed a size up to 1073741824, found '2g'"),
    ({"onBrokerAway": "fail"}, "onBrokerAway: needed wait or skip, found 'fail'"),
    (
        {"brokerNames": "a=b"},
        (
            "brokerNames: not JSON (Expecting value: line 1 column 1 (char 0)): 'a=b'. "
            'Write an object with names in double quotes, for example {"orders": ...}'
        ),
    ),
    (
        {"brokerNames": '{"a": 1}'},
        'brokerNames: needed names of brokers, for example {"old": "new"}, found 1 for \'a\'',
    ),
    (
        {"brokerNames": '{"a": "b", "b": "c"}'},
        "brokerNames: b is both an old and a new name. Use it once",
    ),
    (
        {"brokerNames": '{"a": ""}'},
        "brokerNames: needed names of brokers, for example {\"old\": \"new\"}, found '' for 'a'",
    ),
    (
        {"maxOffsetsPerTrigger": "0"},
        "maxOffsetsPerTrigger: needed a whole number from 1 on, found '0'",
    ),
    (
        {"maxOffsetsPerTrigger": "5k"},
        "maxOffsetsPerTrigger: needed a whole number from 1 on, found '5k'",
    ),
    (
        {"maxBytesPerTrigger": "5 pounds"},
        (
            "maxBytesPerTrigger: needed a size above 0 such as 1000000, 64k, 8m or 1g, "
            "found '5 pounds'"
        ),
    ),
    (
        {"maxBytesPerTrigger": "0"},
        "maxBytesPerTrigger: needed a size above 0 such as 1000000, 64k, 8m or 1g, found '0'",
    ),
    (
        {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
        (
            "minOffsetsPerTrigger: 6 is above maxOffsetsPerTrigger=5. Lower it, or "
            "raise maxOffsetsPerTrigger"
        ),
    ),
    (
        {"maxTriggerDelay": "5s"},
        (
            "maxTriggerDelay: it has no effect without minOffsetsPerTrigger. Set "
            "minOffsetsPerTrigger, or remove this option"
        ),
    ),
    (
        {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"},
        "maxTriggerDelay: needed a duration such as 500ms, 30s or 15m, found 'soon'",
    ),
    ({"minPartitions": "0"}, "minPartitions: needed a whole number from 1 on, found '0'"),
    (
        {"minPartitions": "5", "maxPartitions": "4"},
        "maxPartitions: 4 is below minPartitions=5. Raise it, or lower minPartitions",
    ),
    (
        {"maxPartitions": "4", "maxRecordsPerPartition": "9"},
        "maxPartitions: it cannot be given together with maxRecordsPerPartition. Keep one of them",
    ),
    (
        {"maxRecordsPerPartition": "none"},
        "maxRecordsPerPartition: needed a whole number from 1 on, found 'none'",
    ),
    (
        {"consumerGroup": "a b"},
        (
            "consumerGroup: group: needed letters, digits and % | _ -, 1 to 248 of them, "
            "found 'a b'. Write for example a_b"
        ),
    ),
    ({"consumerGroup": ""}, "consumerGroup: it is empty. Give it a value, or remove it"),
    (
        {"suspendTimeoutMs": "9999"},
        "suspendTimeoutMs: needed a whole number from 0 to 1500, found '9999'",
    ),
    (
        {"discoveryIntervalMs": "5s"},
        "discoveryIntervalMs: needed a whole number from 0 on, found '5s'",
    ),
    ({"availableNow": "now"}, "availableNow: needed true or false, found 'now'"),
]

_WRITE = [
    (
        {"startingOffsets": "earliest"},
        "startingOffsets: it does not apply to the sink. Remove it",
    ),
    ({"topc": "T"}, "topc: there is no such option. Did you mean topic?"),
    (
        {"topic": "no pe"},
        (
            "topic: topic: needed letters, digits and % | _ -, 1 to 127 of them, "
            "found 'no pe'. Write for example no_pe"
        ),
    ),
    (
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        (
            "topic: topic: needed a topic that the broker does not reserve, found "
            "'SCHEDULE_TOPIC_XXXX'"
        ),
    ),
    ({"topic": ""}, "topic: it is empty. Give it a value, or remove it"),
    (
        {"maxMessageBytes": "17m"},
        "maxMessageBytes: needed a size up to 16777216, found '17m'",
    ),
    (
        {"maxMessageBytes": "four"},
        "maxMessageBytes: needed a size above 0 such as 1000000, 64k, 8m or 1g, found 'four'",
    ),
    ({"rowIds": "yes"}, "rowIds: needed false, true or keys, found 'yes'"),
    (
        {"writeName": "a:b"},
        (
            "writeName: needed a name of at most 255 characters, none of them a colon or a "
            "control character, found 'a:b'"
        ),
    ),
    ({"txnAppId": "paid"}, "txnVersion: it is required together with txnAppId"),
    ({"txnVersion": "7"}, "txnAppId: it is required together with txnVersion"),
    (
        {"txnAppId": "paid", "txnVersion": "one"},
        "txnVersion: needed a whole number from 0 on, found 'one'",
    ),
    (
        {"txnAppId": "paid", "txnVersion": "7", "writeName": "x"},
        (
            "txnAppId: it cannot be given together with writeName. Keep one of them; a "
            "second write of the same batch needs another name"
        ),
    ),
    (
        {"txnAppId": "paid", "txnVersion": "7", "delivery": "exactly_once"},
        (
            "txnAppId: delivery=exactly_once does not use it. Set option writeName to a name that "
            "contains the number of the batch; or set visibleTo=all (rocketpoll brokers)"
        ),
    ),
    (
        {"producerGroup": "a b"},
        (
            "producerGroup: group: needed letters, digits and % | _ -, 1 to 248 of them, "
            "found 'a b'. Write for example a_b"
        ),
    ),
    ({"kafka.acks": "all"}, "kafka.acks: there is no such option. It is Kafka's. Remove it"),
    (
        {"path": "orders"},
        (
            "path: there is no such option: load(), save() and start() take no path. Set "
            "option topic"
        ),
    ),
]

READ, WRITE = [*_READ, *OF_READS], [*_WRITE, *OF_WRITES]


def refused(act, given):
    """Return the whole error for these options; None removes a required one.

    No other traceback precedes that of the error.
    """
    with pytest.raises(OptionError) as raised:
        act({name: text for name, text in {**NEEDED, **given}.items() if text is not None})
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1
    return str(raised.value)


@pytest.fixture(autouse=True)
def _no_name_servers_by_default(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("ROCKETPOLL_PROFILES", "/nowhere/profiles.ini")


@pytest.mark.parametrize(("given", "said"), READ, ids=lambda value: str(value)[:60])
def test_read_option_mistakes_have_exact_messages(given, said):
    found = refused(lambda each: check_columns(read_options(each).columns), given)
    assert found == f"option {said}" or said.endswith("The options are ")
    assert found.startswith(f"option {said}")


@pytest.mark.parametrize(("given", "said"), WRITE, ids=lambda value: str(value)[:60])
def test_write_option_mistakes_have_exact_messages(given, said):
    assert refused(write_options, given) == f"option {said}"


def test_every_option_mistake_says_what_to_do():
    said = [(kind, text) for kind in (READ, WRITE) for _, text in kind]
    assert len({(kind is READ, text) for kind, text in said}) == len(said) >= 100
    for _, text in said:
        assert _TO_DO.search(text), text


def test_each_option_has_a_mistake_in_the_table():
    """TLS options are in `test_tls_mistakes`, and a password cannot be wrong without them."""
    named = {re.match("[A-Za-z]+", text)[0] for kind in (READ, WRITE) for _, text in kind}
    assert {name for name in OPTIONS if not name.startswith("tls")} <= named | {"securityToken"}
