"""Lies: well-formed but wrong responses of brokers, one kind at a time.

    client ── RequestLine ──> broker        which request each answer belongs to
           <── AnswerLine ──                the answer, or what a lie of `wrong_answers` makes of it

A lie is one of two kinds, and the promises differ.

    evidence    The answer contradicts itself or the request: a record of another topic or queue, a
                queue offset outside of what was asked for or out of order, a body that does not
                match its CRC, a cut record, an unknown code, an answer to nothing. Clients can
                detect it. Nothing is lost, altered, or delivered as another queue's; a query makes
                no progress past a row that it did not read.
    claim       Nothing in the answer contradicts it: a queue begins or ends elsewhere, a group has
                another offset, a record does not exist, a send was stored elsewhere. A client may
                believe it, and skip messages. What it delivers is whole and of the right
                queue, and it does not hang, neither now nor when the broker is honest again: then
                everything sent from that moment on arrives.

An answer that is forged as a whole (another body with its CRC, other properties, which no CRC
covers, a real record of another queue with this one's topic, queue and offset, a right broker name
at another broker's address, a lock that was never granted) is out of reach for a client of
RocketMQ's protocol, and no part of any promise. So is the end of a record's properties where a cut
has put the beginning of the next record there.

Brokers lie to the programs of a story. They do not lie to auditors, operators and producers of the
world itself, which connect from 127.0.0.1.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from support.servers.wrong_answers import (
    ANSWER_LIES,
    FRAME_LIES,
    LIES,
    PLACE_LIES,
    ROUTE_LIES,
    SEND_LIES,
    with_wrong_places,
    with_wrong_records,
)

from rmq_spark.wire.codes import RequestCode, ResponseCode

HONEST_HOST = "127.0.0.1"
"""The host of connections that always get honest responses."""

_ODDS = 0.5
"""The share of wrong responses while a lie is active."""

RENUMBERED = "all of the next offsets"
"""A lie that clients detect only if an offset lies outside of the pull: the broker filters, so
offsets may have gaps."""

_PARTLY_CLAIMS = frozenset({"refusals of all kinds"})
"""Lies that are claims only in part: one of the codes says that a topic does not exist."""

_CLAIMS = frozenset(
    {
        "left out",
        "nothing",
        "goes on later",
        "goes on earlier",
        RENUMBERED,
        "other ends",
        "other starts",
        "other committed offsets",
        "other offsets of times",
        "other bounds of pulls",
        "other ends in pulls",
        "pulls that go on anywhere",
        "pulls from elsewhere",
        "nothing in answers",
        "other offsets of sends",
        "other queues of sends",
        "nothing in answers to sends",
    }
)


class Lie(NamedTuple):
    """One kind of wrong answer, made by ``change(dice, request, answer)``."""

    change: object
    is_claim: bool
    is_of_names: bool = False
    """True for lies of name servers."""

    is_about_sends: bool = False
    is_partly_claim: bool = False
    """True if some of the responses claim that messages are gone."""


def _about_records(lie, dice, request, answer):
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return answer
    if request.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        return with_wrong_records(dice, lie, answer, has_sizes=False)
    if request.code == RequestCode.PULL_CHUNK:
        return with_wrong_records(dice, lie, answer, has_sizes=True)
    return answer


def _about_places(lie, dice, request, answer):
    if answer.code != ResponseCode.SUCCESS or request.code != RequestCode.PULL_PLACES:
        return answer
    return with_wrong_places(dice, lie, answer)


def _about_codes(lies, dice, request, answer):
    lie = lies.get(request.code)
    return answer if lie is None else lie(dice, answer)


def _about_any(lie, dice, _request, answer):
    return lie(dice, answer)


def _all_lies():
    for about, lies, more in (
        (_about_records, LIES, {}),
        (_about_places, {f"places: {name}": lie for name, lie in PLACE_LIES.items()}, {}),
        (_about_codes, ANSWER_LIES, {}),
        (_about_codes, SEND_LIES, {"is_about_sends": True}),
        (_about_codes, ROUTE_LIES, {"is_of_names": True}),
        (_about_any, FRAME_LIES, {}),
    ):
        for name, lie in lies.items():
            is_claim = name.removeprefix("places: ") in _CLAIMS
            partly = name in _PARTLY_CLAIMS
            yield name, Lie(partial(about, lie), is_claim, **more, is_partly_claim=partly)


WORLD_LIES = dict(_all_lies())
"""All kinds of lies, by name."""


class Liar:
    """Gives wrong responses of one kind of a host for a while."""

    def __init__(self, kernel, dice, note):
        self._kernel = kernel
        self._dice = dice
        self._note = note
        self._told = {}
        self.count = 0
        """Number of wrong responses."""

    def lie(self, host, about, seconds):
        """Start a lie of a host that replaces the current one."""
        self._told[host] = WORLD_LIES[about], about, self._kernel.now + seconds

    def changed(self, host, request, answer):
        """Return the response that the client gets."""
        lie, about, until = self._told.get(host, (None, None, 0.0))
        if lie is None or self._kernel.now >= until or self._dice.random() >= _ODDS:
            return answer
        changed = lie.change(self._dice, request, answer)
        if changed is not answer:
            self.count += 1
            self._note(f"{host} lies about {request.code}: {about}")
        return changed
