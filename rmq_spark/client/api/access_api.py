"""AccessApi: an operator's requests about users and their access lists, one method each.

RocketMQ 5 has them from 5.3 on; 4.9 refuses them with `NotSupported`. A broker has users and lists
of its own, so a change has to be made at each.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from rmq_spark.client.errors import NoPermission
from rmq_spark.client.transport.typed_requests import TypedRequests, response_body
from rmq_spark.wire.bodies.operators import ACL_LIST, USER_LIST, AclInfo, UserInfo
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)

_Body = TypeVar("_Body")

_SUBJECT: Final = "User:"
_MISSING: Final = ("is not exist", "does not exist")
"""Texts of brokers about a user or a list that they do not have, with code 16."""


class AccessApi:
    """Requests about users and access lists to a broker, whose address comes first."""

    def __init__(self, requests: TypedRequests) -> None:
        self._requests = requests

    # ---- users

    def create_user(self, address: str, user: UserInfo) -> None:
        """Create a user, which must not exist."""
        header = UserRequestHeader(user.username)
        self._requests.call(address, RequestCode.AUTH_CREATE_USER, header, user)

    def update_user(self, address: str, user: UserInfo) -> None:
        """Change what is given of a user, who must exist."""
        header = UserRequestHeader(user.username)
        self._requests.call(address, RequestCode.AUTH_UPDATE_USER, header, user)

    def delete_user(self, address: str, name: str) -> None:
        """Delete a user with its access list; RocketMQ accepts one that it does not know."""
        self._requests.call(address, RequestCode.AUTH_DELETE_USER, UserRequestHeader(name))

    def user(self, address: str, name: str) -> UserInfo | None:
        """Return a user; None if the broker does not know it."""
        code = RequestCode.AUTH_GET_USER
        return self._body_or_none(UserInfo, address, code, UserRequestHeader(name))

    def users(self, address: str) -> tuple[UserInfo, ...]:
        """Return all users."""
        code = RequestCode.AUTH_LIST_USER
        return self._body_or_none(USER_LIST, address, code, ListUsersRequestHeader()) or ()

    # ---- access lists

    def create_acl(self, address: str, user: str, acl: AclInfo) -> None:
        """Add entries to a user's access list; one of the same resource is replaced."""
        header = AclRequestHeader(_SUBJECT + user)
        self._requests.call(address, RequestCode.AUTH_CREATE_ACL, header, acl)

    def delete_acl(self, address: str, user: str, resource: str | None = None) -> bool:
        """Delete the entry of a resource, or all of a user; return False if there is no list."""
        header = DeleteAclRequestHeader(_SUBJECT + user, resource=resource)
        try:
            self._requests.call(address, RequestCode.AUTH_DELETE_ACL, header)
        except NoPermission as error:
            if not _is_missing(error):
                raise
            return False
        return True

    def acl(self, address: str, user: str) -> AclInfo | None:
        """Return the access list of a user; None if the broker has none, or not that user."""
        header = AclRequestHeader(_SUBJECT + user)
        try:
            return self._body_or_none(AclInfo, address, RequestCode.AUTH_GET_ACL, header)
        except NoPermission as error:
            if not _is_missing(error):
                raise
            return None

    def acls(self, address: str) -> tuple[AclInfo, ...]:
        """Return the access lists of all users."""
        code = RequestCode.AUTH_LIST_ACL
        return self._body_or_none(ACL_LIST, address, code, ListAclsRequestHeader()) or ()

    def _body_or_none(
        self, body_type: type[_Body], address: str, code: int, header: Any
    ) -> _Body | None:
        """Return the body of the answer; None if it has none, as for what does not exist."""
        answer = self._requests.call(address, code, header)
        return response_body(address, body_type, answer) if answer.body else None


def _is_missing(error: NoPermission) -> bool:
    return type(error) is NoPermission and any(text in (error.remark or "") for text in _MISSING)
