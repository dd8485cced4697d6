"""Our broker answers as real brokers with the same users and lists do; each exception has a reason.

`tests/vectors/access` has the answers of RocketMQ 5.5.0 and 4.9.7; a whole broker of ours gets the
same requests.
"""

import json
from contextlib import ExitStack

import pytest
from support.access.answers import (
    ASKED,
    STRANGERS,
    Asker,
    answers,
    load,
    prepare_users,
    refusal,
    written,
)
from support.access.plain_lists import PLAIN_ACL
from support.access.requests import REQUESTS
from support.access.secured_brokers import OUR_USERS, our_accounts
from support.brokers.broker_kinds import RocketPollBroker

from rocketpoll.broker.store.config import FlushDiskType


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Return a function that sends the requests of a version to a broker of ours."""
    found = {}
    for version in ASKED:
        directory = tmp_path_factory.mktemp("broker")
        plain_acl = directory / "plain_acl.yml"
        plain_acl.write_text(PLAIN_ACL, encoding="ascii")
        more = OUR_USERS if version == "5.5.0" else our_accounts(plain_acl)
        broker = RocketPollBroker(version, directory, FlushDiskType.ASYNC_FLUSH, more=more)
        try:
            said = written(answers(version, broker.address))
            found[version] = [json.loads(line) for line in said.splitlines()]
        finally:
            broker.close()
    return found


def pairs(ours, version, kind):
    """Return each vector with our answer to the same request."""
    theirs = load(version, kind)
    ours = [vector for vector in ours[version] if vector["kind"] == kind]
    assert [(each["name"], each["code"]) for each in theirs] == [
        (each["name"], each["code"]) for each in ours
    ]
    return list(zip(theirs, ours, strict=True))


# ---- users and lists of 5.5.0

_SUB, _SUB_OR_GET = ["Sub"], ["Sub", "Get"]
_CLUSTER_GET, _CLUSTER_UPDATE = {"Cluster": ["Get"]}, {"Cluster": ["Update"]}

NEEDS = {
    # RocketMQ checks nothing, because it does not know the header.
    "LITE_PULL_MESSAGE": {"Topic": _SUB, "Group": _SUB},
    "CHECK_CLIENT_CONFIG": {"Topic": _SUB, "Group": _SUB},
    "QUERY_ASSIGNMENT": {"Topic": _SUB, "Group": _SUB},
    "SEND_REPLY_MESSAGE": {"Topic": ["Pub"]},
    "SEND_REPLY_MESSAGE_V2": {"Topic": ["Pub"]},
    "UPDATE_AND_CREATE_TOPIC_LIST": {"Topic": ["Create"]},
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP": {"Group": ["Create"]},
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST": {"Group": ["Create"]},
    **dict.fromkeys(
        [
            "GET_BROKER_CONFIG",
            "GET_BROKER_RUNTIME_INFO",
            "GET_ALL_CONSUMER_OFFSET",
            "GET_ALL_DELAY_OFFSET",
            "GET_NAMESRV_CONFIG",
        ],
        _CLUSTER_GET,
    ),
    **dict.fromkeys(
        [
            "CLEAN_EXPIRED_CONSUMEQUEUE",
            "CLEAN_UNUSED_TOPIC",
            "DELETE_EXPIRED_COMMITLOG",
            "RESUME_CHECK_HALF_MESSAGE",  # a transaction belongs to no topic
            "UPDATE_BROKER_CONFIG",
            "UPDATE_NAMESRV_CONFIG",
        ],
        _CLUSTER_UPDATE,
    ),
    # The broker copies the message from its topic.
    "CONSUMER_SEND_MSG_BACK": {"Topic": _SUB, "Group": _SUB},
    # Offsets are read from one group, and set in another, so one action is not enough.
    "CLONE_GROUP_OFFSET": {"Topic": ["Update"], "Group": []},
    # A user who may consume a topic may also query its end, as consumers do.
    "VIEW_MESSAGE_BY_ID of a topic": {"Topic": _SUB_OR_GET},
    "SEARCH_OFFSET_BY_TIMESTAMP": {"Topic": _SUB_OR_GET},
    "GET_MAX_OFFSET": {"Topic": _SUB_OR_GET},
    "GET_MIN_OFFSET": {"Topic": _SUB_OR_GET},
    "GET_EARLIEST_MSG_STORETIME": {"Topic": _SUB_OR_GET},
}
"""The needs of requests in which ours differ from RocketMQ's."""


def test_each_request_needs_the_rights_that_rocketmq_asks_for(ours):
    for theirs, our in pairs(ours, "5.5.0", "request"):
        name = theirs["name"]
        assert our["needs"] == NEEDS.get(name, theirs["needs"]), name
    assert NEEDS.keys() <= {vector["name"] for vector in load("5.5.0", "request")}


