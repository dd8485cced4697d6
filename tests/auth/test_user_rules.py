"""UserRules give RocketMQ 5.5.0's answers about identities, from the vectors."""

import json

import pytest
from support.access import answers
from support.brokers.connections import FakeConnection

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import AclInfo
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import signed_fields
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.auth.access_lists import AccessList
from rocketpoll.broker.auth.rights import Action, ResourceType
from rocketpoll.broker.auth.user_rules import UserRules
from rocketpoll.broker.auth.user_tables import (
    AclTable,
    User,
    UserStatus,
    UserTable,
    UserType,
)
from rocketpoll.broker.common.request_content import RequestRejected


class InMemory:
    def load(self, default):
        return default


OPERATOR, SECRET = answers.OPERATOR, answers.SECRET


class Room:
    def __init__(self, *, checks_rights=True):
        self.users, self.acls = UserTable(InMemory()), AclTable(InMemory())
        self.users.put(User(OPERATOR.name, OPERATOR.secret, UserType.SUPER))
        self.users.put(User("nothing", SECRET))
        self.users.put(User("disabled", SECRET, status=UserStatus.DISABLE))
        rules = UserRules(self.users, self.acls, checks_rights=checks_rights)
        self.access = AccessControl(rules, "DefaultCluster")

    def allow(self, name, *entries):
        body = {"policies": [{"entries": entries}]}
        infos = decode_body(AclInfo, json.dumps(body).encode()).policies
        with self.acls.changes.begin() as change:
            self.acls.put(name, AccessList.of_policies(infos), change)

    def refusal(self, asked, key, connection=None):
        """Return code and remark of the refusal of a request signed with a key, as in
        the vectors."""
        fields = asked.ext_fields
        if key is not None:
            fields = signed_fields(fields, asked.body, access_key=key.name, secret_key=key.secret)
        request = RemotingCommand(asked.code, ext_fields=fields, body=asked.body)
        connection = connection or FakeConnection(remote="127.0.0.1:40000")
        try:
            self.access.check(connection, request)
        except RequestRejected as refused:
            return {"code": refused.code, "remark": refused.remark}
        return None


@pytest.fixture
def room():
    return Room()


VECTORS = answers.load("5.5.0", "request")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_user_rules_refuse_unknown_users_with_rocketmqs_code_and_text(room, vector):
    asked, strangers = answers.as_request(vector), ["no key", "unknown", "wrong secret", "disabled"]
    assert {who: room.refusal(asked, answers.STRANGERS[who]) for who in strangers} == {
        who: vector["refusals"][who] for who in strangers
    }


def test_user_rules_let_everybody_do_everything_without_authorization():
    room = Room(checks_rights=False)
    send = next(each for each in VECTORS if each["name"] == "SEND_MESSAGE")
    assert room.refusal(answers.as_request(send), answers.Key("nothing", SECRET)) is None
    assert room.refusal(answers.as_request(send), None)["code"] == 16


PUB = {"resource": "Topic:Orders", "actions": ["Pub"], "decision": "Allow"}


def test_user_rules_follow_changes_of_lists_and_users_at_once(room):
    send = answers.as_request(next(each for each in VECTORS if each["name"] == "SEND_MESSAGE"))
    key, connection = answers.Key("nothing", SECRET), FakeConnection()
    version = room.access.version
    assert "no matched policies" in room.refusal(send, key, connection)["remark"]
    room.allow("nothing", PUB)
    assert room.access.version > version
    assert room.refusal(send, key, connection) is None
    may_send = connection, ResourceType.TOPIC, "Orders", Action.PUB
    assert room.access.allows(*may_send)
    room.allow("nothing", {**PUB, "decision": "Deny"})
    assert not room.access.allows(*may_send)
    assert "the decision is deny" in room.refusal(send, key, connection)["remark"]
    room.allow("nothing", PUB)
    room.users.put(User("nothing", SECRET, status=UserStatus.DISABLE))
    assert not room.access.allows(*may_send)
    room.users.delete("nothing")
    assert not room.access.allows(*may_send)


def test_user_rules_limit_a_demoted_super_user_to_its_list(room):
    connection = FakeConnection()
    send = answers.as_request(next(each for each in VECTORS if each["name"] == "SEND_MESSAGE"))
    room.users.put(User("other", SECRET, UserType.SUPER))
    assert room.refusal(send, OPERATOR, connection) is None
    room.users.put(User(OPERATOR.name, OPERATOR.secret))
    assert not room.access.allows(connection, ResourceType.TOPIC, "Orders", Action.PUB)


def test_access_control_logs_failures_once_a_minute_and_address(room, caplog):
    send = answers.as_request(VECTORS[0])
    for _ in range(5):
        room.refusal(send, answers.Key("nobody\n", SECRET))
    room.refusal(send, None, FakeConnection(remote="10.0.0.1:1"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert r"of 127.0.0.1:40000 is not authenticated: User:nobody\n is not found." in lines[0]
    assert room.access.failures == 6
