"""Layout: the frame around each page: navigation, breadcrumbs, search, and the session.

Pages supply title, breadcrumbs and escaped HTML (`Page`); the frame adds the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from importlib import resources
from typing import Final

from rmq_spark import __version__
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import Html, el, path
from rmq_spark.cli.console.visit import Visit

_ICONS: Final = {
    "overview": "M3 12 12 4l9 8M5.5 10v10h13V10",
    "topics": "M4 6h16M4 12h16M4 18h10",
    "groups": "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM2.5 19c.5-3 2.7-4.5 5.5-4.5s5 1.5 5.5 4.5"
    "M15.5 5.4a3 3 0 0 1 0 5.2M17 14.7c2.3.4 3.9 1.8 4.5 4.3",
    "dead-letters": "M4 6h16v12H4zM4 7l8 6 8-6",
    "checkpoints": "M6 3v18M6 4h11l-2.5 4L17 12H6",
    "access": "M7 11V8a5 5 0 0 1 10 0v3M5 11h14v9H5zM12 14v3",
    "charts": "M4 19h16M6 16l4-5 4 3 5-8",
}
SECTIONS: Final = (
    ("overview", "Overview", "/", "g o"),
    ("topics", "Topics", "/topics", "g t"),
    ("groups", "Groups", "/groups", "g g"),
    ("dead-letters", "Dead letters", "/dead-letters", "g d"),
    ("checkpoints", "Checkpoints", "/checkpoints", "g c"),
    ("access", "Access", "/access", "g a"),
    ("charts", "Charts", "/charts", "g m"),
)
"""Name, title, path and keys of each entry of the navigation."""

_KEYS: Final = (
    *((keys, title) for _, title, _, keys in SECTIONS),
    ("/", "search"),
    ("j  k", "next row, previous row"),
    ("Enter", "open the row"),
    ("Esc", "leave the row"),
    ("u", "go up one page"),
    ("n", "show the new rows of a list that holds still"),
    ("t", "switch between light and dark"),
    ("?", "show these keys"),
)


@dataclass(frozen=True)
class Page:
    """A page without its frame.

    Attributes:
        title: Heading of the page.
        content: The parts below the heading.
        section: Name of the page's entry in the navigation; empty for none.
        trail: Titles and paths of the pages above this one.
        status: Status of the response.
        outcome: Result of a form for the audit log; empty if the form did all that it says, None
            for a preview, which is not logged.
    """

    title: str
    content: Html
    section: str = "overview"
    trail: Sequence[tuple[str, str]] = ()
    status: HTTPStatus = HTTPStatus.OK
    outcome: str | None = ""


@lru_cache
def asset_content(name: str) -> bytes:
    """Return the bytes of a file of the console, such as its style sheet."""
    return (resources.files(__package__) / "static" / name).read_bytes()


def _asset_path(name: str) -> str:
    """Return the path of an asset with a hash of its content: browsers may cache it forever."""
    return f"/static/{name}?{hashlib.sha256(asset_content(name)).hexdigest()[:12]}"


def render_document(page: Page, visit: Visit) -> bytes:
    """Return a page in its frame, as HTML."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{page.title} - rocketpoll"),
        el("link", rel="icon", href="/static/console.svg", type="image/svg+xml"),
        el("link", rel="stylesheet", href=_asset_path("console.css")),
        el("script", src=_asset_path("console.js")),
    )
    body = el(
        "body",
        el("a.skip", "Skip to content", href="#content"),
        _navigation(page, visit),
        el(
            "div.main",
            _top(page, visit),
            el("main", el("h1", page.title), page.content, id="content", tabindex="-1"),
        ),
        _key_help(),
    )
    return b"<!doctype html>\n" + el("html", head, body, lang="en").markup.encode()


def _navigation(page: Page, visit: Visit) -> Html:
    entries = (
        el(
            "a.entry",
            el("svg.icon", el("path", d=_ICONS[name]), viewBox="0 0 24 24", aria_hidden="true"),
            el("span", title),
            el("kbd.wide", keys),
            href=href,
            aria_current="page" if name == page.section else None,
        )
        for name, title, href, keys in SECTIONS
    )
    return el(
        "aside",
        el("a.brand", el("span.mark"), "rocketpoll", href="/"),
        el("nav.entries", entries, aria_label="Sections"),
        el(
            "div.about",
            el(
                "span.cluster",
                visit.access.name_servers if visit.may_read else "",
                title="name servers",
            ),
            el("span", __version__),
        ),
    )


def _top(page: Page, visit: Visit) -> Html:
    trail = [
        (el("a", title, href=href, data_up=True), el("span.slash", "/"))
        for title, href in page.trail
    ]
    return el(
        "header.top",
        el("nav.trail", trail, el("span.here", page.title), aria_label="Breadcrumbs"),
        el("span.stale", "not refreshed", id="stale", hidden=True, role="status"),
        el(
            "form.search",
            el(
                "input",
                type="search",
                name="q",
                placeholder="Topic, group or message id",
                aria_label="Search",
                id="search",
                autocomplete="off",
            ),
            el("kbd.wide", "/"),
            action="/find",
            role="search",
        ),
        el("button.quiet", el("span.theme-icon"), type="button", id="theme", title="Light or dark",
           aria_label="Light or dark"),
        _sign_in_state(visit),
    )  # fmt: skip


def _sign_in_state(visit: Visit) -> Html:
    if visit.session is not None:
        return el(
            "form.who",
            ui.hidden_fields([("csrf", visit.session.csrf)]),
            el("button.quiet", "Sign out", type="submit"),
            action="/sign-out",
            method="post",
        )
    if visit.is_writable:
        return el("a.quiet.button", "Sign in", href=ui.sign_in_path(visit.return_path))
    return el("span.who", ui.badge("read-only"))


def _key_help() -> Html:
    rows = (
        el("div", el("dt", el("kbd", keys)), el("dd", description)) for keys, description in _KEYS
    )
    return el(
        "dialog",
        el("h2", "Keys"),
        el("dl.keys", rows),
        el("form", el("button", "Close", type="submit"), method="dialog"),
        id="keys",
    )


def sign_in_page(next_path: str) -> Page:
    """Return the page that starts a session and then leads to another page."""
    return Page(
        "Sign in",
        el(
            "form.card.pad.narrow",
            el("p", "Enter the token that the console printed when it started. Each start has a "
               "new token."),
            el("label", "Token", for_="token"),
            el("input", type="password", name="token", id="token", required=True,
               autocomplete="current-password", autofocus=True),
                        ui.hidden_fields([("next", next_path)]),
            el("button.primary", "Sign in", type="submit"),
            action=path("sign-in"),
            method="post",
        ),
        section="",
    )  # fmt: skip
