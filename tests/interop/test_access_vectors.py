"""A real RocketMQ with access lists answers as the committed vectors say."""

import json

import pytest
from support.access import answers

pytestmark = [pytest.mark.interop, pytest.mark.peers]


@pytest.mark.parametrize("version", answers.ASKED)
def test_rocketmq_answers_as_the_access_vectors_say(version, tmp_path):
    committed = (answers.DIRECTORY / f"{version}.jsonl").read_text(encoding="ascii")
    again = answers.written(answers.of_a_real_broker(version, tmp_path))
    assert [json.loads(line) for line in again.splitlines()] == [
        json.loads(line) for line in committed.splitlines()
    ]
