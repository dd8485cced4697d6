"""The console in a real Chromium: every page in every theme, every form, keys, hostile names."""

import re
from datetime import datetime, timedelta, timezone

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.secured import OPERATOR, client_of, secured_broker
from support.programs.browser import started_chromium
from support.programs.keystroke_model import Walk, check_told
from support.programs.web_console import TOKEN, paths, served, staged

from rmq_spark.cli.console.layout import SECTIONS
from rmq_spark.client.admin.access_lists import ACTIONS
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import RecentLoss
from rocketpoll import AclPolicy, Admin, EmbeddedBroker

pytestmark = pytest.mark.deep

LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 780}, "color_scheme": "light"},
}
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def chromium():
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(chromium, console):
    """Return a function that opens a page of the console; any error or warning in the browser fails
    the test."""
    contexts, complaints = [], []

    def opened(port=console.port, **look):
        context = chromium.new_context(base_url=f"http://127.0.0.1:{port}", **look)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append("a dialog") or dialog.dismiss())
        page.on(
            "console",
            lambda said: complaints.append(said.text) if said.type == "error" else None,
        )
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not [each for each in complaints if "Failed to load resource" not in each]


@pytest.fixture
def page(open_page):
    return open_page()


def sign_in(page):
    page.goto("/sign-in")
    page.fill("#token", TOKEN)
    page.click("main button")
    page.wait_for_selector("text=Sign out")


@pytest.mark.parametrize("look", LOOKS)
def test_console_pages_fit_their_window_in_every_theme(open_page, cluster, look):
    page = open_page(**LOOKS[look])
    background = set()
    for path in paths(staged(cluster)):
        assert page.goto(path).status == 200, path
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), path
        assert page.is_visible("h1"), path
        assert page.is_visible("nav.entries"), path
        background.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    [colour] = background
    red = int(colour.partition("(")[2].split(",")[0])
    assert (red < 60) == (look == "dark")


FITS = """(link) => [link, link.parentElement].every((each) =>
    each.scrollWidth <= each.clientWidth && each.scrollHeight <= each.clientHeight)"""


def test_topic_names_of_30_characters_are_shown_whole_on_a_phone(open_page, cluster):
    names = [f"{cluster.topic():_<28}{number:02}" for number in range(2)]
    with Admin(cluster.address) as admin:
        admin.create_topics(names)
    page = open_page(**LOOKS["phone"])
    for name in names:
        page.goto(f"/topics?q={name}")
        assert page.locator("td.grow a", has_text=name).evaluate(FITS), name


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_access_page_shows_long_names_within_the_window(open_page, scheme, width):
    look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    name = "analyst-of-the-whole-company-" * 4
    with secured_broker() as broker, Admin(instance=client_of(broker)) as admin:
        admin.create_user(name, "password")
        admin.create_acl(AclPolicy(name, f"Topic:{'orders-' * 12}*", ACTIONS[:7], ("10.0.0.0/8",)))
        admin.create_acl(AclPolicy(name, "Topic:payroll*", ("All",), is_allowed=False))
        with served(broker.address, credentials=OPERATOR) as browser:
            page = open_page(browser.port, **look)
            assert page.goto("/access").status == 200
            root = "document.documentElement"
            assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
            for text in ("Who may do what", "denied", "from 10.0.0.0/8"):
                assert page.locator(f"text={text}").first.is_visible()
            assert page.evaluate(TOUCHING) == []


TOUCHING = """() => {
    const seen = [...document.querySelectorAll(
        "main :is(input, select, button, .button, .switch), .top :is(a, button, input), .entry span"
    )].filter((each) => each.checkVisibility());
    const texts = [];
    for (const [at, one] of seen.entries())
        for (const other of seen.slice(at + 1)) {
            if (one.contains(other) || other.contains(one)) continue;
            if (one.closest("aside") && other.closest("main")) continue;  // a page scrolls below it
            const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
            const beside = Math.max(a.left - b.right, b.left - a.right);
            const apart = Math.max(beside, a.top - b.bottom, b.top - a.bottom);
            if (apart < 1) texts.push(`${one.outerHTML} ${other.outerHTML}`.slice(0, 300));
        }
    return texts;
}"""
"""JavaScript that finds touching buttons, fields and navigation links."""


