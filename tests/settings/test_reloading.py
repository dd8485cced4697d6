"""Reloaded settings: some take effect at once, the others are reported."""

from __future__ import annotations

from rocketpoll.broker.settings.settings import (
    KEYS,
    RELOADABLE,
    config_of,
    plan_reload,
    settings_of,
)


def test_reload_applies_changeable_settings_and_names_the_others():
    old = config_of({"maxTopics": "5", "brokerName": "a", "deleteWhen": "01"})
    new = config_of({"maxTopics": "6", "brokerName": "b", "maxConnections": "7"})
    reload = plan_reload(old, new)
    assert set(reload.reloaded) == {"maxTopics=6", "maxConnections=7", "deleteWhen=04"}
    assert reload.need_restart == ("brokerName=b",)
    assert settings_of(reload.config) == {**settings_of(new), "brokerName": "a"}


def test_reload_sees_a_changed_secret_and_does_not_show_it():
    old, new = (config_of({"tls.server.keyPassword": text}) for text in ("before", "after"))
    reload = plan_reload(old, new)
    assert reload.config.tls.key_password.text == "after"
    assert reload.reloaded == ("tls.server.keyPassword=********",)


def test_reload_without_change_does_nothing():
    config = config_of({"maxTopics": "5"})
    assert plan_reload(config, config) == (config, (), ())


def test_reloadable_settings_exist():
    assert set(KEYS) > RELOADABLE
