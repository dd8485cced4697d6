"""Setting keys: every setting by its key, with its place in `BrokerConfig` and its description.

The order is that of `conf/broker.conf`. Each setting is declared at its field: see `setting`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from ..common.setting import SETTING, Setting
from ..longpolling.hold_limits import HoldLimits
from ..store.config import StoreConfig
from .config import BrokerConfig, FilterLimits, ServerLimits

SECTIONS: Final[Mapping[str, type[Any]]] = {
    "": BrokerConfig,
    "holds": HoldLimits,
    "filters": FilterLimits,
    "server": ServerLimits,
    "store": StoreConfig,
}
"""Classes of the values by their fields in `BrokerConfig`; the empty one is its own."""


class SettingKey(NamedTuple):
    """The description of one setting, and where its value is kept."""

    section: str  # one of SECTIONS
    name: str
    setting: Setting


def _keys() -> Iterator[tuple[str, SettingKey]]:
    for section, kind in SECTIONS.items():
        for each in fields(kind):
            if SETTING in each.metadata:
                said: Setting = each.metadata[SETTING]
                yield said.key, SettingKey(section, each.name, said)


KEYS: Final[Mapping[str, SettingKey]] = dict(_keys())
