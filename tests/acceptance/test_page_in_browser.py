"""The page at /ui as a real browser shows it: while agents work, to eyes, keyboards and screen readers.

No test looks at a clock: each waits for what the page draws next.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from scheduler.policy.misses import Cause
from tests.acceptance.conftest import running
from tests.acceptance.wire import body, occupied, user, waiting
from tests.doubles import browser as browsers
from tests.doubles.browser import Scheme, shown, violations
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance
MARKUP = '<img src="x">'
AGENTS = ["reviewer", "tests-writer", MARKUP, "refactor", "bug-hunter", "release", "migrator", "a-name-" * 9 + "end"]
KEY = "key-of-anna-5fb1c0"
# Each table gets the longest words and numbers that it may have to show; told is which cards then hold too much.
LONGEST = """([causes, name, number]) => {
  for (const table of document.querySelectorAll("#cache table")) {
    const row = table.tBodies[0].rows[0];
    for (const cell of [...row.cells].slice(1)) cell.textContent = number;
    const first = row.cells[0], clip = first.querySelector(".clip");
    if (clip) clip.textContent = name;
    else first.textContent = causes.reduce((one, other) => (one.length < other.length ? other : one));
  }
  return [...document.querySelectorAll(".card")].filter((card) => card.scrollWidth > card.clientWidth)
    .map((card) => [card.querySelector("h3").textContent, card.scrollWidth - card.clientWidth]);
}"""
DRAWN, HEARD = "() => document.body.dataset.drawn", "() => document.body.dataset.heard"
expect.set_options(timeout=browsers.WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Eight agents, four slots: some are answered, some wait, and all have answers behind them."""
    with running(tmp_path_factory.mktemp("page") / "0", workers=2, slots=2) as cluster, agents(cluster):
        yield cluster


@contextmanager
def agents(cluster: Cluster) -> Iterator[None]:
    """Each asks again and again until the end of the block, and has had one answer before its begin."""
    stop, answered = Event(), [Event() for _ in AGENTS]

    def works(number: int) -> None:
        headers = {"x-agent-id": AGENTS[number], "x-priority": f"{number % 2 + 4}"}
        for turn in range(10_000):
            if stop.is_set():
                return
            words = 3 if turn == 0 else 60
            said = f"turn {turn} of {number}: say {words} words at 30 tokens/s"
            answer = client.post("/v1/messages", json=body(user(said)), headers=headers)
            assert answer.status_code == 200, answer.text
            answered[number].set()

    client = httpx.Client(base_url=cluster.url, timeout=120, trust_env=False)
    with client, ThreadPoolExecutor(len(AGENTS)) as threads:
        working = [threads.submit(works, number) for number in range(len(AGENTS))]
        try:
            for number, one in enumerate(answered):
                wait_for(lambda n=number, o=one: o.is_set() or working[n].done(), "a first answer", 60)  # type: ignore[misc]
            yield
        finally:
            stop.set()
    for work in working:
        work.result()


def comes(page: Page, what: str, times: int) -> None:
    """Wait until so many more snapshots have come to the page, or were drawn."""
    for _ in range(times):
        before = page.evaluate(what)
        page.wait_for_function(f"before => ({what})() !== before", arg=before)


