"""The dashboard in a browser, against a platform that serves."""

import http.client
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from bed import pooled, why_not
from browser import Chrome, Page, browsing, why_no_browser
from patience import await_end
from served import COUNT, PATIENCE_S, POOL_SIZE, Platform, await_true, open_place, serving

PREPARED_CALLS = 17
BURST = 5
VIEWERS = 16


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    if reason := why_no_browser():
        pytest.skip(reason)
    with browsing() as browser:
        yield browser


@pytest.fixture
def page(browser: Chrome, platform: Platform) -> Page:
    browser.set_window_size(1280, 1600)
    page = Page(browser, platform)
    await_true(page.is_live, "it shows what is")
    page.errors()
    return page


def row(page: Page, table: str, name: str) -> dict[str, str]:
    """Return the row of a table that begins with this; empty if there is none."""
    found = [one for one in page.table(table) if next(iter(one.values())) == name]
    return found[0] if found else {}


def checkpointed(platform: Platform, name: str) -> None:
    platform.deploy(name, COUNT)
    for _ in range(PREPARED_CALLS):
        platform.good(name)


def burst(platform: Platform, name: str) -> None:
    with ThreadPoolExecutor(BURST) as pool:
        list(pool.map(lambda _: platform.good(name, sleep=3), range(BURST)))


def test_events_are_shown_live(platform: Platform, page: Page) -> None:
    checkpointed(platform, "seen@x.y")
    burst(platform, "seen@x.y")
    calls = PREPARED_CALLS + BURST

    def seen() -> dict[str, str]:
        return row(page, "functions", "guest/seen@x.y")

    await_true(lambda: seen().get("Calls") == str(calls), "all of its calls are counted")
    found = seen()
    assert (found["Failed"], found["Image"], found["Cold"]) == ("0", "ready", "1")
    assert int(found["Clones"]) >= BURST - 2, "on a busy machine a call may find one that waits"
    assert int(found["Clones"]) + int(found["Warm"]) == calls - 1
    await_true(lambda: int(seen()["Idle"]) >= BURST - 1, "its instances wait")
    await_true(lambda: seen()["Own memory"].endswith(" MiB"), "their memory is looked at")
    starts = {one["Start"]: one for one in page.table("starts")}
    assert list(starts) == ["cold", "clone", "ghost", "warm"]
    assert int(starts["clone"]["Calls"]) >= int(found["Clones"])
    assert starts["clone"]["Until it runs"].endswith("s"), "a time"
    nodes = page.table("nodes")
    assert {one["Node"]: one["State"] for one in nodes} == {"node1": "up", "node2": "up"}
    assert all(one["Empty ghosts"].isdigit() and one["With an image"].isdigit() for one in nodes)

    def decided() -> list[str]:
        all_of = [one for one in page.table("decisions") if one["About"] == "guest/seen@x.y"]
        return [one["Decision"] for one in all_of if one["Question"] == "Checkpoint it now?"]

    await_true(lambda: set(decided()) == {"yes", "not yet"}, "decisions are shown")
    assert int(page.text("card-instances")) >= BURST - 1
    assert "MiB are the instances" in page.text("sharing-words")
    assert page.is_the_same(), "without being loaded again"
    assert page.errors() == []


def test_charts_are_drawn(platform: Platform, page: Page) -> None:
    platform.deploy("drawn", COUNT)
    platform.good("drawn")
    # How much of a chart has the colour of one of its lines.
    drawn = """
        const [chart, name] = arguments;
        const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        const wanted = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
        const canvas = document.querySelector(`#${chart} canvas`);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let at = 0; at < data.length; at += 4) {
          found += wanted.every((value, part) => Math.abs(value - data[at + part]) < 24);
        }
        return found;
    """
    lines = {"calls": "--bad", "latency": "--bad", "instances": "--bad", "memory": "--ghost"}
    for chart, line in lines.items():
        await_true(lambda of=(f"chart-{chart}", line): page.run(drawn, *of) > 20, chart)


def test_texts_of_users_stay_texts(page: Page) -> None:
    bad = "<img src=x onerror='window.isBad = true'><b>x"
    shown = page.browser.execute_async_script(
        """
        const [bad, done] = arguments;
        const part = (name) => import(`${location.origin}/dashboard/${name}.js`);
        const copy = (id) => document.getElementById(id).cloneNode(true);
        const texts = (table) => {
          document.body.append(table);
          const cells = [...table.tBodies[0].rows[0].cells];
          return [cells.map((cell) => cell.textContent), table.querySelectorAll("img, b").length];
        };
        async function show() {
          const [tables, { Decisions }] = [await part("tables"), await part("decisions")];
          const [functions, lines] = [copy("functions"), copy("decisions")];
          const one = { recent: { per_s: 0, p50_ms: null, p99_ms: null }, image: bad, calls: 0,
            starts: { cold: 0, clone: 0, ghost: 0, warm: 0 }, failed: 0, waiting: 0, busy: 0,
            idle: 0, local_bytes: 0, pool_bytes: 0 };
          const seen = { functions: { [bad]: one }, functions_omitted: 0 };
          tables.functions(functions, copy("functions-more"), seen);
          const decisions = new Decisions(lines, copy("which"), copy("pause"), copy("missed"));
          decisions.begin([{ about: bad, question: bad, choice: bad, why: bad, at_ms: 0 }]);
          await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
          return [functions, lines].map(texts);
        }
        show().then(done, (error) => done([String(error)]));
        """,
        bad,
    )
    assert len(shown) == 2, shown
    (function, in_function), (decision, in_decision) = shown
    assert function[0] == bad
    assert decision[1:3] == [bad, bad]
    assert decision[5] == bad
    assert (in_function, in_decision, page.run("return window.isBad")) == (0, 0, None)


