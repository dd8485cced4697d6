"""Settings: every key, its default and bounds; all errors are reported together."""

import dataclasses
import pwd
import re
from pathlib import Path

import pytest

from rocketpoll import EmbeddedBroker
from rocketpoll.broker.common.setting import HIDDEN
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.settings.settings import (
    DEFAULT_STORE,
    KEYS,
    RELOADABLE,
    SECTIONS,
    UNSUPPORTED,
    ConfigError,
    config_of,
    load_config,
    plan_reload,
    settings_of,
)

CONF = Path(__file__).parents[2] / "conf" / "broker.conf"

# For each key, a valid value that is not the default, and an invalid one.
OTHERS = {
    "brokerClusterName": ("C1", "a b"),
    "brokerName": ("broker-b", ""),
    "listenPort": ("10911", "65536"),
    "vipChannelEnable": ("false", "on"),
    "bindAddress": ("127.0.0.2", "localhost"),
    "brokerIP1": ("10.0.0.1", "here"),
    "namesrvAddr": ("ns1:9876;[::1]:9877", "localhost"),
    "registerNameServerPeriod": ("20000", "9999"),
    "registerBrokerTimeoutMills": ("3000", "60001"),
    "compressedRegister": ("true", "zlib"),
    "allowRemoteWithoutAuthentication": ("true", "yes"),
    "metricsPort": ("5557", "65536"),
    "metricsHost": ("127.0.0.2", "localhost"),
    "brokerPermission": ("4", "7"),
    "brokerRole": ("SLAVE", "SYNC_MASTER"),
    "regionId": ("North", "a/b"),
    "traceOn": ("false", "0"),
    "autoCreateTopicEnable": ("false", ""),
    "autoCreateSubscriptionGroup": ("false", "no"),
    "rejectTransactionMessage": ("true", "no"),
    "defaultTopicQueueNums": ("4", "1025"),
    "tls.server.mode": ("disabled", "on"),
    "tls.server.certPath": ("/etc/broker.pem", "a\0b"),
    "tls.server.keyPath": ("/etc/broker.key", "a\0b"),
    "tls.server.keyPassword": ("s3cret", "********"),
    "tls.server.authClient": ("true", "yes"),
    "tls.server.need.client.auth": ("optional", "REQUIRE"),
    "tls.server.trustCertPath": ("/etc/clients.pem", "a\0b"),
    "maxMessageSize": ("1048576", "16515073"),
    "messageDelayLevel": ("1s 2m 3h 4d", "1s two"),
    "recallMessageEnable": ("false", "no"),
    "timerWheelEnable": ("false", "no"),
    "timerPrecisionMs": ("100", "99"),
    "mappedFileSizeTimerLog": ("8192", "4095"),
    "longPollingEnable": ("false", "off"),
    "suspendTimeoutMillsMax": ("7000", "-1"),
    "enablePropertyFilter": ("false", "1"),
    "maxFilterDepth": ("10", "201"),
    "maxTransferBytesExtended": ("1048576", "15728641"),
    "maxFrameBytes": ("8388608", "1023"),
    "maxHeaderBytes": ("65536", "262145"),
    "maxJsonBodyBytes": ("65536", "1023"),
    "storePathRootDir": ("/somewhere/else", ""),
    "mappedFileSizeCommitLog": ("16777216", "4095"),
    "mappedFileSizeConsumeQueue": ("20000", "19"),
    "maxIndexNum": ("2", "1"),
    "messageIndexEnable": ("false", "none"),
    "enableRetryTopicV2": ("true", "yes"),
    "retrieveMessageFromPopRetryTopicV1": ("false", "no"),
    "enablePopMessageThreshold": ("true", "yes"),
    "defaultMessageRequestMode": ("POP", "PUSH"),
    "defaultPopShareQueueNum": ("2", "-1"),
    "flushDiskType": ("ASYNC_FLUSH", "async"),
    "deleteWhen": ("04;16", "24"),
    "diskMaxUsedSpaceRatio": ("60", "101"),
    "diskSpaceCleanForciblyRatio": ("70", "0"),
    "cleanFileForciblyEnable": ("false", "no"),
    "diskSpaceWarningLevelRatio": ("80", "0.9"),
    "checkWholeLogBytes": ("0", "-1"),
    "authenticationEnabled": ("true", "yes"),
    "authorizationEnabled": ("true", "yes"),
    "initAuthenticationUser": ('{"username":"root","password":"hidden-s3cret"}', "root"),
    "aclEnable": ("true", "yes"),
    "plainAclFile": ("/etc/plain_acl.yml", "a\0b"),
}


