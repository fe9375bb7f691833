"""The page of a trace in a real browser: it loads without a complaint, and mouse and keys work."""

from __future__ import annotations

import pytest
from browser import WHY_NOT, browsing
from made import NASTY, trace

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def browser():
    with browsing() as window:
        yield window


@pytest.fixture
def show(browser, tmp_path):
    """Shows a trace; nothing may be complained of, then or later in the test."""

    def opened(trace):
        file = tmp_path / "trace.html"
        file.write_text(trace.to_html(title="<b>&{{STYLE}}"), encoding="utf-8")
        browser.complaints()
        browser.open(file)
        return browser

    yield opened
    assert browser.complaints() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def where(browser):
    return browser.texts("#where")[0]


def test_what_models_wrote_is_text_and_nothing_else(show):
    browser = show(trace())
    assert browser.texts(".text") == ["It was <b>bold</b>:" + "".join(NASTY)]
    assert browser.texts("h1") == ["<b>&{{STYLE}}"]
    assert browser.run("return [window.hit === undefined, document.scripts.length, document.images.length]") == [
        True,
        2,
        0,
    ]


def test_a_step_shows_its_candidates_and_what_was_read_behind_one(show):
    browser = show(trace())
    assert browser.texts("tbody .piece") == [" a", NASTY[0], "⇥"]
    assert browser.texts("tbody tr:first-child .number") == ["0.50", "0.25", "0.25"]
    assert browser.texts("td.mean .number") == ["0.50"]
    assert browser.texts(".future") == ["Masked… taken"]  # of the candidate that was taken
    browser.click("tbody tr:first-child")
    assert browser.texts(".future") == ["Paths… ahead 0", "Paths… <i>too</i>"]
    assert browser.texts(".phases span") == ["propose 1.0 ms", "look ahead 9.0 ms"]
    assert "φ after each token: 0.50 here" in browser.texts(".pane")[0]


def test_mouse_and_keys_go_from_token_to_token(show):
    browser = show(trace())
    assert where(browser) == "1 / 4"
    browser.click("#on")
    browser.press("ArrowRight")
    assert (where(browser), browser.texts(".token[aria-current]")) == ("3 / 4", [NASTY[2]])
    browser.press("End")
    browser.press("ArrowRight")
    assert where(browser) == "4 / 4"
    browser.press("ArrowLeft")
    browser.click("#back")
    assert where(browser) == "2 / 4"
    browser.press("Home")
    browser.click(".token:nth-of-type(5)")  # the prompt is the first
    assert where(browser) == "4 / 4"
    browser.press("ArrowUp")
    assert browser.texts(".future")[0] == "Paths… ahead 3"
    browser.press("ArrowDown")
    assert browser.texts(".future") == ["Masked… taken"]


def test_two_settings_stand_side_by_side_and_step_together(show):
    long, short = trace([" a", " b", " c"], label="plain"), trace([" x"], label="steered", explain=False)
    browser = show(long + trace([" other"], label="plain") + short)
    assert [text.split(":")[1] for text in browser.texts(".text")] == [" a b c", " x"]
    left, right = browser.run(
        "return [...document.querySelectorAll('.pane')].map((p) => p.getBoundingClientRect().left)"
    )
    assert left + 200 < right
    assert "q of the tokens taken: 0.88 here" in browser.texts(".pane")[1]
    browser.press("ArrowRight")
    assert "This text has ended." in browser.texts(".pane")[1]
    browser.run("const s = document.querySelector('select'); s.value = '1'; s.dispatchEvent(new Event('change'))")
    assert [text.split(":")[1] for text in browser.texts(".text")] == [" other", " x"]


def test_it_fits_a_phone(show, browser):
    browser.emulate("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    try:
        show(trace([" word"] * 40 + ["unbroken" * 30], label="a") + trace(label="b"))
        width, inner = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width <= inner == 360
        lefts = browser.run("return [...document.querySelectorAll('.pane')].map((p) => p.getBoundingClientRect().left)")
        assert lefts[0] == lefts[1]
        size = browser.run(
            "const b = document.getElementById('on').getBoundingClientRect(); return [b.width, b.height]"
        )
        assert min(size) >= 44
    finally:
        browser.emulate("Emulation.clearDeviceMetricsOverride")


CONTRAST = """
const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const parts = (colour) => { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); return paint.getImageData(0, 0, 1, 1).data; };
const light = (c) => [...parts(c)].slice(0, 3).map((v) => v / 255)
  .map((v) => (v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const style = (e) => getComputedStyle(e), paper = style(document.body).backgroundColor;
const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const token = document.querySelector('.token'), ink = style(token).color;
const tinted = [0, 0.5, 1].map((q) => { token.style.setProperty('--q', q); return ratio(ink, style(token).backgroundColor); });
return [light(paper), ratio(style(document.body).color, paper), ratio(style(document.querySelector('.pale')).color, paper), ...tinted];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(show, browser, scheme):
    browser.emulate("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    show(trace())
    paper, *contrasts = browser.run(CONTRAST)
    assert paper > 0.9 if scheme == "light" else paper < 0.05
    assert min(contrasts) >= 4.5  # what the accessibility guidelines ask of body text
    browser.emulate("Emulation.setEmulatedMedia", features=[])
