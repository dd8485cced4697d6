"""Maps of a YAML file: values of fields, and faults with their places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.auth.plain.yaml_fields import (
    YamlError,
    YamlFields,
    is_ambiguous,
    parse_yaml,
    text_of,
)

SHIPPED = """# as RocketMQ 4.9 ships it
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    topicPerms:
      - topicB=PUB|SUB   # both
  - accessKey: rocketmq2
    secretKey: 'it''s # no comment'
"""


def fields_of(text):
    node = parse_yaml(text)
    assert node is not None
    return YamlFields(node, "a file")


def test_yaml_fields_read_a_file_as_rocketmq_ships_it():
    fields = fields_of(SHIPPED)
    addresses = [text_of(each, "address") for each in fields.items("globalWhiteRemoteAddresses")]
    assert addresses == ["10.10.103.*", "192.168.0.*"]
    first, second = (YamlFields(each, "an account") for each in fields.items("accounts"))
    assert text_of(first.get("secretKey"), "secretKey") == "12345678"
    assert text_of(first.get("whiteRemoteAddress"), "address") is None
    assert text_of(first.get("absent"), "absent") is None
    assert [text_of(each, "right") for each in first.items("topicPerms")] == ["topicB=PUB|SUB"]
    assert text_of(second.get("secretKey"), "secretKey") == "it's # no comment"


@pytest.mark.parametrize("text", ["", "# nothing\n\n", "\ufeff"])
def test_empty_yaml_has_no_node(text):
    assert parse_yaml(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: *\n", "1:5: a value that begins with *: put it into quotes"),
        ("a: *x", "1:4: a value that begins with *: put it into quotes"),
        ("\ta: 1", "1:1: found character"),
        ("a: 1\n  b: 2", "2:4: mapping values are not allowed here"),
        ("a: 1\na: 2", "2:1: a occurs twice"),
        ("a: 'x", "1:6: found unexpected end of stream"),
        ("a: [x y", "1:8: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n---\nb: 2", "2:1: but found another document"),
        ("a: \x07", "1:4: a character that YAML does not allow"),
        ("b: 1\na: \x07", "2:4: a character that YAML does not allow"),
        ("word", "1:1: a file must consist of keys and values"),
        ("[a]: 1", "1:1: a key must be one value"),
        ("[" * 5_000, "1:1: lists and maps are nested too deep"),
    ],
)
def test_yaml_error_names_line_column_and_fault(text, message):
    with pytest.raises(YamlError) as error:
        fields_of(text)
    assert message in str(error.value)


SECRET = "Zk9-secret"  # noqa: S105  # not a real secret


@pytest.mark.parametrize(
    "line",
    [
        f"a: '{SECRET}",
        f"a: x: {SECRET}",
        f"a: {SECRET}: ",
        f"a: [{SECRET}",
        f"a: *{SECRET}",
        f"a: !{SECRET}! x",
        f'a: "\\{SECRET}"',
        f"a: %{SECRET}",
        f"{SECRET}",
    ],
)
def test_yaml_error_shows_no_value(line):
    with pytest.raises(YamlError) as error:
        parse_yaml(f"b: 1\n{line}")
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


@given(st.text(alphabet="ab:-#'\"[]{},*&!|>%@`?\\ \n\t\x00\x85é", max_size=20))
def test_yaml_of_any_text_is_parsed_or_a_yaml_error(text):
    try:
        parse_yaml(text)
    except YamlError as error:
        assert str(error)


@pytest.mark.parametrize(
    "word", ["0123", "1_000", "0x1F", "1.5", "1e3", "yes", "NO", "12:30", "+5", "2020-01-01", "="]
)
def test_yaml_value_that_yaml_reads_as_something_else_is_ambiguous(word):
    assert is_ambiguous(fields_of(f"a: {word}").get("a"))
    assert not is_ambiguous(fields_of(f"a: '{word}'").get("a"))
    assert is_ambiguous(fields_of("a: !!binary eHg=").get("a"))


@pytest.mark.parametrize("word", ["12345678", "RocketMQ", "10.10.103.*", "a=PUB", "0"])
def test_yaml_value_that_is_text_or_a_plain_number_is_not_ambiguous(word):
    assert not is_ambiguous(fields_of(f"a: {word}").get("a"))
