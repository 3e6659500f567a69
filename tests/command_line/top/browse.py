"""A browser that reads the page of `ronde top` as a user would: python browse.py URL FOLDER CHROMIUM. It runs in a
process of its own, says a line of JSON after each part, and goes on when it reads a line. Pictures go into FOLDER.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

PATIENCE = 60_000
"""Milliseconds."""
LOOKS = "Number(document.body.dataset.looks)"
DRAWN = "Number(document.body.dataset.drawn)"
RANGE = "document.getElementById('timeline').layout.xaxis.range.map(Number)"


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def heard() -> None:
    sys.stdin.readline()


def until(page: Page, expression: str) -> None:
    """Wait for something. The page forbids `eval`, by which playwright would wait itself."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(100)


def picture(page: Page, folder: Path, name: str) -> None:
    page.screenshot(path=folder / f"top-{name}.png", full_page=True, timeout=PATIENCE)


def main(url: str, folder: Path, chromium: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=PATIENCE)
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        asked, errors = list[str](), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(url, timeout=PATIENCE)
        until(page, f"{LOOKS} >= 4")
        page.wait_for_selector("#timeline .lines path", state="attached", timeout=PATIENCE)
        first = page.evaluate(LOOKS)
        until(page, f"{LOOKS} > {first}")
        tell(
            ranks=page.locator("#ranks tr").count() - 1,
            findings=page.inner_text("#findings"),
            chain=page.inner_text("#chain"),
            plots=page.locator(".plot .main-svg").count() > 0,
            heat=page.locator("#waiting .heatmaplayer image").count(),
            foreign=[one for one in asked if not one.startswith((url, "data:", "blob:"))],
            errors=errors,
        )
        picture(page, folder, "light")
        # zoom by dragging, and stay there while the page goes on
        page.locator("#timeline").scroll_into_view_if_needed()
        box = page.locator("#timeline .nsewdrag").bounding_box()
        assert box is not None
        before = page.evaluate(RANGE)
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        page.wait_for_selector("#follow:not([hidden])", timeout=PATIENCE)
        zoomed = page.evaluate(RANGE)
        looks = page.evaluate(LOOKS)
        until(page, f"{LOOKS} > {looks + 1}")
        tell(before=before, zoomed=zoomed, later=page.evaluate(RANGE))
        page.click("#follow")
        page.wait_for_selector("#follow", state="hidden", timeout=PATIENCE)
        page.locator("#ranks button").first.click()
        until(page, "document.getElementById('stack-text').textContent.length > 5")
        tell(stack=page.inner_text("#stack-text"))
        page.click("#stack button")
        page.emulate_media(color_scheme="dark")
        drawn = page.evaluate(DRAWN)
        until(page, f"{DRAWN} > {drawn + 1}")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        picture(page, folder, "dark")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 400, "height": 800})
        drawn = page.evaluate(DRAWN)
        until(page, f"{DRAWN} > {drawn + 1}")
        picture(page, folder, "narrow")
        tell(dark=dark, width=page.evaluate("document.documentElement.scrollWidth"))
        heard()  # the job has ended
        until(page, "document.getElementById('state').textContent === 'over'")
        tell(over=page.locator("#timeline .lines path").count(), ranks=page.locator("#ranks tr").count() - 1)
        heard()  # the viewer has ended
        until(page, "document.getElementById('state').classList.contains('lost')")
        tell(lost=page.locator("#waiting .heatmaplayer image").count())
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