def draws(page: Page, times: int = 1) -> None:
    """Wait until the page has drawn so many more snapshots."""
    expect(page.locator("#all")).to_be_visible()
    comes(page, DRAWN, times)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_under_load_it_shows_all_without_trouble(busy: Cluster, browser: Browser, scheme: Scheme, width: int) -> None:
    with shown(browser, busy.url, width=width, scheme=scheme) as tab:
        page = tab.page
        expect(page.get_by_role("status")).to_have_text("2 workers ready")
        expect(page.locator("#workers .slot")).to_have_count(4)
        expect(page.locator("#running tbody tr").first).to_be_visible()
        expect(page.locator("#recent tbody tr").nth(7)).to_be_visible()
        expect(page.locator("#queues li.some").first).to_be_visible()
        expect(page.locator("#recent .clip").get_by_text(MARKUP, exact=True).first).to_be_visible()
        draws(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it never scrolls sideways"
        assert violations(page) == []
        assert tab.troubles == []


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_reaches_out_of_its_card_however_long_it_is(busy: Cluster, browser: Browser, width: int) -> None:
    with shown(browser, busy.url, width=width) as tab:
        page = tab.page
        expect(page.locator("#cache tbody tr").first).to_be_visible()
        draws(page)
        out_of = page.evaluate(LONGEST, [[cause.replace("_", " ") for cause in Cause], "a-name-" * 9, "9,999,999"])
        assert out_of == [], "by how many pixels"


def test_it_needs_no_mouse(busy: Cluster, browser: Browser) -> None:
    with shown(browser, busy.url) as tab:
        page, seen = tab.page, []
        draws(page)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the workers")).to_be_focused()
        for _ in range(page.locator("a, button, [tabindex='0']").locator("visible=true").count()):
            expect(page.locator(":focus")).to_be_in_viewport()
            style = page.locator(":focus").evaluate("at => getComputedStyle(at).outlineStyle")
            assert style != "none", "one sees where one is"
            seen.append(page.locator(":focus").evaluate("at => at.id || at.textContent"))
            page.keyboard.press("Tab")
        assert seen == ["Skip to the workers", "pause", "running", "recent"]
        page.locator("#recent").focus()
        draws(page)
        expect(page.locator("#recent")).to_be_focused()
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()


def test_it_stands_still_for_whoever_reads_slowly(busy: Cluster, browser: Browser) -> None:
    with shown(browser, busy.url) as tab:
        page = tab.page
        draws(page)
        page.get_by_role("button", name="Pause").press("Enter")
        expect(page.get_by_role("status")).to_have_text("paused")
        before = page.evaluate(DRAWN)
        comes(page, HEARD, 2)
        assert page.evaluate(DRAWN) == before, "it hears, and draws nothing"
        page.get_by_role("button", name="Go on").press("Enter")
        expect(page.get_by_role("status")).to_have_text("2 workers ready")
        draws(page)


def test_a_screen_reader_is_told_of_changes_and_of_nothing_else(busy: Cluster, browser: Browser) -> None:
    with shown(browser, busy.url) as tab:
        page = tab.page
        draws(page)
        live = page.locator("[aria-live], [role=status], [role=alert], [role=log], [role=timer], output")
        assert live.evaluate_all("all => all.map((one) => one.id)") == ["state", "wrong"]
        page.evaluate(
            "window.changes = 0; new MutationObserver(() => { window.changes += 1; })"
            ".observe(document.getElementById('state'), { childList: true, characterData: true, subtree: true })"
        )
        draws(page, 3)
        assert page.evaluate("window.changes") == 0


def test_where_keys_are_set_it_asks_for_one_and_tells_a_wrong_one(tmp_path: Path, browser: Browser) -> None:
    settings = {"api_keys": f"anna:{KEY}"}
    with running(tmp_path / "0", workers=1, settings=settings) as cluster, shown(browser, cluster.url) as tab:
        page, field = tab.page, tab.page.get_by_label("This gateway asks for a key")
        expect(page.get_by_role("status")).to_have_text("a key is needed")
        expect(field).to_be_focused()
        assert violations(page) == []
        field.fill("a-wrong-one")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("That key is not known here.")
        expect(field).to_be_focused()
        field.fill(KEY)
        page.get_by_role("button", name="Show").press("Enter")
        expect(page.get_by_role("status")).to_have_text("1 worker ready")
        expect(field).to_be_hidden()
        expect(page.locator("#main")).to_be_focused()
        expect(page.locator("#workers .slot")).to_have_count(4)
        refused = "Failed to load resource: the server responded with a status of 401 (Unauthorized)"
        assert set(tab.troubles) == {refused}
        page.reload()
        expect(page.get_by_role("status")).to_have_text("1 worker ready")
        assert KEY not in page.url + page.content()


def test_a_gateway_that_goes_is_told_and_one_that_comes_back_is_live_again(tmp_path: Path, browser: Browser) -> None:
    with running(tmp_path / "0", workers=1) as cluster, shown(browser, cluster.url) as tab:
        page = tab.page
        expect(page.get_by_role("status")).to_have_text("1 worker ready")
        cluster.stopped.add("api0")
        cluster.apis[0].stop()
        expect(page.get_by_role("status")).to_have_text("the gateway does not answer")
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#workers .slot")).to_have_count(4)  # what was known stays readable
        cluster.apis[0] = cluster.start_api(0)
        expect(page.get_by_role("status")).to_have_text("1 worker ready")
        expect(page.locator("body")).not_to_have_class("stale")
        draws(page)


def test_a_worker_that_dies_with_requests_is_told(tmp_path: Path, browser: Browser) -> None:
    started = running(tmp_path / "0", workers=1, slots=1)
    with started as cluster, occupied(cluster, 1), waiting(cluster), shown(browser, cluster.url, width=390) as tab:
        expect(tab.page.get_by_role("status")).to_have_text("1 worker ready")
        cluster.kill_worker("w1")
        expect(tab.page.get_by_role("status")).to_have_text("no worker is ready")
        expect(tab.page.locator("#workers .lost")).to_contain_text("2 of its requests go to another worker")
        expect(tab.page.locator("#queues h3")).to_have_text("w1: 2 requests")
        assert violations(tab.page) == []
