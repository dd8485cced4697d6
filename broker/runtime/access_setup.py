"""AccessSetup: gives a broker's access control its rules at the start, and reads files again.

With authenticationEnabled, somebody must be able to administer the broker. If no enabled super user
is left, initAuthenticationUser becomes one again: so an operator who is locked out gets back in.
Without that setting the start is refused.

The files contain secrets in clear, because signatures can only be verified with them: the broker
warns of each file that other users can read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..auth.access_control import AccessControl
from ..auth.user_rules import UserRules
from ..auth.user_tables import USERS_FILE, User, UserType
from ..settings.access import AccessConfig, InitialUser
from ..settings.config import BrokerConfig
from ..settings.settings import ConfigError
from ..store.files.disk import LocalDisk
from .state_tables import StateTables

if TYPE_CHECKING:
    from ..auth.plain.plain_rules import PlainAclFiles, PlainRules

PLAIN_ACL_FILE: Final = "plain_acl.yml"
_log = logging.getLogger(__name__)


class AccessSetup:
    """The rules of one broker, with the files that they may be in."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: LocalDisk,
        tables: StateTables,
        loop: asyncio.AbstractEventLoop,
        control: AccessControl,
    ) -> None:
        """Read the files, and give ``control`` their rules, if the settings require it.

        Raises:
            PlainAclError: plain_acl.yml cannot be read, or has a fault.
            ConfigError: Nobody could administer the broker.
        """
        self.reload: Callable[[], None] | None = None
        """Reads plain_acl.yml again if it has changed, and warns of files with secrets that others
        can read; it blocks. None if nothing is checked.
        """
        access = config.access
        files: PlainAclFiles | None = None
        directory = config.store.store_path_root_dir / "config"
        if access.acl_enable:
            from ..auth.plain.plain_rules import PlainAclFiles, PlainRules  # noqa: PLC0415  # imports PyYAML

            default = directory / PLAIN_ACL_FILE
            files = PlainAclFiles(disk, access.plain_acl_file or default)
            plain_rules = PlainRules(files.load())
            control.use(plain_rules)
            exposed = ExposedFiles(disk)
            exposed.warn(files.paths)
            self.reload = partial(_reload, files, plain_rules, loop, exposed)
        elif access.authentication_enabled:
            _ensure_super_user(tables, access.initial_user)
            checks_rights = access.authorization_enabled
            control.use(UserRules(tables.users, tables.acls, checks_rights=checks_rights))
            users = directory / USERS_FILE
            exposed = ExposedFiles(disk)
            self.reload = partial(exposed.warn, (users, users.with_name(f"{users.name}.bak")))
            self.reload()
        self.description = _describe(access, files)
        """The part of a log line about who may use the broker."""


class ExposedFiles:
    """The files with secrets that other users can read; each is logged once."""

    def __init__(self, disk: LocalDisk) -> None:
        self._disk = disk
        self._known: frozenset[Path] = frozenset()

    def warn(self, paths: Iterable[Path]) -> None:
        """Log the files that other users can read now, and could not at the last call."""
        exposed = frozenset(path for path in paths if self._disk.is_readable_by_others(path))
        for secret_path in sorted(exposed - self._known):
            _log.warning(
                "other users can read the secrets in %s. Run chmod 600 %s", secret_path, secret_path
            )
        self._known = exposed


def _reload(
    files: PlainAclFiles,
    rules: PlainRules,
    loop: asyncio.AbstractEventLoop,
    exposed: ExposedFiles,
) -> None:
    acl = files.reload()
    exposed.warn(files.paths)
    if acl is not None:
        loop.call_soon_threadsafe(rules.use, acl)


def _describe(access: AccessConfig, files: PlainAclFiles | None) -> str:
    if files is not None:
        return f"accounts of {files.path}"
    if access.authorization_enabled:
        return "users with access lists"
    if access.authentication_enabled:
        return "users who may do everything (authorizationEnabled=false)"
    return "no authentication"


def _ensure_super_user(tables: StateTables, initial: InitialUser | None) -> None:
    users = tables.users
    if initial is not None and (users.get(initial.name) is None or not users.has_super):
        users.put(User(initial.name, initial.password, UserType.SUPER))
        _log.info("initAuthenticationUser: user %s is now an enabled super user", initial.name)
    if not users.has_super:
        raise ConfigError(
            "authenticationEnabled=true, and config/users.json has no enabled super user, so that "
            'nobody could administer the broker: set initAuthenticationUser={"username":"...",'
            '"password":"..."}, in a file that only you can read'
        )
