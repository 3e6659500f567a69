"""Checks the links of the built site: python -m docs._tools.links site

Every link to a page, a file or a heading of the site must lead somewhere. Links to other sites are listed, not opened.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def check(site: Path) -> tuple[list[str], set[str], int]:
    """The broken links, as texts; the links to other sites; and the number of links."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    broken, foreign, count = [], set(), 0
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute, since it is shown at any address
            continue
        for link in sorted(page.links):
            count += 1
            address, anchor = urldefrag(link)
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if parts.scheme != "data":
                    foreign.add(link)
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}: no such page")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                broken.append(f"{path.relative_to(site)}: {link}: no such heading")
    return broken, foreign, count


def main(argv: list[str]) -> int:
    """Print the result; returns 1 if a link is broken."""
    site = Path(argv[1]).resolve()
    broken, foreign, count = check(site)
    sys.stdout.write("".join(f"broken: {text}\n" for text in broken))
    pages = len(list(site.rglob("*.html")))
    sys.stdout.write(
        f"{pages} pages, {count} links, {len(foreign)} to other sites (not opened), {len(broken)} broken\n"
    )
    return 1 if broken or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
