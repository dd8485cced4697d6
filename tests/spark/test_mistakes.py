"""Users' mistakes with Spark options: each error names the option, the needed and the given value,
and what to do.

Those that need brokers to be found, or Spark, are in `test_broker_checks` and
`test_source_bad_input`; those of TLS, of the client as well, in `test_tls_mistakes`.
"""

import re
import traceback

import pytest

from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.options.table import OPTIONS
from rmq_spark.spark.schemas.columns import check_columns

OF_READS = [
    (
        {"bodyFormat": "xml"},
        ("bodyFormat: needed binary, text, json or avro, found 'xml'"),
    ),
    (
        {"bodySchema": "id BIGINT"},
        (
            "bodySchema: it is for bodyFormat json and avro, found binary: set bodyFormat, "
            "or leave this out"
        ),
    ),
    (
        {"bodyFormat": "json", "bodySchema": "id BIGINTS"},
        (
            "bodySchema: needed a type that bodies can have (string, boolean, tinyint, "
            "smallint, int, bigint, float, double, decimal(p,s), date, timestamp, "
            "timestamp_ntz, binary, struct<...>, array<...> and map<string,...>) after "
            "'id', found 'BIGINTS': 'id BIGINTS'"
        ),
    ),
    (
        {"bodyFormat": "json", "bodySchema": "id BIGINT NOT NULL"},
        ("bodySchema: id can be null, as a body may lack it: give it without NOT NULL"),
    ),
    (
        {"bodyColumn": "value"},
        (
            "bodyColumn: it is for bodyFormat json, avro and text, found binary: set "
            "bodyFormat, or leave this out"
        ),
    ),
    (
        {"brokerAddresses": "a=b:1"},
        (
            "brokerAddresses: this is no JSON (Expecting value: line 1 column 1 (char 0)): "
            "'a=b:1'; write an object with names in double quotes, as {\"orders\": ...}"
        ),
    ),
    (
        {"brokerAddresses": '{"broker-a": "localhost"}'},
        (
            "brokerAddresses: needed where brokers are reached, by name or by the address "
            'that name servers give, as {"broker-a": "localhost:10911"}, found {"broker-a": '
            '"localhost"}'
        ),
    ),
    (
        {"brokerAddresses": '{"broker-a": 10911}'},
        (
            "brokerAddresses: needed where brokers are reached, by name or by the address "
            'that name servers give, as {"broker-a": "localhost:10911"}, found {"broker-a": '
            "10911}"
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
            "endingOffsetsByTimestamp: it names U, but the topics read are T: correct it, or "
            "name it in option topic"
        ),
    ),
    (
        {"isolation": "serializable"},
        ("isolation: needed uncommitted or committed, found 'serializable'"),
    ),
    (
        {"isolation": "committed", "sql": "n > 1"},
        (
            "sql: it cannot be given together with isolation=committed: a broker's filter "
            "would hide lost rows: filter the data frame with .where()"
        ),
    ),
    (
        {"isolation": "committed", "topic": "a,b"},
        (
            "isolation: the batches of one topic are read by their manifests: name the topic "
            "in option topic, and join several by union()"
        ),
    ),
    (
        {"key": " "},
        ("key: it is empty: leave it out, or give it a value"),
    ),
    (
        {"localFiles": "no"},
        ("localFiles: needed true or false, found 'no'"),
    ),
    (
        {"namespace": "a b"},
        ("namespace: needed letters, digits and | _ -, found 'a b'"),
    ),
    (
        {"namespace": "eu%"},
        ("namespace: needed letters, digits and | _ -, found 'eu%'"),
    ),
    (
        {"waitForTopic": "yes"},
        ("waitForTopic: needed true or false, found 'yes'"),
    ),
    (
        {"topic": None, "subscribePattern": "T.*", "waitForTopic": "true"},
        ("waitForTopic: subscribePattern finds new topics anyway: leave this out"),
    ),
    (
        {"topic": None, "assign": '{"T": [0]}', "waitForTopic": "true"},
        (
            "waitForTopic: assign names queues, which have to be there: name the topic in "
            "option topic"
        ),
    ),
]

