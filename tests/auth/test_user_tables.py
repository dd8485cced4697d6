"""The tables of users and access lists: content, refusals, rollback and saves."""

import json
import stat

import pytest
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.bodies.operators import PolicyEntryInfo, PolicyInfo, UserInfo
from rocketpoll.broker.auth.access_lists import AccessList, AccessListError
from rocketpoll.broker.auth.user_tables import (
    AclsBody,
    AclTable,
    User,
    UsersBody,
    UserStatus,
    UserTable,
    UserType,
)
from rocketpoll.broker.store.errors import DamagedTable
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.json_table import JsonTable

ROOT = User("root", "r00t-s3cret", UserType.SUPER)
ACL = AccessList.of_policies(
    [
        PolicyInfo(
            entries=(
                PolicyEntryInfo(
                    resource="Topic:A", actions=("Pub",), source_ips=("::1",), decision="Deny"
                ),
            )
        )
    ]
)


def users_in(directory, disk=None):
    return UserTable(JsonTable(disk or FaultyDisk(), directory / "users.json", UsersBody))


def acls_in(directory):
    return AclTable(JsonTable(FaultyDisk(), directory / "acls.json", AclsBody))


@pytest.fixture
def users(tmp_path):
    table = users_in(tmp_path)
    table.put(ROOT)
    return table


def test_user_table_survives_a_save_and_load(tmp_path, users):
    users.put(User("bob", "b0b", UserType.NORMAL, UserStatus.DISABLE))
    users.save()
    assert list(users_in(tmp_path)) == [users.get("bob"), ROOT]
    assert json.loads((tmp_path / "users.json").read_bytes())["users"]["bob"] == {
        "password": "b0b",
        "userStatus": "disable",
        "userType": "Normal",
    }


def test_user_table_file_is_readable_by_its_owner_only(tmp_path):
    table = users_in(tmp_path, LocalDisk())
    table.put(ROOT)
    table.save()
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600


def test_user_table_loads_a_file_edited_by_hand(tmp_path):
    text = '{"users": {"root": {"password": "x", "userType": "super"}, "b": {"password": "y"}}}'
    (tmp_path / "users.json").write_text(text)
    assert list(users_in(tmp_path)) == [User("b", "y"), User("root", "x", UserType.SUPER)]


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ('{"password":"x","userType":"Admin"}', "The user type Admin is not Super or Normal"),
        ('{"password":"x","userStatus":"off"}', "The status off is not enable or disable"),
        ("{}", "password can not be blank"),
    ],
)
def test_invalid_user_table_error_names_the_user_but_no_password(tmp_path, user, message):
    (tmp_path / "users.json").write_text(f'{{"users":{{"bob":{user}}}}}')
    with pytest.raises(DamagedTable, match=f"users.json is not valid for user bob: {message}"):
        users_in(tmp_path)


def test_user_shows_no_password():
    assert "s3cret" not in repr(ROOT) + repr(ROOT.info()) + str(ROOT)
    assert ROOT.info().password is None


@pytest.mark.parametrize(
    "change",
    [
        lambda users: users.delete("root"),
        lambda users: users.put(ROOT.with_changes(UserInfo(user_type="normal"))),
        lambda users: users.put(ROOT.with_changes(UserInfo(user_status="DISABLE"))),
    ],
    ids=["deleted", "demoted", "disabled"],
)
def test_user_table_keeps_the_last_enabled_super_user(users, change):
    users.put(User("off", "x", UserType.SUPER, UserStatus.DISABLE))
    with pytest.raises(AccessListError, match="root is the last enabled super user"):
        change(users)
    assert users.get("root") == ROOT
    users.put(User("other", "x", UserType.SUPER))
    change(users)
    assert users.has_super


def test_user_table_undoes_a_change_that_is_refused(users):
    version = users.version
    with users.changes.begin() as change:
        users.put(User("bob", "b0b"), change)
    assert users.version > version
    change.rollback()
    assert users.get("bob") is None
    assert users.version > version + 1


def test_acl_table_survives_a_save_and_load(tmp_path):
    acls = acls_in(tmp_path)
    with acls.changes.begin() as change:
        acls.put("bob", ACL, change)
        acls.put("eve", AccessList(), change)
    change.commit()
    acls.save()
    assert acls_in(tmp_path).items() == [("bob", ACL)]


def test_invalid_acl_table_error_names_the_user(tmp_path):
    (tmp_path / "acls.json").write_text('{"acls":{"bob":[{"entries":[{"resource":"A"}]}]}}')
    with pytest.raises(DamagedTable, match=r"acls\.json is not valid for user bob: The reso"):
        acls_in(tmp_path)
