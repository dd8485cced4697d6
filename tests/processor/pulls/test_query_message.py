"""Messages are found by key, by id and by offset."""

import pytest
from support.brokers.admin_processors import AdminRoom

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.record import decode_record, decode_records
from rocketpoll.broker.processor.pulls import query_message

START = 1_700_000_000_000
ALL = {
    "topic": "T",
    "key": "k",
    "maxNum": "64",
    "beginTimestamp": "0",
    "endTimestamp": str((1 << 63) - 1),
}


def query(room, **changes):
    return room.ask(RequestCode.QUERY_MESSAGE, {**ALL, **changes})


def bodies(answer) -> list[str]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [each.body.decode() for each in decode_records(answer.body)]


@pytest.fixture
def stocked(room):
    """Store ten messages, one second apart; even ones have a key."""
    for number in range(10):
        keys = "k other" if number % 2 == 0 else "another"
        room.put(number, at_ms=START + 1000 * number, keys=keys, UNIQ_KEY=f"ID{number:030}")
    return room


def test_query_message_finds_each_key(stocked):
    assert bodies(query(stocked)) == ["0", "2", "4", "6", "8"]
    assert bodies(query(stocked, key="other")) == ["0", "2", "4", "6", "8"]


def test_unique_key_query_finds_a_message_despite_max_num_0(stocked):
    found = query(stocked, key=f"ID{3:030}", maxNum="0", _UNIQUE_KEY_QUERY="true")
    assert bodies(found) == ["3"]


def test_message_query_time_span_is_in_milliseconds_and_inclusive(stocked):
    span = {"beginTimestamp": str(START + 2000), "endTimestamp": str(START + 6000)}
    assert bodies(query(stocked, **span)) == ["2", "4", "6"]


def test_query_message_returns_the_newest_up_to_max_num(stocked):
    assert bodies(query(stocked, maxNum="2")) == ["6", "8"]


@pytest.mark.parametrize("wanted", ["0", "-5"])
def test_query_message_for_none_finds_none(stocked, wanted):
    assert query(stocked, maxNum=wanted).code == ResponseCode.QUERY_NOT_FOUND


def test_message_query_answer_has_rocketmqs_maximum_of_messages(room):
    for number in range(70):
        room.put(number, keys="k")
    assert len(bodies(query(room, maxNum="1000"))) == query_message.MESSAGES_MAX == 64
    found = bodies(query(room, maxNum="1000", _UNIQUE_KEY_QUERY="true"))
    assert len(found) == query_message.UNIQUE_KEY_MESSAGES == 32


def test_message_query_answer_fits_a_frame_but_has_at_least_one_message(room, monkeypatch):
    for number in range(4):
        room.put(f"{number}" * 1000, keys="k")
    monkeypatch.setattr(query_message, "RESPONSE_BYTES_MAX", 2500)
    assert [body[0] for body in bodies(query(room))] == ["2", "3"]
    monkeypatch.setattr(query_message, "RESPONSE_BYTES_MAX", 10)
    assert [body[0] for body in bodies(query(room))] == ["3"]


def test_query_message_returns_progress_of_the_index(stocked):
    stocked.clock.now_ms = START + 60_000
    header = HEADERS[RequestCode.QUERY_MESSAGE].response.decode(query(stocked).ext_fields)
    assert header.index_last_update_phyoffset == stocked.store.state().written_offset
    assert header.index_last_update_timestamp == START + 60_000


@pytest.mark.parametrize(
    "changes", [{"key": "nothing"}, {"topic": "U"}, {"beginTimestamp": str(START + 3600_000)}]
)
def test_query_message_without_result_answers_like_rocketmq(stocked, changes):
    assert stocked.refused(RequestCode.QUERY_MESSAGE, {**ALL, **changes}) == (
        ResponseCode.QUERY_NOT_FOUND,
        "can not find message, maybe time range not correct",
    )


@pytest.mark.parametrize("index_type", ["K", "U", ""])
def test_rocketmq_5_5_may_say_which_index_it_means(stocked, index_type):
    assert len(bodies(query(stocked, indexType=index_type, lastKey=""))) == 5


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"indexType": "T"}, "tags are not indexed"), ({"lastKey": "x"}, "no pages")],
)
def test_query_message_of_unsupported_index_type_is_refused(stocked, changes, why):
    code, remark = stocked.refused(RequestCode.QUERY_MESSAGE, {**ALL, **changes})
    assert (code, why in remark) == (ResponseCode.SYSTEM_ERROR, True)


def test_query_message_without_an_index_is_refused(tmp_path):
    room = AdminRoom(tmp_path, store={"message_index_enable": False})
    room.put("body", keys="k")
    code, remark = room.refused(RequestCode.QUERY_MESSAGE, ALL)
    assert code == ResponseCode.QUERY_NOT_FOUND
    assert "messageIndexEnable=false" in remark
    room.shutdown()


def test_view_message_by_id_returns_the_whole_record(stocked):
    (record,) = decode_records(query(stocked, maxNum="1").body)
    _, physical_offset = decode_offset_message_id(record.offset_message_id)
    answer = stocked.ask(
        RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset), "topic": "T"}
    )
    assert decode_record(answer.body) == record
    assert len(answer.body) == len(query(stocked, maxNum="1").body)


@pytest.mark.parametrize("physical_offset", ["-1", "1", "99999999", str(1 << 62)])
def test_view_message_at_offset_without_record_is_refused(stocked, physical_offset):
    refused = stocked.refused(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
    assert refused == (
        ResponseCode.SYSTEM_ERROR,
        f"can not find message by the offset, {physical_offset}",
    )