OF_WRITES = [
    (
        {"delivery": "twice"},
        ("delivery: needed at_least_once or exactly_once, found 'twice'"),
    ),
    (
        {"delivery": "exactly_once", "topic": None},
        (
            "delivery: exactly_once needs one topic for all rows, as a batch counts by one "
            "manifest in that topic's commits topic: name it in option topic, and write each "
            "topic by a query, or in foreachBatch by a write, of its own; or set "
            "visibleTo=all, for our broker"
        ),
    ),
    (
        {"visibleTo": "everybody"},
        ("visibleTo: needed committed_readers or all, found 'everybody'"),
    ),
    (
        {"visibleTo": "all"},
        ("visibleTo: all rows of a batch are seen at once with delivery=exactly_once: set it"),
    ),
    (
        {"sinkName": "s"},
        ("sinkName: it is for visibleTo=all: set that, or leave this out"),
    ),
    (
        {"delivery": "exactly_once", "visibleTo": "all", "topic": None},
        (
            "sinkName: it is needed where rows name their topics: a name that no other query "
            "has, and that stays, such as orders-by-country"
        ),
    ),
    (
        {"bodyFormat": "xml"},
        ("bodyFormat: needed binary, text, json or avro, found 'xml'"),
    ),
    (
        {"bodyColumn": "value"},
        (
            "bodyColumn: it is for bodyFormat json, avro and text, found binary: set "
            "bodyFormat, or leave this out"
        ),
    ),
    (
        {"bodySchema": "id BIGINT"},
        ("bodySchema: it has no meaning for the sink: leave it out"),
    ),
]

_TO_DO = re.compile(
    r"\b(needed|needs?|keep|leave|give|write|did you mean|correct|lower|raise|name|set|here it is|"
    r"there are|join|filter|Create|CREATE)\b"
)
"""What tells the user what to write instead, or to leave out."""

NEEDED = {"namesrvAddr": "mq:9876", "topic": "T"}

