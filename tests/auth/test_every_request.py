"""Every request code against every kind of sender, over sockets: refused without any effect.

The cases come from their own table (`every_request`); a code without a case fails.
"""

import pytest
from support.brokers.access import WITH_USERS, Users, forged, signed
from support.brokers.every_request import (
    BROKER,
    DENIED,
    GROUP,
    MEMBER,
    REQUESTS,
    SINK,
    TO_CLIENTS,
    TOPIC,
    Names,
)
from support.brokers.in_process import tell
from support.clients.remoting_clients import send_request
from support.servers.tls import BROKER_TLS, client_context
from support.suite.coroutine_tests import run_by
from support.suite.selection import spread

from rmq_spark.wire.bodies import clients, encode_body
from rmq_spark.wire.codes import RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

CODECS = SerializeType.JSON, SerializeType.ROCKETMQ
SYSTEM_ERROR, NOT_SUPPORTED = 1, 3
TLS = {**BROKER_TLS, "tls.server.mode": "enforcing"}
OWN_RIGHTS = "Topic:own All", "Group:own All"
"""The rights of a user without rights on objects of others."""
BYSTANDER = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
"""A request that every user may send."""


def test_each_request_code_has_a_case():
    assert REQUESTS.keys() | TO_CLIENTS == frozenset(RequestCode)


class World:
    """A broker with the objects of one user, and clients of other users."""

    def __init__(self, broker, tls=None):
        self.broker = broker
        self.access = broker.controller.access
        self.users = Users(broker.controller)
        self.tls = tls
        self.names = Names()

    async def prepare(self):
        """Create a topic with messages, a group with a member, its offsets and locks,
        and a sink."""
        self.users.grant("owner", f"Topic:{TOPIC} All", f"Group:{GROUP} All")
        self.users.grant("mallory", *OWN_RIGHTS)
        self.broker.make_topic(TOPIC)
        self.broker.make_topic("own")
        owner = self.owner = await self.broker.connect(tls=self.tls)
        sent = [
            await self.tell(owner, "owner", send_request("x", TOPIC, properties={"KEYS": "k"}))
            for _ in range(3)
        ]
        self.msg_id = sent[-1].ext_fields["msgId"]
        subscription = clients.SubscriptionData(topic=TOPIC)
        group = clients.ConsumerData(group_name=GROUP, subscription_data_set=(subscription,))
        queues = frozenset([MessageQueue(TOPIC, BROKER, 0)])
        for code, body in (
            (
                RequestCode.HEART_BEAT,
                clients.HeartbeatData(client_id=MEMBER, consumer_data_set=(group,)),
            ),
            (
                RequestCode.LOCK_BATCH_MQ,
                clients.LockBatchRequestBody(consumer_group=GROUP, client_id=MEMBER, mq_set=queues),
            ),
        ):
            await self.tell(owner, "owner", RemotingCommand(code, body=encode_body(body)))
        commit = self.request(RequestCode.UPDATE_CONSUMER_OFFSET)
        fields = {**commit.ext_fields, "commitOffset": "2"}
        await self.tell(owner, "owner", commit._replace(ext_fields=fields))
        await self.tell(owner, "owner", self.request(RequestCode.EXTENSIONS))
        stage = self.request(RequestCode.STAGE_CHUNK)
        fields = {**stage.ext_fields, "sink": SINK}
        await self.tell(owner, "owner", stage._replace(ext_fields=fields))
        self.names = Names(position=int(self.msg_id[16:], 16), msg_id=self.msg_id)
        for _ in range(2):
            self.broker.controller.processors.sample_stats()

    def msg_id_of(self, position):
        """Return the id of the message at another position."""
        return f"{self.msg_id[:16]}{position:016X}"

    def is_served(self, code):
        """Return whether this broker has a handler for a code."""
        return code in self.broker.controller.processors.dispatch.codes

    def request(self, code, names=None):
        return REQUESTS[code].build(names or self.names)

    async def tell(self, client, user, request):
        answer = await client.call(signed(request, user))
        assert answer.code == 0, answer.remark
        return answer

    async def connect(self, user=None):
        """Return a new client; it negotiates extensions if it has a user."""
        client = await self.broker.connect(tls=self.tls)
        if user is not None:
            await self.tell(client, user, self.request(RequestCode.EXTENSIONS))
        return client

    def state(self):
        """Return everything that requests can change."""
        controller = self.broker.controller
        tables, processors = controller.tables, controller.processors
        batches = controller.store.staged_batches
        return {
            "topics": dict(tables.topics.topics),
            "groups": dict(tables.groups.groups),
            "offsets": tables.offsets.wrapper(),
            "values": tables.kv_configs.list("N"),
            "modes": tables.request_modes.wrapper(),
            "log": controller.store.state().written_offset,
            "locks": {key: lock.client_id for key, lock in processors.locks._locks.items()},
            "members": {
                name: processors.consumers.group(name).client_ids
                for name in processors.consumers.names
            },
            "producers": set(processors.producers.groups),
            "held": controller.hold_service.hold_count,
            "sinks": dict(batches.table.sinks),
            "staged": batches.staging_area.size,
            "users": self.users.state(),
        }


