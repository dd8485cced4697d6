"""Access lists of RocketMQ 5: the deciding rule, and the valid lists."""

import json
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.access import answers

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import AclInfo, PolicyEntryInfo, PolicyInfo
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.access_lists import (
    RULES_MAX,
    AccessList,
    AccessListError,
    AccessRule,
    Decision,
    ResourcePattern,
    SourceRange,
)
from rocketpoll.broker.auth.request_rights import RIGHTS
from rocketpoll.broker.auth.rights import Action, Need, ResourceType

# ---- the same decisions as RocketMQ 5.5.0


def acl_of(policies):
    body = {"policies": [{"policyType": k, "entries": e} for k, e in policies.items() if e]}
    return AccessList.of_policies(decode_body(AclInfo, json.dumps(body).encode()).policies)


@pytest.mark.parametrize("vector", answers.load("5.5.0", "list"), ids=lambda v: v["name"])
def test_access_list_decides_as_rocketmq_does(vector):
    asked = answers.as_request(vector)
    request = RemotingCommand(asked.code, ext_fields=asked.ext_fields, body=asked.body)
    acl = acl_of(vector["policies"])
    decisions = {acl.decide(need, "127.0.0.1") for need in RIGHTS[asked.code](request, "C")}
    refusal = vector["refusal"]
    if refusal is None:
        assert decisions == {Decision.ALLOW}
    elif refusal["remark"].endswith("the decision is deny."):
        assert Decision.DENY in decisions
    else:
        assert None in decisions


# ---- the same decisions as a model that compares each pair of rules

NAMES = st.sampled_from(["", "a", "ab", "abc", "b", "ba"])
PATTERNS = st.one_of(
    st.just("*"),
    st.builds(
        "{}:{}{}".format,
        st.sampled_from(["Topic", "Group", "Cluster"]),
        NAMES,
        st.sampled_from(["", "*"]),
    ),
)
ACTIONS = st.lists(st.sampled_from([action.value for action in Action]), min_size=1, max_size=3)
SOURCES = st.lists(
    st.sampled_from(["10.0.0.1", "10.0.0.0/8", "10.0.0.0/31", "::/0", "fe80::/10", "0.0.0.0/0"]),
    max_size=2,
)
ENTRIES = st.builds(
    lambda resource, actions, source_ips, decision: PolicyEntryInfo(
        resource=resource,
        actions=tuple(actions),
        source_ips=tuple(source_ips),
        decision=decision,
    ),
    PATTERNS,
    ACTIONS,
    SOURCES,
    st.sampled_from(["Allow", "Deny"]),
)
POLICIES = st.lists(
    st.builds(
        lambda kind, entries: PolicyInfo(policy_type=kind, entries=tuple(entries)),
        st.sampled_from(["Custom", "Default"]),
        st.lists(ENTRIES, min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=3,
)
NEEDS = st.builds(
    Need,
    st.sampled_from(ResourceType),
    NAMES,
    st.lists(
        st.sampled_from([action for action in Action if action is not Action.ALL]),
        min_size=1,
        max_size=2,
        unique=True,
    ).map(tuple),
)
ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "127.0.0.1", "fe80::1", "::1"])


def model_covers(resource, need):
    if resource == "*":
        return True
    kind, name = resource.split(":")
    same = kind == need.resource.value
    return same and (need.name.startswith(name[:-1]) if name[-1:] == "*" else need.name == name)


def model_is_from(source, address):
    if "/" not in source:
        return ip_address(source) == ip_address(address)
    network = ip_network(source)
    return int(network[0]) <= int(ip_address(address)) <= int(network[-1])


def model_is_before(resource, other):
    """Return whether a resource is more specific than another that covers the same name."""
    if resource in (other, "*"):
        return False
    if other == "*" or not resource.endswith("*"):
        return True
    if not other.endswith("*"):
        return False
    if other.endswith(":*") or resource.endswith(":*"):
        return other.endswith(":*")
    return len(resource) > len(other)


def model(policies, need, address):
    for kind in ("Custom", "Default"):
        rules = {}
        for policy in policies:
            if policy.policy_type == kind:
                rules.update({entry.resource: entry for entry in policy.entries})
        wanted = {"All", *(action.value for action in need.actions)}
        found = [
            entry
            for entry in rules.values()
            if model_covers(entry.resource, need)
            and wanted & set(entry.actions)
            and (
                not entry.source_ips
                or any(model_is_from(source, address) for source in entry.source_ips)
            )
        ]
        for entry in found:
            if not any(model_is_before(other.resource, entry.resource) for other in found):
                return Decision(entry.decision)
    return None


@given(POLICIES, NEEDS, ADDRESSES)
def test_access_list_decides_as_a_model_does(policies, need, address):
    assert AccessList.of_policies(policies).decide(need, address) == model(policies, need, address)


@given(POLICIES)
def test_access_list_survives_encoding_and_decoding(policies):
    acl = AccessList.of_policies(policies)
    assert AccessList.of_policies(acl.policies()) == acl