_READ = [
    ({"tpic": "T"}, "tpic: there is no such option; did you mean topic?"),
    ({"topics": "T"}, "topics: there is no such option; did you mean topic?"),
    (
        {"startingoffset": "latest"},
        "startingoffset: there is no such option; did you mean startingOffsets?",
    ),
    (
        {"startingOffset": "latest"},
        "startingOffset: there is no such option; did you mean startingOffsets?",
    ),
    (
        {"failOnDataLos": "true"},
        "failOnDataLos: there is no such option; did you mean failOnDataLoss?",
    ),
    (
        {"maxOffsetPerTrigger": "5"},
        "maxOffsetPerTrigger: there is no such option; did you mean maxOffsetsPerTrigger?",
    ),
    ({"minPartition": "5"}, "minPartition: there is no such option; did you mean minPartitions?"),
    (
        {"consumergroups": "g"},
        "consumergroups: there is no such option; did you mean consumerGroup?",
    ),
    ({"tag": "a"}, "tag: there is no such option; did you mean tags?"),
    ({"column": "body"}, "column: there is no such option; did you mean columns?"),
    ({"zzz": "1"}, "zzz: there is no such option; there are "),
    (
        {"kafka.bootstrap.servers": "h:9092"},
        "kafka.bootstrap.servers: there is no such option; that is Kafka's; here it is namesrvAddr",
    ),
    (
        {"kafka.group.id": "g"},
        "kafka.group.id: there is no such option; that is Kafka's; here it is consumerGroup",
    ),
    (
        {"kafka.security.protocol": "SSL"},
        "kafka.security.protocol: there is no such option; that is Kafka's; here it is tls",
    ),
    (
        {"kafka.max.poll.records": "5"},
        "kafka.max.poll.records: there is no such option; that is Kafka's: leave it out",
    ),
    (
        {"kafka.ssl.truststore.location": "/x"},
        (
            "kafka.ssl.truststore.location: there is no such option; that is Kafka's; here it is "
            "tlsCaFile"
        ),
    ),
    (
        {"path": "orders"},
        (
            "path: there is no such option: load(), save() and start() take no path, name the "
            "topic in option topic"
        ),
    ),
    ({"producerGroup": "P"}, "producerGroup: it has no meaning for the source: leave it out"),
    ({"rowIds": "true"}, "rowIds: it has no meaning for the source: leave it out"),
    ({"writeName": "x"}, "writeName: it has no meaning for the source: leave it out"),
    ({"maxMessageBytes": "4m"}, "maxMessageBytes: it has no meaning for the source: leave it out"),
    (
        {"namesrvAddr": None},
        (
            "namesrvAddr: it is needed: the name server's address, as localhost:9876, here, in a "
            "profile or in NAMESRV_ADDR"
        ),
    ),
    (
        {"namesrvAddr": "localhost"},
        "namesrvAddr: needed host:port, as localhost:9876, found 'localhost'",
    ),
    (
        {"namesrvAddr": "localhost:"},
        "namesrvAddr: needed host:port, as localhost:9876, found 'localhost:'",
    ),
    ({"namesrvAddr": ":9876"}, "namesrvAddr: needed host:port, as localhost:9876, found ':9876'"),
    (
        {"namesrvAddr": "localhost:ninety"},
        "namesrvAddr: needed host:port, as localhost:9876, found 'localhost:ninety'",
    ),
    (
        {"namesrvAddr": "localhost:99999"},
        "namesrvAddr: needed host:port, as localhost:9876, found 'localhost:99999'",
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
    ({"namesrvAddr": " "}, "namesrvAddr: it is empty: leave it out, or give it a value"),
    ({"nameServer": "mq:9876"}, "nameServer: it is given as namesrvAddr, too: keep one"),
    (
        {"profile": "prod"},
        (
            "profile: cannot read /nowhere/profiles.ini: No such file or directory. Create it with "
            'the lines "[prod]" and "namesrv = HOST:PORT"'
        ),
    ),
    ({"accessKey": "a"}, "secretKey: it is needed as well as accessKey"),
    ({"secretKey": "hush"}, "accessKey: it is needed as well as secretKey"),
    ({"securityToken": "t"}, "accessKey: it is needed as well as securityToken"),
    ({"tls": "yes"}, "tls: needed true or false, found 'yes'"),
    (
        {"tlsCaFile": "/ca.pem"},
        "tlsCaFile: it has no effect without tls=true: set that, or leave this out",
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
        "tlsVerify: it has no effect without tls=true: set that, or leave this out",
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
        "topic: it is needed: a topic, or several with commas (or subscribePattern, assign)",
    ),
    ({"topic": " "}, "topic: it is empty: leave it out, or give it a value"),
    (
        {"topic": "no pe"},
        "topic: topic: needed letters, digits and % | _ -, 1 to 127 of them, found 'no pe'",
    ),
    ({"topic": "a,,b"}, "topic: there is an empty name in 'a,,b'"),
    ({"subscribe": "U"}, "subscribe: it is given as topic, too: keep one"),
    (
        {"subscribePattern": "T.*"},
        "topic: it cannot be given together with subscribePattern: keep one",
    ),
    (
        {"topic": None, "subscribePattern": "("},
        (
            "subscribePattern: this is no regular expression (missing ), unterminated subpattern "
            "at position 0): '('; write one of Python's, as orders.*"
        ),
    ),
    (
        {"topic": None, "subscribePattern": "*"},
        (
            "subscribePattern: this is no regular expression (nothing to repeat at position 0): "
            "'*'; write one of Python's, as orders.*"
        ),
    ),
    ({"assign": '{"T":[0]}'}, "topic: it cannot be given together with assign: keep one"),
    (
        {"topic": None, "assign": "T"},
        (
            "assign: this is no JSON (Expecting value: line 1 column 1 (char 0)): 'T'; "
            'write an object with names in double quotes, as {"orders": ...}'
        ),
    ),
    (
        {"topic": None, "assign": "{}"},
        'assign: it names no topic: needed {"orders": {"broker-a": [0, 1]}}',
    ),
    (
        {"topic": None, "assign": '{"T": 0}'},
        "assign: T: needed a list of queues as [0, 1], found 0",
    ),
    (
        {"topic": None, "assign": '{"T": []}'},
        "assign: T: needed a list of queues as [0, 1], found []",
    ),
    (
        {"topic": None, "assign": '{"T": ["0"]}'},
        "assign: T: needed a list of queues as [0, 1], found ['0']",
    ),
    (
        {"topic": None, "assign": '{"T": {"b": [-1]}}'},
        "assign: T > b: needed a list of queues as [0, 1], found [-1]",
    ),
    (
        {"topic": None, "assign": '{"T": {"b": true}}'},
        "assign: T > b: needed a list of queues as [0, 1], found True",
    ),
    (
        {"topic": None, "assign": '{"T": [0], "T": [1]}'},
        "assign: a name stands twice among T, T: keep one",
    ),
    ({"tags": "a", "sql": "n > 1"}, "tags: it cannot be given together with sql: keep one"),
    ({"tags": ""}, "tags: it is empty: leave it out, or give it a value"),
    ({"sql": " "}, "sql: it is empty: leave it out, or give it a value"),
    ({"columns": "body,Body"}, "columns: body is named twice: keep one"),
    (
        {"columns": "bod"},
        (
            "columns: there is no bod; there are topic, brokerName, queueId, queueOffset, keys, "
            "tags, body, bornTimestamp, storeTimestamp, msgId, offsetMsgId, properties, flag, "
            "sysFlag, bornHost, storeHost, reconsumeTimes, commitLogOffset, "
            "preparedTransactionOffset"
        ),
    ),
    (
        {"columns": "value"},
        (
            "columns: there is no value; there are topic, brokerName, queueId, queueOffset, keys, "
            "tags, body, bornTimestamp, storeTimestamp, msgId, offsetMsgId, properties, flag, "
            "sysFlag, bornHost, storeHost, reconsumeTimes, commitLogOffset, "
            "preparedTransactionOffset"
        ),
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
            "startingOffsets: -1 could be either: write latest, or -1 messages for those before "
            "the end"
        ),
    ),
    (
        {"startingOffsets": "-2"},
        (
            "startingOffsets: -2 could be either: write earliest, or -2 messages for those before "
            "the end"
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
        "startingOffsets: group needs the name of a consumer group: set option consumerGroup",
    ),
    (
        {"startingOffsets": "{}"},
        "startingOffsets: the object is empty: name queues, or * for all others",
    ),
    (
        {"startingOffsets": '{"T"'},
        (
            "startingOffsets: this is no JSON (Expecting ':' delimiter: line 1 column 5 (char 4)): "
            '\'{"T"\'; write an object with names in double quotes, as {"orders": ...}'
        ),
    ),
    (
        {"startingOffsets": '{"T": {"zero": 1}}'},
        "startingOffsets: T: needed the number of a queue, found 'zero'",
    ),
    (
        {"startingOffsets": '{"T": {"0": -3}}'},
        "startingOffsets: T > 0: needed an offset from -2 on, found -3",
    ),
    (
        {"startingOffsets": '{"T": {"0": 1.5}}'},
        "startingOffsets: T > 0: needed an offset from -2 on, found 1.5",
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
            "startingOffsets: it names U, but the topics read are T: correct it, or name it in "
            "option topic"
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
        "startingOffsets: it cannot be given together with startingTimestamp: keep one",
    ),
    (
        {"startingTimestamp": "noon"},
        (
            "startingTimestamp: needed milliseconds since 1970 or a time as "
            "2026-01-31T12:00:00Z, found 'noon'"
        ),
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
            "startingTimestamp: needed milliseconds since 1970 or a time as 2026-01-31T12:00:00Z, "
            "found '-5'"
        ),
    ),
    (
        {"startingOffsetsByTimestamp": '{"T": {"0": "noon"}}'},
        (
            "startingOffsetsByTimestamp: T > 0: needed milliseconds since 1970 or a time as "
            "2026-01-31T12:00:00Z, found 'noon'"
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
            "startingOffsetsByTimestamp: T > 0: needed milliseconds since 1970 or a time as "
            "2026-01-31T12:00:00Z, found True"
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
            "endingOffsets: a read cannot end at the earliest offset: there would be nothing; give "
            "latest, a time or offsets"
        ),
    ),
    (
        {"endingOffsets": "latest", "endingTimestamp": "1767225600000"},
        "endingOffsets: it cannot be given together with endingTimestamp: keep one",
    ),
    (
        {"endingTimestamp": "1767225600"},
        (
            "endingTimestamp: needed milliseconds since 1970, found 1767225600: if these are "
            "seconds, write 1767225600000"
        ),
    ),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss: needed true or false, found 'maybe'"),
    ({"onBadRecord": "ignore"}, "onBadRecord: needed fail, null or skip, found 'ignore'"),
    ({"checkCrc": "1"}, "checkCrc: needed true or false, found '1'"),
    ({"maxBodyBytes": "2g"}, "maxBodyBytes: needed a size up to 1073741824, found '2g'"),
    ({"onBrokerAway": "fail"}, "onBrokerAway: needed wait or skip, found 'fail'"),
    (
        {"brokerNames": "a=b"},
        (
            "brokerNames: this is no JSON (Expecting value: line 1 column 1 (char 0)): 'a=b'; "
            'write an object with names in double quotes, as {"orders": ...}'
        ),
    ),
    (
        {"brokerNames": '{"a": 1}'},
        'brokerNames: needed names of brokers as {"old": "new"}, found 1 for \'a\'',
    ),
    (
        {"brokerNames": '{"a": "b", "b": "c"}'},
        "brokerNames: b is an old name and a new one: name it once",
    ),
    (
        {"brokerNames": '{"a": ""}'},
        "brokerNames: needed names of brokers as {\"old\": \"new\"}, found '' for 'a'",
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
        "maxBytesPerTrigger: needed a size above 0 as 1000000, 64k, 8m or 1g, found '5 pounds'",
    ),
    (
        {"maxBytesPerTrigger": "0"},
        "maxBytesPerTrigger: needed a size above 0 as 1000000, 64k, 8m or 1g, found '0'",
    ),
    (
        {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
        (
            "minOffsetsPerTrigger: it is above maxOffsetsPerTrigger (6 and 5): lower it, or raise "
            "the other"
        ),
    ),
    (
        {"maxTriggerDelay": "5s"},
        (
            "maxTriggerDelay: it bounds the wait for minOffsetsPerTrigger: give that, too, or "
            "leave this out"
        ),
    ),
    (
        {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"},
        "maxTriggerDelay: needed a duration as 500ms, 30s or 15m, found 'soon'",
    ),
    ({"minPartitions": "0"}, "minPartitions: needed a whole number from 1 on, found '0'"),
    (
        {"minPartitions": "5", "maxPartitions": "4"},
        "maxPartitions: it is below minPartitions (4 and 5): raise it, or lower the other",
    ),
    (
        {"maxPartitions": "4", "maxRecordsPerPartition": "9"},
        "maxPartitions: it cannot be given together with maxRecordsPerPartition: keep one",
    ),
    (
        {"maxRecordsPerPartition": "none"},
        "maxRecordsPerPartition: needed a whole number from 1 on, found 'none'",
    ),
    (
        {"consumerGroup": "a b"},
        "consumerGroup: group: needed letters, digits and % | _ -, 1 to 248 of them, found 'a b'",
    ),
    ({"consumerGroup": ""}, "consumerGroup: it is empty: leave it out, or give it a value"),
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
        "startingOffsets: it has no meaning for the sink: leave it out",
    ),
    ({"topc": "T"}, "topc: there is no such option; did you mean topic?"),
    (
        {"topic": "no pe"},
        "topic: topic: needed letters, digits and % | _ -, 1 to 127 of them, found 'no pe'",
    ),
    (
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        "topic: topic: needed one that is not the broker's own, found 'SCHEDULE_TOPIC_XXXX'",
    ),
    ({"topic": ""}, "topic: it is empty: leave it out, or give it a value"),
    (
        {"maxMessageBytes": "17m"},
        "maxMessageBytes: needed a size up to 16777216, found '17m'",
    ),
    (
        {"maxMessageBytes": "four"},
        "maxMessageBytes: needed a size above 0 as 1000000, 64k, 8m or 1g, found 'four'",
    ),
    ({"rowIds": "yes"}, "rowIds: needed false, true or keys, found 'yes'"),
    (
        {"writeName": "a:b"},
        (
            "writeName: needed a name of at most 255 characters, none of them a colon or a "
            "control character, found 'a:b'"
        ),
    ),
    ({"txnAppId": "paid"}, "txnVersion: it is needed as well as txnAppId"),
    ({"txnVersion": "7"}, "txnAppId: it is needed as well as txnVersion"),
    (
        {"txnAppId": "paid", "txnVersion": "one"},
        "txnVersion: needed a whole number from 0 on, found 'one'",
    ),
    (
        {"txnAppId": "paid", "txnVersion": "7", "writeName": "x"},
        (
            "txnAppId: it cannot be given together with writeName: keep one, and give a second "
            "write of a batch another"
        ),
    ),
    (
        {"txnAppId": "paid", "txnVersion": "7", "delivery": "exactly_once"},
        (
            "txnAppId: exactly once a batch write is known by its name: set option writeName "
            "instead, to one with the number of the batch; or visibleTo=all, for our broker"
        ),
    ),
    (
        {"producerGroup": "a b"},
        "producerGroup: group: needed letters, digits and % | _ -, 1 to 248 of them, found 'a b'",
    ),
    ({"kafka.acks": "all"}, "kafka.acks: there is no such option; that is Kafka's: leave it out"),
    (
        {"path": "orders"},
        (
            "path: there is no such option: load(), save() and start() take no path, name the "
            "topic in option topic"
        ),
    ),
]

READ, WRITE = [*_READ, *OF_READS], [*_WRITE, *OF_WRITES]


def refused(act, given):
    """What is said of these options, of which None leaves one out that is needed.

    It is all that is said: no other traceback stands above that of the error.
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
    assert found == f"option {said}" or said.endswith("there are ")
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
    """Those of TLS have a table of their own, and a password cannot be wrong without it."""
    named = {re.match("[A-Za-z]+", text)[0] for kind in (READ, WRITE) for _, text in kind}
    assert {name for name in OPTIONS if not name.startswith("tls")} <= named | {"securityToken"}
