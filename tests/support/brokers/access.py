"""Users and access lists of a broker under test, and requests that its users sign."""

from __future__ import annotations

import json

from support.brokers.state_tables import table_in

from rmq_spark.wire.bodies.access_lists import PolicyEntryInfo, PolicyInfo, UserInfo
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
"""The settings of a broker with users and lists of its own."""


def signed(request, name, secret=None):
    """Return a request as a user's client sends it."""
    fields = signed_fields(
        request.ext_fields,
        request.body,
        access_key=name,
        secret_key=secret_of(name) if secret is None else secret,
    )
    return request._replace(ext_fields=fields)


def forged(request):
    """Return a signed request with a signature that is wrong in its last bits."""
    signature = request.ext_fields[SIGNATURE]
    other = ("B" if signature[0] == "A" else "A") + signature[1:]
    return request._replace(ext_fields={**request.ext_fields, SIGNATURE: other})


class Users:
    """The users of a broker, and what each may do; super users are made with ``grant(name)``."""

    def __init__(self, root):
        self.users = UserTable(table_in(root / "access", "users.json", UsersBody))
        self.acls = AclTable(table_in(root / "access", "acls.json", AclsBody))
        self.rules = UserRules(self.users, self.acls, checks_rights=True)

    @classmethod
    def of(cls, controller):
        """Return the users of a broker that has started with `WITH_USERS`."""
        users = cls.__new__(cls)
        users.users, users.acls = controller.tables.users, controller.tables.acls
        return users

    def control(self):
        """Return access control by these users."""
        return AccessControl(self.rules, CLUSTER)

    def protect(self, controller):
        """Put a broker that has not started yet under control of these users."""
        controller.access.use(self.rules)

    def grant(self, name, *rights, denied=()):
        """Make a user with just these rights, such as ``Topic:T Pub Sub``; or a super user."""
        info = UserInfo(password=secret_of(name), user_type="Normal" if rights else "Super")
        self.users.put(User(name, "").with_changes(info))
        entries = [_entry(right, "Allow") for right in rights]
        entries += [_entry(right, "Deny") for right in denied]
        if entries:
            acl = AccessList.of_policies([PolicyInfo(entries=tuple(entries))])
            with self.acls.changes.begin() as change:
                self.acls.put(name, acl, change)

    def delete(self, name):
        """Delete a user."""
        self.users.delete(name)


def _entry(right, decision):
    resource, *actions = right.split()
    return PolicyEntryInfo(resource=resource, actions=tuple(actions), decision=decision)
