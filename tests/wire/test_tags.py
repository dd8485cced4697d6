"""Tag codes."""

import sys

import pytest
from support.rocketmq import java_vectors

from rmq_spark.wire.properties import java_string_hash, tags_code


@java_vectors.each("ids", where=lambda vector: vector["kind"] == "hash")
def test_java_string_hash_equals_javas(vector):
    assert java_string_hash(vector["text"]) == vector["hash"]


@pytest.mark.parametrize(
    ("text", "code"),
    [("TagA", 2598919), ("中文", 646394), ("😀", 1772899), ("polygenelubricants", -(1 << 31))],
)
def test_tags_code_examples(text, code):
    assert tags_code(text) == code


def test_tags_code_without_tags_is_zero():
    assert tags_code(None) == tags_code("") == 0


def test_different_tags_can_share_a_code():
    assert tags_code("AaAa") == tags_code("BBBB")


def test_java_string_hash_of_a_lone_surrogate():
    assert java_string_hash("\ud800") == 0xD800


def test_long_texts_are_not_kept():
    text = "x" * 50_000
    references = sys.getrefcount(text)
    java_string_hash(text)
    assert sys.getrefcount(text) == references
