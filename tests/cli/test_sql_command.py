"""``rocketpoll sql init`` prints the statements that make tables and views of topics."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.spark.sql_command import column_names, infer_columns, statements


def test_sql_init_prints_a_view_for_each_topic_of_users(run, cluster):
    topic = cluster.topic(queues=1)
    text = run("sql", "init").out
    assert f"WITH ('namesrvAddr' = '{cluster.name_server}', 'topic' = '{topic}');" in text
    assert text.count("CREATE TABLE") == 1
    assert "'topic' = 'SCHEDULE_TOPIC_XXXX'" not in text
    assert "%RETRY%" not in text


def test_sql_init_infers_columns_of_json_bodies_from_the_newest_messages(run, cluster):
    topic = cluster.topic(queues=1)
    cluster.send(topic, "text", json.dumps({"id": 1, "total": 2.5, "tags": "own"}), queues=1)
    assert "`id` BIGINT, `total` DOUBLE,\n" in run("sql", "init", topic, "--infer", 1).out
    assert "BIGINT," not in run("sql", "init", topic, "--infer", 2).out  # not all bodies are JSON


def test_sql_init_takes_given_columns(run, cluster):
    topic = cluster.topic(queues=1)
    text = run("sql", "init", topic, "--columns", f"{topic}=id BIGINT, at ARRAY<INT>").out
    assert "  id BIGINT, at ARRAY<INT>,\n" in text
    assert "'bodyFormat' = 'json'" in text


@pytest.mark.parametrize("columns", ["orders", "orders=", "orders=tags STRING"])
def test_sql_init_refuses_columns_that_a_table_cannot_have(run, columns):
    refused = run("sql", "init", "--columns", columns)
    assert refused.code == 2
    assert "--columns" in refused.err


def test_sql_init_names_unknown_topics(run, cluster):
    refused = run("sql", "init", "no-such-topic")
    assert refused.code == 1
    assert "there is no topic no-such-topic" in refused.err


def test_sql_statements_have_distinct_names_that_a_catalog_allows():
    text = "".join(statements(("a-b", "a_b", "A_B", "messages"), {"a_b": "id INT"}, "h:1"))
    names = [line.split("`")[1] for line in text.splitlines() if line.startswith("CREATE")]
    assert len({name.lower() for name in names}) == len(names) == 6
    assert all(name.replace("_", "a").isalnum() for name in names)


def test_sql_statements_quote_addresses():
    text = "".join(statements(("t",), {}, "h:1;g's\\:2"))
    assert r"'namesrvAddr' = 'h:1;g\'s\\:2'" in text


KEYS = st.sampled_from(["id", "Name", "user", "a b", "tags", "größe", "x`y", "order"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_inferred_columns_are_fields_that_some_body_has(objects):
    found = infer_columns([json.dumps(each).encode() for each in objects])
    if found is not None:
        names = column_names(found.replace("``", ""))
        fields = {name.replace("`", "") for each in objects for name in each} - {"tags"}
        assert set(names) == fields


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_bodies_that_are_not_all_json_objects_give_no_columns_or_those_of_objects(bodies):
    if infer_columns(bodies) is not None:
        assert all(isinstance(json.loads(body), dict) for body in bodies)
