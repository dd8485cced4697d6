"""Mistakes of users in options about bodies, brokers, namespaces, and what counts when."""

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
