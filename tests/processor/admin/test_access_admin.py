"""Requests about users and access lists get the answers of RocketMQ 5.5.0, except for listed
differences."""

import errno
import json
import re

import pytest
from support.access import answers
from support.brokers.admin_processors import AdminRoom

from rmq_spark.errors import WireError
from rmq_spark.wire.bodies.operators import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.access_lists import AccessList
from rocketpoll.broker.auth.user_tables import AclsBody, User, UsersBody, UserStatus, UserType
from rocketpoll.broker.common.channel import Identity
from rocketpoll.broker.settings.access import AccessConfig

OPERATOR, SECRET = answers.OPERATOR, answers.SECRET


def room_with(tmp_path, **settings):
    room = AdminRoom(tmp_path, access=AccessConfig(authentication_enabled=True, **settings))
    room.users.put(User(OPERATOR.name, OPERATOR.secret, UserType.SUPER))
    room.connection.identity = Identity(OPERATOR.name, is_super=True)
    return room


@pytest.fixture
def room(tmp_path):
    return room_with(tmp_path)


def without_passwords(body):
    """Return RocketMQ's answer without passwords."""
    if isinstance(body, dict):
        return {key: without_passwords(each) for key, each in body.items() if key != "password"}
    return [without_passwords(each) for each in body] if isinstance(body, list) else body


SUCCESS_REMARK = "not set any response code"
"""RocketMQ's remark on every success here; ours is empty."""


def asked(room, vector, body=None, ext=None):
    data = bytes.fromhex(vector["body"]) if body is None else body
    try:
        return room.ask(vector["code"], vector["ext"] if ext is None else ext, data)
    except WireError as error:
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=str(error))


def without_unknown_words(vector):
    """Return the body and ext fields of a request without words that RocketMQ ignores."""
    data = bytes.fromhex(vector["body"])
    if b"bogus" not in data and "bogus" not in vector["ext"].values():
        return data, vector["ext"]
    body = json.loads(data or "null")
    if body:
        body = {key: each for key, each in body.items() if each != "bogus"}
        for policy in body.get("policies", ()):
            policy.pop("policyType" if policy["policyType"] == "bogus" else "", None)
    ext = {key: each for key, each in vector["ext"].items() if each != "bogus"}
    return json.dumps(body).encode() if body else b"", ext


def test_users_and_lists_are_administered_as_in_rocketmq(room):
    """One scenario: RocketMQ ignores unknown words, our broker refuses them."""
    room.users.put(User("nothing", SECRET))
    room.users.put(User("disabled", SECRET, status=UserStatus.DISABLE))
    room.users.put(User("manager", SECRET))
    with room.acls.changes.begin() as change:
        room.acls.put("manager", manager_list(), change)
    for vector in answers.load("5.5.0", "administration"):
        expected = vector["answer"]
        room.connection.identity = Identity(vector["by"], is_super=vector["by"] == OPERATOR.name)
        body, ext = without_unknown_words(vector)
        answer = asked(room, vector)
        if expected["code"] == 0 and (body, ext) != (bytes.fromhex(vector["body"]), vector["ext"]):
            assert answer.code == ResponseCode.NO_PERMISSION, vector
            answer = asked(room, vector, body, ext)
        if expected["code"] == ResponseCode.SYSTEM_ERROR and "super user" not in expected["remark"]:
            assert answer.code in (1, 16), vector  # a Java exception
            continue
        assert answer.code == expected["code"], (vector, answer)
        said = re.sub(r"The action .* is unknown\.", "The actions is empty.", answer.remark or "")
        assert (said or SUCCESS_REMARK) == expected["remark"], vector
        if expected["body"] is None:
            assert not answer.body, (vector, answer)
        else:
            assert json.loads(answer.body) == without_passwords(expected["body"]), vector


def manager_list():
    rule = PolicyEntryInfo(resource="Cluster:*", actions=("All",), decision="Allow")
    return AccessList.of_policies([PolicyInfo(entries=(rule,))])


PASSWORD = "u1-s3cret"  # noqa: S105  # not a real password
CREATE = {"username": "u1"}, UserInfo(password=PASSWORD)


