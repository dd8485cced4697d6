"""User tables: the users and access lists of RocketMQ 5, saved as users.json and acls.json.

    users.json   {"users":{"alice":{"password":"...","userStatus":"enable","userType":"Super"}}}
    acls.json    {"acls":{"alice":[{"policyType":"Custom","entries":[...]}]}}

Passwords are kept as they are, because a signature can only be verified with them. The broker's
directory is its owner's alone, and no response and no log has a password.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeVar

from rmq_spark.wire.bodies.operators import PolicyInfo, UserInfo

from ..state.tables.table import Change, NamedTable, Table, check_limit
from ..store.errors import DamagedTable
from .access_lists import NAME_CHARACTERS_MAX, AccessList, AccessListError, member_of

_ReadT = TypeVar("_ReadT")
_LoadedT = TypeVar("_LoadedT")

USERS_FILE: Final = "users.json"
ACLS_FILE: Final = "acls.json"
USERS_MAX: Final = 10_000
PASSWORD_CHARACTERS_MAX: Final = 1_024


class UserType(Enum):
    """Super users, to whom no access list applies, and others; the value is RocketMQ's word."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """The right of a user to sign in; the value is RocketMQ's word."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """A user, whose client signs with the password."""

    name: str
    password: str = field(repr=False)
    user_type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        """True if no access list applies to the user."""
        return self.user_type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        """True if the user may sign in."""
        return self.status is UserStatus.ENABLE

    def with_changes(self, info: UserInfo) -> User:
        """Return the user with the fields that a request or a file contains; the others stay."""
        user = self
        if info.password is not None and info.password.strip():
            user = replace(user, password=info.password)
        if info.user_type:
            user_type = member_of(UserType, info.user_type)
            if user_type is None:
                raise AccessListError(f"The user type {info.user_type} is not Super or Normal")
            user = replace(user, user_type=user_type)
        if info.user_status:
            status = member_of(UserStatus, info.user_status)
            if status is None:
                raise AccessListError(f"The status {info.user_status} is not enable or disable")
            user = replace(user, status=status)
        if not user.name.strip():
            raise AccessListError("username can not be blank")
        if not user.password.strip():
            raise AccessListError("password can not be blank")
        for what, text, characters_max in (
            ("username", user.name, NAME_CHARACTERS_MAX),
            ("password", user.password, PASSWORD_CHARACTERS_MAX),
        ):
            if len(text) > characters_max:
                raise AccessListError(f"The {what} has over {characters_max} characters")
        return user

    def info(self) -> UserInfo:
        """Return the user without the password, as a response has it."""
        return UserInfo(
            username=self.name, user_type=self.user_type.value, user_status=self.status.value
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersBody:
    """The content of the file users.json."""

    users: Mapping[str, UserInfo] = field(default_factory=dict)


class UserTable(NamedTable[UsersBody, str, User]):
    """All users. A change is durable after the next `save`."""

    def __init__(self, table: Table[UsersBody]) -> None:
        users = {
            name: _checked(USERS_FILE, name, User(name, "").with_changes, info)
            for name, info in table.load(UsersBody()).users.items()
        }
        super().__init__(table, users, self.body)

    def __iter__(self) -> Iterator[User]:
        return iter(sorted(self._values.values(), key=lambda user: user.name))

    def put(self, user: User, change: Change[str, User] | None = None) -> None:
        """Create or replace a user, as part of a change that may still be refused.

        Raises:
            TooMany: There is no room for the user.
            AccessListError: Nobody would be left who may administer the broker.
        """
        if self.get(user.name) is None:
            check_limit("users", len(self._values), USERS_MAX)
        self._check_supers(user.name, user)
        self._change(user.name, user, change)

    def delete(self, name: str, change: Change[str, User] | None = None) -> None:
        """Remove a user, if it exists, as part of a change that may still be refused."""
        self._check_supers(name, None)
        self._change(name, None, change)

    @property
    def has_super(self) -> bool:
        """True if there is a super user who may sign in."""
        return any(user.is_super and user.is_enabled for user in self._values.values())

    def _check_supers(self, name: str, user: User | None) -> None:
        """Refuse to delete, disable or demote the last super user who may sign in."""
        stays = user is not None and user.is_super and user.is_enabled
        others = any(
            other.is_super and other.is_enabled
            for other in self._values.values()
            if other.name != name
        )
        if self.has_super and not stays and not others:
            raise AccessListError(
                f"User:{name} is the last enabled super user: create or enable another one first"
            )

    def body(self) -> UsersBody:
        """Return all users with their passwords, as they are saved."""
        return UsersBody(
            users={
                name: replace(user.info(), username=None, password=user.password)
                for name, user in tuple(self._values.items())
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclsBody:
    """The content of the file acls.json: the rules of each user."""

    acls: Mapping[str, tuple[PolicyInfo, ...]] = field(default_factory=dict)


class AclTable(NamedTable[AclsBody, str, AccessList]):
    """The access lists of all users. A change is durable after the next `save`."""

    def __init__(self, table: Table[AclsBody]) -> None:
        acls = {
            name: _checked(ACLS_FILE, name, AccessList.of_policies, rules)
            for name, rules in table.load(AclsBody()).acls.items()
        }
        super().__init__(table, acls, self.body)

    def items(self) -> list[tuple[str, AccessList]]:
        """Return all users with access lists, sorted by name."""
        return sorted(self._values.items(), key=lambda item: item[0])

    def put(self, name: str, acl: AccessList | None, change: Change[str, AccessList]) -> None:
        """Set or remove the access list of a user, as part of a change."""
        self._change(name, None if acl is None or acl.is_empty else acl, change)

    def body(self) -> AclsBody:
        """Return all access lists, as they are saved."""
        return AclsBody(acls={name: acl.policies() for name, acl in tuple(self._values.items())})


def _checked(file: str, name: str, make: Callable[[_ReadT], _LoadedT], content: _ReadT) -> _LoadedT:
    """Build a value from a user's entry in a file; raise DamagedTable if it is invalid."""
    try:
        return make(content)
    except AccessListError as error:
        raise DamagedTable(
            f"config/{file} is not valid for user {name}: {error}. Nothing was changed. Correct "
            "the file"
        ) from error
