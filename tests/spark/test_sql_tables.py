"""Tables, views and streams in SQL: ``CREATE TABLE ... USING rocketpoll`` and ``WITH (...)``."""

# ruff: noqa: S608  # queries are the subject, and their values our own

import json
import re
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from support.spark.source_fixture import complaint

ORDERS = [{"id": number, "name": f"order {number}"} for number in range(4)]
PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
HAS_STREAM_KEYWORD = not pyspark.__version__.startswith("4.0.")
FILLS_LEFT_OUT_COLUMNS = HAS_STREAM_KEYWORD


class SqlRoom:
    """A Spark session with one table for all topics of a cluster, and a topic of orders."""

    def __init__(self, source):
        self.source, self.spark = source, source.spark
        self.topic = source.cluster.topic(2)
        source.cluster.send(self.topic, *map(json.dumps, ORDERS), queues=2)
        self.made = []

    def close(self):
        for kind, name in reversed(self.made):
            self.spark.sql(f"DROP {kind} {name}")

    def name(self, kind="TABLE"):
        """Return a name for a table or view that is dropped at the end."""
        name = f"{kind.lower()}_{self.topic.replace('-', '_')}_{len(self.made)}"
        self.made.append((kind, name))
        return name

    def options(self, **options):
        """Return the WITH clause of a query."""
        options = {"namesrvAddr": self.source.cluster.name_server, **options}
        return "WITH (" + ", ".join(f"'{key}' = '{text}'" for key, text in options.items()) + ")"

    def table(self, columns=""):
        name = self.name()
        self.spark.sql(f"CREATE TABLE {name} {columns} USING rocketpoll")
        return name

    def rows(self, query):
        return [tuple(row) for row in self.spark.sql(query).collect()]


@pytest.fixture
def sql(source):
    room = SqlRoom(source)
    yield room
    room.close()


def test_table_without_columns_has_those_of_messages_and_needs_no_broker(sql):
    names = [name for name, *_ in sql.rows(f"DESCRIBE {sql.table()}")]
    assert names[:4] == ["topic", "brokerName", "queueId", "queueOffset"]
    assert len(names) == 9


def test_select_reads_the_topic_that_with_names(sql):
    found = sql.rows(
        f"SELECT CAST(body AS STRING) FROM {sql.table()} {sql.options(topic=sql.topic)}"
    )
    assert sorted(json.loads(body)["id"] for (body,) in found) == [0, 1, 2, 3]


def test_select_from_a_table_with_typed_columns_decodes_bodies(sql):
    table = sql.table("(id BIGINT, name STRING, queueId INT)")
    query = f"SELECT id, name FROM {table} {sql.options(topic=sql.topic, bodyFormat='json')}"
    assert sorted(sql.rows(query)) == [(each["id"], each["name"]) for each in ORDERS]


def test_view_is_live_and_keeps_its_options(sql):
    table, view = sql.table("(id BIGINT, name STRING)"), sql.name("VIEW")
    how = sql.options(topic=sql.topic, bodyFormat="json")
    sql.spark.sql(f"CREATE VIEW {view} AS SELECT id FROM {table} {how}")
    assert sql.rows(f"SELECT sum(id) FROM {view}") == [(6,)]
    sql.source.cluster.send(sql.topic, json.dumps({"id": 100}), queues=2)
    assert sql.rows(f"SELECT sum(id) FROM {view}") == [(106,)]


def test_insert_sends_rows_to_the_topic_that_with_names(sql):
    table, target = sql.table("(body STRING, tags STRING)"), sql.source.cluster.topic(1)
    sql.spark.sql(f"INSERT INTO {table} {sql.options(topic=target)} VALUES ('a', 'x'), ('b', NULL)")
    read = f"SELECT CAST(body AS STRING), tags FROM {sql.table()} {sql.options(topic=target)}"
    assert sorted(sql.rows(read)) == [("a", "x"), ("b", None)]


@pytest.mark.skipif(not FILLS_LEFT_OUT_COLUMNS, reason="Spark 4.0 wants all columns in an INSERT")
def test_insert_into_a_table_of_all_columns_may_leave_most_of_them_out(sql):
    table, target = sql.table(), sql.source.cluster.topic(1)
    sql.spark.sql(f"INSERT INTO {table} {sql.options(topic=target)} (body) VALUES (X'61')")
    assert sql.rows(
        f"SELECT CAST(body AS STRING), tags FROM {table} {sql.options(topic=target)}"
    ) == [("a", None)]


