"""AccessConfig: the settings that decide who may use the broker, by RocketMQ's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import UserInfo

from ..common.setting import FLAG, HIDDEN, OPTIONAL_PATH, ValueType, setting


@dataclass(frozen=True, slots=True)
class InitialUser:
    """A super user that the broker creates at its start."""

    name: str
    password: str = field(repr=False)

    def __str__(self) -> str:
        return HIDDEN


def _initial_user(text: str) -> InitialUser | None:
    if not text:
        return None
    try:
        user = decode_body(UserInfo, text.encode())
    except (BodyError, UnicodeError):
        user = UserInfo()
    if not (user.username or "").strip() or not (user.password or "").strip():
        raise ValueError('JSON with a name and a password, as {"username":"root","password":"..."}')
    return InitialUser(user.username or "", user.password or "")


INITIAL_USER: Final[ValueType[InitialUser | None]] = ValueType(
    _initial_user, lambda user: "" if user is None else str(user), is_secret=True
)


@dataclass(frozen=True, kw_only=True)
class AccessConfig:
    """The settings of authentication and of access lists."""

    authentication_enabled: bool = setting(
        "authenticationEnabled",
        FLAG,
        "whether every request must be signed by a user of config/users.json, as in RocketMQ 5",
        default=False,
    )
    authorization_enabled: bool = setting(
        "authorizationEnabled",
        FLAG,
        "whether a user may do only what config/acls.json allows; false: users may do everything",
        default=False,
    )
    initial_user: InitialUser | None = setting(
        "initAuthenticationUser",
        INITIAL_USER,
        'a first super user, as {"username":"root","password":"..."}; keep it out of arguments',
        default=None,
    )
    acl_enable: bool = setting(
        "aclEnable",
        FLAG,
        "whether every request must be signed by an account of plainAclFile, as in RocketMQ 4.9",
        default=False,
    )
    plain_acl_file: Path | None = setting(
        "plainAclFile",
        OPTIONAL_PATH,
        "RocketMQ 4.9's plain_acl.yml, or a directory of such files; empty: config/plain_acl.yml",
        default=None,
        rocketmq="conf/plain_acl.yml and conf/acl, below ROCKETMQ_HOME",
    )

    @property
    def is_enabled(self) -> bool:
        """True if clients have to authenticate."""
        return self.authentication_enabled or self.acl_enable

    def faults(self) -> list[str]:
        """Return how the settings contradict each other, and how to correct that."""
        faults = []
        if self.authorization_enabled and not self.authentication_enabled:
            faults.append(
                "authorizationEnabled=true needs authentication, because it checks the rights of "
                "users: set authenticationEnabled=true as well"
            )
        if self.acl_enable and (self.authentication_enabled or self.authorization_enabled):
            faults.append(
                "aclEnable=true is RocketMQ 4.9's kind of access list, and "
                "authenticationEnabled=true RocketMQ 5's: set one of them to false"
            )
        if self.initial_user is not None and not self.authentication_enabled:
            faults.append(
                "initAuthenticationUser needs authenticationEnabled=true: set that, or remove the "
                "user"
            )
        if self.plain_acl_file is not None and not self.acl_enable:
            faults.append(
                f"plainAclFile={self.plain_acl_file} is not read with aclEnable=false: set "
                "aclEnable=true, or remove plainAclFile"
            )
        return faults