@pytest.mark.parametrize("look", LOOKS)
def test_controls_of_console_pages_do_not_overlap(open_page, cluster, look):
    page = open_page(**LOOKS[look])
    for path in paths(staged(cluster)):
        page.goto(path)
        assert page.evaluate(TOUCHING) == [], path


READABLE = """() => {
    const parse = (text) => {
        const parts = (text.match(/[0-9.e-]+/g) || []).map(Number);
        const scale = text.startsWith("color(") ? 255 : 1;
        return [...parts.slice(0, 3).map((each) => each * scale), parts[3] ?? 1];
    };
    const over = ([r, g, b, alpha], under) =>
        [r, g, b].map((each, at) => each * alpha + under[at] * (1 - alpha));
    const ground = (element) => {
        if (!element) return [255, 255, 255];
        const own = parse(getComputedStyle(element).backgroundColor);
        return own[3] === 1 ? own : over(own, ground(element.parentElement));
    };
    const light = (colour) => colour.slice(0, 3).map((each) => each / 255)
        .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const faults = new Set();
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        const isSeen = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
        if (!walk.currentNode.data.trim() || !isSeen) continue;
        const under = ground(element);
        const text = over(parse(getComputedStyle(element).color), under);
        const [one, two] = [light(text), light(under)].sort((a, b) => b - a);
        const ratio = (one + 0.05) / (two + 0.05);
        if (ratio < 4.5) faults.add(`${ratio.toFixed(2)} ${element.outerHTML.slice(0, 120)}`);
    }
    return [...faults];
}"""
"""JavaScript that finds texts with a contrast below 4.5:1."""


@pytest.mark.parametrize("look", LOOKS)
def test_texts_of_console_pages_have_the_contrast_of_wcag_aa(open_page, cluster, look):
    page = open_page(**LOOKS[look])
    for path in paths(staged(cluster)):
        page.goto(path)
        assert page.evaluate(READABLE) == [], path


def test_console_list_under_the_pointer_stays_and_counts_new_rows(page, cluster):
    topic = staged(cluster).topic
    page.goto(f"/topics/{topic}")
    first = "#messages tr[data-href] >> nth=0"
    before = page.get_attribute(first, "data-href")
    page.hover(first)
    cluster.send(topic, "new 1", "new 2", queues=1)
    page.wait_for_function("refresh().then(() => document.querySelector('.offer'))")
    assert page.inner_text(".offer") == "2 new"
    assert page.get_attribute(first, "data-href") == before
    page.keyboard.press("n")
    page.wait_for_selector("text=new 2")
    assert page.locator(".offer").count() == 0
    page.keyboard.press("j")
    page.mouse.move(0, 0)
    cluster.send(topic, "new 3", queues=1)
    page.wait_for_function("refresh().then(() => document.querySelector('.offer'))")
    page.click(".offer")
    page.wait_for_selector("text=new 3")
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    cluster.send(topic, "new 4", queues=1)
    page.wait_for_function("refresh().then(() => document.body.innerText.includes('new 4'))")


def test_console_row_under_the_pointer_stays_when_rows_appear_above(open_page, monkeypatch):
    """Losses reported by a broker appear above the groups of the overview."""
    loss = RecentLoss(kind="log damaged", count=1, last_ms=1, text="4,096 bytes")
    info, real = {}, Admin.broker_info
    monkeypatch.setattr(Admin, "broker_info", lambda *given: {**real(*given), **info})
    with EmbeddedBroker() as broker, served(broker.address) as browser:
        broker.create_topic("orders", queues=1)
        broker.send("orders", "one", "two")
        with Admin(broker.address) as admin:
            [queue] = admin.topic_offsets("orders")
            admin.set_offset("billing", queue, 0, missing_ok=True)
        page = open_page(browser.port)
        page.goto("/")
        row = "tr[data-href='/groups/billing']"
        page.wait_for_function(f"""refresh().then(() => document.querySelector("{row}"))""")
        page.hover(row)
        before = page.locator(row).bounding_box()
        info["recentLosses"] = f"[{encode_body(loss).decode()}]"
        page.wait_for_function("refresh().then(() => document.querySelector('.offer'))")
        assert page.inner_text(".offer") == "Page changed"
        assert page.locator(row).bounding_box() == before
        assert page.locator("text=4,096 bytes").count() == 0
        page.click(".offer")
        page.wait_for_selector("text=4,096 bytes")
        assert page.locator(".offer").count() == 0
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.locator(".scroll:has-text('log damaged')").evaluate(FITS)


