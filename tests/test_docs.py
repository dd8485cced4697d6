"""Documentation: commands exist, links resolve, examples run."""

from __future__ import annotations

import ast
import importlib
import json
import queue
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.programs.python_programs import python

from rmq_spark.client import errors as client_errors
from rmq_spark.client import message
from rmq_spark.client.admin import admin
from rmq_spark.client.api import broker_api
from rmq_spark.client.instance import instance
from rmq_spark.client.producer import arrow_sender, prepared_message, producer
from rmq_spark.client.transport import connection, frame_writer, pending_requests, remoting_client
from rmq_spark.wire import compression
from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.chunk import columns
from rmq_spark.wire.remoting import framing, header
from rocketpoll import Admin, EmbeddedBroker, LitePullSettings, PushSettings, aio

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/*.md",
        "conf/*.md",
        "notebooks/*.md",
        "tests/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
PATIENCE_SECONDS = 300
COLUMNS_MAX = 100
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_NOT_OURS = {
    "README.md": {"five.py"},  # the reader creates it
    "docs/embedded.md": {"conftest.py"},
    "README.zh.md": {"five.py"},
    "docs/first-steps.md": {"totals.py", "shop.py", "test_shop.py"},
    "docs/first-steps.zh.md": {"totals.py", "shop.py", "test_shop.py"},
    "docs/operate.md": {"consumequeue/", "index/"},
    "docs/store.md": {"consumequeue.deleted/", "staging/"},  # inside a store
    "docs/releasing.md": {"dist/"},  # commands create it
    "benchmarks/README.md": {"build/"},
    # a name that any program may have
    "docs/adr/0031-the-broker-is-installed-as-rocketpoll-broker.md": {"broker.py"},
}
"""Paths in backticks that do not belong to this repository, by page."""
README = (ROOT / "README.md").read_text(encoding="utf-8")
_WORDS = re.compile(
    r"\b(is told|are told|whoever|lacking|anew|mend(s|ed)?|which is none|as ever"
    r"|behind (an? |the |its |that |this |each |every )?"
    r"(answer|crash|failure|fork|kill|restart|shutdown|start|stop))\b",
    re.IGNORECASE,
)
"""Words that pages avoid; better: is notified or configured, anyone, missing, again, fix, after."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_of(document):
    """Return the Python blocks of a page."""
    return re.findall(
        r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL
    )


def run_at(broker, block, **names):
    """Run a block of a page with this broker's address in place of its own."""
    exec(compile(block.replace("localhost:9876", broker.address), "page", "exec"), names)  # noqa: S102  # our own text


def test_ci_begins_with_the_test_command_of_the_readme():
    (command,) = [
        line
        for line in README.splitlines()
        if line.startswith("sh bootstrap.sh") and "check" in line
    ]
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    runs = [line for line in lines if line.startswith(("sh ", "make "))]
    assert runs[0] == command
    assert runs[1].startswith("make deep")


def test_links_lead_somewhere():
    links = [
        (name_of(document), target, document.parent / target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8"))
    ]
    assert [(name, target) for name, target, path in links if not path.exists()] == []


def missing_paths(document, text):
    """Return the paths in backticks that do not exist. A path is relative to the top directory, to
    a folder that the page names, or to the directory of a README."""
    folders = [ROOT, *(ROOT / folder for folder in re.findall(r"\bare below `([\w/]+/)`", text))]
    if document.name == "README.md":
        folders.append(document.parent)
    paths = re.findall(r"`([\w./*-]+(?:\.py|/))`", _BLOCK.sub("", text))
    return [
        path
        for path in paths
        if path not in _NOT_OURS.get(name_of(document), ())
        and not any(any(folder.glob(path.rstrip("/"))) for folder in folders)
    ]


def test_paths_on_pages_exist():
    missing = {
        name_of(document): missing_paths(document, document.read_text(encoding="utf-8"))
        for document in DOCUMENTS
    }
    assert {name: paths for name, paths in missing.items() if paths} == {}


RECIPES = dict(
    re.findall(
        r"^### (.+?)\n(.*?)(?=^##)",
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Recipes\n")[2],
        re.MULTILINE | re.DOTALL,
    )
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_names_in_a_recipe_are_in_the_files_that_it_lists(recipe):
    codes = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", RECIPES[recipe])]
    linked = re.findall(r"\]\(([^)#]+)", RECIPES[recipe])
    places = [place for place in [*codes, *linked] if re.fullmatch(r"[\w./*-]+", place)]
    listed = [path for place in places for path in ROOT.glob(place)]
    files = [file for path in listed for file in (path, *path.rglob("*.py")) if file.is_file()]
    words = set(re.findall(r"\w+", " ".join(each.read_text(encoding="utf-8") for each in files)))
    names = {
        name
        for code in codes
        if "/" not in code
        and " " not in code
        and not (code.startswith(".") or (ROOT / code).exists())
        for name in re.findall(r"[A-Za-z_]\w{2,}", code)
    }
    assert sorted(names - words) == []


CONTRIBUTING = _BLOCK.sub("", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
_PLACE = r"`([\w*-]+/[\w./*-]+)`"
_NAMES_AT = re.compile(
    rf"((?:`[A-Za-z_][\w.]*`(?:,? and |, | or ))*`[A-Za-z_][\w.]*`)(?: (?:in|of) | \(){_PLACE}"
)
"""Names in backticks with their file: `name` in `file`, `name` (`file`)."""


def names_elsewhere(text):
    """Return the names that do not occur in the file that a text gives for them."""
    elsewhere = []
    for names, place in _NAMES_AT.findall(" ".join(text.split())):
        paths = ROOT.glob(place.rstrip("/"))
        files = [file for path in paths for file in (path, *path.rglob("*.py")) if file.is_file()]
        words = set(re.findall(r"\w+", " ".join(file.read_text("utf-8") for file in files)))
        elsewhere += [
            (name, place)
            for name in re.findall(r"`([^`]+)`", names)
            if name.rpartition(".")[2] not in words and not (ROOT / name).exists()
        ]
    return elsewhere


def test_names_in_contributing_are_in_the_file_beside_them():
    assert len(_NAMES_AT.findall(" ".join(CONTRIBUTING.split()))) >= 80
    assert names_elsewhere(CONTRIBUTING) == []


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        ("`TooMany` (`broker/state/tables/table.py`)", []),
        ("`TooMany` in\n`broker/state/tables/`", []),
        (
            "`Nowhere.TooMany`, `Few` and `TooFew` of `broker/state/tables/table.py`",
            ["Few", "TooFew"],
        ),
        ("`TooMany` (`broker/controller.py`)", ["TooMany"]),
        ("`TooMany` in `broker/state/no_such_file.py`", ["TooMany"]),
    ],
)
def test_name_that_is_not_in_the_file_beside_it_is_found(text, elsewhere):
    assert [name for name, _ in names_elsewhere(text)] == elsewhere


def test_paths_of_all_kinds_in_contributing_exist():
    """CONTRIBUTING may name bugs, settings, dashboards and folders; on other pages, such paths are
    those of stores."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
    paths = [
        code
        for code in re.findall(r"`([\w./*-]+)`", CONTRIBUTING)
        if "/" in code and code.partition("/")[0] in folders
    ]
    assert len(paths) >= 200
    assert [path for path in paths if not any(ROOT.glob(path.rstrip("/")))] == []


def test_links_within_pages_of_contributing_lead_to_headings():
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", CONTRIBUTING)
    assert len(links) >= 10
    anchors = {
        page: {
            re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
            for heading in re.findall(
                r"^#+ (.+)$",
                _BLOCK.sub("", (ROOT / (page or "CONTRIBUTING.md")).read_text(encoding="utf-8")),
                re.MULTILINE,
            )
        }
        for page, _ in links
    }
    assert [(page, anchor) for page, anchor in links if anchor not in anchors[page]] == []


def test_exempt_paths_are_still_on_their_pages():
    for name, paths in _NOT_OURS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [path for path in paths if f"`{path}`" not in text] == [], name


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("a line in `wire/codes.py`, `cli/main.py`", ["wire/codes.py", "cli/main.py"]),
        ("a line in `rmq_spark/wire/codes.py`, a test in `tests/spark/test_sink_*.py`", []),
        (
            "in `wire/headers/`, `tests/spark/test_no_*.py`",
            ["wire/headers/", "tests/spark/test_no_*.py"],
        ),
        ("all are below `broker/store/`: `config.py`, `records/`, `wire.py`", ["wire.py"]),
        ("```\n`five.py`\n```\n`six.py`", ["six.py"]),
    ],
)
def test_missing_path_on_a_page_is_found(text, missing):
    assert missing_paths(ROOT / "docs" / "store.md", text) == missing


def test_make_targets_on_pages_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    missing = [
        (name_of(document), target)
        for document in DOCUMENTS
        for target in re.findall(r"`make ([a-z]+)", document.read_text(encoding="utf-8"))
        if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    ]
    assert missing == []


def test_campaigns_that_make_lengthens_are_run_by_it_though_they_are_wide():
    """Otherwise a target could set the number of rounds of a test that it deselects, and silently
    pass."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [recipe] = re.findall(r"^restarts: \$.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "ROCKETPOLL_AGGREGATE_RESTARTS=$(ROUNDS)" in recipe
    assert "ROCKETPOLL_WIDE=1" in recipe


def test_readme_first_program_runs_without_spark(capsys):
    block = python_of("README.md")[0]
    assert "pyspark" not in block
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102  # our own text
    assert "'tags': 'created'" in capsys.readouterr().out


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_readme_spark_program_runs(tmp_path):
    [block] = [each for each in python_of("README.md") if "SparkSession" in each]
    program = tmp_path / "five.py"
    program.write_text(block, encoding="utf-8")
    done = python(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "created" in line]
    assert len(rows) == 2, done.stdout


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("docs/embedded.md", marks=pytest.mark.wide),
        pytest.param("docs/testing.md", marks=pytest.mark.deep),
    ],
)
def test_programs_and_tests_of_testing_pages_run(tmp_path, page):
    named = []
    for block in python_of(page):
        name = re.match(r"# (\w+\.py)\n", block)
        if name is None:
            exec(compile(block, page, "exec"), {})  # noqa: S102  # our own text
        elif "pyspark" not in block or shutil.which("java"):
            (tmp_path / name[1]).write_text(block, encoding="utf-8")
            named.append(name[1])
    done = python("-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path)
    assert f"{len(named) - 1} passed" in done.stdout, done.stdout + done.stderr


def imports_of(text):
    """Return the modules and names that a program imports, as (module, name or None)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, each.name) for each in node.names)


def programs():
    """Return each program of pages, notebooks and examples, with its place."""
    for document in DOCUMENTS:
        name = name_of(document)
        for block in re.findall(r"```python\n(.*?)```", document.read_text("utf-8"), re.DOTALL):
            yield name, block
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                lines = "".join(cell["source"]).splitlines()
                yield name_of(path), "\n".join(each for each in lines if each[:1] not in "%!")
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield name_of(path), path.read_text(encoding="utf-8")


_PUBLIC_MODULES = {
    "rocketpoll",
    *(
        f"rocketpoll.{name}"
        for name in ("aio", "errors", "opentelemetry", "pytest_plugin", "spark")
    ),
}
_OF_INTERNALS = {
    "CONTRIBUTING.md",
    "examples/wire_tour.py",  # shows the wire
    "notebooks/long-polling.ipynb",  # shows the broker's side of a pull
}
"""Programs that show internals, and import names that may change with any release."""


def test_everything_that_pages_import_of_ours_is_public():
    """Public means in `rocketpoll` or one of its public modules, under that name."""
    wrong, seen = set(), 0
    for where, text in programs():
        try:
            found = list(imports_of(text))
        except SyntaxError:  # a part of a program, or one with dots for omissions
            continue
        for module, name in found:
            if (module or "").partition(".")[0] not in {"rmq_spark", "broker", "rocketpoll"}:
                continue
            seen += 1
            public = getattr(importlib.import_module(module), "__all__", ())
            is_public = module in _PUBLIC_MODULES and (
                name in {None, *public} or f"{module}.{name}" in _PUBLIC_MODULES
            )
            if not is_public and where not in _OF_INTERNALS:
                wrong.add((where, module, name))
    assert wrong == set()
    assert seen > 50


def test_python_blocks_of_the_spark_page_compile():
    """Blocks of the page continue each other, so each may use earlier imports."""
    blocks = python_of("docs/spark.md")
    assert len(blocks) == 8
    for block in blocks:
        compile(block, "spark.md", "exec")
        imports = "\n".join(
            line for line in block.splitlines() if re.match(r"(from|import) ", line)
        )
        exec(compile(imports, "spark.md", "exec"), {})  # noqa: S102  # our own text


@pytest.mark.parametrize("document", ["README.md", "docs/spark.md", "docs/client.md"])
def test_message_sent_by_a_pages_program_arrives(document):
    block = next(each for each in python_of(document) if "producer.send(" in each)
    with EmbeddedBroker() as broker:
        run_at(broker, block)
        assert len(broker.messages("orders")) == 1


def test_client_pages_program_of_namespaces_runs(capsys):
    [block] = [each for each in python_of("docs/client.md") if "namespace=" in each]
    with EmbeddedBroker() as broker:
        run_at(broker, block)
        assert [each.body for each in broker.messages("eu%orders")] == [b"one"]
    assert capsys.readouterr().out == "orders\norders\n"


def test_client_pages_programs_of_requests_and_traces_run(capsys):
    for text in ("producer.request(", "message_traces("):
        [block] = [each for each in python_of("docs/client.md") if text in each]
        with EmbeddedBroker() as broker:
            broker.create_topic("prices")
            broker.create_topic("orders")
            run_at(broker, block)
    shown = capsys.readouterr().out
    assert shown.startswith("price of AAPL\n")
    assert "\nPub shop " in shown


def test_client_pages_read_table_program_runs(capsys):
    [block] = [each for each in python_of("docs/client.md") if "read_table" in each]
    with EmbeddedBroker() as broker:
        broker.send("orders", "one", "two", tags="created")
        broker.send("orders", "three", tags="gone")
        run_at(broker, block)
    assert capsys.readouterr().out.startswith(
        "2 body: binary\nstoreTimestamp: timestamp[us, tz=UTC]"
    )


def test_docs_first_page_program_shows_what_it_sent(capsys):
    [block] = python_of("docs/README.md")
    exec(compile(block, "docs/README.md", "exec"), {})  # noqa: S102  # our own text
    shown = capsys.readouterr().out
    assert shown.count("ada") == 2
    assert "created" in shown
    assert "paid" in shown


@pytest.mark.parametrize(
    ("sign", "said"),
    [("Consumer", "[1, 2, 3]\n"), ("registry", "['bob', 'nobody']\n")],
)
def test_typed_bodies_page_programs_without_spark_run(capsys, sign, said):
    [block] = [each for each in python_of("docs/typed-bodies.md") if sign in each]
    with EmbeddedBroker() as broker:
        run_at(broker, block)
    assert capsys.readouterr().out == said


@pytest.mark.deep
def test_typed_bodies_page_spark_program_writes_and_reads_rows(tmp_path):
    [block] = [each for each in python_of("docs/typed-bodies.md") if "SparkSession" in each]
    with EmbeddedBroker() as broker:
        program = tmp_path / "typed.py"
        text = block.replace("localhost:9876", broker.address)
        program.write_text(text, encoding="utf-8")
        done = python(program, cwd=tmp_path)
        assert "|order-2|  2|     bob|  4.0|" in done.stdout, done.stdout + done.stderr
        bodies = sorted(message.body for message in broker.messages("orders"))
    assert bodies[0] == b'{"id":1,"customer":"ada","total":9.5}'


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
@pytest.mark.parametrize(
    ("page", "said"),
    [
        (
            "sink",
            ('|created|1   |{"id":1', "2 orders are paid", "|created|", "4 bills were sent"),
        ),
        ("exactly-once", ("1 bills count", "1 large orders count", "ada")),
        ("options", ("2 messages of the last hour", "0 orders are JSON")),
        (
            "spark",  # its last two listeners print nothing
            ("stored in queue 0", "|  1|     ada|  9.5|", '{"orders": {', "Lag(queues=", "", ""),
        ),
    ],
)
def test_programs_of_a_spark_page_run_in_sequence(tmp_path, page, said):
    """The blocks form one program, and each prints the output on its page."""
    elsewhere = re.compile(r"/etc/|profile=")  # TLS and users need files of a cluster
    blocks = [each for each in python_of(f"docs/{page}.md") if not elsewhere.search(each)]
    program = "\nprint('====')\n".join(blocks)
    program = program.replace("query.awaitTermination(60)", "query.processAllAvailable()")
    with EmbeddedBroker(defaultTopicQueueNums=1) as broker:
        if page == "options":
            broker.send("orders", "one", "two", tags="created")
        program = program.replace("localhost:9876", broker.address).replace("port=5559", "port=0")
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        done = python("-u", "program.py", cwd=tmp_path)  # unbuffered, in order with Spark's output
    assert done.returncode == 0, done.stderr
    for words, printed in zip(said, done.stdout.split("====\n"), strict=True):
        assert words in printed, done.stdout


def test_program_of_the_filters_page_prints_what_the_page_says(capsys):
    [block] = python_of("docs/filters.md")
    exec(compile(block, "filters.md", "exec"), {})  # noqa: S102  # our own text
    said = (ROOT / "docs" / "filters.md").read_text(encoding="utf-8")
    [sentence] = re.findall(r"^It prints (.*)\.$", said, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == re.findall(r"`([^`]+)`", sentence)


def test_client_page_creates_a_topic_with_the_stated_queues():
    [block] = [each for each in python_of("docs/client.md") if "create_topic" in each]
    with EmbeddedBroker() as broker:
        run_at(broker, block)
        with Admin(broker.address) as asked:
            assert len(asked.topic_offsets("orders")) == 4


def test_asyncio_page_programs_run(capsys, tmp_path):
    first, several, in_tests = python_of("docs/asyncio.md")
    with EmbeddedBroker() as broker:
        for block in (first, several):
            run_at(broker, block)
    assert capsys.readouterr().out.splitlines()[1:] == [
        """created b'{"id": 1, "customer": "ada", "total": 9.5}'""",
        "1000",
        "1001",
    ]
    pytest.importorskip("anyio")
    (tmp_path / "test_orders.py").write_text(in_tests, encoding="utf-8")
    done = python("-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_opentelemetry_page_programs_run(tmp_path):
    first, polls = python_of("docs/opentelemetry.md")
    with EmbeddedBroker() as broker:
        broker.create_topic("checkouts")
        # In a separate process, because a process sets its provider only once.
        program = f"{first}\n{polls}".replace("localhost:9876", broker.address)
        done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = re.findall(r'"name": "(.*)"', done.stdout)
    assert sorted(names) == ["bill", "checkout", "process checkouts", "send checkouts"]
    assert len(set(re.findall(r'"trace_id": "(.*)"', done.stdout))) == 1
    assert "\nTrue\n" in f"\n{done.stdout}"
    assert "{'id': 1, 'total': 9.5}" in done.stdout


def test_asyncio_page_lists_all_methods():
    page = (ROOT / "docs" / "asyncio.md").read_text(encoding="utf-8")
    for kind in (aio.Producer, aio.Consumer, aio.SimpleConsumer):
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{kind.__name__}`")]
        stated = set(re.findall(r"`(\w+)`", row)) - {kind.__name__}
        named = {name for name in dir(kind) if not name.startswith("_")}
        assert stated == named - {"start", "close", "forked", "is_running"}, kind


def printed_by_consumers(broker, block):
    """Return the output of the first program of the consumers page, without bodies, in order."""
    printed, lines = queue.SimpleQueue(), []

    def enter(_):
        """Press Enter once both consumers have received their messages."""
        while len(lines) < 3:
            lines.append(printed.get(timeout=PATIENCE_SECONDS)[:2])

    run_at(broker, block, print=lambda *words: printed.put(words), input=enter)
    assert printed.empty()
    return sorted(lines)


def test_pages_that_are_tried_one_after_the_other_print_what_they_say(capsys):
    """A reader runs them against one broker, beginning with the README."""

    def printed(document, sign=""):
        [block] = [each for each in python_of(document) if sign in each]
        run_at(broker, block)
        return capsys.readouterr().out

    with EmbeddedBroker() as broker:
        for document in ("README.md", "docs/spark.md"):
            run_at(broker, next(each for each in python_of(document) if "producer.send(" in each))
        assert capsys.readouterr().out.count("stored in") == 2
        assert printed_by_consumers(broker, python_of("docs/consumers.md")[0]) == [
            ("billing:", "paid"), ("shipping:", "created"), ("shipping:", "paid"),
        ]  # fmt: skip
        assert printed("docs/how-to/keep-the-order.md") == "created\npaid\nshipped\n"
        assert set(printed("docs/how-to/send-json.md").splitlines()) == {"ada"}
        assert printed("docs/typed-bodies.md", "Consumer") == "[1, 2, 3]\n"
        assert printed("docs/asyncio.md", "result.queue_offset").endswith(
            """created b'{"id": 1, "customer": "ada", "total": 9.5}'\n"""
        )
        assert printed("docs/asyncio.md", "aio.Client(") == "1000\n1001\n"
        bodies = {message.body for message in broker.messages("orders")}
    assert {tuple(json.loads(body)) for body in bodies} == {("id", "customer", "total")}


def test_consumers_page_programs_consume():
    first, settings, popping, _ = python_of("docs/consumers.md")
    with EmbeddedBroker() as broker:
        for tag in ("paid", "created"):
            broker.send("orders", tag, tags=tag)
        assert printed_by_consumers(broker, first) == [
            ("billing:", "paid"), ("shipping:", "created"), ("shipping:", "paid"),
        ]  # fmt: skip
        run_at(broker, settings)
        received = []
        run_at(broker, popping, print=received.append)
        assert {b"created", b"paid"} <= set(received)


def test_consumer_settings_on_the_page_equal_the_code():
    page = (ROOT / "docs" / "consumers.md").read_text(encoding="utf-8")
    table = page.partition("## Settings")[2].partition("\n## ")[0]
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:4]]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) == 12
    for name, *stated in rows:
        found = [getattr(settings, name, "") for settings in (LitePullSettings(), PushSettings())]
        assert stated == [str(getattr(each, "name", each)) for each in found], name


def test_database_offsets_program_of_the_consumers_page_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = [each for each in python_of("docs/consumers.md") if "sqlite3" in each]
    block = block.replace("timeout_ms=5_000", "timeout_ms=1_000")
    expected = []
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=2)
        for run in ("first", "second"):
            bodies = [f"{run} {number}" for number in range(25)]
            broker.send("orders", *bodies)
            expected += bodies
            run_at(broker, block)
            with closing(sqlite3.connect("results.db")) as database:
                found = [body for (body,) in database.execute("SELECT body FROM results")]
            assert sorted(found) == sorted(expected)


@pytest.mark.wide
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=name_of)
def test_examples_run(example):
    done = python(example, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "read back each time" in done.stdout


def test_error_tree_of_the_client_page_equals_the_code():
    drawn = re.compile(r"^[ │]*[├└]── (\w+)", re.MULTILINE)
    tour = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    assert drawn.findall(tour) == ["ClientError", *drawn.findall(client_errors.__doc__)]


def test_limits_on_the_client_page_equal_the_code():
    table = (ROOT / "docs" / "client.md").read_text(encoding="utf-8").partition("## Limits")[2]
    stated = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE))
    for what, limit in {
        "a held pull": f"and {broker_api.HOLD_MARGIN_MS // 1000} s",
        "a future's timeout is noticed": f"up to {frame_writer.TICK_SECONDS:.0f} s",
        "answers that nobody asked for": f"{pending_requests.UNSOLICITED_MAX} on a connection",
        "sends that wait for answers": f"{producer.PENDING_MAX:,} for each",
        "a message's body": f"{message.BODY_BYTES_MAX >> 20} MiB",
        "a batch": f"and {prepared_message.BATCH_MESSAGES_MAX:,} messages",
        "a chunk of a table": (
            f"{arrow_sender.CHUNK_BYTES >> 20} MiB, {arrow_sender.CHUNK_ROWS:,} rows; "
            f"{arrow_sender.IN_FLIGHT}"
        ),
        "requests of brokers under way": f"{instance.CONCURRENT_REQUESTS_MAX},",
        "connecting, with the handshake of TLS; an answer": (
            f"{connection.CONNECT_TIMEOUT_MS // 1000} s; "
            f"{remoting_client.REQUEST_TIMEOUT_MS // 1000} s "
            f"(operators {admin.ADMIN_TIMEOUT_MS // 1000} s)"
        ),
    }.items():
        assert limit in stated[what], what


def test_limits_on_the_wire_page_equal_the_code():
    table = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8").partition("## Limits")[2]
    stated = re.findall(r"^\| [^|]+ \| (\d+)(?: (MiB|KiB|GiB|levels))? \|", table, re.MULTILINE)
    units = {"": 1, "levels": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    assert [int(number) * units[unit] for number, unit in stated] == [
        framing.FRAME_BYTES_MAX,
        framing.HEADER_BYTES_MAX,
        header.EXT_FIELDS_MAX,
        fastjson.DEPTH_MAX,
        compression.PLAIN_BYTES_MAX,
        columns.CHUNK_PLAIN_BYTES_MAX,
    ]


def test_pages_install_no_package_that_is_on_no_index():
    """Before the first release, an index has no rocketpoll, or another project's."""
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if not re.search(r'^repository = ""$', metadata, re.MULTILINE):
        return
    sources = [
        path for folder in ("rmq_spark", "rocketpoll") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    told = re.compile(r"pip install (?:-\S+ )*[\\'\"]*rocketpoll\b")
    assert [
        name_of(path)
        for path in [*DOCUMENTS, *sources, *ROOT.glob("notebooks/*.ipynb")]
        if told.search(path.read_text(encoding="utf-8"))
    ] == []


def test_prose_is_wrapped_at_100_columns():
    """Tables, headings, drawings and commands may be wider."""
    long = []
    for document in DOCUMENTS:
        text = _BLOCK.sub("", document.read_text(encoding="utf-8"))
        long += [
            f"{name_of(document)}: {line}"
            for line in text.splitlines()
            if len(line) > COLUMNS_MAX and not line.lstrip().startswith(("|", "#"))
        ]
    assert long == []


def test_pages_keep_to_the_words_that_their_readers_use():
    """*Behind* is for lag and positions, not for time; the other words have plainer
    alternatives."""
    found = []
    for document in DOCUMENTS:
        name = name_of(document)
        if not name.startswith(("docs/", "README", "SECURITY", "CHANGELOG")):
            continue
        text = re.sub(r"^### `.*$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
        prose = " ".join(re.sub(r"`[^`\n]*`", "", text).split())
        found += [f"{name}: {each[0]}" for each in _WORDS.finditer(prose)]
    assert found == []


def test_makefile_is_wrapped_at_100_columns():
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > COLUMNS_MAX] == []


def test_readme_is_shorter_than_120_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("page", ["README", "docs/first-steps"])
def test_chinese_page_has_the_programs_and_headings_of_the_english_one(page):
    english, chinese = (
        (ROOT / f"{page}{ending}").read_text(encoding="utf-8") for ending in (".md", ".zh.md")
    )
    for pattern in (r"```\w+\n.*?```", r"^#+ ", r"^\| ---"):
        found = [re.findall(pattern, text, re.DOTALL | re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1]
