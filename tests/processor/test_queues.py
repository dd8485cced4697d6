"""Which queues exist for requests."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.processor.queues import check_queue, require_topic
from rocketpoll.broker.processor.request import RequestRejected


def test_require_topic_refuses_a_missing_topic(parts):
    assert require_topic(parts.topics, "T").topic_name == "T"
    with pytest.raises(RequestRejected, match=r"topic\[U\] not exist") as refusal:
        require_topic(parts.topics, "U")
    assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST


@given(queue_id=st.integers(-3, 12), read=st.integers(1, 6), write=st.integers(1, 6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_queue_exists_if_it_is_readable_writable_or_holds_messages(parts, queue_id, read, write):
    if not parts.store.queue_offsets("T", 9).next:
        parts.put("x", queue_id=9)
    parts.make_topic("T", queues=read, write=write)
    is_there = 0 <= queue_id < max(read, write) or queue_id == 9
    try:
        check_queue(parts.store, parts.topics.get("T"), queue_id)
    except RequestRejected as refusal:
        assert not is_there
        assert refusal.code == ResponseCode.SYSTEM_ERROR
    else:
        assert is_there