def test_users_without_rights_are_refused_as_by_rocketmq(ours):
    for theirs, our in pairs(ours, "5.5.0", "request"):
        name = theirs["name"]
        refused = dict(our["refusals"])
        unnamed = refused.pop("no right"), theirs["refusals"].pop("no right")
        assert refused == theirs["refusals"], name
        if name not in NEEDS:
            assert unnamed[0] == unnamed[1], name


def test_access_list_entries_decide_as_by_rocketmq_5_5(ours):
    for theirs, our in pairs(ours, "5.5.0", "list"):
        assert our == theirs


SIGNED_EITHER_WAY = {"a query by unique id", "a query by unique id, its mark not signed"}
"""RocketMQ expects one form of the signature, depending on the client's version; our broker accepts
both."""

EMPTY_IN_BINARY = "an empty field", "ROCKETMQ"
"""RocketMQ reads no text, and counts the field as ``null``, which no client has signed."""


def test_signatures_are_valid_as_by_rocketmq_5_5(ours):
    for theirs, our in pairs(ours, "5.5.0", "signature"):
        is_empty_in_binary = (theirs["name"], theirs["codec"]) == EMPTY_IN_BINARY
        if theirs["name"] in SIGNED_EITHER_WAY or is_empty_in_binary:
            assert our["refusal"] is None, theirs
        else:
            assert our == theirs


def told(answer):
    """Return the part of an answer about users and lists that must be equal.

    RocketMQ leaves the remark of an unfinished response in its successes, and returns passwords.
    """
    body = answer["body"]
    for each in body if isinstance(body, list) else [body or {}]:
        each.pop("password", None)
    return {"code": answer["code"], "remark": answer["code"] and answer["remark"], "body": body}


def test_users_and_lists_are_administered_as_in_rocketmq(ours):
    for theirs, our in pairs(ours, "5.5.0", "administration"):
        assert told(our["answer"]) == told(theirs["answer"]), theirs


def test_user_requests_with_unknown_values_are_refused(ours):
    # RocketMQ takes an unknown word for the default, or for none: in the last case it deletes the
    # whole list.
    made, asked = pairs(ours, "5.5.0", "oddity")[:2], pairs(ours, "5.5.0", "oddity")[2:]
    assert [our["answer"]["code"] for _, our in made] == [0, 0]
    for theirs, our in asked:
        assert our["answer"]["code"] in (1, 16, 29), theirs
        assert our["answer"]["remark"], theirs


def test_disabled_authorization_allows_everything_to_users_and_nothing_to_others(tmp_path):
    more = {**OUR_USERS, "authorizationEnabled": "false"}
    broker = RocketPollBroker("5.5.0", tmp_path, FlushDiskType.ASYNC_FLUSH, more=more)
    try:
        with ExitStack() as stack:
            asker = Asker(broker.address, {}, stack)
            prepare_users(asker)
            for request in REQUESTS:
                for who, key in STRANGERS.items():
                    is_refused = refusal(asker.ask(request, key)) is not None
                    assert is_refused == (who != "no right"), (request.name, who)
    finally:
        broker.close()


# ---- plain_acl.yml of 4.9.7

PUB = {"nothing", "topics-sub", "limited-admin"}
SUB = {"nothing", "topics-pub"}
ANY = {"nothing"}
GROUP_SUB = {"nothing", "groups-none", "groups-pub", "limited-admin"}
GROUP_ANY = {"nothing", "groups-none", "limited-admin"}
ALL = {
    "nothing",
    "everything",
    "topics-pub",
    "topics-sub",
    "groups-pub",
    "groups-none",
    "billing",
}
"""All accounts but the admins."""

