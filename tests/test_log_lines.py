"""Log lines fit 200 columns with names as long as those of real clusters."""

import ast
import logging
import re
from itertools import zip_longest
from pathlib import Path

import pytest

from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.process.operator_log import TextFormatter

ROOT = Path(__file__).resolve().parents[1]
COLUMNS_MAX = 200
CLIENT_FORMATTER = logging.Formatter("%(message)s")
"""The format in which Python shows the client's warnings in programs that do not set up logging."""
LEVELS = ("debug", "info", "warning", "error", "exception", "log")
SPECIFIER = re.compile(r"%[-\d.]*([sdrfg])")

TOPIC = "payments.settlement.international.transactions.completed.eu1".ljust(60, "1")
GROUP = "payments-settlement-reconciliation-daily".ljust(40, "1")
ADDRESS = "192.168.100.100:10911"
FILE = "/var/lib/rocketpoll/store/commitlog/00000000001073741824"
ERRORS = {
    "broker": "[Errno 28] No space left on device",
    "rmq_spark": f"cannot connect to {ADDRESS}: Connection refused",
}
OTHER = "a-name-of-20-letters"
NUMBER = 12_345_678

EXAMPLES = {
    "_address": ADDRESS,
    "batch_id": str(NUMBER),
    "physical_offset": "123456789012",
    "queue_id": "12",
    "queue_offset": str(NUMBER),
    "_describe_topics": f"{TOPIC} and 12 more",
    "_group": GROUP,
    "_list_names": "id, customer, total, currency and 12 more",
    "_path": FILE,
    "_summarize": "12,345,678 rows, 12,345,678,901 bytes, of 128 tasks are in 64 queues",
    "address": ADDRESS,
    "bind_address": "192.168.100.100",
    "cert_path": FILE,
    "commits": f"{TOPIC}_COMMITS",
    "directory": FILE,
    "excerpt": repr("x" * 60) + "...",
    "format_local_time": "2026-11-30 16:07:31",
    "group": GROUP,
    "group_name": GROUP,
    "host": ADDRESS,
    "key": f"{TOPIC}@{GROUP}",
    "level": "18",
    "message_id": "7F0000010A3C18B4AAC2000000000000",
    "more": " (12 more)",
    "others": f"the others are {TOPIC}",
    "path": FILE,
    "path_at": FILE,
    "problem": "its body: needed UTF-8, found byte b'\\xff' at 1",
    "queue": str(MessageQueue(TOPIC, "broker-a", 12)),
    "remark": "service not available now, maybe disk full, CL:  0.95",
    "secret_path": "/etc/rocketpoll/keys/broker-super-users.properties",
    "store_path_root_dir": "/var/lib/rocketpoll/store",
    "remote_host": ADDRESS,
    "topic": TOPIC,
    "topic_name": TOPIC,
}
"""Long examples for arguments of log calls, by the last name in them; others are short."""

NUMBERS = {"SINKS_MAX": 10_000, "code": 310, "port": 10_909}
"""Smaller example numbers, for names whose numbers have few digits."""

OF_ERRORS = {"error", "failure", "outcome", "reason", "refusal", "refused", "why"}
"""Last names of arguments that are errors."""

WHOLE = {"%s", "%s%s", "%s: %s"}
"""Formats of lines whose text is composed elsewhere."""


def _last_name(argument):
    while argument is not None and not isinstance(argument, (ast.Attribute, ast.Name)):
        if isinstance(argument, ast.Call):
            argument = argument.func
        elif isinstance(argument, (ast.Starred, ast.Subscript)):
            argument = argument.value
        else:
            return ""
    return getattr(argument, "attr", None) or getattr(argument, "id", "")


def _texts(tree):
    """Return the named texts of a module or function, by name."""
    texts = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                texts.setdefault(target.id, []).append(node.value.value)
    return texts


def _log_calls(path):
    """Yield the line, the format and the arguments of each log call in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {
        call: function
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for call in ast.walk(function)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and ast.unparse(node.func.value) in ("_log", "_worker")
        ):
            text, *arguments = node.args[1:] if node.func.attr == "log" else node.args
            arguments = [
                part
                for each in arguments
                for part in (
                    each.value.elts
                    if isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple)
                    else [each]
                )
            ]
            if isinstance(text, ast.Constant):
                yield node.lineno, text.value, arguments
            else:
                scope = _texts(functions.get(node, tree))
                for each in {**_texts(tree), **scope}.get(_last_name(text), ()):
                    yield node.lineno, each, arguments


def _reported_losses(path):
    """Yield the line, the format and the arguments of each loss that a file of the broker reports.

    Their texts are f-strings or constants; others are composed elsewhere.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("report", "report_dropped")
        ):
            for text in node.args:
                if isinstance(text, ast.JoinedStr):
                    yield node.lineno, *_format_of(text)
                elif isinstance(text, ast.Constant):
                    yield node.lineno, text.value.replace("%", "%%"), []


def _format_of(text):
    """Return an f-string as a format, and its arguments."""
    parts, arguments = [], []
    for part in text.values:
        if isinstance(part, ast.FormattedValue):
            parts.append("%s" if part.format_spec is None else "%d")
            arguments.append(part.value)
        else:
            parts.append(part.value.replace("%", "%%"))
    return "".join(parts), arguments


def _example(argument, kind, package):
    name = _last_name(argument)
    if kind in "dfg":
        return NUMBERS.get(name, NUMBER)
    return ERRORS[package] if name in OF_ERRORS else EXAMPLES.get(name, OTHER)


def _rendered(path, text, arguments, module):
    kinds = SPECIFIER.findall(text.replace("%%", ""))
    values = tuple(
        _example(argument, kind, path.relative_to(ROOT).parts[0])
        for argument, kind in zip_longest(arguments[: len(kinds)], kinds)
    )
    record = logging.LogRecord(
        f"rocketpoll.{module}", logging.WARNING, str(path), 1, text, values, None
    )
    is_of_broker = path.is_relative_to(ROOT / "broker")
    return (TextFormatter() if is_of_broker else CLIENT_FORMATTER).format(record)


@pytest.mark.parametrize("package", ["broker", "rmq_spark"])
def test_log_lines_fit_200_columns_with_long_names(package):
    calls = [
        (path, *call, module)
        for path in sorted((ROOT / package).rglob("*.py"))
        for module, found in (
            (path.stem, _log_calls(path)),
            ("recent_losses", _reported_losses(path)),
        )
        for call in found
        if call[1] not in WHOLE
    ]
    assert len(calls) > 80
    too_long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns: {line}"
        for path, number, text, arguments, module in calls
        if len(line := _rendered(path, text, arguments, module)) > COLUMNS_MAX
    ]
    assert not too_long, "Shorten these log lines:\n" + "\n".join(too_long)
