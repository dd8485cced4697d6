"""Settings of RocketMQ that this broker does not have get an explanation."""

from __future__ import annotations

import pytest

from rocketpoll.broker.settings.settings import (
    KEYS,
    UNSUPPORTED,
    ConfigError,
    config_of,
    load_config,
)


def test_unsupported_settings_are_not_defined():
    assert not set(UNSUPPORTED) & set(KEYS)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_rocketmq_setting_is_refused_with_advice(name, tmp_path):
    with pytest.raises(ConfigError) as raised:
        config_of({name: "x"})
    assert str(raised.value) == f"there is no setting {name!r}: {UNSUPPORTED[name]}"
    assert "\n" not in str(raised.value)
    path = tmp_path / "broker.conf"
    path.write_text(f"brokerName=a\n{name}=x\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{path}:2: there is no setting '{name}': "):
        load_config(path)


def test_settings_named_in_advice_exist():
    for name, key in {
        "queues": "defaultTopicQueueNums",
        "migrateAuthFromV1Enabled": "aclEnable",
        "storePathIndex": "storePathRootDir",
    }.items():
        assert key in UNSUPPORTED[name]
        assert key in KEYS
