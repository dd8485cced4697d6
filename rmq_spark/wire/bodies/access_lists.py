"""Access-list bodies: users and their access lists, as operators of RocketMQ 5 send and read them.

Words of a type, status, action or decision are texts here, because RocketMQ reads them without
regard to case. A response to AUTH_LIST_USER or AUTH_LIST_ACL is a JSON array, or empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user: the body of AUTH_CREATE_USER and AUTH_UPDATE_USER, the response to AUTH_GET_USER.

    A rocketpoll broker never returns a password, so that it is None in its responses.

    Attributes:
        username: The user's name, which its client sends as the access key.
        password: The user's password, which signs requests as the secret key.
        user_type: ``Super`` or ``Normal``; None in an update leaves it as it is.
        user_status: ``enable`` or ``disable``; None in an update leaves it as it is.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        """Return a text without the password."""
        return (
            f"UserInfo(username={self.username!r}, user_type={self.user_type!r}, "
            f"user_status={self.user_status!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntryInfo:
    """One rule of an access list.

    Attributes:
        resource: ``Topic:name``, ``Group:prefix*``, ``Cluster:*`` or ``*``.
        actions: ``Pub``, ``Sub``, ``Create``, ``Update``, ``Delete``, ``Get``, ``List`` or ``All``.
        source_ips: Addresses and CIDR ranges from which it holds; everywhere if empty or None.
        decision: ``Allow`` or ``Deny``.
    """

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """The rules of one kind: ``Custom``, or ``Default``, which counts where no custom one does."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclInfo:
    """The access list of a subject: the body of AUTH_CREATE_ACL, the response to AUTH_GET_ACL.

    Attributes:
        subject: ``User:name``.
        policies: Its rules, by kind.
    """

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None


USER_LIST: Final = tuple[UserInfo, ...]
"""The type of the response to AUTH_LIST_USER."""
ACL_LIST: Final = tuple[AclInfo, ...]
"""The type of the response to AUTH_LIST_ACL."""
