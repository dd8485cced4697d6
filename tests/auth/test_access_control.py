"""AccessControl: identities of connections, refusals, and the rights of users."""

import pytest
from support.brokers.connections import FakeConnection

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import GetRouteInfoRequestHeader
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.auth.rights import Action, ResourceType
from rocketpoll.broker.common.channel import Identity
from rocketpoll.broker.common.request_content import RequestRejected


class Rules:
    """Accepts a request that is signed with a user's name; each user may do everything with its own
    topics."""

    version = 1

    def authenticate(self, address, request):
        name = request.ext_fields.get("AccessKey")
        if name is None:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"nobody at {address}")
        return Identity(name, is_super=name == "admin")

    def refusal(self, identity, address, need):
        if identity.is_super or need.name.startswith(identity.name):
            return None
        return RequestRejected(ResponseCode.NO_PERMISSION, f"{need.name} from {address}")


def request(name=None, topic="alice-1", code=RequestCode.GET_ROUTEINFO_BY_TOPIC):
    fields = {"topic": topic} | ({} if name is None else {"AccessKey": name})
    return RemotingCommand(code, ext_fields=fields)


@pytest.fixture
def access():
    return AccessControl(Rules(), "C")


def test_access_control_without_rules_checks_nothing():
    access = AccessControl()
    access.check(FakeConnection(), RemotingCommand(77))
    assert not access.is_enabled
    assert access.allows(FakeConnection(), ResourceType.TOPIC, "T", Action.PUB)


def test_access_control_keeps_the_first_identity_of_a_connection(access):
    connection = FakeConnection(remote="10.0.0.7:1234")
    with pytest.raises(RequestRejected, match=r"nobody at 10\.0\.0\.7"):
        access.check(connection, request())
    assert connection.identity is None
    access.check(connection, request("alice"))
    with pytest.raises(RequestRejected, match="belongs to alice"):
        access.check(connection, request("admin"))
    assert connection.identity == Identity("alice")
    assert (access.failures, access.denials) == (2, 0)


def test_access_control_refuses_a_need_that_the_rules_refuse(access):
    connection = FakeConnection(remote="[fe80::1]:1234")
    with pytest.raises(RequestRejected, match="bob-1 from fe80::1"):
        access.check(connection, request("alice", topic="bob-1"))
    assert (access.failures, access.denials) == (0, 1)


@pytest.mark.parametrize("name", ["alice", "admin"])
@pytest.mark.parametrize("code", [77, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED])
def test_access_control_refuses_codes_without_a_row_to_everybody(access, name, code):
    with pytest.raises(RequestRejected, match="no client may send request"):
        access.check(FakeConnection(), request(name, code=code))


def test_access_control_allows_by_the_proven_identity(access):
    connection = FakeConnection()
    topic = (connection, ResourceType.TOPIC)
    assert not access.allows(*topic, "alice-1", Action.SUB)
    access.check(connection, request("alice"))
    assert access.allows(*topic, "alice-1", Action.SUB)
    assert access.allows(*topic, "%RETRY%alice-group", Action.SUB)
    assert not access.allows(*topic, "bob-1", Action.SUB)
    assert not access.allows(connection, ResourceType.GROUP, "bob", Action.GET)


def test_access_control_allows_a_super_user_everything(access):
    connection = FakeConnection()
    access.check(connection, request("admin", topic="bob-1"))
    assert access.allows(connection, ResourceType.CLUSTER, "C", Action.UPDATE)


def test_access_control_decodes_the_header_that_it_checks(access):
    fields = {"AccessKey": "alice"}
    with pytest.raises(Exception, match=GetRouteInfoRequestHeader.__name__):
        access.check(
            FakeConnection(),
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields),
        )


def heartbeat(topics):
    subscriptions = tuple(SubscriptionData(topic=topic) for topic in topics)
    group = ConsumerData(group_name="alice-g", subscription_data_set=subscriptions)
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=(group,)))
    fields = {"AccessKey": "alice"}
    return RemotingCommand(RequestCode.HEART_BEAT, ext_fields=fields, body=body)


def test_large_request_is_checked_in_steps_with_the_same_result(access):
    mine = [f"alice-{number}" for number in range(300)]
    steps = list(access.check_in_steps(FakeConnection(), heartbeat(mine)))
    assert len(steps) > 300
    access.check(FakeConnection(), heartbeat(mine))
    for check in (access.check, lambda *given: list(access.check_in_steps(*given))):
        with pytest.raises(RequestRejected, match="bob-1"):
            check(FakeConnection(), heartbeat([*mine, "bob-1"]))
    assert access.denials == 2
