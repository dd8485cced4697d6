"""Client labels in metrics, as in RocketMQ 5."""

from __future__ import annotations

import pytest

from rmq_spark.wire.bodies.clients import ConsumeType, client_labels, consume_mode, version_desc


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3"), (211, "V3"), (212, "V4_0_0_SNAPSHOT"), (213, "V4_0_0"), (214, "V4_0_1_SNAPSHOT"),
        (233, "V4_1_0"), (399, "V4_9_3"), (407, "V4_9_7"), (409, "V4_9_8"),
        (412, "V5_0_0_SNAPSHOT"), (413, "V5_0_0"), (513, "V5_5_0"), (600, "V5_9_4_SNAPSHOT"),
    ],
)  # fmt: skip
def test_versions_have_the_names_that_rocketmq_gives_them(number, name):
    assert version_desc(number) == name


def test_client_metrics_labels_are_lower_case():
    assert client_labels("PYTHON", 409) == ("python", "v4_9_8", "remoting")
    assert [consume_mode(each) for each in (*ConsumeType, None)] == ["pull", "push", "pop", ""]
