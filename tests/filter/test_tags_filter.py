"""Tag filters by code and by text."""

import numpy as np
import pytest
from support.stores.small_store import message

from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.properties import tags_code
from rmq_spark.wire.record import encode_record
from rocketpoll.broker.filter.tags_filter import TagsFilter

TAGS = ["TagA", "polygenelubricants", "AaAa", "BBBB", None]
CHUNK = RecordChunk(b"".join(encode_record(message("x", tags=tags)) for tags in TAGS))
CODES = np.array([tags_code(tags) for tags in TAGS], np.int64)


def of(*tags, by_text=False):
    return TagsFilter(frozenset(map(tags_code, tags)), frozenset(tags) if by_text else None)


@pytest.mark.parametrize("by_text", [True, False])
def test_codes_of_the_tags_pass(by_text):
    wanted = of("TagA", "polygenelubricants", by_text=by_text)
    expected = [True, True, False, False, False]
    assert wanted.by_tags_code(CODES).tolist() == expected
    assert [wanted.matches_code(code) for code in CODES.tolist()] == expected
    assert not of(by_text=by_text).by_tags_code(CODES).any()


def test_tags_filter_distinguishes_tags_of_equal_hash():
    wanted = of("AaAa", by_text=True)
    assert wanted.by_tags_code(CODES).tolist() == [False, False, True, True, False]
    assert wanted.by_messages(CHUNK).tolist() == [False, False, True, False, False]


def test_tag_filter_by_code_does_not_read_messages():
    wanted = of("AaAa")
    assert wanted.by_messages(CHUNK) is None
    assert not wanted.needs_messages
    assert of("AaAa", by_text=True).needs_messages


def test_tag_code_is_compared_by_the_lower_32_bits():
    code = tags_code("polygenelubricants")
    fields = [code, code + (1 << 32), code & 0xFFFFFFFF, code + 1]
    wanted = of("polygenelubricants")
    assert wanted.by_tags_code(np.array(fields, np.int64)).tolist() == [True, True, True, False]
    assert [wanted.matches_code(field) for field in fields] == [True, True, True, False]
