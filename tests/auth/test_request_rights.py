"""Request rights: every code has a row, and needs follow from headers and bodies."""

from __future__ import annotations

import pytest

from rmq_spark.wire.codes import RequestCode
from rocketpoll.broker.auth.request_rights import RIGHTS, TO_CLIENTS


@pytest.mark.parametrize("code", RequestCode)
def test_rights_table_has_every_request_that_a_broker_can_receive(code):
    assert (code in RIGHTS) != (code in TO_CLIENTS)