STRICTER = {
    # Requires a right to send.
    "SEND_BATCH_MESSAGE": PUB,
    "SEND_REPLY_MESSAGE": PUB,
    "SEND_REPLY_MESSAGE_V2": PUB,
    "END_TRANSACTION of a topic": PUB,
    # The group of a retry topic comes from its name, not from the sender.
    "SEND_MESSAGE to a retry topic": GROUP_SUB,
    # Requires a right to consume.
    "CONSUMER_SEND_MSG_BACK": {"topics-pub"},
    **dict.fromkeys(
        [
            "LITE_PULL_MESSAGE",
            "LOCK_BATCH_MQ",
            "UNLOCK_BATCH_MQ",
            "CHECK_CLIENT_CONFIG",
            "QUERY_ASSIGNMENT",
            "INVOKE_BROKER_TO_RESET_OFFSET",
            "CONSUME_MESSAGE_DIRECTLY",
            "CLONE_GROUP_OFFSET",
        ],
        SUB | GROUP_SUB,
    ),
    **dict.fromkeys(["QUERY_CONSUMER_OFFSET"], SUB | GROUP_SUB),
    "QUERY_CONSUMER_OFFSET of a retry topic": GROUP_SUB,
    "VIEW_MESSAGE_BY_ID of a topic": SUB,
    **dict.fromkeys(
        [
            "SEARCH_OFFSET_BY_TIMESTAMP",
            "GET_MAX_OFFSET",
            "GET_MIN_OFFSET",
            "GET_EARLIEST_MSG_STORETIME",
        ],
        SUB,
    ),
    # Requires any right on the topic and the group.
    **dict.fromkeys(
        [
            "GET_TOPIC_STATS_INFO",
            "QUERY_TOPIC_CONSUME_BY_WHO",
            "GET_TOPIC_CONFIG",
            "GET_ROUTEINFO_BY_TOPIC",
        ],
        ANY,
    ),
    **dict.fromkeys(
        [
            "QUERY_CONSUME_QUEUE",
            "GET_CONSUMER_CONNECTION_LIST",
            "GET_CONSUME_STATS",
            "GET_CONSUME_STATS of a topic",
            "INVOKE_BROKER_TO_GET_CONSUMER_STATUS",
            "QUERY_CONSUME_TIME_SPAN",
            "GET_CONSUMER_RUNNING_INFO",
            "QUERY_CORRECTION_OFFSET",
            "QUERY_TOPICS_BY_CONSUMER",
            "QUERY_SUBSCRIPTION_BY_CONSUMER",
            "GET_SUBSCRIPTIONGROUP_CONFIG",
        ],
        GROUP_ANY,
    ),
    "GET_ROUTEINFO_BY_TOPIC of a retry topic": GROUP_SUB,
    # Operators' requests are for admins.
    **dict.fromkeys(
        [
            "UPDATE_AND_CREATE_TOPIC_LIST",
            "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
            "RESUME_CHECK_HALF_MESSAGE",
            "GET_BROKER_CONFIG",
            "GET_BROKER_RUNTIME_INFO",
            "GET_ALL_CONSUMER_OFFSET",
            "GET_ALL_DELAY_OFFSET",
            "CLEAN_EXPIRED_CONSUMEQUEUE",
            "CLEAN_UNUSED_TOPIC",
            "GET_ALL_PRODUCER_INFO",
            "DELETE_EXPIRED_COMMITLOG",
            "GET_PRODUCER_CONNECTION_LIST",
            "VIEW_BROKER_STATS_DATA",
            "GET_BROKER_CONSUME_STATS",
            "PUT_KV_CONFIG",
            "GET_KV_CONFIG",
            "GET_KVLIST_BY_NAMESPACE",
            "DELETE_KV_CONFIG",
            "UPDATE_NAMESRV_CONFIG",
            "GET_NAMESRV_CONFIG",
            "WIPE_WRITE_PERM_OF_BROKER",
            "ADD_WRITE_PERM_OF_BROKER",
            *(
                f"AUTH_{verb}_{what}"
                for what in ("USER", "ACL")
                for verb in ("CREATE", "UPDATE", "GET", "LIST", "DELETE")
            ),
        ],
        ALL,
    ),
}
"""The accounts that our broker refuses and 4.9.7 accepts, by request."""


def refused(vector):
    return {who for who, refusal in vector["refusals"].items() if refusal is not None}


def test_no_account_may_do_what_plain_acl_refuses(ours):
    for theirs, our in pairs(ours, "4.9.7", "request"):
        assert refused(theirs) <= refused(our), theirs["name"]
    for kind in ("name", "address"):
        for theirs, our in pairs(ours, "4.9.7", kind):
            if theirs["body"] != b"{bad".hex():
                assert our == theirs


def test_plain_acl_is_stricter_than_rocketmq_only_in_listed_requests(ours):
    stricter = {
        theirs["name"]: refused(our) - refused(theirs)
        for theirs, our in pairs(ours, "4.9.7", "request")
    }
    assert {name: who for name, who in stricter.items() if who} == STRICTER


def test_plain_acl_refuses_in_the_words_of_rocketmq(ours):
    for theirs, our in pairs(ours, "4.9.7", "request"):
        for who in refused(theirs):
            known, said = theirs["refusals"][who], our["refusals"][who]
            if NEEDS_ADMIN in known["remark"]:  # our remark names the resource, not the code
                assert NEEDS_ADMIN in said["remark"]
            elif (theirs["name"], who) not in OTHER_WORDS:
                assert said == known, (theirs["name"], who)


NEEDS_ADMIN = "org.apache.rocketmq.acl.common.AclException: Need admin permission for "


OTHER_WORDS = {
    # RocketMQ names the group of the sender.
    *(("SEND_MESSAGE_V2 to a retry topic by the client's own producer", who) for who in GROUP_SUB),
    # Of two missing rights, RocketMQ names one or the other first.
    ("PULL_MESSAGE of a dead-letter topic", "nothing"),
    ("PULL_MESSAGE of a dead-letter topic", "limited-admin"),
    ("HEART_BEAT", "nothing"),
}