def test_times_are_shown_and_typed_in_the_zone_of_the_browser(open_page, cluster):
    stage = staged(cluster)
    page = open_page(timezone_id="Asia/Kolkata", locale="en-GB")
    page.goto(f"/topics/{stage.topic}")
    assert page.inner_text("th.stamp") == "Stored GMT+5:30"
    stamp = page.locator("td time").first
    stored = datetime.fromisoformat(stamp.get_attribute("datetime"))
    here = stored.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert stamp.inner_text() == here.strftime("%H:%M:%S.%f")[:-3]
    assert stamp.get_attribute("title").startswith(here.strftime("%Y-%m-%d %H:%M:%S."))
    page.evaluate("""() => {
        const first = document.querySelector("td time");
        first.dateTime = "2026-01-02T03:04:05.678Z";
        localize(document);
    }""")
    assert stamp.inner_text() == "2026-01-02 08:34:05.678"
    days = page.locator("#messages td time").all_inner_texts()
    assert all(re.match(r"\d{4}-\d\d-\d\d ", each) for each in days)
    page.goto(f"/groups/{stage.group}")
    page.fill("#to", "2026-01-02T08:34")
    page.click("text=Preview")
    page.wait_for_url("**/seek?to=2026-01-02T08%3A34%3A00%2B05%3A30*")
    for typed, sent in (
        ("-1h", "-1h"),
        ("start", "start"),
        ("25:00", "25:00"),
        ("2026-02-30", "2026-02-30"),
        ("2026-01-02", "2026-01-02T00:00:00+05:30"),
        ("2026-01-02T08:34Z", "2026-01-02T08:34Z"),
    ):
        assert page.evaluate("text => withZone(text)", typed) == sent


def test_times_without_javascript_have_the_zone_of_the_console(open_page, cluster):
    page = open_page(java_script_enabled=False, timezone_id="Asia/Kolkata")
    page.goto(f"/topics/{staged(cluster).topic}")
    assert page.inner_text("th.stamp") == f"Stored {datetime.now(timezone.utc).astimezone():%Z}"


def test_dry_run_is_visible_on_a_phone_without_scrolling(open_page, cluster):
    page, stage = open_page(**LOOKS["phone"]), staged(cluster)
    page.goto(f"/groups/{stage.group}/seek?to=start")
    for heading in ("Committed", "New offset"):
        box = page.locator(f"th:text-is('{heading}')").bounding_box()
        assert box["x"] + box["width"] <= 360, heading
    page.goto(f"/groups/{stage.group}")
    box = page.locator("text=Skip one").first.bounding_box()
    assert box["x"] + box["width"] <= 360