def test_nothing_of_others_is_asked_and_nothing_else_runs(page: Page, platform: Platform) -> None:
    asked = page.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert len(asked) > 8
    assert {one.split("/")[2] for one in asked} == {platform.address}
    page.run(
        "const script = document.createElement('script');"
        "script.textContent = 'window.isBad = true'; document.body.append(script)"
    )
    assert page.run("return window.isBad") is None
    (error,) = page.errors()
    assert "Content Security Policy" in error


def test_decisions_are_chosen_and_held(platform: Platform, page: Page) -> None:
    checkpointed(platform, "chosen")

    def questions() -> set[str]:
        return {one["Question"] for one in page.table("decisions")}

    await_true(lambda: len(questions()) >= 3, "there are several")
    choose = (
        "const which = document.getElementById('which'); which.value = arguments[0];"
        "which.dispatchEvent(new Event('change'))"
    )
    page.run(choose, "checkpoint")
    assert questions() == {"Checkpoint it now?"}
    page.run("document.getElementById('pause').click()")
    held = page.table("decisions")
    checkpointed(platform, "held")
    await_true(lambda: row(page, "functions", "guest/held") != {}, "the page goes on")
    assert page.table("decisions") == held
    page.run("document.getElementById('pause').click()")
    await_true(
        lambda: "guest/held" in {one["About"] for one in page.table("decisions")}, "all are there"
    )
    assert questions() == {"Checkpoint it now?"}


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_no_wider_than_its_window(page: Page, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.browser.refresh()
        await_true(page.is_live, "it shows what is")
        whole = page.run("return document.documentElement.scrollWidth")
        assert whole == page.run("return document.documentElement.clientWidth") <= width
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_who_is_one_too_many_is_told_and_gets_a_seat_that_is_left(
    platform: Platform, browser: Chrome
) -> None:
    browser.get("about:blank")
    with ExitStack() as stack:
        statuses: list[int] = []

        def look() -> int:
            connection = http.client.HTTPConnection(platform.address, timeout=PATIENCE_S)
            stack.callback(connection.close)
            connection.request("GET", "/dashboard/events")
            statuses.append(connection.getresponse().status)
            return statuses.count(200)

        # Those of the pages before come free a moment later; until then, one is refused too early.
        begun = time.monotonic()
        await_true(lambda: look() == VIEWERS, "all seats are taken")
        assert time.monotonic() - begun < PATIENCE_S / 2, "pages that were left keep their seats"
        assert set(statuses) <= {200, 429}
        page = Page(browser, platform)
        page.await_text("status", f"the dashboard has {VIEWERS} viewers already")
    await_true(page.is_live, "there are seats again")
    assert page.is_the_same()


def test_a_page_that_was_left_goes_on_when_it_is_shown_again(page: Page) -> None:
    page.browser.get("about:blank")
    page.browser.back()
    assert page.is_the_same(), "the browser has kept it"
    page.run("document.getElementById('status').textContent = ''")
    await_true(page.is_live, "it shows what is")


def test_a_platform_that_ends_and_comes_back(browser: Chrome, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        farfork = stack.enter_context(pooled(tmp_path, POOL_SIZE))
        state = stack.enter_context(open_place()) / "state"
        with serving(farfork, state) as platform:
            page = Page(browser, platform)
            page.await_text("empty-title", "No function is deployed yet")
            commands = page.text("empty-commands")
            assert f"farfork deploy --url http://{platform.address} hello.py" in commands
            platform.deploy("back", COUNT)
            page.await_text("empty-title", "No function has been called yet")
            platform.good("back")
            await_true(lambda: not page.is_shown("empty"), "there is something to be seen")
            platform.process.kill()
            platform.process.wait()
            page.await_text("status", "Connection lost")
            page.await_text("status", "This page shows the state at ")
        with serving(farfork, state, "--nodes", "1", listen=platform.address) as platform:
            await_true(page.is_live, "it comes back by itself")
            await_true(lambda: len(page.table("nodes")) == 1, "it shows the new one")
            platform.good("back")
            await_true(lambda: row(page, "functions", "guest/back") != {}, "its calls are seen")
            assert page.is_the_same()
            # Viewers do not keep the platform from ending.
            platform.process.send_signal(signal.SIGTERM)
            assert await_end(platform.process) == 0
            assert "aborted" not in platform.log()
