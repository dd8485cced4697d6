import numpy as np
import pytest
from stores import message

from broker.store.message_filter import TagFilter
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.record import encode_record
from rmq_spark.wire.tags import tags_code

TAGS = ["TagA", "TagB", "AaAa", "BBBB", None]
CHUNK = RecordChunk(b"".join(encode_record(message("x", tags=tags)) for tags in TAGS))
CODES = np.array([tags_code(tags) for tags in TAGS])


@pytest.mark.parametrize("by_text", [True, False])
def test_codes_of_the_tags_pass(by_text):
    assert TagFilter(["TagA", "TagC"], by_text=by_text).by_tags_code(CODES).tolist() == [
        True, False, False, False, False,
    ]  # fmt: skip
    assert not TagFilter([], by_text=by_text).by_tags_code(CODES).any()


@pytest.mark.parametrize("by_text", [True, False])
def test_one_code_passes_as_it_would_among_many(by_text):
    wanted = TagFilter(["TagA", "AaAa"], by_text=by_text)
    assert [wanted.matches_code(code) for code in CODES.tolist()] == wanted.by_tags_code(CODES).tolist()
    assert wanted.needs_messages is by_text


def test_tags_that_share_a_code_are_told_apart_by_their_text():
    wanted = TagFilter(["AaAa"], by_text=True)
    assert wanted.by_tags_code(CODES).tolist() == [False, False, True, True, False]
    assert wanted.by_messages(CHUNK).tolist() == [False, False, True, False, False]


def test_a_client_that_compares_the_text_itself_needs_no_second_look():
    assert TagFilter(["AaAa"], by_text=False).by_messages(CHUNK) is None
