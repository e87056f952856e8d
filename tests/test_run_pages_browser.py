"""Pages in a real browser: nothing fetched, no complaint, everything drawn and readable."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from umbel.cli import main
from umbel.simulation.pages.plan_page import page as page_of_plan
from umbel.tests import browser, recorded_plans
from umbel.tests.recorded_runs import HOSTILE, begin, commit, full, node, planned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    browser.found() is None, reason="no Chromium here: apt-get install chromium"
)
NARROW, WIDE = 380, 1400

LAID_OUT = """(() => {
  const wrong = [];
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
  for (const plot of document.querySelectorAll(".plot")) {
    if (!plot.getClientRects().length) continue;  // in a panel that is not shown
    const texts = [...plot.querySelectorAll("text, p")].filter((text) => text.textContent);
    const boxes = texts.map((text) => text.getBoundingClientRect());
    texts.forEach((text, i) => {
      const box = boxes[i];
      const inside = box.left >= 0 && box.right <= innerWidth && box.width > 0;
      if (!inside) wrong.push(`out: ${text.textContent}`);
      const letters = parseFloat(getComputedStyle(text).fontSize);
      if (letters < 12) wrong.push(`small: ${text.textContent}`);
      for (let j = 0; j < i; j += 1) {
        const apart = box.left >= boxes[j].right || boxes[j].left >= box.right
          || box.top >= boxes[j].bottom - 1 || boxes[j].top >= box.bottom - 1;
        if (!apart) wrong.push(`${texts[j].textContent} on ${text.textContent}`);
      }
    });
    const area = plot.querySelector(".area").getBoundingClientRect();
    const says = plot.getAttribute("aria-label");
    const drawn = [...plot.querySelectorAll(".line, .bar, .band, .mark")];
    if (!drawn.length) wrong.push(`nothing drawn: ${says}`);
    for (const shape of drawn) {
      const box = shape.getBoundingClientRect();
      const inside = box.left > area.left - 12 && box.right < area.right + 12
        && box.top > area.top - 12 && box.bottom < area.bottom + 12;
      if (!inside || box.width + box.height === 0) wrong.push(`a shape of ${says}`);
    }
  }
  return wrong;
})()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.Browser(str(browser.found()), tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a run that records everything, a poor one, a hostile one, and of two compared."""
    home = tmp_path_factory.mktemp("pages")
    full(home)
    full(home, "fleet-2", rounds=25, clients=300)
    planned(home, recorded_plans.example())
    with begin(home, "poor", {}) as directory:
        for n in (1, 2):
            commit(directory, n, roster=[node(1), node(2)], metrics={"train.loss": 1.0 / n})
    with begin(home, "hostile", {"rounds": 3, HOSTILE: HOSTILE}, HOSTILE) as directory:
        directory.ledger.event(HOSTILE, round=1, attempt=0, code=HOSTILE)
        directory.ledger.event("refused", round=1, attempt=0, node=HOSTILE, code=HOSTILE)
        for n in (1, 2):
            commit(
                directory, n, roster=[HOSTILE], metrics={"test.accuracy": 0.5}, seconds={HOSTILE: 1}
            )
        commit(directory, 3, outcome="aborted", cause=HOSTILE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UMBEL_HOME", str(home))
        for run in ("fleet-1", "planned", "poor", "hostile"):
            assert main(["runs", "report", run, "-o", str(home / f"{run}.html")]) == 0
        both = ["fleet-1", "fleet-2", "hostile"]
        assert main(["runs", "compare", *both, "-o", str(home / "compared.html")]) == 0
    (home / "plan.html").write_bytes(page_of_plan(recorded_plans.rich()))
    (home / "async.html").write_bytes(page_of_plan(recorded_plans.asynchronous()))
    return home


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize(
    "name", ["fleet-1", "planned", "poor", "hostile", "compared", "plan", "async"]
)
def test_a_page_is_whole_and_readable(
    chromium: browser.Browser, pages: Path, name: str, width: int
) -> None:
    page = pages / f"{name}.html"
    seen = chromium.open(page, width=width)
    assert chromium.ask("document.querySelectorAll('.plot').length") >= 2
    panels = chromium.ask("document.querySelectorAll('.panel').length")
    for i in range(panels):
        chromium.ask(f"document.getElementById('by-{i}').click()")
        assert (
            chromium.ask(f"getComputedStyle(document.querySelector('.panel-{i}')).display")
            == "block"
        )
        assert chromium.ask(LAID_OUT) == []
    chromium.ask("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert chromium.ask("document.documentElement.scrollWidth") <= width
    assert seen.requests == [page.as_uri()]
    assert seen.complaints == []


def test_the_policy_stops_what_slipped_through(chromium: browser.Browser, pages: Path) -> None:
    """The same page with a script, a style and an image in it that nobody escaped."""
    page = pages / "slipped.html"
    whole = (pages / "poor.html").read_text("utf-8")
    bad = "<script>document.title = 'taken'</script><img src='https://example.org/x.png'>"
    page.write_text(whole.replace("<main>", f"<main>{bad}"), "utf-8")
    seen = chromium.open(page, width=WIDE)
    assert chromium.ask("document.title") == "poor: report"
    until = time.monotonic() + 30
    while (
        len(seen.complaints) < 2 and time.monotonic() < until
    ):  # what the console says comes after
        chromium.ask("new Promise((done) => setTimeout(done, 50))")
    assert len(seen.complaints) == 2
    assert all("Content Security Policy" in line for line in seen.complaints)


def test_a_page_says_everything_without_its_script(chromium: browser.Browser, pages: Path) -> None:
    seen = chromium.open(pages / "fleet-1.html", width=WIDE, scripts=False)
    assert chromium.ask(LAID_OUT) == []
    assert chromium.ask("document.getElementById('tip') === null")
    chromium.ask("document.getElementById('by-2').click()")
    assert _shown(chromium) == [2]
    assert seen.complaints == []


def test_the_row_under_the_pointer_is_shown(chromium: browser.Browser, pages: Path) -> None:
    chromium.open(pages / "fleet-1.html", width=WIDE)
    box: dict[str, Any] = chromium.ask(
        "(() => { const a = document.querySelector('.panel-0 .area').getBoundingClientRect();"
        " return {x: a.right - 1, y: a.top + 100}; })()"
    )
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", **box)
    said = chromium.ask("document.getElementById('tip').textContent").splitlines()
    assert said[0] == "round: 60"
    assert said[1] == "virtual time: 7.18 h"
    assert chromium.ask("document.querySelectorAll('.hair').length") == 1


def test_dark_and_print(chromium: browser.Browser, pages: Path) -> None:
    chromium.open(pages / "fleet-1.html", width=WIDE)
    look = (
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.line')).stroke]"
    )
    light = chromium.ask(look)
    assert light == ["rgb(246, 247, 249)", "rgb(0, 114, 178)"]
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    chromium.call("Emulation.setEmulatedMedia", features=dark)
    assert chromium.ask(look) == ["rgb(19, 22, 26)", "rgb(86, 180, 233)"]
    chromium.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert _shown(chromium) == [0, 1, 2, 3]
    chromium.call("Emulation.setEmulatedMedia", media="", features=[])


def test_a_plan_says_first_what_to_change_first(chromium: browser.Browser, pages: Path) -> None:
    """It stands on the first screen of a laptop, and the longest bar is the topmost."""
    chromium.open(pages / "plan.html", width=WIDE)
    said = "document.querySelector('.first')"
    assert chromium.ask(f"{said}.textContent") == recorded_plans.rich()["first"]
    assert 0 < chromium.ask(f"{said}.getBoundingClientRect().bottom") < 900
    bars: list[dict[str, float]] = chromium.ask(
        "[...document.querySelectorAll('.panel-0 .bar')].filter((b) => b.tagName === 'rect')"
        ".map((b) => b.getBoundingClientRect()).filter((b) => b.width > 20)"
        ".map((b) => ({width: b.width, top: b.top}))"
    )
    top, widest = min(bar["top"] for bar in bars), max(bars, key=lambda bar: bar["width"])
    assert len(bars) == 8
    assert widest["top"] == top


def _shown(chromium: browser.Browser) -> Any:
    """Return the numbers of the panels that are seen."""
    return chromium.ask(
        "[...document.querySelectorAll('.panel')]"
        ".map((panel, i) => getComputedStyle(panel).display === 'none' ? -1 : i)"
        ".filter((i) => i >= 0)"
    )
