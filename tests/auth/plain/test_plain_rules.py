"""PlainRules give the answers of RocketMQ 4.9.7 with a plain_acl.yml, or stricter ones."""

import pytest
from support.access import answers
from support.access.plain_lists import ACCOUNTS, PLAIN_ACL
from support.brokers.connections import FakeConnection

from rmq_spark.errors import WireError
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import signed_fields
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.auth.plain.plain_accounts import PlainAcl
from rocketpoll.broker.auth.plain.plain_rules import PlainRules
from rocketpoll.broker.auth.rights import Action, ResourceType
from rocketpoll.broker.common.request_content import RequestRejected


class Room:
    def __init__(self, text=PLAIN_ACL):
        self.rules = PlainRules(PlainAcl.parse([("plain_acl.yml", text)]))
        self.access = AccessControl(self.rules, "DefaultCluster")

    def refusal(self, asked, key, source="127.0.0.1", connection=None):
        """Return code and remark of a refused request, as in the vectors."""
        fields = asked.ext_fields
        if key is not None:
            fields = signed_fields(fields, asked.body, access_key=key.name, secret_key=key.secret)
        request = RemotingCommand(asked.code, ext_fields=fields, body=asked.body)
        connection = connection or FakeConnection(remote=f"{source}:40000")
        try:
            self.access.check(connection, request)
        except RequestRejected as refused:
            return {"code": refused.code, "remark": refused.remark}
        return None


@pytest.fixture(scope="module")
def room():
    return Room()


VECTORS = answers.load("4.9.7", "request")
CHECKED = {
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.PULL_MESSAGE,
    Code.QUERY_MESSAGE,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT,
    Code.CONSUMER_SEND_MSG_BACK,
    Code.GET_CONSUMER_LIST_BY_GROUP,
}
"""Requests whose topics and groups RocketMQ 4.9 checks; others need a key, or an admin."""
STRANGERS = {"no key", "unknown", "wrong secret"}


def is_stricter(vector, ours):
    """Return whether our refusal, which RocketMQ does not have, is intended."""
    if vector["code"] not in CHECKED:
        return True
    if vector["name"].startswith("CONSUMER_SEND_MSG_BACK"):
        return "topic:" in ours["remark"]  # the topic of the message counts as well
    retries = "%RETRY%" in str(vector["ext"])  # RocketMQ checks the producer's group, or none
    return retries and "group:" in ours["remark"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_plain_rules_answer_as_rocketmq_does_or_are_stricter(room, vector):
    for who, key in ACCOUNTS.items():
        ours, theirs = room.refusal(answers.as_request(vector), key), vector["refusals"][who]
        if theirs is None:
            assert ours is None or (who not in STRANGERS and is_stricter(vector, ours)), who
            continue
        assert ours["code"] == theirs["code"], who
        for words in ("Need admin permission for ", "No default permission for "):
            if words in theirs["remark"]:  # of several names, any may be the first
                assert words in ours["remark"], who
                break
        else:
            assert ours["remark"] == theirs["remark"], who


@pytest.mark.parametrize(
    "vector", answers.load("4.9.7", "name"), ids=lambda vector: str(sorted(vector["ext"].items()))
)
def test_plain_rules_limit_an_account_to_its_topics_and_groups(room, vector):
    try:
        ours = room.refusal(answers.as_request(vector), ACCOUNTS[vector["by"]])
    except WireError:
        ours = vector["refusal"]  # an unreadable body has another remark
    assert ours == vector["refusal"]


@pytest.mark.parametrize(
    "vector",
    answers.load("4.9.7", "address"),
    ids=lambda vector: f"{vector['source']}-{vector['key']}-{vector['name']}",
)
def test_plain_rules_allow_white_addresses_everything(room, vector):
    key = None if vector["key"] is None else answers.Key(*vector["key"])
    assert room.refusal(answers.as_request(vector), key, vector["source"]) == vector["refusal"]


def test_plain_rules_follow_a_new_list_at_once():
    room, connection = Room(), FakeConnection()
    send = answers.as_request(next(each for each in VECTORS if each["name"] == "SEND_MESSAGE"))
    assert room.refusal(send, ACCOUNTS["everything"], connection=connection) is None
    may_send = connection, ResourceType.TOPIC, "Orders", Action.PUB
    assert room.access.allows(*may_send)
    version = room.access.version
    gone = PLAIN_ACL.replace("everything", "something")
    room.rules.use(PlainAcl.parse([("plain_acl.yml", gone)]))
    assert room.access.version > version
    assert not room.access.allows(*may_send)
    refusal = room.refusal(send, ACCOUNTS["everything"], connection=connection)
    assert refusal["remark"].endswith("No acl config for everything")


def test_plain_rules_keep_the_identity_of_a_white_connection():
    room = Room()
    connection = FakeConnection(remote="127.0.0.9:1")
    send = answers.as_request(next(each for each in VECTORS if each["name"] == "SEND_MESSAGE"))
    for key in (None, ACCOUNTS["billing"], ACCOUNTS["unknown"]):
        assert room.refusal(send, key, connection=connection) is None
    assert room.access.allows(connection, ResourceType.CLUSTER, "C", Action.UPDATE)
