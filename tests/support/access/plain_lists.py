"""A plain_acl.yml of 4.9, and requests that it allows or denies."""

from __future__ import annotations

from support.access.lists import SECRET
from support.access.requests import REQUESTS, Request
from support.access.signed_client import Key

WHITE, OWN_WHITE = "127.0.0.9", "127.0.0.8"
"""Addresses from which every request is allowed: for all accounts, and for one account."""

PLAIN_ACL = f"""
globalWhiteRemoteAddresses:
- {WHITE}
accounts:
- accessKey: operator
  secretKey: '87654321'
  admin: true
- accessKey: limited-admin
  secretKey: '{SECRET}'
  admin: true
  topicPerms:
  - Orders=SUB
- accessKey: nothing
  secretKey: '{SECRET}'
- accessKey: everything
  secretKey: '{SECRET}'
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
- accessKey: topics-pub
  secretKey: '{SECRET}'
  defaultTopicPerm: PUB
  defaultGroupPerm: PUB|SUB
- accessKey: topics-sub
  secretKey: '{SECRET}'
  defaultTopicPerm: SUB
  defaultGroupPerm: PUB|SUB
- accessKey: groups-pub
  secretKey: '{SECRET}'
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB
- accessKey: groups-none
  secretKey: '{SECRET}'
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: DENY
- accessKey: billing
  secretKey: '{SECRET}'
  whiteRemoteAddress: {OWN_WHITE}
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Orders=PUB|SUB
  - PubOnly=PUB
  - SubOnly=SUB
  - Denied=DENY
  groupPerms:
  - GroupDenied=DENY
  - GroupPub=PUB
"""

ACCOUNTS = {
    "no key": None,
    "unknown": Key("nobody", SECRET),
    "wrong secret": Key("operator", "wrong"),
    **{
        name: Key(name, SECRET)
        for name in (
            "limited-admin",
            "nothing",
            "everything",
            "topics-pub",
            "topics-sub",
            "groups-pub",
            "groups-none",
            "billing",
        )
    },
    "operator": Key("operator", "87654321"),
}

_BY_NAME = {request.name: request for request in REQUESTS}
_SEND, _PULL = _BY_NAME["SEND_MESSAGE_V2"], _BY_NAME["PULL_MESSAGE"]
_MEMBERS, _CREATE = (
    _BY_NAME["GET_CONSUMER_LIST_BY_GROUP"],
    _BY_NAME["UPDATE_AND_CREATE_TOPIC"],
)


def _with(request: Request, **fields: str) -> Request:
    return request._replace(ext_fields={**request.ext_fields, **fields})


NAMES = tuple(
    (request, "billing")
    for request in (
        *(_with(_SEND, b=topic) for topic in ("Orders", "PubOnly", "SubOnly", "Denied", "Other")),
        *(_with(_PULL, topic=topic) for topic in ("Orders", "PubOnly", "SubOnly", "Denied")),
        *(
            _with(_MEMBERS, consumerGroup=group)
            for group in ("readers", "GroupDenied", "GroupPub", "Other")
        ),
        _with(_SEND, b=""),
        _BY_NAME["HEART_BEAT"]._replace(body=b"{bad"),
    )
)
"""Requests of the account whose rights are listed by topic and group."""

_UNSIGNED = _with(_SEND, AccessKey="billing")

ADDRESSES = (
    (WHITE, None, _SEND),
    (WHITE, None, _CREATE),
    (WHITE, Key("nobody", SECRET), _SEND),
    (WHITE, Key("billing", "wrong"), _SEND),
    (WHITE, Key("nothing", SECRET), _SEND),
    (WHITE, Key("nothing", SECRET), _CREATE),
    (OWN_WHITE, None, _SEND),
    (OWN_WHITE, None, _UNSIGNED),
    (OWN_WHITE, Key("billing", "wrong"), _SEND),
    (OWN_WHITE, Key("billing", SECRET), _with(_SEND, b="Denied")),
    (OWN_WHITE, Key("billing", SECRET), _CREATE),
    (OWN_WHITE, Key("nothing", SECRET), _SEND),
    (OWN_WHITE, Key("everything", "wrong"), _SEND),
    ("127.0.0.1", None, _UNSIGNED),
    ("127.0.0.1", None, _with(_SEND, AccessKey="")),
)
"""Requests as (source address, key, request)."""
