"""A browser without a screen, for tests of the dashboard."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from served import Platform, await_true

CHROMIUM = Path("/usr/bin/chromium")
# Named, so that none is downloaded.
DRIVER = Path("/usr/bin/chromedriver")
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1600",
]


def why_no_browser() -> str | None:
    """Return what is missing; None if there is a browser."""
    for program, package in ((CHROMIUM, "chromium"), (DRIVER, "chromium-driver")):
        if not program.exists():
            return f"{program} is not there: apt-get install {package}"
    return None


class Page:
    """The dashboard in a browser."""

    def __init__(self, browser: Chrome, platform: Platform) -> None:
        self.browser = browser
        browser.get(f"http://{platform.address}/")
        # Gone if the page is loaded again.
        self.run("window.isTheSame = true")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.browser.execute_script(script, *arguments)

    def text(self, place: str) -> str:
        """Return the text of the element with this id."""
        text: str = self.run("return document.getElementById(arguments[0]).textContent", place)
        return text

    def is_shown(self, place: str) -> bool:
        """Return whether anything of the element with this id is to be seen."""
        shown = "return document.getElementById(arguments[0]).checkVisibility()"
        return bool(self.run(shown, place))

    def table(self, place: str) -> list[dict[str, str]]:
        """Return the rows of a table by the words at its head."""
        rows = self.run(
            "const table = document.getElementById(arguments[0]);"
            "const texts = (row) => [...row.cells].map((cell) => cell.textContent);"
            "return [table.tHead.rows[0], ...table.tBodies[0].rows].map(texts)",
            place,
        )
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    def is_live(self) -> bool:
        """Return whether it says that it shows what is."""
        return self.text("status").startswith("Live")

    def is_the_same(self) -> bool:
        """Return whether it was never loaded again."""
        return self.run("return window.isTheSame === true") is True

    def errors(self) -> list[str]:
        """Return what the browser complains of."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def await_text(self, place: str, words: str) -> None:
        """Wait until an element has these words."""
        await_true(lambda: words in self.text(place), f"{place} says: {words}")


@contextmanager
def browsing() -> Iterator[Chrome]:
    """Start a browser, which ends with all that it has written."""
    with tempfile.TemporaryDirectory(prefix="farfork-browser-") as profile:
        options = ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for option in [*OPTIONS, f"--user-data-dir={profile}"]:
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = Chrome(options=options, service=Service(str(DRIVER)))
        try:
            yield browser
        finally:
            browser.quit()
