"""Access-list headers: the users and the access lists of RocketMQ 5 that operators change."""

from typing import NamedTuple


class UserRequestHeader(NamedTuple):
    """The user to create, change, delete or return."""

    username: str | None = None


class ListUsersRequestHeader(NamedTuple):
    """A part of the names of the users that are requested; None for all users."""

    filter: str | None = None


class AclRequestHeader(NamedTuple):
    """The subject, ``User:name``, whose access list is created, changed or returned."""

    subject: str | None = None


class DeleteAclRequestHeader(NamedTuple):
    """A rule to delete from a subject's access list; without a resource, the whole list."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(NamedTuple):
    """Parts of the subjects and of the resources whose rules are requested; None for all."""

    subject_filter: str | None = None
    resource_filter: str | None = None
