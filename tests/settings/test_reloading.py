"""Settings that are read again: some count at once, the others are named."""

from __future__ import annotations

from rocketpoll.broker.settings.settings import (
    KEYS,
    RELOADABLE,
    config_of,
    plan_reload,
    settings_of,
)


def test_what_can_change_is_taken_and_the_rest_waits_for_a_restart():
    old = config_of({"maxTopics": "5", "brokerName": "a", "deleteWhen": "01"})
    new = config_of({"maxTopics": "6", "brokerName": "b", "maxConnections": "7"})
    reload = plan_reload(old, new)
    assert set(reload.reloaded) == {"maxTopics=6", "maxConnections=7", "deleteWhen=04"}
    assert reload.need_restart == ("brokerName=b",)
    assert settings_of(reload.config) == {**settings_of(new), "brokerName": "a"}


def test_nothing_changed_is_nothing_to_do():
    config = config_of({"maxTopics": "5"})
    assert plan_reload(config, config) == (config, (), ())


def test_only_settings_that_there_are_can_be_reloaded():
    assert set(KEYS) > RELOADABLE
