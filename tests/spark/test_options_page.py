"""docs/options.md and the code have the same options, defaults, columns and formats."""

import json
import re
from pathlib import Path

import pytest

from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.spark.options.options import (
    DEFAULT_GROUP,
    read_options,
    write_options,
)
from rmq_spark.spark.options.start_positions import parse_position, parse_positions
from rmq_spark.spark.options.table import OPTIONS, SUSPEND_MS_MAX, Use
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.spark.schemas.columns import DDL_TYPES, DEFAULT_COLUMNS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
RESTARTS = (ROOT / "docs" / "restarts.md").read_text(encoding="utf-8")
ROWS = {
    row[0]: row[1:]
    for row in re.findall(
        r"^\| `(\w+)` \| ((?:all|streams|batch reads|writes|, )+) \| (.*?) \| (.+) \|$",
        PAGE,
        re.MULTILINE,
    )
}
READ = read_options({"namesrvAddr": "localhost:9876", "topic": "orders"})
WRITE = write_options({"namesrvAddr": "localhost:9876", "topic": "orders"})


def section(title, page=PAGE):
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def shown(value):
    """Return a value as users write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_options_page_has_exactly_the_options():
    assert set(ROWS) == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_page_says_which_uses_an_option_has(name):
    for_whom = ROWS[name][0]
    uses = frozenset(Use) if for_whom == "all" else {Use(each) for each in for_whom.split(", ")}
    assert uses == OPTIONS[name].uses


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.alias_of])
def test_options_page_names_aliases(name):
    assert f"the same as `{OPTIONS[name].alias_of}`" in ROWS[name][2]


def test_options_page_defaults_equal_the_code():
    in_code = {
        "tls": READ.access.tls is not None,
        "tlsVerify": TlsSettings().verify,
        "requestTimeoutMs": READ.access.request_timeout_ms,
        "retryTimeoutMs": READ.access.retry_timeout_ms,
        "tags": READ.expression,
        "startingOffsetsByTimestampStrategy": "latest"
        if READ.starts_at_end_without_match
        else "error",
        "failOnDataLoss": READ.fail_on_data_loss,
        "onBadRecord": READ.on_bad_record.value,
        "checkCrc": READ.checks_crc,
        "maxBodyBytes": f"{READ.max_body_bytes >> 20}m",
        "localFiles": READ.reads_files,
        "waitForTopic": READ.waits_for_topic,
        "isolation": "committed" if READ.is_committed else "uncommitted",
        "delivery": "exactly_once" if WRITE.is_exactly_once else "at_least_once",
        "visibleTo": "committed_readers" if WRITE.sink_name is None else "all",
        "onBrokerAway": "skip" if READ.skips_unavailable else "wait",
        "maxTriggerDelay": f"{READ.limits.wait_ms_max // 60_000}m",
        "suspendTimeoutMs": READ.suspend_ms,
        "discoveryIntervalMs": READ.discovery_ms,
        "availableNow": READ.available_now,
        "bodyFormat": READ.body.format.value,
        "bodyRegister": not WRITE.body.is_registered,
        "producerGroup": WRITE.producer_group,
        "maxMessageBytes": f"{WRITE.max_message_bytes >> 20}m",
        "rowIds": WRITE.row_ids.value,
    }
    stated = {name: row[1].strip("`") for name, row in ROWS.items()}
    assert {name: stated[name] for name in in_code} == {
        name: shown(value) for name, value in in_code.items()
    }
    # Other options have no default, or one that the page describes in words.
    in_words = {
        "namesrvAddr",
        "accessKey",
        "secretKey",
        "tlsKeyPassword",
        "sinkName",
        "bodySubject",
        "bodyRegistryUser",
        "bodyRegistryPassword",
        "nameServer",
        "columns",
        "startingOffsets",
        "endingOffsets",
    }
    assert {name for name, default in stated.items() if default == "none"} == set(OPTIONS) - set(
        in_code
    ) - in_words
    assert f"(else `{DEFAULT_GROUP}`)" in ROWS["consumerGroup"][2]
    assert f"at most `{SUSPEND_MS_MAX}`" in ROWS["suspendTimeoutMs"][2]


def test_options_page_columns_equal_the_source():
    table = re.findall(r"^\| `(\w+)` \| ([a-z<>,]+) \|", section("Columns"), re.MULTILINE)
    assert table == list(DDL_TYPES.items())
    assert len(DEFAULT_COLUMNS) == 9
    assert "The first nine are there unless" in section("Columns")


def test_options_page_position_forms_are_parsed():
    cells = re.findall(r"^\| (`.+?) \|", section("Positions"), re.MULTILINE)
    forms = [form for cell in cells for form in re.findall(r"`([^`]+)`", cell)]
    assert len(forms) >= 9
    for form in forms:
        parse_position("startingOffsets", form)
    [tree] = re.findall(r"```json\n(.*?)```", section("Positions"), re.DOTALL)
    parse_positions("startingOffsets", tree)


def test_checkpoint_offset_on_the_restarts_page_can_be_parsed():
    shown_there = section("What lies in the checkpoint", RESTARTS)
    [document] = re.findall(r"```json\n(.*?)```", shown_there, re.DOTALL)
    found = SourceOffset.from_json(json.loads(document))
    assert found.topics == {"orders"}
    assert found.initial_offsets
