"""Colours of the console: all text meets the contrast of WCAG AA, in light and in dark."""

import re

import pytest

from rmq_spark.cli.console.layout import asset_content

CSS = asset_content("console.css").decode()
COLOURS = {
    found[1]: {"light": found[2], "dark": found[3]}
    for found in re.finditer(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", CSS)
}
BACKGROUNDS = ("page", "surface", "raised", "line-soft", "accent-soft")
"""Backgrounds that each text may have: rows are hovered and selected, and chips lie on cards."""

TONES = ("good", "warn", "bad", "accent")


def contrast(one, other):
    """Return WCAG's contrast ratio of two colours such as #ff0000: 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def used(properties):
    """Return the names of the colours that the style sheet uses for these properties."""
    return set(re.findall(rf"(?<![\w-])(?:{properties}): var\(--([a-z-]+)\)", CSS))


def test_contrast_ratio_of_known_colour_pairs():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_colour_is_readable_on_every_background(scheme):
    texts = used("color") - {"accent-text"}
    assert texts == {"text", "soft", "faint", *TONES}
    backgrounds = used("background|background-color")
    assert backgrounds <= {
        *BACKGROUNDS,
        "line",
        "faint",
        *TONES,
        *(f"{tone}-soft" for tone in TONES),
    }
    pairs = [(text, ground) for text in sorted(texts) for ground in BACKGROUNDS]
    pairs += [(tone, f"{tone}-soft") for tone in TONES]
    pairs += [("accent-text", "accent"), ("accent-text", "bad")]
    faults = {
        pair: round(found, 2)
        for pair in pairs
        if (found := contrast(*(COLOURS[name][scheme] for name in pair))) < 4.5
    }
    assert not faults


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_edges_of_fields_the_focus_bars_and_lines_are_visible(scheme):
    """WCAG AA requires a contrast of 3:1 for everything but text."""
    drawn = used("fill|stroke") - {"line"}  # it is the background of a bar, or means unknown
    assert drawn == {"accent", "warn", "bad"}
    for name in ("field", *drawn):
        for ground in BACKGROUNDS:
            assert contrast(COLOURS[name][scheme], COLOURS[ground][scheme]) >= 3, (name, ground)
    assert not re.findall(r"(?<!main):focus[^{]*{[^}]*outline: none", CSS)
