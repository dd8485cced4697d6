"""Users and access lists of brokers under test, and signed requests of these users."""

import json

from support.brokers.state_tables import table_in

from rmq_spark.wire.bodies.operators import PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_spark.wire.signature import SIGNATURE, signed_fields
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.auth.access_lists import AccessList
from rocketpoll.broker.auth.user_rules import UserRules
from rocketpoll.broker.auth.user_tables import AclsBody, AclTable, User, UsersBody, UserTable

CLUSTER = "DefaultCluster"


def secret_of(name):
    """Return the secret key of each user of these tests."""
    return f"secret of {name}"


WITH_USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "root", "password": secret_of("root")}),
}
"""Settings of a broker that accepts known users only; ``root`` may do everything."""


def signed(request, name, secret=None):
    """Sign a request as a client of this user does."""
    fields = signed_fields(
        request.ext_fields,
        request.body,
        access_key=name,
        secret_key=secret_of(name) if secret is None else secret,
    )
    return request._replace(ext_fields=fields)


def forged(request):
    """Return a request whose signature is wrong in its first bits."""
    signature = request.ext_fields[SIGNATURE]
    other = ("B" if signature[0] == "A" else "A") + signature[1:]
    return request._replace(ext_fields={**request.ext_fields, SIGNATURE: other})


class Users:
    """The users of one or several `WITH_USERS` brokers, and their rights."""

    def __init__(self, *controllers):
        self._tables = [
            (controller.tables.users, controller.tables.acls) for controller in controllers
        ]

    def grant(self, name, *rights, denied=(), password=None):
        """Create a user with exactly these rights, such as ``Topic:T Pub Sub``."""
        info = UserInfo(password=password or secret_of(name), user_type="Normal")
        entries = [_entry(right, "Allow") for right in rights]
        entries += [_entry(right, "Deny") for right in denied]
        acl = AccessList.of_policies([PolicyInfo(entries=tuple(entries))])
        for users, acls in self._tables:
            users.put(User(name, "").with_changes(info))
            with acls.changes.begin() as change:
                acls.put(name, acl, change)

    def delete(self, name):
        for users, _ in self._tables:
            users.delete(name)

    def state(self):
        """Return users and access lists."""
        return [(users.body(), acls.body()) for users, acls in self._tables]


class LoneUsers(Users):
    """Users and access lists without a broker."""

    def __init__(self, root):
        tables = (
            UserTable(table_in(root, "users.json", UsersBody)),
            AclTable(table_in(root, "acls.json", AclsBody)),
        )
        self._tables = [tables]
        self.control = AccessControl(UserRules(*tables, checks_rights=True), CLUSTER)


def _entry(right, decision):
    resource, *actions = right.split()
    return PolicyEntryInfo(resource=resource, actions=tuple(actions), decision=decision)
