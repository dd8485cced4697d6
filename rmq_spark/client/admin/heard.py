"""Heard: whether the members of a group have got what their broker was to tell them.

    members, and over which connection      before they are told
    told, one way                           nobody answers that
    members                                 behind it
    each is asked how it does               on the same way, so its answer comes behind
    members, and over which connection      behind that

Who answers over the connection that it had all the time has got all that went before. Who does not
may be cut off, and store an offset of its own over the one that it was not told of. This module
does not know what they are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rmq_spark.client.errors import BrokerRefused, ConsumerNotOnline, SystemBusy
from rmq_spark.client.requests.broker_api import BrokerApi
from rmq_spark.client.threads.at_once import for_each
from rmq_spark.errors import legible
from rmq_spark.wire.codes import RequestCode, ResponseCode

TELLINGS_MAX: Final = 3
"""Most times that members are told, while some leave or do not answer."""

_AT_ONCE_MAX: Final = 16
"""Most members that are asked at a time."""


def until_heard(api: BrokerApi, address: str, group: str) -> Iterator[frozenset[str]]:
    """Yield the members of a group to be told, and again if one has not heard or has left.

    The last offsets of one that left may have come behind what was stored for it.

    Raises:
        ConsumerNotOnline: One was told, and does not answer.
    """
    unheard: frozenset[str] = frozenset()
    for _ in range(TELLINGS_MAX):
        before = _members(api, address, group)
        yield frozenset(before)
        unheard = _unheard(api, address, group, before)
        if not unheard:
            return
    silent = sorted(unheard & _members(api, address, group).keys())
    if silent:
        remark = (
            f"the offsets of <{legible(group)}> are stored, and its members were told, but "
            f"{', '.join(map(legible, silent))} did not answer behind that, and may store the "
            "offsets that it had: stop it, or do this again when it answers"
        )
        raise ConsumerNotOnline(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            remark,
            address,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        )


def _unheard(api: BrokerApi, address: str, group: str, before: Mapping[str, str]) -> frozenset[str]:
    """Return the members that left, that do not answer, or do so over another connection."""
    told = _members(api, address, group)
    outcomes = for_each(
        told, lambda each: _answers(api, address, group, each), most=_AT_ONCE_MAX, name="is heard"
    )
    after = _members(api, address, group) if told else {}
    silent = {each for each, outcome in outcomes.items() if outcome is not True}
    moved = {
        each
        for each, place in told.items()
        if {before.get(each, place), after.get(each, place)} != {place}
    }
    return frozenset(silent | moved | (before.keys() - after.keys()))


def _answers(api: BrokerApi, address: str, group: str, client_id: str) -> bool:
    """Return whether a member answers its broker, whatever it says."""
    try:
        api.admin.consumer_running_info(address, group, client_id)
    except (ConsumerNotOnline, SystemBusy):
        return False
    except BrokerRefused:  # its own words, or it is too old to be asked
        return True
    return True


def _members(api: BrokerApi, address: str, group: str) -> Mapping[str, str]:
    """Return the members of a group, and the address that each comes from."""
    return {each.client_id: each.client_addr for each in api.admin.online_members(address, group)}