def test_insert_overwrite_is_refused(sql):
    table = sql.table("(body STRING)")
    with pytest.raises(PySparkException) as raised:
        sql.spark.sql(f"INSERT OVERWRITE {table} {sql.options(topic=sql.topic)} VALUES ('a')")
    assert "INSERT INTO" in complaint(raised)


def stream_ids(frame, directory):
    """Return the ids that a stream has read after it has read everything."""
    frame.writeStream.format("parquet").option("path", str(directory / "rows")).option(
        "checkpointLocation", str(directory / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()
    return sorted(
        row.id for row in frame.sparkSession.read.parquet(str(directory / "rows")).collect()
    )


@pytest.mark.skipif(not HAS_STREAM_KEYWORD, reason="Spark 4.0 has no FROM STREAM")
def test_sql_table_from_a_stream_continues_from_its_checkpoint(sql, tmp_path):
    table = sql.table("(id BIGINT, name STRING)")
    how = sql.options(topic=sql.topic, bodyFormat="json", startingOffsets="earliest")
    frame = sql.spark.sql(f"SELECT id FROM STREAM {table} {how}")
    assert stream_ids(frame, tmp_path) == [0, 1, 2, 3]
    sql.source.cluster.send(sql.topic, json.dumps({"id": 9}), queues=2)
    assert stream_ids(frame, tmp_path) == [0, 1, 2, 3, 9]


def test_read_stream_of_a_table_takes_options(sql, tmp_path):
    table = sql.table("(id BIGINT)")
    options = {
        "namesrvAddr": sql.source.cluster.name_server,
        "topic": sql.topic,
        "bodyFormat": "json",
        "startingOffsets": "earliest",
    }
    assert stream_ids(sql.spark.readStream.options(**options).table(table), tmp_path) == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("query", ["SELECT * FROM {}", "INSERT INTO {} VALUES ('a')"])
def test_query_error_of_a_table_without_options_says_to_give_them(sql, query):
    table = sql.table("(body STRING)")
    with pytest.raises(PySparkException) as raised:
        sql.spark.sql(query.format(table)).collect()
    assert "SELECT * FROM t WITH ('namesrvAddr' = 'localhost:9876'" in complaint(raised)


def test_options_of_a_table_are_refused_as_spark_would_not_pass_them_on(sql):
    with pytest.raises(PySparkException) as raised:
        sql.spark.sql("CREATE TABLE with_options USING rocketpoll OPTIONS (topic 'orders')")
    assert complaint(raised).startswith(
        "OptionError: option topic: Spark does not pass the OPTIONS"
    )


def test_table_properties_of_the_catalog_are_allowed(sql):
    name = sql.name()
    sql.spark.sql(
        f"CREATE TABLE {name} USING rocketpoll COMMENT 'ours' TBLPROPERTIES ('team' = 'a')"
    )
    assert sql.rows(f"SELECT count(*) FROM {name} {sql.options(topic=sql.topic)}") == [(4,)]


def test_statements_of_the_sql_page_run_as_written(sql):
    """The statements run in order, with this broker's address and other topics."""
    names = {
        name: f"{name}_{sql.topic.replace('-', '_')}"
        for name in ("messages", "orders_rows", "orders")
    }
    topics = {name: sql.source.cluster.topic(1) for name in ("greetings", "orders")}

    def here(text):
        text = text.replace("localhost:9876", sql.source.cluster.name_server)
        for name, topic in topics.items():
            text = text.replace(f"'topic' = '{name}'", f"'topic' = '{topic}'")
        return re.sub(
            r"(?<!')\b(messages|orders_rows|orders)\b(?!')", lambda name: names[name[1]], text
        )

    results = []
    for statement in re.findall(r"```sql\n(.*?);\n```", PAGE, re.DOTALL):
        made = re.match(r"CREATE (TABLE|VIEW) (\w+)", here(statement))
        if made:
            sql.made.append((made[1], made[2]))
        if "(tags, body)" in statement and not FILLS_LEFT_OUT_COLUMNS:
            continue
        results.append(sql.rows(here(statement)))
    assert ("hello", "Hello") in results[2]
    assert results[-1] == [(2, 13.5)]