def test_console_theme_is_kept(page):
    page.goto("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.goto("/topics")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_keyboard_navigates_the_console(page, cluster):
    topic = staged(cluster).topic
    page.goto("/")
    page.keyboard.press("?")
    assert page.is_visible("dialog")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    page.keyboard.type(topic)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/topics/{topic}")
    for key in "jjk":
        page.keyboard.press(key)
    chosen = page.get_attribute("tr.chosen", "data-href")
    assert chosen == page.locator("tr[data-href]").first.get_attribute("data-href")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{chosen}")
    page.keyboard.press("u")
    page.wait_for_url(f"**/topics/{topic}")


def test_keys_of_each_section_open_its_page(page):
    for _, title, path, keys in SECTIONS:
        page.goto("/find?q=none-of-them")
        for key in keys.split():
            page.keyboard.press(key)
        page.wait_for_url(f"**{path}")
        assert page.inner_text("nav.entries [aria-current] span") == title


def test_key_right_after_loading_waits_for_its_second_key(page):
    page.goto("/")
    page.evaluate("""() => {
        for (const [at, name] of ["g", "t"].entries()) {
            const key = new KeyboardEvent("keydown", { key: name, bubbles: true });
            Object.defineProperty(key, "timeStamp", { value: at + 1 });
            document.body.dispatchEvent(key);
        }
    }""")
    page.wait_for_url("**/topics")


def test_console_page_refreshes_and_shows_stale_state(open_page, tmp_path):
    with EmbeddedBroker(tmp_path / "store", own_process=True) as broker:
        broker.send("orders", "one")
        with served(broker.address) as browser:
            page = open_page(browser.port)
            page.goto("/topics/orders")
            broker.send("orders", "two", "three")
            page.evaluate("refresh()")
            page.wait_for_selector("text=three")
            broker.kill()
            page.evaluate("refresh()")
            page.wait_for_selector("#stale:visible")
            assert page.goto("/").status == 502
            assert "cannot connect" in page.inner_text("[role=alert]")
            page.evaluate("refresh()")
            broker.restart()
            page.evaluate("refresh()")
            page.wait_for_selector("text=Brokers: ok")
            page.goto("/topics/orders")
            assert page.is_hidden("#stale")


class Walker:
    """Counts the keys, clicks and page views of a user."""

    def __init__(self, page, title):
        self.page, self.steps, self._title = page, Walk(), title

    def press(self, *keys, leads):
        for key in keys:
            self.page.keyboard.press(key)
        self.steps.press(len(keys))
        self.page.wait_for_url(leads)
        self.steps.read()

    def type(self, field, text):
        self.page.fill(field, text)
        self.steps.type(text)

    def click(self, what, shows):
        self.page.locator(what).first.click()
        self.steps.point()
        self.page.wait_for_selector(f"text={shows}")
        self.steps.read()

    def record_arrival(self):
        check_told(self.steps, "console.md", self._title)


def test_stuck_message_is_found_and_skipped_in_the_console(page, cluster):
    stage = staged(cluster)
    sign_in(page)
    walker = Walker(page, "A consumer is stuck: find out why and skip one message")
    walker.press("g", "g", leads="**/groups")
    walker.click(f"a[href='/groups/{stage.group}']", "Skip one")
    walker.click(f"a[href='/topics/{stage.topic}/{stage.broker}/0/2']", "Previous message")
    assert page.inner_text("pre.body") == "4"
    page.go_back()
    walker.steps.press()
    walker.click("text=Skip one", "dry run")
    assert cluster.stored_offset(stage.group, stage.topic) == 2
    walker.click("text=Move 1 queue", "continues from the new offsets")
    assert cluster.stored_offset(stage.group, stage.topic) == 3
    walker.record_arrival()


def test_two_seek_clicks_move_a_group_once_each(page, cluster):
    stage = staged(cluster)
    sign_in(page)
    for offset in (3, 4):
        page.goto(f"/groups/{stage.group}/seek?to=%2B1&topic={stage.topic}&queue=0")
        page.dblclick("main button.primary")
        page.wait_for_selector("text=continues from the new offsets")
        assert cluster.stored_offset(stage.group, stage.topic) == offset
    page.go_back()
    page.click("main button.primary")
    page.wait_for_selector("text=continues from the new offsets")
    assert cluster.stored_offset(stage.group, stage.topic) == 5


def test_two_send_clicks_send_one_message_with_its_newlines(page, cluster):
    topic = cluster.topic(queues=1)
    sign_in(page)
    page.goto(f"/produce?topic={topic}")
    page.fill("#field-body", '\n{"a":\n1}')
    page.select_option("#field-format", "json")
    page.fill("#field-keys", SCRIPT)
    page.press("#field-keys", "Enter")
    page.wait_for_selector("text=Nothing has been sent.")
    page.dblclick("main .actions button.primary >> nth=0")
    page.wait_for_selector("text=One message was sent")
    page.click("text=broker-a:0 at 0")
    page.wait_for_selector("text=Edit and send")
    page.click("text=Edit and send")
    assert page.input_value("#field-body") == '\n{"a":\n1}'
    assert page.input_value("#field-keys") == SCRIPT
    assert page.goto(f"/topics/{topic}/{NAME}/0/1").status == 404


def test_oversized_body_stays_in_its_console_form_field(page, cluster):
    topic = cluster.topic(queues=1)
    sign_in(page)
    page.goto(f"/produce?topic={topic}")
    page.evaluate("document.querySelector('#field-body').value = 'x'.repeat(4 << 20)")
    for _ in range(2):
        page.click("text=Preview")
        page.wait_for_selector("text=The body has 4194304 bytes")
    assert len(page.input_value("#field-body")) == 4 << 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_console_forms_with_errors_fit_a_phone_without_javascript(open_page, cluster, scheme):
    look = {"viewport": {"width": 390, "height": 800}, "color_scheme": scheme}
    page = open_page(java_script_enabled=False, **look)
    sign_in(page)
    page.goto(f"/produce?topic={cluster.topic(queues=1)}")
    page.fill("#field-body", "x" * 500)
    page.fill("#field-properties", "y" * 300)
    page.select_option("#field-format", "json")
    page.click("text=Preview")
    assert page.locator("[aria-invalid]").count() == 2
    assert page.locator(".fault:visible").count() == 2
    assert page.input_value("#field-body") == "x" * 500
    page.set_viewport_size({"width": 391, "height": 800})
    assert page.locator("main").bounding_box()["width"] <= 391


def test_second_browser_is_warned_of_a_changed_group(open_page, cluster):
    stage = staged(cluster)
    first, second = open_page(), open_page()
    for page in (first, second):
        sign_in(page)
        page.goto(f"/groups/{stage.group}/seek?to=%2B1&topic={stage.topic}&queue=0")
    first.click("main button.primary")
    first.wait_for_selector("text=continues from the new offsets")
    second.click("main button.primary")
    second.wait_for_selector("text=offsets have changed since the preview")
    assert cluster.stored_offset(stage.group, stage.topic) == 3


def test_hostile_names_and_bodies_execute_nothing(page, cluster):
    topic = cluster.topic(queues=1)
    hostile = {"KEYS": SCRIPT, "TAGS": '"><img src=x onerror=alert(1)>', SCRIPT: "\u202e' onclick="}
    cluster.send(topic, SCRIPT, queue_id=0, **hostile)
    for path in (f"/topics/{topic}", f"/topics/{topic}/{NAME}/0/0", f"/topics?q={SCRIPT}"):
        page.goto(path)
        page.evaluate("refresh()")
        assert SCRIPT in page.inner_text("main") or SCRIPT in page.input_value("main input")
        assert page.locator("script").count() == 1
        assert page.locator("main img").count() == 0


def test_chart_shows_the_figure_under_the_pointer(page, console, cluster):
    stage = staged(cluster)
    page.goto(f"/groups/{stage.group}")
    console.site._history.sample_watches()
    page.wait_for_function("refresh().then(() => document.querySelector('svg.plot[data-points]'))")
    page.hover("svg.plot")
    assert page.inner_text(".chart-now").startswith("4 ")
    page.hover("h1")
    assert page.inner_text(".chart-now") == "4"


@pytest.mark.parametrize("is_secure", [True, False])
def test_copy_button_copies_the_group_seek_command(open_page, cluster, is_secure):
    stage = staged(cluster)
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/groups/{stage.group}/seek?to=start")
    page.evaluate(
        """isSecure => {
        document.addEventListener("copy", () => { window.copied = String(getSelection()); });
        if (!isSecure) Object.defineProperty(navigator, "clipboard", { value: undefined });
    }""",
        is_secure,
    )
    button = page.get_by_role("button", name="Copy command")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("button:text-is('Copied')")
    assert page.inner_text("main [role=status]") == "Command copied"
    copied = page.evaluate("window.copied ?? navigator.clipboard.readText()")
    assert (
        copied == f"rocketpoll group seek {stage.group} --to start --namesrv {cluster.name_server}"
    )


def test_copy_button_is_hidden_without_javascript(open_page, cluster):
    page = open_page(java_script_enabled=False)
    page.goto(f"/groups/{staged(cluster).group}/seek?to=start")
    assert page.is_visible(".command code")
    assert page.is_hidden(".command button")
