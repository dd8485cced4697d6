"""Access lists at the start of a broker: who can administer, damaged files, and reloaded files."""

import asyncio
import logging

import pytest
from support.access.plain_lists import PLAIN_ACL
from support.brokers.access import WITH_USERS
from support.brokers.connections import FakeConnection
from support.brokers.in_process import on_broker, tell
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import small_config

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import signed_fields
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.auth.plain.plain_accounts import PlainAclError
from rocketpoll.broker.auth.user_tables import User, UserStatus, UserType
from rocketpoll.broker.common.request_content import RequestRejected
from rocketpoll.broker.runtime.access_setup import AccessSetup
from rocketpoll.broker.runtime.state_tables import StateTables
from rocketpoll.broker.settings.access import AccessConfig, InitialUser
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.settings.settings import ConfigError
from rocketpoll.broker.store.files.disk import LocalDisk


class Start:
    """A broker's start in one directory, up to its access control."""

    loops = []  # noqa: RUF012  # closed after each test

    def __init__(self, root, *users, **access):
        (root / "config").mkdir(exist_ok=True)
        config = BrokerConfig(store=small_config(root), access=AccessConfig(**access))
        self.tables = StateTables.load(config, LocalDisk(), ManualClock())
        for user in users:
            self.tables.users.put(user)
        self.loop = asyncio.new_event_loop()
        self.loops.append(self.loop)
        self.control = AccessControl()
        self.setup = AccessSetup(config, LocalDisk(), self.tables, self.loop, self.control)

    def reload(self):
        """Read the file again, and run what was scheduled for the loop."""
        self.setup.reload()
        self.loop.run_until_complete(asyncio.sleep(0))

    def accepts(self, name, secret):
        fields = signed_fields({}, b"", access_key=name, secret_key=secret)
        try:
            self.control.authenticate(FakeConnection(), RemotingCommand(29000, ext_fields=fields))
        except RequestRejected:
            return False
        return True


@pytest.fixture(autouse=True)
def close_loops():
    yield
    while Start.loops:
        Start.loops.pop().close()


ROOT = InitialUser("root", "12345678")
USERS = {"authentication_enabled": True}


def test_start_without_authentication_checks_nothing(tmp_path):
    start = Start(tmp_path)
    assert not start.control.is_enabled
    assert start.setup.reload is None


def test_start_creates_the_initial_user(tmp_path):
    start = Start(tmp_path, **USERS, initial_user=ROOT)
    assert start.tables.users.get("root") == User("root", "12345678", UserType.SUPER)
    assert start.accepts("root", "12345678")
    start.tables.save()
    assert Start(tmp_path, **USERS).accepts("root", "12345678")


def test_start_leaves_a_user_of_the_initial_name_as_it_is(tmp_path):
    root = User("root", "changed-since", UserType.SUPER)
    assert Start(tmp_path, root, **USERS, initial_user=ROOT).accepts("root", "changed-since")


@pytest.mark.parametrize("status", UserStatus)
@pytest.mark.parametrize("user_type", UserType)
def test_start_makes_the_initial_user_super_again_if_nobody_else_is(tmp_path, status, user_type):
    """A locked-out operator gets back in by a restart."""
    if (status, user_type) == (UserStatus.ENABLE, UserType.SUPER):
        return
    lost = User("root", "forgotten", user_type, status)
    assert Start(tmp_path, lost, **USERS, initial_user=ROOT).accepts("root", "12345678")


def test_start_is_refused_if_nobody_could_administer(tmp_path):
    with pytest.raises(ConfigError, match=r"no enabled super user.*set initAuthenticationUser"):
        Start(tmp_path, User("bob", "b0b"), **USERS)


PLAIN = {"acl_enable": True}


def test_start_reads_plain_accounts(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "plain_acl.yml").write_text(PLAIN_ACL)
    start = Start(tmp_path, **PLAIN)
    assert start.accepts("operator", "87654321")
    assert not start.accepts("operator", "wrong")
    assert not (tmp_path / "config" / "users.json").exists()


def test_start_reads_plain_accounts_of_all_files_in_a_directory(tmp_path):
    directory = tmp_path / "acl"
    directory.mkdir()
    (directory / "a.yml").write_text(PLAIN_ACL)
    (directory / "b.yaml").write_text("accounts:\n- accessKey: another\n  secretKey: '12345678'")
    (directory / "notes.txt").write_text("no YAML: at: all")
    start = Start(tmp_path, **PLAIN, plain_acl_file=directory)
    assert start.accepts("operator", "87654321")
    assert start.accepts("another", "12345678")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "plain_acl.yml cannot be read: No such file or directory. Put RocketMQ's"),
        (b"accounts:\n- accessKey: *x", "plain_acl.yml:2:14: a value that begins with"),
        (b"accounts:\n\xff", "plain_acl.yml:2: this line is not UTF-8"),
        (b"", "plain_acl.yml has no accounts: nobody could sign in"),
    ],
)
def test_start_is_refused_with_damaged_plain_accounts(tmp_path, content, message):
    (tmp_path / "config").mkdir()
    if content is not None:
        (tmp_path / "config" / "plain_acl.yml").write_bytes(content)
    with pytest.raises(PlainAclError) as error:
        Start(tmp_path, **PLAIN)
    assert message in str(error.value)


