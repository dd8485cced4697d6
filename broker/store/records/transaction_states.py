"""transaction_states."""

from __future__ import annotations

from rmq_spark.wire.flags import MessageSysFlag

TRANSACTION_MASK = MessageSysFlag.TRANSACTION_MASK.value
STATE_ROLLED_BACK = MessageSysFlag.TRANSACTION_ROLLBACK.value
STATES_WITHOUT_ENTRY = (MessageSysFlag.TRANSACTION_PREPARED.value, STATE_ROLLED_BACK)
"""The transaction states in which messages get no entry, and so no offset in their queue."""
