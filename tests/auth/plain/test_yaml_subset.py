"""The YAML subset: what it accepts, PyYAML reads in the same way; what it refuses, and where."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from rocketpoll.broker.auth.plain.yaml_subset import (
    YamlError,
    YamlList,
    YamlMap,
    YamlScalar,
    parse_yaml,
)

SHIPPED = """# as RocketMQ 4.9 ships it
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB   # both
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY

  - accessKey: rocketmq2
    secretKey: 'it''s # no comment'
    whiteRemoteAddress: 192.168.1.*
    admin: true
    """

DUMPED = """accounts:
- accessKey: RocketMQ
  admin: false
  topicPerms:
  - topicA=DENY
dataVersion:
- counter: 1
  timestamp: 1600000000000
globalWhiteRemoteAddresses: []
"""


def plain(node):
    """The node as PyYAML's BaseLoader returns it, in which every value is a text."""
    if isinstance(node, YamlMap):
        return {key: plain(value) for key, value in node.entries.items()}
    if isinstance(node, YamlList):
        return [plain(item) for item in node.items]
    return node.text


def read_by_pyyaml(text):
    return normal(yaml.load(text, yaml.BaseLoader))  # noqa: S506  # it makes nothing but texts


def normal(value):
    """A value without the difference between an empty text, which BaseLoader makes, and none."""
    if isinstance(value, dict):
        return {key: normal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [normal(each) for each in value]
    return None if value is None or value.lower() in ("", "~", "null") else value


@pytest.mark.parametrize("text", [SHIPPED, DUMPED, "", "# nothing\n\n", "---\na: 1\n", "word"])
def test_yaml_subset_reads_files_as_they_are_as_pyyaml_does(text):
    assert normal(plain(parse_yaml(text))) == read_by_pyyaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: [x, 'y, z', \"q\"]  # list", {"a": ["x", "y, z", "q"]}),
        ("a: []", {"a": []}),
        ('a: "\\x41\\u00e9\\t\\\\"', {"a": "Aé\t\\"}),
        ("a:   ~", {"a": None}),
        ("a: -x", {"a": "-x"}),
        ("a:\n- b: 1\n  c:\n  - 2\n-\n  d: 3\n", {"a": [{"b": "1", "c": ["2"]}, {"d": "3"}]}),
        ("a: x#y", {"a": "x#y"}),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": "1", "b": "2"}),
    ],
)
def test_yaml_subset_reads_values(text, value):
    assert plain(parse_yaml(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: *\n", "1:4: a value that begins with *"),
        ("a: &x 1", "1:4: a value that begins with &"),
        ("a: !!str 1", "1:4: a value that begins with !"),
        ("a: |\n  x", "1:4: a value that begins with |"),
        ("a: {b: 1}", "1:4: a value that begins with {"),
        ("\ta: 1", "1:1: a tab"),
        ("a: 1\n  b: 2", "2:3: this line is indented deeper"),
        ("a:\n    b: 1\n  c: 2", "3:3: this line is indented"),
        ("a: 1\na: 2", "2:1: a stands here a second time"),
        ("a: 'x", "1:4: the quote does not end in this line"),
        ("a: 'x' y", "1:7: needed the end of the line"),
        ('a: "\\q"', "1:5: an escape that is not supported"),
        ("a: b: c", "1:5: a colon"),
        ("a: [x,\n  y]", "1:7: needed a value, then a comma or ], in one line"),
        ("a: [x, ::1]", "1:8: put this value into quotes"),
        ("a: [x y", "1:8: needed a comma or ], in one line"),
        ("- - a", "1:3: a list directly in a list"),
        ("a:\n  b\n  c", "2:3: needed a list, or a key and a colon"),
        ("a: 1\n---\nb: 2", "2:1: only one document is read"),
        ("a: 1\n...\n", "2:1: only one document is read"),
        ("a: 1\n? b", "2:1: needed a key of letters and digits"),
        ("a: 1\n- b", "2:1: this line is indented unlike the lines above it"),
        ("a: \x07", "1:4: a character that YAML does not allow"),
        ("yes: 1", "1:1: yes is no text in YAML"),
        ("a:\n" + "".join(f"{' ' * n}a:\n" for n in range(1, 40)), "nested more than 20 deep"),
    ],
)
def test_yaml_subset_refuses_other_constructs_with_their_place(text, message):
    with pytest.raises(YamlError) as error:
        parse_yaml(text)
    assert message in str(error.value)


SECRET = "Zk9-secret"  # noqa: S105  # of no account


@pytest.mark.parametrize(
    "line", [f"a: '{SECRET}", f"a: x: {SECRET}", f"a: {SECRET}: ", f"a: [{SECRET}", f"{SECRET}"]
)
def test_yaml_subset_shows_no_value_in_an_error(line):
    with pytest.raises(YamlError) as error:
        parse_yaml(f"b: 1\n{line}")
    assert SECRET not in str(error.value)
    assert SECRET not in repr(YamlScalar(error, SECRET))


WORDS_OF_YAML = [
    "a",
    "b",
    "accessKey",
    "x=PUB",
    "10.0.*",
    "::1",
    "null",
    "~",
    "1",
    "é",
    "0x1F",
    "yes",
]
MARKS_OF_YAML = [":", ": ", "- ", "-", "#", " # ", "'", '"', "[", "]", ", ", ",", "*", "<<", "="]
OTHERS = ["\n", "\n  ", "\n    ", " ", "\\", "---", "...", "\t", *"{}?>%!&", "\r\n"]
FRAGMENTS = st.sampled_from([*WORDS_OF_YAML, *MARKS_OF_YAML, *OTHERS])


@given(st.lists(FRAGMENTS, max_size=14).map("".join))
@example("a:\n -\n  b: 1")
@example("- a: 1\n  b:\n  - c\n")
@example("a : b")
def test_yaml_subset_never_accepts_what_pyyaml_reads_otherwise(text):
    try:
        node = parse_yaml(text)
    except YamlError:
        return
    assert normal(plain(node)) == read_by_pyyaml(text)


WORDS = st.text("abcXYZ019_=|.*-", min_size=1, max_size=8).filter(
    lambda word: word[0] not in "-|=*." and word != "~"
)
VALUES = st.recursive(
    WORDS,
    lambda inner: (
        st.lists(inner.filter(lambda value: not isinstance(value, list)), min_size=1)
        | st.dictionaries(st.text("abcd", min_size=2, max_size=6), inner, min_size=1)
    ),
    max_leaves=12,
).filter(lambda value: not isinstance(value, str))


@given(VALUES)
def test_yaml_subset_reads_what_pyyaml_dumps(value):
    text = yaml.safe_dump(value, default_flow_style=False, width=1_000)
    assert plain(parse_yaml(text)) == value


@pytest.mark.parametrize(
    "word", ["0123", "1_000", "0x1F", "1.5", "1e3", "yes", "NO", "12:30", "+5", "2020-01-01", "="]
)
def test_yaml_scalar_that_yaml_reads_as_something_else_is_ambiguous(word):
    assert parse_yaml(f"a: {word}").entries["a"].is_ambiguous
    assert not parse_yaml(f"a: '{word}'").entries["a"].is_ambiguous


@pytest.mark.parametrize("word", ["12345678", "RocketMQ", "10.10.103.*", "a=PUB", "0"])
def test_yaml_scalar_that_is_text_or_a_plain_number_is_not_ambiguous(word):
    assert not parse_yaml(f"a: {word}").entries["a"].is_ambiguous