SECRETS = {"tls.server.keyPassword", "initAuthenticationUser"}
_CLIENT_AUTH = {
    "tls.server.authClient": "true",
    "tls.server.need.client.auth": "require",
    "tls.server.trustCertPath": "/etc/authority.pem",
}
NEEDED = {
    "tls.server.keyPath": {"tls.server.certPath": "/etc/cert.pem"},
    "tls.server.authClient": _CLIENT_AUTH,
    "tls.server.need.client.auth": _CLIENT_AUTH,
    "authorizationEnabled": {"authenticationEnabled": "true"},
    "initAuthenticationUser": {"authenticationEnabled": "true"},
    "plainAclFile": {"aclEnable": "true"},
}
"""Other settings that a setting requires."""


def others_of(name):
    """Return test values for numbers without bounds."""
    return OTHERS.get(name, ("77", "-1"))


def defaults():
    return settings_of(config_of({}))


@pytest.mark.parametrize("name", KEYS)
def test_setting_is_parsed_shown_and_checked(name):
    value, wrong = others_of(name)
    needed = NEEDED.get(name, {})
    config = config_of({**needed, name: value})
    shown = HIDDEN if name in SECRETS else value
    assert settings_of(config) == {**defaults(), **needed, name: shown}
    assert config != config_of({})
    with pytest.raises(ConfigError, match=f"{name} must be"):
        config_of({name: wrong})


def test_every_setting_has_a_key():
    """A setting without a key could not be set."""
    known = {(key.section, key.name) for key in KEYS.values()}
    for section in SECTIONS:
        config = config_of({})
        values = getattr(config, section) if section else config
        for field in dataclasses.fields(values):
            if field.name in {"store", "server", "holds", "filters", "pop", "tls", "access"}:
                continue
            assert (section, field.name) in known


def test_defaults_of_keys_equal_the_config():
    directory = Path(DEFAULT_STORE).expanduser()
    store = dataclasses.replace(config_of({}).store, store_path_root_dir=directory)
    assert config_of({}) == BrokerConfig(store=store)


@pytest.mark.parametrize("text", ["~nobody-of-this-name/x", "/some\0where"])
def test_invalid_store_directory_is_refused(text):
    with pytest.raises(ConfigError, match="storePathRootDir must be a directory"):
        config_of({"storePathRootDir": text})


def test_home_relative_store_path_without_a_home_is_refused(monkeypatch):
    """For example in a container that runs under an arbitrary user id."""

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert config_of({"storePathRootDir": "/data"}).store.store_path_root_dir == Path("/data")
    with pytest.raises(ConfigError, match=r"no home directory: set storePathRootDir=/"):
        config_of({})
    with pytest.raises(
        ConfigError,
        match="storePathRootDir must be a directory without ~, because the home directory",
    ):
        config_of({"storePathRootDir": "~/data"})


def test_max_frame_bytes_must_cover_max_message_size():
    with pytest.raises(ConfigError, match="maxFrameBytes=4096 is below maxMessageSize=524288"):
        config_of({"maxFrameBytes": "4096", "maxMessageSize": "524288"})
    config_of({"maxFrameBytes": "4096", "maxMessageSize": "4096"})


def test_listen_port_and_metrics_port_must_differ():
    with pytest.raises(ConfigError, match="listenPort=9876 and metricsPort=9876 are the same port"):
        config_of({"listenPort": "9876", "metricsPort": "9876"})
    config_of({"listenPort": "0", "metricsPort": "0"})  # any free port


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("listenport", "listenPort"), ("flushDisktype", "flushDiskType"), ("brokerIp1", "brokerIP1")],
)
def test_misspelt_setting_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(
        ConfigError, match=f"there is no setting '{name}'; did you mean {nearest}\\?"
    ):
        config_of({name: "1"})


def test_unknown_setting_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"(?m)there is no setting 'zzz'. Remove it$"):
        config_of({"zzz": "1"})


