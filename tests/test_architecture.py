"""What a reader may rely on without looking: who imports whom, what stands where,
how long it is."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
SIDES = ("rmq_spark", "broker", "rocketpoll")
MODULES = sorted(
    [*ROOT.glob("*.py"), *(path for side in SIDES for path in (ROOT / side).rglob("*.py"))]
)
LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# Modules of names and layouts only, or of one other module's parts,
# and where each is used to the last.
TESTED_ELSEWHERE = {
    "rmq_spark/client/aio/loop_consumer.py": "client/aio/test_consumer.py",
    "rmq_spark/client/consumer/group_member.py": "client/consumer/test_group_consumer.py",
    "rmq_spark/client/consumer/member_offsets.py": "client/consumer/test_group_consumer.py",
    "rmq_spark/client/consumer/push_member.py": "client/consumer/test_push_consumer.py",
    "rmq_spark/client/consumer/topic_checks.py": "client/consumer/test_lite_pull_consumer.py",
    "rmq_spark/client/instance/topics_to_find.py": "client/conformance/test_polling.py",
    "rmq_spark/client/consumer/lite_pull_member.py": "client/consumer/test_lite_pull_consumer.py",
    "rmq_spark/client/consumer/seekable_member.py": "client/consumer/test_lite_pull_consumer.py",
    "rmq_spark/spark/next_batch.py": "spark/test_micro_batches.py",
    "rmq_spark/spark/task_pieces.py": "spark/test_micro_batches.py",
    "rmq_spark/spark/task_reports.py": "spark/test_writer.py",
    "broker/store/batch_journal.py": "store/test_batch_table.py",
    "broker/store/batch_recovery.py": "store/test_damaged_batches.py",
    "rmq_spark/client/admin/sinks.py": "cli/test_sink_command.py",
    "pyspark_rocketpoll.py": "test_testing.py",
    "setup.py": "test_packaging.py",
    "broker/state/clients.py": "state/test_consumers.py",
    "broker/settings/config.py": "settings/test_settings.py",
    "broker/metrics/observed.py": "metrics/test_metrics_service.py",
    "broker/connection.py": "server/test_client_connection.py",
    "broker/embedded/broker_thread.py": "embedded/test_embedded_broker.py",
    "broker/embedded/moving.py": "embedded/test_clock.py",
    "broker/filter/sql_limits.py": "filter/test_sql_parser.py",
    "broker/longpolling/hold_limits.py": "longpolling/test_pull_request_hold_service.py",
    "broker/processors.py": "test_controller.py",
    "broker/table_check.py": "test_broker_restarts.py",
    "broker/processor/client_plans.py": "processor/sends/test_send_plan.py",
    "broker/processor/header_cuts.py": "processor/sends/test_header_shape.py",
    "broker/processor/sends/batch_puts.py": "processor/sends/test_send_message.py",
    "broker/server/connection_table.py": "server/test_client_connection.py",
    "broker/setting.py": "settings/test_settings.py",
    "broker/settings/keys.py": "settings/test_settings.py",
    "broker/state/limits.py": "state/test_topic_config.py",
    "rmq_spark/client/producer/topic_sender.py": "client/producer/test_producer.py",
    "broker/state/stats_windows.py": "state/test_broker_stats.py",
    "broker/store/chunk_appender.py": "store/test_appender.py",
    "broker/store/config.py": "store/test_message_store.py",
    "broker/store/disk.py": "store/test_local_file.py",
    "broker/store/dump.py": "store/test_inspection.py",
    "broker/embedded/errors.py": "embedded/test_embedded_broker.py",
    "broker/store/errors.py": "store/test_message_store.py",
    "broker/store/message_filter.py": "store/test_reader.py",
    "broker/store/opening.py": "store/test_recovery.py",
    "broker/store/parts.py": "store/test_message_store.py",
    "broker/store/records/record_check.py": "store/test_recovery.py",
    "broker/store/records/record_checks.py": "store/test_reader.py",
    "broker/store/results.py": "store/test_reader.py",
    "broker/store/verify.py": "store/test_inspection.py",
    "broker/store/stat.py": "cli/test_store_command.py",
    "rocketpoll/start_store.py": "cli/test_store_command.py",
    "rocketpoll/start_broker.py": "cli/test_broker_command.py",
    "rocketpoll/__main__.py": "cli/test_main.py",
    "rocketpoll/errors.py": "test_rocketpoll.py",
    "rmq_spark/cli/broker_entry.py": "cli/test_main.py",
    "rmq_spark/cli/http_server.py": "cli/exporter/test_http_server.py",
    "rmq_spark/cli/console/charts_page.py": "cli/console/test_site.py",
    "rmq_spark/cli/console/find_page.py": "cli/console/test_site.py",
    "rmq_spark/cli/console/frame.py": "cli/console/test_site.py",
    "rmq_spark/cli/console/message_page.py": "cli/console/test_topic_page.py",
    "rmq_spark/cli/console/message_search.py": "cli/console/test_topic_page.py",
    "rmq_spark/cli/console/overview_page.py": "cli/console/test_site.py",
    "rmq_spark/cli/console/parts.py": "cli/console/test_site.py",
    "rmq_spark/cli/console/reads.py": "cli/console/test_topic_page.py",
    "rmq_spark/cli/console/seek_page.py": "cli/console/test_groups_page.py",
    "rmq_spark/cli/console/sizes.py": "cli/console/test_topic_page.py",
    "rmq_spark/cli/console/topics_page.py": "cli/console/test_topic_page.py",
    "rmq_spark/cli/console/visit.py": "cli/console/test_site.py",
    "rmq_spark/cli/dead_letters.py": "cli/test_dlq_command.py",
    "rmq_spark/cli/group_seek.py": "cli/test_group_command.py",
    "rmq_spark/cli/group_state.py": "cli/test_group_command.py",
    "rmq_spark/cli/message_way.py": "cli/test_message_command.py",
    "rmq_spark/cli/message_input.py": "cli/test_produce_command.py",
    "rmq_spark/client/admin/cluster_lookups.py": "client/admin/test_admin.py",
    "rmq_spark/client/admin/group_offsets.py": "client/admin/test_admin.py",
    "rmq_spark/client/admin/lag.py": "client/admin/test_shown.py",
    "rmq_spark/client/admin/message_lookups.py": "client/admin/test_admin.py",
    "rmq_spark/client/admin/tables.py": "client/admin/test_arrow_reads.py",
    "rmq_spark/client/instance/members.py": "client/instance/test_broker_requests.py",
    "rmq_spark/client/producer/send_checks.py": "client/producer/test_producer.py",
    "rmq_spark/client/reading/record_batches.py": "spark/test_record_batches.py",
    "rmq_spark/client/results.py": "client/requests/test_broker_api.py",
    "rmq_spark/client/consumer/listeners.py": "client/consumer/test_push_consumer.py",
    "rmq_spark/spark/committed_checks.py": "spark/test_committed_options.py",
    "rmq_spark/wire/codes.py": "wire/test_command.py",
    "rmq_spark/wire/flags.py": "wire/test_command.py",
    "rmq_spark/wire/header.py": "wire/test_header_json.py",
    "rmq_spark/wire/record_layout.py": "wire/test_record.py",
    "rmq_spark/wire/message_queue.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/extensions.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/exchange.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/groups.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/member_table.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/namesrv.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/offsets.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/operators.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/pull.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/routes.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/send.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/staging.py": "wire/headers/test_table.py",
    "rmq_spark/wire/headers/topics.py": "wire/headers/test_table.py",
    "rmq_spark/wire/bodies/client_info.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/bodies/clients.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/bodies/configs.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/bodies/lists.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/bodies/object_map.py": "wire/bodies/test_fastjson.py",
    "rmq_spark/wire/bodies/routes.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/bodies/staged_batches.py": "processor/sends/test_staged_batches.py",
    "rmq_spark/wire/bodies/stats.py": "wire/bodies/test_mapping.py",
    "rmq_spark/wire/chunk/gather.py": "wire/chunk/test_decode.py",
    "rmq_spark/wire/chunk/property_scan.py": "wire/chunk/test_properties.py",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_imports_keep_to_the_contracts_in_setup_cfg():
    """In a process of its own: it sets up logging, and would silence what other tests listen to."""
    script = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename='setup.cfg', no_cache=True))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_contract_that_keeps_the_chunk_codec_apart_names_all_the_rest_of_the_wire():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / "setup.cfg", encoding="utf-8")
    wire = ROOT / "rmq_spark" / "wire"
    rest = {path.stem for path in wire.glob("*.py")} | {
        path.parent.name for path in wire.glob("*/__init__.py")
    }
    assert contracts["importlinter:contract:chunk-apart"]["source_modules"].split() == sorted(
        f"rmq_spark.wire.{name}" for name in rest - {"__init__", "chunk"}
    )


@pytest.fixture(scope="module")
def trees():
    """Each module's source, parsed once: 500 modules and as many tests of each took seconds."""
    return {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def test_each_module_says_what_it_is_for(trees):
    said = {name: ast.get_docstring(tree) or "" for name, tree in trees.items()}
    assert [name for name, docstring in said.items() if len(docstring) <= 40] == []


def test_no_module_is_too_long():
    lines = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_no_function_is_too_long(trees):
    assert [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno > FUNCTION_LINES_MAX
    ] == []


def test_each_module_has_its_tests():
    tests = {
        name_of(path): TESTED_ELSEWHERE.get(
            name_of(path),
            Path(*path.relative_to(ROOT).parts[1:-1], f"test_{path.stem}.py").as_posix(),
        )
        for path in MODULES
        if path.name != "__init__.py"
    }
    assert {name: test for name, test in tests.items() if not (TESTS / test).is_file()} == {}


def test_the_list_of_modules_tested_elsewhere_names_only_what_is_there():
    assert set(TESTED_ELSEWHERE) <= {name_of(path) for path in MODULES}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rmq_spark", ("numpy", "pyarrow", "pyspark", "msgpack", "orjson", "rocketpoll")),
        ("rmq_spark.client", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        (
            "rmq_spark.client.instance.instance",
            ("ssl", "rmq_spark.client.connections.tls_settings"),
        ),
        ("rmq_spark.client.requests.broker_api", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.command", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.headers", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.record", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.chunk", ("pyspark", "rocketpoll")),
        ("rmq_spark.cli.main", ("prometheus_client",)),
        (
            "rocketpoll.broker.__main__",
            (
                "numpy",
                "prometheus_client",
                "pyarrow",
                "pyspark",
                "rocketpoll.broker.filter.sql_parser",
            ),
        ),
    ],
)
def test_an_import_brings_nothing_heavy_along(module, heavy):
    script = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert loaded.stdout.split() == []


def test_no_named_tuple_is_generic(trees):
    """Python 3.10 cannot make one, and would not even import the module."""
    assert [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base).partition("[")[0] for base in node.bases}
        >= {"NamedTuple", "Generic"}
    ] == []