def test_user_is_on_the_disk_when_the_request_is_answered(room):
    assert room.ask(Code.AUTH_CREATE_USER, *CREATE).code == 0
    saved = room.saved("users.json", UsersBody).users["u1"]
    assert saved == UserInfo(password=PASSWORD, user_type="Normal", user_status="enable")


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (Code.AUTH_CREATE_USER, *CREATE),
        (Code.AUTH_UPDATE_USER, {"username": "bob"}, UserInfo(password=PASSWORD)),
        (Code.AUTH_DELETE_USER, {"username": "bob"}, None),
        (Code.AUTH_DELETE_ACL, {"subject": "User:bob"}, None),
        (
            Code.AUTH_CREATE_ACL,
            {"subject": "User:bob"},
            AclInfo(
                policies=(
                    PolicyInfo(
                        entries=(PolicyEntryInfo(resource="*", actions=("All",), decision="Allow"),)
                    ),
                )
            ),
        ),
    ],
)
def test_change_of_access_that_cannot_be_saved_is_undone(room, code, ext, body, monkeypatch):
    room.users.put(User("bob", "b0b"))
    with room.acls.changes.begin() as change:
        room.acls.put("bob", manager_list(), change)
    change.commit()
    room.users.save()
    room.acls.save()
    before = list(room.users), room.acls.items()

    def fail(*_):
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(room.disk, "write_whole", fail)
    answer = room.ask(code, ext, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("the change could not be saved")
    assert (list(room.users), room.acls.items()) == before


def test_no_response_has_a_password(room):
    texts = [
        bytes(room.ask(code, ext, body).body or b"") + str(room.ask(code, ext, body)).encode()
        for code, ext, body in (
            (Code.AUTH_CREATE_USER, *CREATE),
            (Code.AUTH_GET_USER, {"username": "u1"}, None),
            (Code.AUTH_LIST_USER, {}, None),
            (Code.AUTH_UPDATE_USER, {"username": "u1"}, UserInfo(password=PASSWORD)),
        )
    ]
    assert b"u1" in texts[1]
    assert not any(PASSWORD.encode() in text or b"password" in text for text in texts)


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (Code.AUTH_DELETE_USER, {"username": OPERATOR.name}, None),
        (Code.AUTH_UPDATE_USER, {"username": OPERATOR.name}, UserInfo(user_status="disable")),
        (Code.AUTH_UPDATE_USER, {"username": OPERATOR.name}, UserInfo(user_type="Normal")),
    ],
)
def test_last_enabled_super_user_stays(room, code, ext, body):
    refused, remark = room.refused(code, ext, body)
    assert refused == ResponseCode.NO_PERMISSION
    assert "is the last enabled super user" in remark


CODES = [code for code in Code if code.name.startswith("AUTH_")]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("access", "advice"),
    [
        (AccessConfig(), "set it to true in the broker's configuration"),
        (AccessConfig(acl_enable=True), "accounts are in plain_acl.yml"),
    ],
    ids=["no authentication", "plain_acl.yml"],
)
def test_users_are_administered_only_where_they_sign_in(tmp_path, code, access, advice):
    refused, remark = AdminRoom(tmp_path, access=access).refused(code, {"username": "u"}, b"{}")
    assert refused == ResponseCode.NO_PERMISSION
    assert advice in remark


def test_user_without_super_rights_makes_nobody_super(room):
    room.users.put(User("bob", "b0b"))
    room.connection.identity = Identity("manager")
    assert room.refused(
        Code.AUTH_CREATE_USER, {"username": "u1"}, UserInfo(password="x", user_type="Super")
    ) == (ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
    assert room.refused(
        Code.AUTH_UPDATE_USER, {"username": "bob"}, UserInfo(user_type="Super")
    ) == (ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user")


def test_deleted_user_leaves_no_list_for_a_new_one_of_its_name(room):
    room.ask(Code.AUTH_CREATE_USER, *CREATE)
    with room.acls.changes.begin() as change:
        room.acls.put("u1", manager_list(), change)
    change.commit()
    assert room.ask(Code.AUTH_DELETE_USER, {"username": "u1"}).code == 0
    assert room.saved("acls.json", AclsBody).acls == {}
    room.ask(Code.AUTH_CREATE_USER, *CREATE)
    assert not room.ask(Code.AUTH_GET_ACL, {"subject": "User:u1"}).body


@pytest.mark.parametrize("code", [Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER])
@pytest.mark.parametrize(
    "body", [b'{"password":["u1-s3cret"]}', b'{"password":u1-s3cret}', b'"u1-s3cret"']
)
def test_refusal_of_an_unreadable_user_shows_no_password(room, code, body):
    refused, remark = room.refused(code, {"username": "u1"}, body)
    assert refused == ResponseCode.SYSTEM_ERROR
    assert "needed" in remark
    assert "s3cret" not in remark