def play(story, root, *, is_tls=False):
    """Run a scenario in a world."""

    async def whole(broker):
        world = World(broker, client_context() if is_tls else None)
        await world.prepare()
        await story(world)

    tell(whole, root, **WITH_USERS, **(TLS if is_tls else {}))


in_world = run_by(play)


def in_each_codec(request):
    fits = request.code < 1 << 15  # the codes of pops need JSON
    return [request.with_serialize_type(codec) for codec in (CODECS if fits else CODECS[:1])]


each_wire = pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])


@each_wire
def test_every_request_without_a_proven_identity_is_refused_and_changes_nothing(tmp_path, is_tls):
    async def story(world):
        mallory = await world.connect("mallory")
        access = world.access
        for code in REQUESTS:
            request = world.request(code)
            able = signed(request, "root")
            senders = {
                "nobody": request,
                "an unknown user": signed(request, "nobody"),
                "a wrong key": signed(request, "root", "another key"),
                "a wrong signature": forged(able),
                "another body": able._replace(body=bytes(able.body) + b" "),
                "another field": able._replace(ext_fields={**able.ext_fields, "more": "x"}),
            }
            before, failures = world.state(), access.failures
            client = await world.connect()
            for sender, sent in senders.items():
                for each in in_each_codec(sent):
                    answer = await client.call(each)
                    assert (answer.code, answer.body) == (DENIED, b""), (code, sender)
                    assert not answer.ext_fields
            for each in in_each_codec(able):
                answer = await mallory.call(each)
                assert answer.code == DENIED, (code, "somebody else's request")
                assert "belongs to mallory" in answer.remark
            assert access.failures == failures + len(in_each_codec(able)) * (len(senders) + 1)
            assert world.state() == before, code
            client.close()

    play(story, tmp_path, is_tls=is_tls)


@pytest.mark.parametrize("is_tls", spread(1, [False, True]), ids=["plain", "tls"])
def test_every_captured_request_with_another_code_needs_the_rights_of_that_code(tmp_path, is_tls):
    """A signature does not cover the code, so one captured request can be sent under any code."""

    async def story(world):
        for code in REQUESTS:
            captured = signed(world.request(code), "mallory")
            before = world.state()
            client = await world.connect("mallory")
            for other, case in REQUESTS.items():
                if not case.rights or case.lacks or "owner" in case.rights:
                    continue
                if not world.is_served(other):
                    continue
                answer = await client.call(captured._replace(code=other))
                # the broker read the other body as an empty list of topics, groups or acks
                answers = (0, DENIED, SYSTEM_ERROR, ResponseCode.NO_MESSAGE)
                assert answer.code in answers, (code, other, answer.remark)
                assert not answer.body, (code, other)
            assert world.state() == before, code
            client.close()

    play(story, tmp_path, is_tls=is_tls)


