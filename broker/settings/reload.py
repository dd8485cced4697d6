"""Reload: which settings take effect when the settings file is reloaded, and which need a restart.

Limits and rules that are looked up on each use are reloadable. All others are built into parts of
the broker when it starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from .config import BrokerConfig
from .setting_keys import KEYS, SECTIONS
from .settings import settings_of

RELOADABLE: Final = frozenset(
    {
        "maxConnections",
        "maxConnectionsPerAddress",
        "maxAcceptsPerSecond",
        "firstFrameTimeoutMills",
        "partialFrameTimeoutMills",
        "serverChannelMaxIdleTimeMills",
        "slowReaderTimeoutMills",
        "maxInFlightBytes",
        "maxTopics",
        "maxQueues",
        "maxGroups",
        "maxConsumerOffsets",
        "fileReservedTime",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "cleanFileForciblyEnable",
        "diskSpaceWarningLevelRatio",
    }
)
"""The settings that a running broker can take."""


class Reload(NamedTuple):
    """The changes of a new configuration.

    Attributes:
        config: The configuration to continue with: the old one with what is reloadable of the new.
        reloaded: The settings that are changed in it, as ``key=value``.
        need_restart: The settings that would be changed by a restart, as ``key=value``.
    """

    config: BrokerConfig
    reloaded: tuple[str, ...]
    need_restart: tuple[str, ...]


def plan_reload(old: BrokerConfig, new: BrokerConfig) -> Reload:
    """Return what a broker that runs with one configuration can apply of another."""
    before, after = settings_of(old), settings_of(new)
    changed = [key for key in KEYS if before[key] != after[key]]
    taken = [key for key in changed if key in RELOADABLE]
    config = old
    for section in SECTIONS:
        names = [KEYS[key].name for key in taken if KEYS[key].section == section]
        if not names:
            continue
        source = getattr(new, section) if section else new
        values = {name: getattr(source, name) for name in names}
        if section:
            config = replace(config, **{section: replace(getattr(config, section), **values)})
        else:
            config = replace(config, **values)
    return Reload(
        config,
        tuple(f"{key}={after[key]}" for key in taken),
        tuple(f"{key}={after[key]}" for key in changed if key not in RELOADABLE),
    )
