"""The documentation site in a real Chromium: nothing is cut off, search works, code is readable."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.programs.browser import appears, started_chromium
from support.programs.site_build import ROOT, built, needs_mkdocs

pytestmark = [pytest.mark.deep, needs_mkdocs]

PHONE = {"viewport": {"width": 390, "height": 844}}
WIDE = {"viewport": {"width": 1280, "height": 900}}
PATIENCE_MS = 120_000
OPENED_AGAIN_MS = 60_000
CONTRAST_MIN = 4.5
"""Contrast of text that the W3C's accessibility guidelines require (WCAG 2, level AA)."""

OUTSIDE = """() => {
  const scrolls = (each) => ["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX);
  const right = document.documentElement.clientWidth + 1;
  const within = (each) => {
    for (let up = each.parentElement; up && up !== document.body; up = up.parentElement) {
      if (scrolls(up)) return true;
    }
    return false;
  };
  const outside = [...document.querySelectorAll(".md-content *")].filter(
    (each) => each.getBoundingClientRect().right > right && !within(each)
  );
  if (document.documentElement.scrollWidth >= right) outside.push(document.body);
  return outside.map((each) => each.tagName + ": " + each.textContent.slice(0, 40));
}"""

CONTRASTS = """() => {
  const rgb = (css) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    return (over) => {
      canvas.fillStyle = over; canvas.fillRect(0, 0, 1, 1);
      canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
  };
  const light = (channels) => {
    const [r, g, b] = channels.map((each) => each / 255).map(
      (each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4
    );
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const lowest = {};
  for (const code of document.querySelectorAll(".highlight code")) {
    const behind = getComputedStyle(code).backgroundColor;
    for (const token of [code, ...code.querySelectorAll("span[class]")]) {
      if (!token.textContent.trim() || token.querySelector("span")) continue;
      const ground = light(rgb(behind)(getComputedStyle(document.body).backgroundColor));
      const ink = light(rgb(getComputedStyle(token).color)(behind));
      const contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
      lowest[token.className] = Math.min(contrast, lowest[token.className] ?? 99);
    }
  }
  return lowest;
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Log no requests."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def address(site):
    """Return the address of the served site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def chromium():
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def opened(chromium, address):
    """Return a function that opens a page in a color scheme; any error in the browser fails the
    test."""
    contexts, complaints = [], []

    def page(**look):
        context = chromium.new_context(base_url=address, **look)
        contexts.append(context)
        made = context.new_page()
        made.on("pageerror", lambda error: complaints.append(str(error)))
        return made

    yield page
    for context in contexts:
        context.close()
    assert complaints == []


def test_site_pages_fit_a_phone(site, opened):
    page = opened(**PHONE)
    paths = [each.relative_to(site).as_posix() for each in site.rglob("*.html")]
    cut = {}
    for path in sorted(set(paths) - {"404.html"}):
        page.goto(f"/{path}", wait_until="domcontentloaded")
        cut[path] = page.evaluate(OUTSIDE)
    assert len(cut) > 70
    assert {path: found for path, found in cut.items() if found} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_can_be_read_in_both_schemes(opened, scheme):
    page = opened(**WIDE, color_scheme=scheme)
    page.goto("/spark.html")
    body = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (body == "rgb(255, 255, 255)") == (scheme == "light")
    for path in ("spark.html", "client.html", "operate.html", "project/notebooks/explore.html"):
        page.goto(f"/{path}")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 3
        assert {kind: seen for kind, seen in contrasts.items() if seen < CONTRAST_MIN} == {}


QUESTIONS = {
    "How do I read a RocketMQ topic in Spark": "read-in-spark",
    "start from a timestamp": "start-from-a-timestamp",
    "from Kafka": "from-kafka",
    "exactly once": "exactly-once",
    "Debezium": "debezium",
    "test a pipeline": "test-a-pipeline",
    "into a Delta Lake table": "into-delta",
    "Iceberg": "into-iceberg",
    "pandas": "read-a-day",
    "find a message by key": "find-a-message",
    "replay from yesterday": "replay-from-yesterday",
    "rewind a consumer group": "send-a-group-back",
    "my consumer is stuck": "consumer-is-stuck",
    "dead letters": "dead-letters",
    "send JSON": "send-json",
    "ordered": "keep-the-order",
    "delayed messages": "delay-a-message",
    "outbox": "send-with-a-database",
    "run in Docker behind NAT": "docker-and-nat",
    "TLS": "use-tls",
    "set up ACLs": "tls-and-acls",
    "move a store to a real RocketMQ": "move-to-rocketmq",
}
"""Searches that people type, and the page in docs/how-to that answers each."""


def looked_for(page, asked):
    """Return the addresses that the search shows for these words, the best first.

    A page that could not load the search index does not try again, so it is opened once more. This
    happens when others create network interfaces on the machine: the browser then drops its
    requests.
    """
    for _ in range(PATIENCE_MS // OPENED_AGAIN_MS):
        page.goto("/index.html")
        page.fill(".md-search__input", asked)
        if appears(page, ".md-search-result__link", OPENED_AGAIN_MS):
            break
    return page.eval_on_selector_all(
        ".md-search-result__link", "each => each.map(link => link.getAttribute('href'))"
    )


def test_site_search_leads_each_how_to_question_to_its_page(opened):
    page = opened(**WIDE)
    first = {asked: looked_for(page, asked)[0] for asked in QUESTIONS}
    wrong = {
        asked: shown
        for asked, shown in first.items()
        if f"/how-to/{QUESTIONS[asked]}.html" not in shown
    }
    assert wrong == {}
    assert set(QUESTIONS.values()) == {each.stem for each in (ROOT / "docs/how-to").glob("*.md")}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("startingOffsets", "options.html"),
        ("install", "install.html"),
        ("authentication", "security.html"),
        ("throughput", "speed.html"),
        ("performance", "speed.html"),
        ("migrate", "how-to/from-kafka.html"),
        ("compatibility", "versions.html"),
        ("backpressure", "spark.html"),
        ("kubernetes", "install.html"),
        ("offset reset", "how-to/send-a-group-back.html"),
        ("dead-letter queue", "how-to/dead-letters.html"),
        ("cannot connect to", "troubleshooting.html"),
        ("rocketmq_consumer_lag_messages", "reference/metrics.html"),
        ("mappedFileSizeCommitLog", "reference/settings.html"),
        ("ManyPullRequest", "from-rocketmq.html"),
    ],
)
def test_site_search_finds_commonly_typed_words(opened, asked, found):
    links = looked_for(opened(**WIDE), asked)
    assert any(f"/{found}" in link for link in links[:5]), links