def test_all_config_errors_are_reported_with_their_lines(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nlistenPort=x\n\nbrokerNam=b\nbrokerName=ok\nnonsense\n")
    with pytest.raises(ConfigError) as raised:
        load_config(path, ["flushDiskType=maybe"])
    text = str(raised.value)
    for place in (
        f"{path}:2: listenPort must be",
        f"{path}:4: there is no setting 'brokerNam'",
        f"{path}:6: ",
    ):
        assert place in text
    assert "did you mean brokerName?" in text
    assert "needed key=value, for example listenPort=9876, found 'nonsense'" in text
    assert "argument 'flushDiskType=maybe': flushDiskType must be SYNC_FLUSH or ASYNC_FLUSH" in text


def test_arguments_override_the_settings_file_and_the_last_one_wins(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text("listenPort = 1\n  # indented\nlistenPort=2\nbrokerName=b\n")
    config = load_config(path, ["listenPort=3", " listenPort = 4 "])
    assert (config.listen_port, config.broker_name) == (4, "b")
    assert load_config(path).listen_port == 2


def test_settings_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\n", encoding="utf-8-sig")
    assert load_config(path).broker_name == "b"


def test_unreadable_settings_file_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"missing\.conf cannot be read: No such file .* Check"
    ) as why:
        load_config(tmp_path / "missing.conf")
    assert str(why.value).count("missing.conf") == 1
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.conf cannot be read"):
        load_config(tmp_path / "binary.conf")


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.5", "::", "2001:db8::1"])  # noqa: S104  # required by the test
def test_remote_bind_address_needs_explicit_permission(address):
    with pytest.raises(ConfigError, match="allowRemoteWithoutAuthentication=true"):
        config_of({"bindAddress": address})
    for setting in ("allowRemoteWithoutAuthentication", "authenticationEnabled", "aclEnable"):
        assert config_of({"bindAddress": address, setting: "true"}).bind_address == address


@pytest.mark.parametrize(
    "text",
    [
        "root",
        "{}",
        '{"username":"root"}',
        '{"username":" ","password":"hidden-s3cret"}',
        '{"username":"root","password":["hidden-s3cret"]}',
        '{"password":"hidden-s3cret"',
    ],
)
def test_initial_user_that_is_invalid_is_refused_without_showing_it(text, tmp_path):
    argument = f"initAuthenticationUser={text}"
    path = tmp_path / "broker.conf"
    path.write_text(argument)
    for call in (
        lambda: load_config(None, [argument]),
        lambda: load_config(path),
        lambda: config_of({"initAuthenticationUser": text}),
    ):
        with pytest.raises(ConfigError, match="initAuthenticationUser must be JSON with") as error:
            call()
        assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_bind_address_is_allowed(address):
    assert config_of({"bindAddress": address}).bind_address == address


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"authorizationEnabled": "true"}, "set authenticationEnabled=true as well"),
        (
            {"aclEnable": "true", "authenticationEnabled": "true"},
            "aclEnable=true is RocketMQ 4.9's kind of access list",
        ),
        (
            {"initAuthenticationUser": '{"username":"a","password":"b"}'},
            "initAuthenticationUser needs authenticationEnabled=true",
        ),
        (
            {
                "namesrvAddr": "ns:9876",
                "bindAddress": "0.0.0.0",  # noqa: S104  # required by the test
                "authenticationEnabled": "true",
            },
            "bindAddress=0.0.0.0 is none: set brokerIP1",
        ),
        ({"namesrvAddr": "ns:9876", "brokerRole": "SLAVE"}, "registers the broker as a master"),
        ({"namesrvAddr": "ns:9876;localhost:9876"}, "localhost:9876 is this broker itself"),
        ({"plainAclFile": "/x"}, "plainAclFile=/x is not read with aclEnable=false"),
        (
            {"suspendTimeoutMillsMin": "2", "suspendTimeoutMillsMax": "1"},
            "suspendTimeoutMillsMin=2 is over suspendTimeoutMillsMax=1",
        ),
        (
            {"mappedFileSizeCommitLog": "65536"},
            "maxMessageSize=4194304 does not fit into mappedFileSizeCommitLog=65536",
        ),
        (
            {"tls.server.mode": "enforcing"},
            "enforcing needs a certificate: set tls.server.certPath and tls.server.keyPath",
        ),
        ({"tls.server.keyPath": "/k"}, "keyPath=/k is the key of no certificate"),
        (
            {"tls.server.authClient": "true"},
            "verifies nobody with tls.server.need.client.auth=none",
        ),
        (
            {"tls.server.authClient": "true", "tls.server.need.client.auth": "require"},
            "needs the authorities of the clients: set tls.server.trustCertPath",
        ),
        (
            {"tls.server.need.client.auth": "optional"},
            "would accept a certificate that anybody has made",
        ),
        (
            {"mappedFileSizeCommitLog": "65536", "maxMessageSize": "65537"},
            "maxMessageSize=65537 does not fit into mappedFileSizeCommitLog=65536",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values, fault):
    with pytest.raises(ConfigError, match=fault):
        config_of(values)


