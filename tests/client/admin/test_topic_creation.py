"""Creation of many topics, on brokers with and without the request for lists of topics."""

import pytest
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.admin.admin import create_topics
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.configs import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.operators import HEADERS


class RocketMQ:
    """A broker that creates lists of topics as RocketMQ does; before 5.3 it does not
    support them."""

    def __init__(self, *, knows_lists):
        self.topics = {}
        self.requests = []
        self._knows_lists = knows_lists

    def answer(self, request):
        self.requests.append(request.code)
        if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            header = HEADERS[request.code].request.decode(request.ext_fields)
            if header.topic == "refused":
                return request.respond(ResponseCode.SYSTEM_ERROR, "not this one")
            self._put(header.topic, header.read_queue_nums, header.write_queue_nums)
        elif request.code == RequestCode.UPDATE_AND_CREATE_TOPIC_LIST and self._knows_lists:
            configs = decode_body(CreateTopicListRequestBody, request.body).topic_config_list
            if not any(self.topics.get(each.topic_name) == each for each in configs):
                for each in configs:
                    self._put(each.topic_name, each.read_queue_nums, each.write_queue_nums)
        elif request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            table = TopicConfigSerializeWrapper(topic_config_table=self.topics)
            return request.respond(ResponseCode.SUCCESS, body=encode_body(table))
        else:
            return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
        return request.respond(ResponseCode.SUCCESS)

    def _put(self, name, read, write):
        self.topics[name] = TopicConfig(
            topic_name=name, read_queue_nums=read, write_queue_nums=write
        )


def configs(count, queues=4, first=0):
    return [
        TopicConfig(topic_name=f"T{number}", read_queue_nums=queues, write_queue_nums=queues)
        for number in range(first, first + count)
    ]


def created(api, broker, wanted):
    """Create the topics; return the codes of the requests that were sent."""
    with FakeServer(answering(broker.answer)) as server:
        create_topics(api, server.address, wanted)
    return [code for code in broker.requests if code != RequestCode.EXTENSIONS]


ONE, LIST, READ = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.GET_ALL_TOPIC_CONFIG,
)


def test_broker_that_knows_lists_gets_one_request_and_is_read_once(api):
    broker = RocketMQ(knows_lists=True)
    assert created(api, broker, configs(500)) == [LIST, READ]
    assert len(broker.topics) == 500


def test_list_that_the_broker_skipped_because_of_a_known_topic_is_sent_again(api):
    broker = RocketMQ(knows_lists=True)
    broker.topics = {each.topic_name: each for each in configs(2, first=7)}
    assert created(api, broker, configs(500)) == [LIST, READ, LIST, READ]
    assert len(broker.topics) == 500


def test_broker_without_lists_gets_a_request_for_each_topic(api):
    broker = RocketMQ(knows_lists=False)
    assert created(api, broker, configs(100)) == [LIST, *[ONE] * 100]
    assert len(broker.topics) == 100


def test_single_topic_is_created_by_the_request_that_every_broker_knows(api):
    assert created(api, RocketMQ(knows_lists=True), configs(1)) == [ONE]


def test_long_list_is_divided_by_its_bytes(api):
    broker = RocketMQ(knows_lists=True)
    long_names = [
        TopicConfig(topic_name=f"{number:0127}", read_queue_nums=1, write_queue_nums=1)
        for number in range(2_000)
    ]
    assert created(api, broker, long_names) == [LIST, LIST, LIST, READ]
    assert len(broker.topics) == 2_000


def test_refusal_of_one_topic_among_many_is_raised(api):
    wanted = [*configs(50), TopicConfig(topic_name="refused"), *configs(5, first=50)]
    with pytest.raises(BrokerRefused, match="not this one"):
        created(api, RocketMQ(knows_lists=False), wanted)


def test_thousand_topics_exist_on_our_broker_after_one_call(api, running_broker):
    wanted = configs(1_000, queues=1)
    before = api.admin.topic_configs(running_broker.address)
    create_topics(api, running_broker.address, wanted)
    found = api.admin.topic_configs(running_broker.address)
    assert {each.topic_name: each for each in wanted} == {
        name: config for name, config in found.items() if name not in before
    }