@given(POLICIES, POLICIES, NEEDS, ADDRESSES)
def test_access_list_merges_successive_changes_like_a_single_one(first, second, need, address):
    merged = AccessList.of_policies(first).merge(AccessList.of_policies(second))
    assert merged.decide(need, address) == model([*first, *second], need, address)


def test_access_list_keeps_other_rules_when_one_is_removed():
    entry = {"actions": ["Pub"], "decision": "Allow"}
    acl = acl_of(
        {
            "CUSTOM": [{**entry, "resource": "Topic:A"}, {**entry, "resource": "Topic:B"}],
            "DEFAULT": [{**entry, "resource": "Topic:A"}],
        }
    )
    left = acl.without(ResourcePattern.parse("topic:A"), is_default=False)
    assert [[each.resource for each in kind.entries] for kind in left.policies()] == [
        ["Topic:B"],
        ["Topic:A"],
    ]
    assert [each.policy_type for each in acl.policies("B")] == ["Custom"]


# ---- valid lists

GOOD = {"resource": "Topic:A", "actions": ("Pub",), "source_ips": None, "decision": "Allow"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource": None}, "The resource is null."),
        ({"resource": "A"}, "The resource is null."),
        ({"resource": "Bogus:A"}, "The resource is null."),
        ({"resource": "Topic:" + "x" * 256}, "The resource has over 255 characters."),
        ({"actions": None}, "The actions is empty."),
        ({"actions": ("Any",)}, "The actions can not be Any."),
        ({"actions": ("Pub", "Bogus")}, "The action Bogus is unknown."),
        ({"decision": None}, "The decision is null or illegal."),
        ({"decision": "Maybe"}, "The decision is null or illegal."),
        ({"source_ips": ("",)}, "The source ip is empty."),
        ({"source_ips": ("192.168.*.*",)}, "The source ip is invalid."),
        ({"source_ips": ("10.0.0.0/33",)}, "The source ip is invalid."),
        ({"source_ips": ("10.0.0.0/255.0.0.0",)}, "The source ip is invalid."),
        ({"source_ips": ("10.0.0.1",) * 101}, "A rule has over 100 source ips."),
    ],
)
def test_access_rule_refuses_what_rocketmq_refuses_in_its_words(changes, message):
    with pytest.raises(AccessListError) as error:
        AccessRule.of_info(PolicyEntryInfo(**{**GOOD, **changes}))
    assert str(error.value) == message


def test_access_list_refuses_an_unknown_policy_type():
    with pytest.raises(AccessListError, match="policy type Bogus is not Custom or Default"):
        AccessList.of_policies([PolicyInfo(policy_type="Bogus", entries=())])


@pytest.mark.parametrize("policies", [None, (), (PolicyInfo(entries=()),)])
def test_access_list_refuses_to_be_empty(policies):
    with pytest.raises(AccessListError, match="The policies is empty"):
        AccessList.of_policies(policies)


def test_access_list_has_a_limit_of_rules():
    entries = [PolicyEntryInfo(**{**GOOD, "resource": f"Topic:{n}"}) for n in range(RULES_MAX + 1)]
    full = AccessList.of_policies([PolicyInfo(entries=tuple(entries[1:]))])
    with pytest.raises(AccessListError, match="over 1000 rules"):
        full.merge(AccessList.of_policies([PolicyInfo(entries=tuple(entries[:1]))]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("*", "*"),
        ("topic:a", "Topic:a"),
        ("GROUP:*", "Group:*"),
        ("Cluster:ab*", "Cluster:ab*"),
        ("Topic:a*b", "Topic:a*b"),
        ("Topic:a*b*", "Topic:a*"),
        ("Topic:", "Topic:"),
        ("Topic:**", "Topic:*"),
    ],
)
def test_resource_pattern_is_shown_in_rocketmqs_form(text, shown):
    assert str(ResourcePattern.parse(text)) == shown


@pytest.mark.parametrize(
    ("source", "covered", "others"),
    [
        ("10.1.2.3/24", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "fe80::1"]),
        ("::1", ["::1"], ["0.0.0.1"]),
        ("0.0.0.1", ["0.0.0.1"], ["::1"]),
        ("::/0", ["10.0.0.1", "fe80::1"], []),
    ],
)
def test_source_range_covers_addresses(source, covered, others):
    covers = SourceRange.parse(source).covers
    assert all(map(covers, covered))
    assert not any(map(covers, others))


def test_access_list_with_thousands_of_rules_checks_few_for_each_right():
    entries = [
        PolicyEntryInfo(**{**GOOD, "resource": f"Topic:{'x' * (n % 200)}{n}*"})
        for n in range(RULES_MAX)
    ]
    acl = AccessList.of_policies([PolicyInfo(entries=tuple(entries))])
    looked_at = []

    class Watched(dict):
        def get(self, key):
            looked_at.append(key)
            return super().get(key)

    object.__setattr__(acl, "_by_pattern", tuple(map(Watched, acl._by_pattern)))
    acl.decide(Need(ResourceType.TOPIC, "y" * 100_000, (Action.PUB,)), "::1")
    assert len(looked_at) < 600
