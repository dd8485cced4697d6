"""Accounts of plain_acl.yml: the accepted files, and the rights of an account."""

import itertools

import pytest
from support.access.plain_lists import PLAIN_ACL
from support.rocketmq import java_vectors

from rmq_spark.errors import RocketPollError
from rocketpoll.broker.auth.plain.plain_accounts import PlainAcl, PlainAclError, PlainRight
from rocketpoll.broker.auth.rights import Action, Need, ResourceType, group_need, topic_need

ACCOUNT = """accounts:
- accessKey: RocketMQ
  secretKey: "12345678"
"""


def account(more="", text=ACCOUNT):
    (found,) = PlainAcl.parse([("f", text + more)]).accounts.values()
    return found


def test_plain_acl_of_the_vectors_is_read():
    acl = PlainAcl.parse([("plain_acl.yml", PLAIN_ACL)])
    billing = acl.accounts["billing"]
    assert [pattern.text for pattern in acl.white_addresses] == ["127.0.0.9"]
    assert billing.white_address.text == "127.0.0.8"
    assert billing.topic_rights["Orders"] == PlainRight.PUB | PlainRight.SUB
    assert billing.group_rights == {"GroupDenied": PlainRight.DENY, "GroupPub": PlainRight.PUB}
    assert [name for name, each in acl.accounts.items() if each.is_super] == ["operator"]


def test_plain_acl_takes_accounts_of_several_files():
    other = ACCOUNT.replace("RocketMQ", "rocketmq2")
    acl = PlainAcl.parse([("a", ACCOUNT), ("b", other), ("empty", "# nothing")])
    assert list(acl.accounts) == ["RocketMQ", "rocketmq2"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([ACCOUNT, ACCOUNT], r"f1:2:3: accessKey RocketMQ exists already"),
        ([ACCOUNT + "  secret: x"], r"f0:4:3: an account has no secret; did you mean secretKey\?"),
        (["account: []"], r"f0:1:1: plain_acl.yml has no account; did you mean accounts\?"),
        (["accounts: x"], "f0:1:11: accounts must be a list"),
        (["accounts: [x]"], "f0:1:12: an account must consist of keys and values"),
        (["- x"], "f0:1:1: plain_acl.yml must consist of keys and values"),
        (["accounts:\n- accessKey: short1"], "f0:2:14: accessKey must have at least 7 characters"),
        (["accounts:\n- accessKey: RocketMQ"], "f0:2:3: secretKey must have at least 7 characters"),
        (
            ["accounts:\n- accessKey: RocketMQ\n  secretKey: 01234567"],
            "f0:3:14: YAML reads this secretKey as a number or flag: quote it",
        ),
        ([ACCOUNT + "  admin: yes"], "f0:4:10: admin must be true or false"),
        ([ACCOUNT + "  admin: [true]"], "f0:4:10: admin must be one value"),
        ([ACCOUNT + "  defaultTopicPerm: pub"], "f0:4:21: a right must be PUB, SUB, PUB|SUB or"),
        ([ACCOUNT + "  topicPerms: [A]"], "f0:4:16: a right by name must be name=PUB"),
        ([ACCOUNT + "  topicPerms: ['A=ALL']"], "f0:4:16: a right must be PUB, SUB"),
        ([ACCOUNT + "  topicPerms: A=PUB"], "f0:4:15: topicPerms must be a list"),
        ([ACCOUNT + "  whiteRemoteAddress: 10.1"], "f0:4:23: a white address must be an address"),
        (["globalWhiteRemoteAddresses:\n- a: b"], "f0:2:3: a white address must be one value"),
        ([ACCOUNT + "  admin: *x"], "f0:4:10: a value that begins with"),
    ],
)
def test_plain_acl_refuses_faults_with_file_line_and_column(files, message):
    with pytest.raises(PlainAclError) as error:
        PlainAcl.parse([(f"f{n}", text) for n, text in enumerate(files)])
    assert message.replace("\\", "") in str(error.value)


def test_plain_acl_shows_no_secret_key():
    secret = "hidden-s3cret"  # noqa: S105  # not a real secret
    found = account(text=ACCOUNT.replace("12345678", secret))
    assert secret not in repr(found)
    with pytest.raises(RocketPollError) as error:
        account(text=ACCOUNT.replace('"12345678"', f"[{secret}]"))
    assert secret not in str(error.value)


@pytest.mark.parametrize(
    "row", [row for row in java_vectors.load("4.9.7", "plain_lists") if row["kind"] == "right"]
)
def test_plain_right_is_parsed_as_by_rocketmq_or_refused_if_rocketmq_silently_denies(row):
    text = "" if row["text"] is None else f"'{row['text']}'"
    silent = row["deny"] and row["text"] not in (None, "DENY")
    if silent:
        with pytest.raises(PlainAclError, match="a right must be"):
            account(f"  defaultTopicPerm: {text}")
        return
    right = account(f"  defaultTopicPerm: {text}").default_topic_right
    assert (PlainRight.PUB in right, PlainRight.SUB in right) == (row["pub"], row["sub"])


RIGHTS = ["PUB", "SUB", "PUB|SUB", "DENY"]


@pytest.mark.parametrize(("default", "named"), list(itertools.product(RIGHTS, [None, *RIGHTS])))
def test_plain_right_by_name_replaces_the_default_one(default, named):
    more = f"  defaultTopicPerm: {default}\n  defaultGroupPerm: {default}\n"
    if named:
        more += f"  topicPerms: [X=DENY, N={named}]\n  groupPerms: [N={named}]\n"
    found = account(more)
    owned = named or default
    for of in (topic_need, group_need):
        assert (found.fault(of("N", Action.PUB)) is None) == ("PUB" in owned)
        assert (found.fault(of("N", Action.SUB)) is None) == ("SUB" in owned)
        assert (found.fault(of("N", Action.SUB, Action.GET)) is None) == ("SUB" in owned)
        assert (found.fault(of("N", Action.GET)) is None) == (owned != "DENY")
        assert (found.fault(of("N", Action.PUB, Action.SUB, Action.GET)) is None) == (
            owned != "DENY"
        )
        assert (found.fault(of("N", Action.UPDATE)) is None) == ("SUB" in owned)
        assert found.fault(of("N", Action.CREATE)) is not None


def test_plain_account_may_always_send_traces_and_never_read_them():
    found = account()
    assert found.fault(topic_need("RMQ_SYS_TRACE_TOPIC", Action.PUB)) is None
    assert found.fault(topic_need("RMQ_SYS_TRACE_TOPIC", Action.SUB)) is not None


CLUSTER_NEEDS = [Need(ResourceType.CLUSTER, "C", (action,)) for action in Action]


@pytest.mark.parametrize("need", CLUSTER_NEEDS)
def test_plain_account_needs_admin_for_the_cluster(need):
    assert "Need admin permission for cluster:C" in account().fault(need)
    assert account("  admin: true").fault(need) is None


def test_plain_admin_with_rights_by_name_is_limited_to_them_as_in_rocketmq():
    admin = account("  admin: true\n  topicPerms: [A=PUB]\n")
    assert not admin.is_super
    assert admin.fault(topic_need("A", Action.PUB)) is None
    assert admin.fault(topic_need("B", Action.CREATE)) is None
    assert admin.fault(topic_need("B", Action.PUB)) == "No default permission for topic:B"
