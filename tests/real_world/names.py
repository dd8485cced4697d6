"""Topics and groups that operators create and delete: answered changes are permanent.

No message is ever sent to them, so no send creates one again.
"""

import json

from world.acts import Act

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand

_COUNT = 4
_SECONDS_MAX = 30.0
_TABLES = {
    "topic": (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
    "group": (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
}


class Names:
    """Knows which topics and groups exist; None if that is unknown."""

    def __init__(self, complain):
        self._complain = complain
        self._known = {}

    def asked(self, kind, name):
        """Record a request to create or delete a name, whose outcome is unknown until it is
        answered."""
        self._known[kind, name] = None

    def answered(self, kind, name, *, is_there):
        self._known[kind, name] = is_there

    def is_uncertain(self, kind, name):
        return (kind, name) in self._known and self._known[kind, name] is None

    def forget_uncertain(self):
        """Make names of unanswered requests usable again."""
        self._known = {
            key: is_there for key, is_there in self._known.items() if is_there is not None
        }

    async def audit(self, player):
        """Compare the known names with those that a broker returns."""
        for kind, (code, table) in _TABLES.items():
            before = dict(self._known)
            answer = await player.ask(code)
            if answer is None or answer.code:
                return
            found = json.loads(bytes(answer.body))[table]
            for (of_kind, name), is_there in before.items():
                is_known = is_there is not None and self._known[of_kind, name] is is_there
                if of_kind == kind and is_known and is_there != (name in found):
                    self._complain(f"the {kind} {name} should {'' if is_there else 'not '}be there")


def _draw(dice):
    return {"name": f"made-{dice.randrange(_COUNT)}"}


async def _change(player, kind, name, code, *, is_there, body=b"", **fields):
    names = player.world.names
    connection = await player.connected()  # connect first: this life answers, or none
    if names.is_uncertain(kind, name):
        return
    names.asked(kind, name)
    texts = {field: str(value) for field, value in fields.items()}
    request = RemotingCommand(code, ext_fields=texts, body=body)
    answer = await player.answer(connection, request, _SECONDS_MAX)
    if answer is not None and answer.code == 0:
        names.answered(kind, name, is_there=is_there)


async def make_topic(player, name):
    await _change(
        player,
        "topic",
        name,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        is_there=True,
        topic=name,
        defaultTopic="TBW102",
        readQueueNums=2,
        writeQueueNums=2,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order="false",
    )


async def delete_topic(player, name):
    await _change(
        player, "topic", name, RequestCode.DELETE_TOPIC_IN_BROKER, is_there=False, topic=name
    )


async def make_group(player, name):
    body = encode_body(SubscriptionGroupConfig(group_name=name))
    await _change(
        player,
        "group",
        name,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        is_there=True,
        body=body,
    )


async def delete_group(player, name):
    await _change(
        player, "group", name, RequestCode.DELETE_SUBSCRIPTIONGROUP, is_there=False, groupName=name
    )


ACTS = {
    "make_named_topic": Act(make_topic, _draw),
    "delete_named_topic": Act(delete_topic, _draw),
    "make_named_group": Act(make_group, _draw),
    "delete_named_group": Act(delete_group, _draw),
}
