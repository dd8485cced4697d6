"""AccessAdminProcessor: RocketMQ 5's requests about users and access lists, 3001 to 3010.

A success means that the change is on the disk; it is in effect at once, also for open connections.
Unlike in RocketMQ, no response contains a password, unknown words are refused instead of ignored,
and the last user who may administer the broker cannot be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import AclInfo, UserInfo
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

from ...auth.access_lists import (
    AccessList,
    AccessListError,
    ResourcePattern,
    is_default_type,
)
from ...auth.user_tables import User, UserType
from ...common.channel import Channel, ResponseSteps
from ..processor import Processor, handles
from ..request import (
    RequestRejected,
    body_of,
    header_of,
    no_permission,
    success_response,
    system_error,
)

_SUBJECT_TYPE: Final = "user:"


class AccessAdminProcessor(Processor):
    """The responses to requests that create, change, delete and list users and access lists."""

    # ---- users

    @handles(RequestCode.AUTH_CREATE_USER)
    def create_user(self, connection: Channel, request: RemotingCommand) -> None:
        """Create a user, who is normal and enabled unless the request says otherwise."""
        self._check_enabled()
        name = _username(request)
        info = _user_of(request)
        with _refusals():
            user = User(name, "").with_changes(info)
            if user.is_super and not _is_super(connection):
                raise system_error("The super user can only be create by super user")
            if self._broker.users.get(name) is not None:
                raise AccessListError("The user is existed")
            self._put_user(connection, request, user)

    @handles(RequestCode.AUTH_UPDATE_USER)
    def update_user(self, connection: Channel, request: RemotingCommand) -> None:
        """Change those fields of a user that the request contains."""
        self._check_enabled()
        name = _username(request)
        info = _user_of(request)
        with _refusals():
            before = self._broker.users.get(name)
            if before is None:
                raise AccessListError("The user is not exist")
            user = before.with_changes(info)
            if not _is_super(connection):
                if before.is_super:
                    raise AccessListError("The super user can only be update by super user")
                if user.user_type is UserType.SUPER:
                    raise system_error("The super user can only be update by super user")
            self._put_user(connection, request, user)

    def _put_user(self, connection: Channel, request: RemotingCommand, user: User) -> None:
        users = self._broker.users
        with self._broker.reply_after_save.saving(connection, request, users) as change:
            users.put(user, change)

    @handles(RequestCode.AUTH_DELETE_USER)
    def delete_user(self, connection: Channel, request: RemotingCommand) -> None:
        """Delete a user with its access list, with success even if there is no such user."""
        self._check_enabled()
        name = header_of(request).username or ""
        users, acls = self._broker.users, self._broker.acls
        with _refusals():
            if not name.strip():
                raise AccessListError("username can not be blank")
            user = users.get(name)
            if user is not None and user.is_super and not _is_super(connection):
                raise AccessListError("The super user can only be update by super user")
            with users.changes.begin() as change, acls.changes.begin() as acl_change:
                users.delete(name, change)
                acls.put(name, None, acl_change)

        def save() -> None:
            users.save()
            acls.save()

        self._broker.reply_after_save.commit_changes(
            connection, request, save, success_response(request), change, acl_change
        )

    @handles(RequestCode.AUTH_GET_USER)
    def get_user(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with a user without its password; with no body if there is no such user."""
        self._check_enabled()
        user = self._broker.users.get(_username(request))
        return success_response(request, body=None if user is None else user.info())

    @handles(RequestCode.AUTH_LIST_USER)
    def list_users(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer with all users whose names contain a text; with no body if there is none."""
        self._check_enabled()
        part = (header_of(request).filter or "").strip()
        users = (user.info() for user in self._broker.users if part in user.name)
        return _list_in_steps(request, users)

    # ---- access lists

    @handles(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL)
    def put_acl(self, connection: Channel, request: RemotingCommand) -> None:
        """Add rules to a user's access list, replacing those of the same resources."""
        self._check_enabled()
        info: AclInfo = body_of(request, AclInfo)
        with _refusals():
            name = _name_of(info.subject or header_of(request).subject)
            changes = AccessList.of_policies(info.policies)
            if self._broker.users.get(name) is None:
                raise AccessListError(f"The subject of User:{name} is not exist.")
            before = self._broker.acls.get(name) or AccessList()
            self._put_acl(connection, request, name, before.merge(changes))

    @handles(RequestCode.AUTH_DELETE_ACL)
    def delete_acl(self, connection: Channel, request: RemotingCommand) -> None:
        """Delete one rule of a user's access list; without a resource, the whole list."""
        self._check_enabled()
        header = header_of(request)
        with _refusals():
            name, acl = self._existing(header.subject)
            if acl is None:
                raise AccessListError("The acl is not exist.")
            left = None
            if (header.resource or "").strip():
                is_default = is_default_type(header.policy_type or None)
                left = acl.without(ResourcePattern.parse(header.resource), is_default=is_default)
            self._put_acl(connection, request, name, left)

    def _put_acl(
        self, connection: Channel, request: RemotingCommand, name: str, acl: AccessList | None
    ) -> None:
        acls = self._broker.acls
        with self._broker.reply_after_save.saving(connection, request, acls) as change:
            acls.put(name, acl, change)

    @handles(RequestCode.AUTH_GET_ACL)
    def get_acl(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with the access list of a user; with no body if it has none."""
        self._check_enabled()
        with _refusals():
            name, acl = self._existing(header_of(request).subject)
        body = None if acl is None else acl.info(f"User:{name}")
        return success_response(request, body=body)

    @handles(RequestCode.AUTH_LIST_ACL)
    def list_acls(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer with the rules whose subjects and resources contain the request's texts."""
        self._check_enabled()
        header = header_of(request)
        subject = (header.subject_filter or "").strip()
        resource = (header.resource_filter or "").strip()
        found = (
            acl.info(f"User:{name}", resource)
            for name, acl in self._broker.acls.items()
            if subject in f"User:{name}"
        )
        return _list_in_steps(request, (info for info in found if info.policies))

    # ---- shared

    def _check_enabled(self) -> None:
        """Refuse requests while authentication is off: anybody could create users in advance."""
        access = self._broker.config.access
        if access.authentication_enabled:
            return
        raise no_permission(
            "accounts are in plain_acl.yml, which no request changes: edit the file, and the "
            "broker reads it again"
            if access.acl_enable
            else "there are no users with authenticationEnabled=false: set it to true in the "
            "broker's configuration, with initAuthenticationUser"
        )

    def _existing(self, subject: str | None) -> tuple[str, AccessList | None]:
        """Return the name of an existing user, and its access list, if it has one."""
        try:
            name = _name_of(subject)
        except AccessListError:
            raise AccessListError("The subject is null.") from None
        if self._broker.users.get(name) is None:
            raise AccessListError("The subject is not exist.")
        return name, self._broker.acls.get(name)


@contextmanager
def _refusals() -> Iterator[None]:
    """Refuse a request with RocketMQ's code if a user or a list is invalid."""
    try:
        yield
    except AccessListError as error:
        raise no_permission(str(error)) from error


def _username(request: RemotingCommand) -> str:
    name: str | None = header_of(request).username
    if not name or (request.code == RequestCode.AUTH_GET_USER and not name.strip()):
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _user_of(request: RemotingCommand) -> UserInfo:
    """Return the user in a body; errors are logged, so they show no password."""
    try:
        info: UserInfo = body_of(request, UserInfo)
    except BodyError as error:
        raise system_error(error.without_value) from None
    return info


def _name_of(subject: str | None) -> str:
    if subject is None or not subject.lower().startswith(_SUBJECT_TYPE):
        raise AccessListError("The subject is not User:name.")
    return subject[len(_SUBJECT_TYPE) :]


def _is_super(connection: Channel) -> bool:
    identity = connection.identity
    return identity is not None and identity.is_super


def _list_in_steps(request: RemotingCommand, items: Iterable[UserInfo | AclInfo]) -> ResponseSteps:
    """Return a response with a JSON array, or without a body if there is nothing."""
    parts = []
    for item in items:
        parts.append(encode_body(item))
        yield None
    body = b"[%b]" % b",".join(parts) if parts else b""
    return request.respond(ResponseCode.SUCCESS, body=body)