def test_changed_plain_accounts_are_read_again_and_damaged_ones_change_nothing(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "config").mkdir(mode=0o700)
    path = tmp_path / "config" / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    start = Start(tmp_path, **PLAIN)
    version = start.control.version
    start.reload()
    assert start.control.version == version
    path.write_text(PLAIN_ACL.replace("87654321", "new-s3cret"))
    start.reload()
    assert start.control.version > version
    assert start.accepts("operator", "new-s3cret")
    path.write_text(PLAIN_ACL.replace("'87654321'", "[new-s3cret"))
    for _ in range(3):
        start.reload()
    assert start.accepts("operator", "new-s3cret")
    path.unlink()
    start.reload()
    path.write_text(PLAIN_ACL)
    start.reload()
    assert start.accepts("operator", "87654321")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert "has changed and was read again: " in lines[0]
    assert "the previous accounts stay in force" in lines[1]
    assert "cannot be read" in lines[2]
    assert not any("s3cret" in line for line in lines)


def test_start_warns_of_a_white_list_that_lets_everybody_in(tmp_path, caplog):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: ['*']\n")
    Start(tmp_path, **PLAIN)
    assert "lets every address do everything" in caplog.text


def warnings_of_readers(caplog):
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line for line in lines if "can read" in line]


def warning_of(path):
    return f"other users can read the secrets in {path}. Run chmod 600 {path}"


@pytest.mark.parametrize(
    ("file", "directory", "is_exposed"),
    [
        (0o600, 0o755, False),
        (0o640, 0o750, True),
        (0o640, 0o705, False),
        (0o604, 0o705, True),
        (0o604, 0o750, False),
        (0o644, 0o700, False),
    ],
)
def test_start_warns_of_plain_accounts_that_other_users_can_read(
    tmp_path, caplog, file, directory, is_exposed
):
    config = tmp_path / "config"
    config.mkdir()
    path = config / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    path.chmod(file)
    config.chmod(directory)
    Start(tmp_path, **PLAIN)
    assert warnings_of_readers(caplog) == ([warning_of(path)] if is_exposed else [])


def test_reload_warns_once_of_plain_accounts_that_other_users_can_read_by_now(tmp_path, caplog):
    accounts = tmp_path / "conf"
    accounts.mkdir()
    accounts.chmod(0o755)
    first, second = accounts / "a.yml", accounts / "b.yml"
    first.write_text(PLAIN_ACL)
    first.chmod(0o600)
    start = Start(tmp_path, **PLAIN, plain_acl_file=accounts)
    start.reload()
    assert warnings_of_readers(caplog) == []
    second.write_text("accounts:\n  - accessKey: late\n    secretKey: '12345678'\n")
    second.chmod(0o644)
    start.reload()
    start.reload()
    assert warnings_of_readers(caplog) == [warning_of(second)]
    second.chmod(0o600)
    start.reload()
    second.chmod(0o640)
    start.reload()
    assert warnings_of_readers(caplog) == [warning_of(second)]


def test_start_and_reload_warn_of_users_that_others_can_read(tmp_path, caplog):
    start = Start(tmp_path, **USERS, initial_user=ROOT)
    start.tables.save_configurations()
    config = tmp_path / "config"
    config.chmod(0o755)
    start = Start(tmp_path, **USERS)
    start.reload()
    assert warnings_of_readers(caplog) == []
    users = config / "users.json"
    users.chmod(0o644)
    start.reload()
    start.reload()
    assert warnings_of_readers(caplog) == [warning_of(users)]
    start = Start(tmp_path, User("late", "12345678"), **USERS)
    assert warnings_of_readers(caplog) == [warning_of(users)]
    start.tables.save_configurations()
    start.reload()
    assert warnings_of_readers(caplog) == []  # both files are new


@on_broker(**WITH_USERS)
async def test_reload_of_a_running_broker_warns_of_users_that_others_can_read(
    broker, tmp_path, caplog
):
    config = tmp_path / "config"
    broker.controller.tables.save_configurations()
    config.chmod(0o755)
    (config / "users.json").chmod(0o644)
    assert warnings_of_readers(caplog) == []
    broker.controller.reload(broker.controller._config)
    await broker.until(lambda: "can read" in caplog.text)
    assert warnings_of_readers(caplog) == [warning_of(config / "users.json")]


def test_running_broker_reads_changed_plain_accounts_at_a_reload(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)

    async def story(broker):
        client = await broker.connect()

        async def code_of(secret):
            fields = signed_fields({}, b"", access_key="operator", secret_key=secret)
            client.send(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, ext_fields=fields))
            return (await client.receive()).code

        assert [await code_of("87654321"), await code_of("new-s3cret")] == [0, 1]
        path.write_text(PLAIN_ACL.replace("87654321", "new-s3cret"))
        version = broker.controller.access.version
        broker.controller.reload(broker.controller._config)
        await broker.until(lambda: broker.controller.access.version > version)
        assert [await code_of("87654321"), await code_of("new-s3cret")] == [1, 0]

    tell(story, tmp_path / "store", aclEnable="true", plainAclFile=str(path))


def test_failed_authentication_has_one_line_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    async def story(broker):
        client = await broker.connect()
        for code in (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_BROKER_CONFIG):
            client.send(RemotingCommand(code))
            assert (await client.receive()).code == ResponseCode.NO_PERMISSION

    tell(story, tmp_path, **WITH_USERS)
    lines = [each.getMessage() for each in caplog.records if "username cannot be" in each.message]
    assert len(lines) == 1
