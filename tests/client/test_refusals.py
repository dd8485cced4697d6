"""Refusals are classified by response code, and those of 4.9's access lists by their text."""

import json
from pathlib import Path

import pytest

from rmq_spark.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerRefused,
    NoPermission,
    needed_actions,
    refusal,
)
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.request_rights import RIGHTS
from rocketpoll.broker.auth.rights import Action


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, "BrokerRefused"),
        (2, "SystemBusy"),
        (215, "SystemBusy"),
        (3, "NotSupported"),
        (13, "MessageIllegal"),
        (16, "NoPermission"),
        (17, "TopicNotFound"),
        (22, "NotFound"),
        (23, "SubscriptionRejected"),
        (28, "SubscriptionRejected"),
        (206, "ConsumerNotOnline"),
        (9_999, "BrokerRefused"),
    ],
)
def test_response_code_decides_the_exception_class(code, kind):
    error = refusal(code, "why", "h:1", 310)
    assert type(error).__name__ == kind
    assert isinstance(error, BrokerRefused)
    assert (error.code, error.remark, error.address, error.request_code) == (
        code,
        "why",
        "h:1",
        310,
    )


_TYPES = "TopicMessageType validate failed, the expected type is {}, but actual type is {}"


@pytest.mark.parametrize(
    ("code", "request_code", "remark", "remedy"),
    [
        (13, 310, _TYPES.format("NORMAL", "FIFO"), "a topic with the attribute message.type=FIFO"),
        (13, 310, _TYPES.format("UNSPECIFIED", "NORMAL"), "NORMAL. Create the topic first"),
        (13, 310, "too large", ": too large"),
        (
            3,
            106,
            "request type 106 not supported",
            "of RocketMQ answers producers and consumers only",
        ),
        (3, 17, "request type 17 not supported", ": request type 17 not supported"),
    ],
)
def test_refusal_of_a_proxy_says_what_to_do(code, request_code, remark, remedy):
    text = str(refusal(code, remark, "h:1", request_code))
    assert text.partition("\n")[0].endswith(remedy)


ACL_4_9 = "org.apache.rocketmq.acl.common.AclException: "
AT_4_9 = ", org.apache.rocketmq.acl.plain.PlainPermissionManager.validate"


@pytest.mark.parametrize(
    ("code", "remark", "user", "remedy"),
    [
        (16, "username cannot be null.", None, "Pass the access key and the secret key of a user"),
        (16, "User:billing is not found.", "billing", "run rocketpoll user create billing"),
        (16, "User:billing not found.", "billing", "run rocketpoll user create billing"),
        (16, "User:billing is disabled.", "billing", "run rocketpoll user update billing --enable"),
        (16, "nobody has signed this request", None, "Pass the access key and the secret key"),
        (
            16,
            "this connection belongs to a: use another connection for another access key",
            "a",
            "Use another client for another user",
        ),
        (16, "check signature failed.", None, "Correct the secret key"),
        (1, f"{ACL_4_9}No accessKey is configured{AT_4_9}", None, "Pass the access key"),
        (1, f"{ACL_4_9}No acl config for billing{AT_4_9}", "billing", "Correct the access key"),
        (
            1,
            f"{ACL_4_9}Check signature failed for accessKey=billing{AT_4_9}",
            "billing",
            "Correct the secret key",
        ),
    ],
)
def test_refused_credentials_are_an_error_of_their_own_that_says_what_to_correct(
    code, remark, user, remedy
):
    error = refusal(code, remark, "h:1", 310)
    assert type(error) is AuthenticationFailed
    assert error.user == user
    assert remedy in str(error)


def test_denied_access_names_user_resource_action_and_the_command_that_grants_it():
    remark = (
        "User:billing has no permission to access Topic:orders from 10.0.0.7, no matched policies."
    )
    error = refusal(16, remark, "h:1", RequestCode.PULL_MESSAGE)
    assert type(error) is AccessDenied
    assert (error.user, error.resource, error.actions) == ("billing", "Topic:orders", ("Sub",))
    assert str(error) == (
        f"h:1 refused PULL_MESSAGE: NO_PERMISSION: {remark} Have an operator run "
        "rocketpoll acl grant billing Topic:orders --actions Sub"
    )


def test_denied_access_by_an_entry_that_denies_suggests_no_grant():
    remark = "User:billing has no permission to access Topic:orders from ::1, the decision is deny."
    assert "have an operator change the entry that denies it" in str(
        refusal(16, remark, "h:1", 310)
    )


