"""Heard: whether the members of a group have got what their broker was to tell them.

    members, and over which connection      before they are told
    told, one way                           nobody answers that
    members                                 behind it
    each is asked how it does               on the same way, so its answer comes behind
    members, and over which connection      behind that

Who answers over the connection that it had all the time has got all that went before. All are told
again if one has left or is connected anew. Who does not answer is only asked again: what it was
told waits in its connection, and whoever has heard would begin anew with each telling. Who stays
silent may be cut off, and store an offset of its own over the one that it was not told of. This
module does not know what they are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.concurrency.parallel import parallel_map
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerRefused,
    ConsumerNotOnline,
    ProtocolError,
    SystemBusy,
)
from rmq_spark.errors import sanitize
from rmq_spark.wire.codes import RequestCode, ResponseCode

ROUNDS_MAX: Final = 3
"""Most times that members are asked, and that they are told."""

_MEMBER_THREADS_MAX: Final = 8
"""Most members that are asked at a time: each that is silent keeps one of the sixteen threads busy
that RocketMQ has for operators, which find offsets for all consumers as well."""


def confirm_members(api: BrokerApi, address: str, group: str) -> Iterator[frozenset[str]]:
    """Yield the members of a group to be told, and again if one has left or is connected anew.

    The last offsets of one that left may have come behind what was stored for it. However many are
    silent, a round ends with the first of them: ten seconds, for which the broker waits.

    Raises:
        ConsumerNotOnline: One was told, and does not answer, or one has left or is connected anew
            each time.
    """
    asked: set[str] = set()
    left = silent = moved = frozenset[str]()
    places: Mapping[str, str] = {}

    def ask(client_id: str) -> None:
        asked.add(client_id)
        _ping_member(api, address, group, client_id)

    for _ in range(ROUNDS_MAX):
        if not left:
            before = _member_addresses(api, address, group)
            yield frozenset(before)
            told = _member_addresses(api, address, group)
            places, left = {**told, **before}, frozenset(told)
        outcomes = parallel_map(
            sorted(left, key=lambda each: (each in asked, each)),  # nobody is left out for ever
            ask,
            threads_max=_MEMBER_THREADS_MAX,
            name="is heard",
            stop_on=(ConsumerNotOnline, *CONNECTION_FAULTS),
        )
        after = _member_addresses(api, address, group) if places else {}
        silent = frozenset(each for each, outcome in outcomes.items() if outcome is not None)
        moved = frozenset(each for each, place in places.items() if after.get(each) != place)
        if not silent and not moved:
            return
        untold = any(isinstance(outcome, SystemBusy) for outcome in outcomes.values())
        left = frozenset() if moved or untold else silent
    raise _unconfirmed_error(address, group, (silent & asked) | moved, len(silent - asked - moved))


def _unconfirmed_error(address: str, group: str, unconfirmed: frozenset[str], unasked_count: int) -> ConsumerNotOnline:
    more = f", and {unasked_count} more were not asked" if unasked_count else ""
    remark = (
        f"the offsets of <{sanitize(group)}> are stored on this broker, and its members were told, "
        f"but {', '.join(map(sanitize, sorted(unconfirmed)))} did not answer behind that, or left or "
        f"connected anew{more}: who has not heard may store the offsets that it had: stop it, or "
        "do this again when it answers"
    )
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    return ConsumerNotOnline(ResponseCode.CONSUME_MSG_TIMEOUT, remark, address, code)


def _ping_member(api: BrokerApi, address: str, group: str, client_id: str) -> None:
    """Return if a member answers its broker, whatever it says; raise an error if it does not."""
    try:
        api.admin.consumer_running_info(address, group, client_id)
    except (ConsumerNotOnline, SystemBusy):
        raise
    except (BrokerRefused, ProtocolError):  # its own words, or it is too old to be asked
        return


def _member_addresses(api: BrokerApi, address: str, group: str) -> Mapping[str, str]:
    """Return the members of a group, and the address that each comes from."""
    return {each.client_id: each.client_addr for each in api.admin.online_members(address, group)}
