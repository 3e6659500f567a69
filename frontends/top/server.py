"""The page of a job, served to browsers of this host by the standard library, with Plotly (the extra `web`).

The address has a token, so that other users of the host, and pages of other sites, cannot read it. Nothing that the
page loads comes from elsewhere.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import importlib.resources
import importlib.util
import json
import secrets
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

from frontends.needs import needs
from frontends.top.drawings import chain_svg
from frontends.top.figures import Figures, figures_of, snapshot_of
from frontends.top.history import History
from frontends.top.watching import Watched

_NEEDS_PLOTLY: Final = "the page of ronde top needs plotly: pip install 'ronde[web]'"
_FILES: Final = {
    "": ("index.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_MOST_READERS: Final = 16
"""Pages that are served at once."""
_BEAT_SECONDS: Final = 5.0
"""Time after which a page gets a sign of life."""
_MOST_CALLS: Final = 1500
_MOST_RANKS: Final = 64
_SEND_SECONDS: Final = 10.0
"""Time for a browser to take a message."""


class Observer:
    """Looks at a job again and again, in a thread of its own, from `start` to `close`.

    every   seconds between two looks
    """

    def __init__(self, watched: Watched, every: float) -> None:
        self.history = History()
        self.lock = threading.Lock()
        """Guards `watched`, `history` and what follows."""
        self.news = threading.Condition(self.lock)
        self.number = 0
        """Number of looks."""
        self.figures: Figures = {}
        self.closed = False
        self._watched = watched
        self._every = every
        self._seen: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ronde top", daemon=True)

    def start(self, seen: Callable[[], None] | None = None) -> None:
        """Look for the first time, then start the thread, which calls `seen` after each further look."""
        self.look()
        self._seen = seen
        self._thread.start()

    def look(self) -> None:
        """Look now."""
        with self.lock:
            look = self._watched.look()
            snapshot = snapshot_of(look)
            self.history.add(look, snapshot)
            self.figures = figures_of(look, snapshot)
            self.number += 1
            self.news.notify_all()
        if self._seen is not None:
            self._seen()

    def await_look(self, number: int, seconds: float) -> None:
        """Wait for a look after that of `number`, or the end; for one who holds the lock."""
        self.news.wait_for(lambda: self.number > number or self.closed, seconds)

    def wait(self, seconds: float) -> bool:
        """Wait for the end; False if it was not in time."""
        return self._ended.wait(seconds)

    def stack(self, rank: int) -> str:
        """The stack of a rank."""
        with self.lock:
            return self._watched.stack(rank)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._ended.set()
        with self.lock:
            self.closed = True
            self.news.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._watched.close()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every):
                self.look()
        finally:  # also of an error: readers are not to wait for looks that never come
            self._ended.set()
            with self.lock:
                self.closed = True
                self.news.notify_all()


class Page:
    """The server of the page of one job. It listens at the loopback address from the constructor to `close`.

    Raises ModuleNotFoundError without Plotly, OSError if the port is not free.
    """

    def __init__(self, observer: Observer, port: int = 0) -> None:
        with needs(plotly=_NEEDS_PLOTLY):
            plotly = _plotly()
        self._server = _Server(("127.0.0.1", port), secrets.token_urlsafe(24), plotly, observer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="ronde top page", daemon=True)

    @property
    def url(self) -> str:
        """The address, with the token."""
        return f"http://127.0.0.1:{self._server.server_port}/{self._server.token}/"

    def start(self) -> None:
        """Start to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more, and release the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _plotly() -> Path:
    """Plotly's file for browsers. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("no module named plotly", name="plotly")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], token: str, plotly: Path, observer: Observer) -> None:
        super().__init__(address, _Handler)
        self.token = token
        self.plotly = plotly
        self.observer = observer
        self.readers = threading.BoundedSemaphore(_MOST_READERS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one connection."""

    timeout = _SEND_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ronde", ""

    def do_GET(self) -> None:
        """Answer a request."""
        parts = urllib.parse.urlsplit(self.path)
        token, _, name = parts.path.lstrip("/").partition("/")
        if not self._is_local() or not hmac.compare_digest(token.encode(), self._page.token.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        query = dict(urllib.parse.parse_qsl(parts.query))
        if name in _FILES:
            file, kind = _FILES[name]
            self._send((importlib.resources.files(__package__) / "page" / file).read_bytes(), kind)
        elif name == "plotly.js":
            self._send(self._page.plotly.read_bytes(), "text/javascript")
        elif name == "events":
            self._events()
        elif name == "calls":
            self._calls(query)
        elif name == "stack":
            rank = query.get("rank", "")
            if rank.isdigit() and len(rank) < 8:
                self._send(self._page.observer.stack(int(rank)).encode(), "text/plain")
            else:
                self.send_error(HTTPStatus.BAD_REQUEST)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their addresses have the token."""

    @property
    def _page(self) -> _Server:
        return cast(_Server, self.server)

    def _is_local(self) -> bool:
        """True if the browser asks for this host by a name of its own: a page of another site that has its name lead
        here is refused."""
        host = urllib.parse.urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return host in ("127.0.0.1", "localhost", "::1")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _calls(self, query: dict[str, str]) -> None:
        try:
            began, ended = float(query["from"]), float(query["to"])
            first = int(query.get("rank", 0))
        except (KeyError, ValueError):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        with self._page.observer.lock:
            found = self._page.observer.history.calls(began, ended, (first, first + _MOST_RANKS), _MOST_CALLS)
        self._send(json.dumps(found, separators=(",", ":")).encode(), "application/json")

    def _events(self) -> None:
        """Send the last minute, then what is new after each look, until the browser goes away."""
        if not self._page.readers.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                for message in self._messages():
                    self.wfile.write(message)
        finally:
            self._page.readers.release()

    def _messages(self) -> Iterator[bytes]:
        observer, number = self._page.observer, 0
        while not observer.closed:
            with observer.news:
                observer.await_look(number, _BEAT_SECONDS)
                columns = observer.history.columns
                new, figures = observer.number - number, observer.figures
                number = observer.number
            if not new:
                yield b": alive\n\n"
            elif not observer.closed:
                message = {
                    "figures": figures,
                    "columns": [column._asdict() for column in columns[-new:]],
                    "chain": chain_svg(figures),
                }
                yield f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode()
        yield b"event: end\ndata: 0\n\n"


def address_text(url: str) -> str:
    """The lines that tell a user of the address."""
    port = urllib.parse.urlsplit(url).port
    return (
        f"{url}\n"
        f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, then open the same address\n"
    )