@each_wire
def test_every_request_is_refused_to_a_user_who_lacks_one_of_its_rights(tmp_path, is_tls):
    async def story(world):
        for code, case in REQUESTS.items():
            before = world.state()
            for missing in case.rights:
                rights = [right for right in case.rights if right not in (missing, "owner")]
                world.users.grant("eve", *OWN_RIGHTS, *rights)
                client = await world.connect("eve")
                for each in in_each_codec(signed(world.request(code), "eve")):
                    answer = await client.call(each)
                    expected = case.lacks.get(missing, DENIED)
                    expected = expected if world.is_served(code) else NOT_SUPPORTED
                    assert answer.code == expected, (code, missing, answer.remark)
                    text = bytes(answer.body).decode(errors="replace")
                    assert not any(name in text for name in case.shows), (code, missing)
                client.close()
            after = world.state()
            del before["users"], after["users"]
            assert after == before, code

    play(story, tmp_path, is_tls=is_tls)


@pytest.mark.parametrize("code", sorted(REQUESTS), ids=lambda code: code.name)
def test_request_is_served_to_a_user_who_has_just_its_rights(tmp_path, code):
    case = REQUESTS[code]

    async def story(world):
        user = "owner" if "owner" in case.rights else "able"
        if user == "able":
            world.users.grant("able", *(case.rights or OWN_RIGHTS))
        client = await world.connect(user)
        before = world.state()
        answer = await client.call(signed(world.request(code), user))
        if not world.is_served(code):
            assert answer.code == NOT_SUPPORTED
            return
        assert answer.code in case.answers, answer.remark
        text = bytes(answer.body).decode(errors="replace")
        assert all(name in text for name in case.shows)
        assert (world.state() != before) is case.is_changing

    play(story, tmp_path)


@in_world
async def test_every_refusal_is_the_same_whether_topic_and_group_exist(world):
    strangers = Names("elsewhere", "nobodies", 1 << 30, world.msg_id_of(1 << 30))
    client = await world.connect("mallory")
    for code in REQUESTS.keys() - {RequestCode.EXTENSIONS}:
        answers = []
        for names in (world.names, strangers):
            answer = await client.call(signed(world.request(code, names), "mallory"))
            answers.append(
                (
                    answer.code,
                    names.hidden_in(answer.remark or ""),
                    dict(answer.ext_fields),
                    bytes(answer.body),
                )
            )
        assert answers[0] == answers[1], code


@pytest.mark.parametrize("code", [*sorted(TO_CLIENTS), 9_999, 200_056])
@in_world
async def test_request_that_the_broker_does_not_serve_is_refused_as_unauthenticated_first(
    world, code
):
    request = RemotingCommand(code, ext_fields={"topic": TOPIC, "group": GROUP})
    before = world.state()
    client = await world.connect()
    assert (await client.call(request)).code == DENIED
    assert (await client.call(signed(request, "nobody"))).code == DENIED
    for user in ("mallory", "root"):
        client = await world.connect(user)
        assert (await client.call(signed(request, user))).code == NOT_SUPPORTED
    assert world.state() == before


@in_world
async def test_refused_one_way_requests_are_counted_and_change_nothing(world):
    before = world.state()
    refused = world.broker.controller.processors.dispatch.refused
    client = await world.connect("mallory")
    one_way = signed(send_request("x", TOPIC), "mallory")._replace(flag=2)
    for request in (one_way, forged(one_way)):
        client.send(request)
    assert (await client.call(signed(BYSTANDER, "mallory"))).code == 0
    assert refused[RequestCode.SEND_MESSAGE_V2, DENIED] == 2
    assert (world.access.failures, world.access.denials) == (1, 1)
    assert world.state() == before