def test_tls_settings_may_stay_while_tls_is_disabled():
    config = config_of({"tls.server.mode": "disabled", "tls.server.need.client.auth": "require"})
    assert not config.tls.is_offered


def test_secret_settings_are_in_no_list_and_no_representation(tmp_path):
    config = config_of({"tls.server.keyPassword": "open sesame"})
    assert config.tls.key_password.text == "open sesame"
    assert "sesame" not in repr(config)
    assert "sesame" not in repr(settings_of(config))
    assert "sesame" not in f"{config.tls.key_password}"
    path = tmp_path / "broker.conf"
    path.write_text("tls.server.keyPassword=open sesame\ntls.server.mode=off\n")
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tls.client.trustCertPath", "for RocketMQ's clients"),
        ("tls.test.mode.enable", "set tls.server.certPath and tls.server.keyPath"),
        ("tls.config.file", "put its lines that begin with tls.server into this one"),
        ("tls.ciphers", "TLS 1.2 and 1.3"),
    ],
)
def test_tls_settings_of_rocketmq_without_a_meaning_here_are_explained(name, advice):
    with pytest.raises(ConfigError, match=re.escape(advice)):
        config_of({name: "x"})


def test_all_contradicting_settings_are_reported():
    wrong = {
        "bindAddress": "10.0.0.1",
        "suspendTimeoutMillsMin": "2",
        "suspendTimeoutMillsMax": "1",
    }
    with pytest.raises(
        ConfigError, match="allowRemoteWithoutAuthentication=true; suspendTimeoutMillsMin"
    ):
        config_of(wrong)


def test_tilde_in_a_store_path_is_the_home_directory():
    assert config_of({"storePathRootDir": "~/s"}).store.store_path_root_dir == Path.home() / "s"


# ---- conf/broker.conf


def text_of_the_file():
    """Return the expected file: each key with its default, below its comment, in the order of the
    table."""
    values = defaults()
    lines = [
        (
            "# Every setting of the broker at its default, by RocketMQ's own name where RocketMQ "
            "has it."
        ),
        (
            "# rocketpoll broker -c conf/broker.conf reads it; an argument, for example "
            "listenPort=9877, overrides it."
        ),
    ]
    for name, key in KEYS.items():
        value = DEFAULT_STORE if name == "storePathRootDir" else values[name]
        lines += ["", f"# {key.setting.comment}"]
        if key.setting.rocketmq:
            lines += [f"# RocketMQ's default: {key.setting.rocketmq}"]
        lines += [f"{name}={value}"]
    return "\n".join(lines) + "\n"


def test_shipped_broker_conf_has_every_key_at_its_default():
    assert CONF.read_text(encoding="utf-8") == text_of_the_file()
    assert load_config(CONF) == config_of({})


def test_setting_comments_are_one_line():
    for name, key in KEYS.items():
        assert re.fullmatch(r"[ -~]{5,100}", key.setting.comment), name


# ---- reloaded settings: some take effect at once, the others are reported


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


@pytest.mark.parametrize(("name", "nearest"), [("tsl", "tls"), ("prt", "port")])
def test_misspelt_argument_of_an_embedded_broker_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"no setting '{name}'; did you mean {nearest}\\?"):
        EmbeddedBroker(**{name: 1})


# ---- settings of RocketMQ that this broker does not have get an explanation


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
