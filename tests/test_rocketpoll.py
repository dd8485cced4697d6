"""The `rocketpoll` package exports every name lazily, and all errors in one module."""

from __future__ import annotations

import inspect
import os
import sys

import pytest
from support.programs.python_programs import ROOT, python_program

import rmq_spark.client.errors
import rmq_spark.errors
import rmq_spark.spark.errors
import rocketpoll
import rocketpoll.errors
import rocketpoll.spark

ALIASES = {"LitePullConsumer": "Consumer"}
"""RocketMQ's names of our classes."""


def test_rocketpoll_exports_every_name():
    for name in dir(rocketpoll):
        assert getattr(getattr(rocketpoll, name), "__name__", name) == ALIASES.get(name, name)
    assert set(dir(rocketpoll)) == set(rocketpoll._MODULES) == set(rocketpoll.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Embedded'"):
        _ = rocketpoll.Embedded


def test_submodules_are_attributes_without_an_import_of_their_own(tmp_path):
    """Otherwise `except rocketpoll.errors.SendFailed` would raise an AttributeError that hides the
    failed send."""
    done = python_program(
        "import rocketpoll\n"
        "print(rocketpoll.errors.SendFailed.__name__, rocketpoll.aio.Producer.__name__,"
        " rocketpoll.spark.SparkError.__name__)",
        cwd=tmp_path,
    )
    assert done.stdout == "SendFailed Producer SparkError\n", done.stderr


def test_public_errors_are_all_defined_errors():
    defined = {
        name: error
        for module in (rmq_spark.errors, rmq_spark.client.errors)
        for name, error in vars(module).items()
        if inspect.isclass(error) and issubclass(error, rmq_spark.errors.RocketPollError)
    }
    assert {name: getattr(rocketpoll.errors, name) for name in rocketpoll.errors.__all__} == defined
    assert {kind.__module__ for kind in defined.values()} == {"rocketpoll.errors"}


def test_rocketpoll_spark_has_every_public_error_of_spark():
    defined = {
        name: error
        for name, error in vars(rmq_spark.spark.errors).items()
        if inspect.isclass(error) and issubclass(error, rmq_spark.spark.errors.SparkError)
    }
    assert {kind.__module__ for kind in defined.values()} == {"rocketpoll.spark"}
    names = {name: getattr(rocketpoll.spark, name) for name in dir(rocketpoll.spark)}
    assert defined.items() <= names.items()
    assert set(dir(rocketpoll.spark)) == set(rocketpoll.spark._MODULES)


def test_import_of_rocketpoll_loads_no_other_modules(tmp_path):
    heavy = ("rocketpoll.broker", "rmq_spark", "numpy", "pyarrow", "pyspark")
    done = python_program(
        f"import sys, rocketpoll; print(set({heavy}) & set(sys.modules))", cwd=tmp_path
    )
    assert done.stdout == "set()\n", done.stderr


def test_producer_import_loads_no_other_parts_or_large_libraries(tmp_path):
    """`benchmarks.gaps` measures the cost of imports."""
    others = [f"rmq_spark.{name}" for name in ("cli", "client.aio", "client.consumer", "spark")]
    large = ["asyncio", "http", "multiprocessing", "numpy", "pyarrow", "pyspark", "ssl"]
    unwanted = {*others, *large, "rocketpoll.broker"}
    done = python_program(
        f"import sys, rocketpoll; rocketpoll.Producer; print({unwanted} & set(sys.modules))",
        cwd=tmp_path,
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "/opt/python3"}, "/opt/python3"),
        ({"PYSPARK_GATEWAY_PORT": "4040"}, None),
    ],
    ids=["nobody", "user", "spark-submit"],
)
def test_import_sets_pyspark_python_unless_somebody_chose_one(tmp_path, chosen, expected):
    done = python_program(
        "import os, rocketpoll; print(os.environ.get('PYSPARK_PYTHON'))",
        cwd=tmp_path,
        env={**unset_python(), **chosen},
    )
    assert done.stdout == f"{expected}\n", done.stderr


def test_doctor_sees_that_pyspark_python_is_unset(tmp_path):
    done = python_program(
        """
        import sys
        from rocketpoll.__main__ import main
        sys.argv = ["rocketpoll", "doctor"]
        main()
        """,
        cwd=tmp_path,
        env=unset_python(),
    )
    assert "because PYSPARK_PYTHON is not set" in " ".join(done.stdout.split()), done


def unset_python() -> dict[str, str]:
    """Return the environment without the variables that select a Python for Spark's workers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}


@pytest.mark.parametrize("stray", ["broker.py", "broker/__init__.py"])
def test_user_module_named_broker_does_not_shadow_ours(tmp_path, stray):
    path = tmp_path / stray
    path.parent.mkdir(exist_ok=True)
    path.write_text("NAME = 'of the user'\n", encoding="utf-8")
    done = python_program(
        """
        import broker
        from rocketpoll import EmbeddedBroker
        with EmbeddedBroker(own_process=True) as ours:
            ours.send("orders", "one")
            print(broker.NAME, *[message.body for message in ours.messages("orders")])
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "of the user b'one'\n", done.stderr


def test_broker_package_imported_by_the_wrong_name_is_refused(tmp_path):
    """If the repository itself is on sys.path, its folder can be found under the wrong name."""
    done = python_program("import broker", cwd=ROOT)
    assert (
        "ImportError: this is rocketpoll's broker, which is imported as rocketpoll.broker"
        in done.stderr
    )


GROUP = "close group health is_running service_state shutdown start subscribe topics unsubscribe"
PUBLIC = {
    "PushConsumer": f"{GROUP} assignment cached_bytes is_paused resume suspend",
    "Consumer": f"{GROUP} assign assignment cached_bytes cached_messages commit committed "
    "fetch_message_queues offset_for_timestamp pause poll "
    "register_topic_message_queue_change_listener resume seek seek_to_begin seek_to_end "
    "seek_to_time",
    "Producer": "close health is_running publish_queues recall reply request request_async send "
    "send_async send_batch send_batches send_one_way send_table shutdown start",
    "Admin": "acls all_topic_configs broker_info clone_offsets close cluster_info create_acl "
    "create_group create_topic create_topics create_user dead_letters delete_acl delete_group "
    "delete_topic delete_user describe_group find_topic groups "
    "groups_of_topic lag masters members message_at message_by_offset_id message_traces "
    "messages_by_key messages_by_unique_id progress queue_owners "
    "queue_reports read_committed read_table resend reset_to_time route runtime_info set_offset "
    "timer_count timer_counts topic_configs topic_offsets topic_size topics update_user user users",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_help_of_public_classes_lists_only_documented_public_names(name):
    """Requests of brokers, pull tasks and fork hooks are implemented in private classes."""
    public = getattr(rocketpoll, name)
    names = [each for each in dir(public) if not each.startswith("_")]
    assert names == sorted(PUBLIC[name].split())
    assert [each for each in names if not inspect.getdoc(getattr(public, each))] == []