@pytest.mark.parametrize(
    "remark",
    [
        f"{ACL_4_9}No default permission for topic:orders{AT_4_9}",
        f"{ACL_4_9}Need admin permission for request code=17, but accessKey=billing is not{AT_4_9}",
    ],
)
def test_denied_access_of_4_9_points_at_its_file(remark):
    error = refusal(1, remark, "h:1", 17)
    assert type(error) is AccessDenied
    assert "plain_acl.yml" in str(error)


def test_denied_route_says_which_actions_suffice():
    remark = "User:billing has no permission to access Topic:orders from ::1, no matched policies."
    assert str(refusal(16, remark, "h:1", RequestCode.GET_ROUTEINFO_BY_TOPIC)).endswith(
        "grant billing Topic:orders --actions Pub; Sub or Get suffices as well"
    )


def test_command_of_denied_access_quotes_names_for_the_shell():
    remark = (
        "User:a;b has no permission to access Topic:$(reboot) from 10.0.0.7, no matched policies."
    )
    assert "grant 'a;b' 'Topic:$(reboot)' --actions Pub" in str(refusal(16, remark, "h:1", 310))


@pytest.mark.parametrize(
    ("request_name", "kind", "actions"),
    [
        ("SEND_MESSAGE_V2", "Topic", ("Pub",)),
        ("SEND_MESSAGE_V2", "Group", ("Sub",)),  # to a retry topic
        ("HEART_BEAT", "Group", ("Sub",)),
        ("UPDATE_CONSUMER_OFFSET", "Group", ("Sub", "Update")),
        ("UPDATE_AND_CREATE_TOPIC", "Topic", ("Create",)),
        ("GET_MAX_OFFSET", "Topic", ("Get",)),
        ("GET_ROUTEINFO_BY_TOPIC", "Topic", ("Pub", "Sub", "Get")),
        ("GET_ROUTEINFO_BY_TOPIC", "Group", ("Sub", "Get")),
        ("PUT_KV_CONFIG", "Cluster", ("Update",)),
    ],
)
def test_needed_actions_follow_from_request_and_resource(request_name, kind, actions):
    assert needed_actions(RequestCode[request_name], kind) == actions


def test_unknown_request_has_no_needed_actions():
    assert needed_actions(9_999, "Topic") == ()


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (16, "the topic[orders] sending message is forbidden", NoPermission),
        (16, None, NoPermission),
        (1, f"{ACL_4_9}something new", NoPermission),
        (1, "the disk is full", BrokerRefused),
        (1, "check signature failed.", BrokerRefused),  # not from an access list
    ],
)
def test_refusals_for_other_reasons_are_not_about_users(code, remark, kind):
    assert type(refusal(code, remark, "h:1", 310)) is kind


# ---- answers of real brokers, see tests/vectors/access

VECTORS = Path(__file__).parents[1] / "vectors" / "access"
WITHOUT_CREDENTIALS = ("no key", "unknown", "wrong secret", "disabled")


def rows_of(version):
    lines = (VECTORS / f"{version}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "request"]


def refused(row, who):
    said = row["refusals"].get(who)
    return said and refusal(said["code"], said["remark"], "h:1", row["code"])


def test_answers_of_5_5_to_wrong_credentials_are_authentication_failures():
    kinds = {type(refused(row, who)) for row in rows_of("5.5.0") for who in WITHOUT_CREDENTIALS}
    assert kinds == {AuthenticationFailed}


def test_refusals_of_5_5_name_the_actions_that_5_5_needs():
    checked = 0
    for row in rows_of("5.5.0"):
        error = refused(row, "no right")
        if error is None or row["code"] not in RequestCode.__members__.values():
            continue
        assert type(error) is AccessDenied, row
        assert error.user == "nothing"
        kind, _, _ = error.resource.partition(":")
        assert {*error.actions[:1]} <= {*row["needs"][kind]}, (row["name"], error.actions)
        checked += 1
    assert checked > 50


def test_answers_of_4_9_are_failed_authentication_or_denied_access():
    found = {}
    for row in rows_of("4.9.7"):
        for who, said in row["refusals"].items():
            if said is not None and "AclException" in said["remark"]:
                error = refusal(said["code"], said["remark"], "h:1", row["code"])
                found.setdefault(type(error), []).append((row["name"], who))
    assert set(found) == {AuthenticationFailed, AccessDenied}, found


def test_needed_actions_suffice_at_our_broker_too():
    checked = 0
    for row in rows_of("5.5.0"):
        rights = RIGHTS.get(row["code"])
        if rights is None:
            continue
        request = RemotingCommand(
            row["code"], ext_fields=row["ext"], body=bytes.fromhex(row["body"])
        )
        for need in rights(request, "peers"):
            wanted = needed_actions(row["code"], need.resource.value)
            assert not wanted or Action(wanted[0]) in need.actions, (row["name"], need, wanted)
            checked += bool(wanted)
    assert checked > 80
