"""Refusals are classified by response code, and those of access lists in 4.9 without one."""

import pytest

from rmq_spark.client.errors import BrokerRefused, NoPermission, refusal


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, "BrokerRefused"),
        (2, "SystemBusy"),
        (215, "SystemBusy"),
        (3, "NotSupported"),
        (13, "MessageIllegal"),
        (16, "NoPermission"),
        (17, "TopicNotFound"),
        (22, "NotFound"),
        (23, "SubscriptionRejected"),
        (28, "SubscriptionRejected"),
        (206, "ConsumerNotOnline"),
        (9_999, "BrokerRefused"),
    ],
)
def test_response_code_decides_the_exception_class(code, kind):
    error = refusal(code, "why", "h:1", 310)
    assert type(error).__name__ == kind
    assert isinstance(error, BrokerRefused)
    assert (error.code, error.remark, error.address, error.request_code) == (
        code,
        "why",
        "h:1",
        310,
    )


def test_acl_exception_of_4_9_is_no_permission():
    remark = (
        "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=billing"
    )
    assert type(refusal(1, remark, "h:1", 310)) is NoPermission
    assert type(refusal(1, "the disk is full", "h:1", 310)) is BrokerRefused
