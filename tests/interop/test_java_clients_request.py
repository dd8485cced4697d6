"""Java request and reply: a consumer's reply reaches the requesting producer.

Each test runs on a real RocketMQ and on our broker, with clients of both versions.
"""

import pytest
from support.rocketmq.java_clients import JavaError, bodies_of, to_send
from support.rocketmq.real_broker import CLUSTER

pytestmark = pytest.mark.interop

REPLY_TOPIC = f"{CLUSTER}_REPLY_TOPIC"


def test_java_replies_reach_their_requesters(scenario):
    topic = scenario.topic()
    first, second, replier = (scenario.producer() for _ in range(3))
    consumer = scenario.push(topic=topic)
    for number, asker in enumerate((first, second, first)):
        asker.request(topic, to_send(f"question {number}"))
        consumer.wait_for([f"question {number}"])
        asked = next(each for each in consumer.received if each["body"] == f"question {number}")
        result = replier.reply(asked, f"answer {number}")
        assert (result["status"], result["topic"]) == ("SEND_OK", REPLY_TOPIC)
        found = asker.replied()
        assert found["body"] == f"answer {number}"
        for name, text in (
            ("CORRELATION_ID", asked["properties"]["CORRELATION_ID"]),
            ("MSG_TYPE", "reply"),
        ):
            assert found["properties"][name] == text


def test_long_reply_reaches_a_java_requester_whole(scenario):
    topic = scenario.topic()
    asker, replier = scenario.producer(), scenario.producer()
    consumer = scenario.push(topic=topic)
    asker.request(topic, to_send("question"))
    (asked,) = consumer.wait_for(["question"])
    body = "compressible " * 100_000
    replier.reply(asked, body)
    assert asker.replied()["body"] == body


def test_java_reply_to_a_gone_requester_is_refused(scenario):
    topic = scenario.topic()
    asker, replier = scenario.producer(), scenario.producer()
    consumer = scenario.push(topic=topic)
    asker.request(topic, to_send("question"))
    (asked,) = consumer.wait_for(["question"])
    asker.stop()
    with pytest.raises(JavaError) as error:
        replier.reply(asked, "answer")
    assert error.value.code == 1


def test_java_request_without_a_reply_times_out(scenario):
    topic = scenario.topic()
    asker = scenario.producer()
    asker.request(topic, to_send("question"), timeout_ms=500)
    assert bodies_of(scenario.read(topic, 1)) == ["question"]
    with pytest.raises(JavaError, match="RequestTimeoutException"):
        asker.replied()
