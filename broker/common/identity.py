"""Identity: who a client has proven to be, for all requests of its connection."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Identity:
    """The user, or the account of plain_acl.yml, that signs the requests of a connection.

    Attributes:
        name: The user's name, which is the access key.
        is_super: True if no access list applies: a super user, or an account with ``admin: true``.
        secret_key: The key that has proven it, without which what waits is refused; None if the
            client's address needs no signature.
    """

    name: str
    is_super: bool = False
    secret_key: str | None = field(default=None, repr=False, compare=False)
