"""The checker of the broker kill tests detects each kind of failure."""

import pytest
from support.rocketmq.java_load import differences


def report(queue_id, queue_offset, body):
    return {"queueId": queue_id, "queueOffset": queue_offset, "body": body}


SENT = [report(0, 0, "a"), report(1, 0, "b"), report(1, 2, "d")]
CONSUMED = [*SENT, report(1, 1, "c, which was never acknowledged"), report(0, 0, "a")]
ENDS = {0: 1, 1: 3}


def test_complete_consumption_has_no_differences():
    assert list(differences(SENT, CONSUMED, ENDS)) == []


@pytest.mark.parametrize(
    ("sent", "consumed", "ends", "said"),
    [
        pytest.param(SENT, CONSUMED[:2], ENDS, "(1, 1) was not consumed", id="a gap"),
        pytest.param(
            SENT,
            CONSUMED,
            {0: 1, 1: 2},
            "(1, 2) was consumed, but is beyond",
            id="an end that is too low",
        ),
        pytest.param(
            [*SENT, report(1, 3, "e")],
            CONSUMED,
            ENDS,
            "(1, 3) was acknowledged for ['e']",
            id="a loss",
        ),
        pytest.param(
            [*SENT, report(1, 1, "e")],
            CONSUMED,
            ENDS,
            "(1, 1) was acknowledged for ['e']",
            id="another",
        ),
        pytest.param(
            [*SENT, report(0, 0, "e")],
            CONSUMED,
            ENDS,
            "acknowledged for ['a', 'e']",
            id="one place for two",
        ),
        pytest.param(
            SENT,
            [*CONSUMED, report(0, 0, "z")],
            ENDS,
            "one message and then another",
            id="a change",
        ),
    ],
)
def test_each_difference_is_reported(sent, consumed, ends, said):
    assert any(said in each for each in differences(sent, consumed, ends))
