"""The page of feature cards, served to this machine alone: every judgement is in the file of verdicts at once.

    GET  /<token>/    the page, which shows the verdicts that the file has now
    POST /<token>/    lines of verdicts on these cards; they replace those of the same nodes in the file

Whoever does not know the token, a random word made at each start, gets nothing. The page's own policy lets it connect
to its server and to nothing else.
"""

import logging
import os
import re
import secrets
import socketserver
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any, ClassVar

from interp.cards import FeatureCard
from interp.errors import FileError, OptionError
from interp.verdicts import Verdict, load_verdicts, read_verdicts, save_verdicts, verdict_lines
from interp.view.card_page import SAVING
from interp.view.cards import view_cards
from interp.view.page import POLICY

ADDRESS = "127.0.0.1"
MAX_BODY = 2**22  # bytes of one request; all judgements of 4,000 cards with notes take less
HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")  # any port: it may be forwarded, as by ssh
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CardServer:
    """A page of feature cards that is being served.

    Attributes:
        url: where; it holds the token that lets a browser in.
        judgements: the file.
    """

    url: str
    judgements: Path
    _kept: "_Kept"

    def verdicts(self) -> list[Verdict]:
        """One verdict a card as the file has them now, None where it has none."""
        return self._kept.verdicts()


@contextmanager
def card_server(
    cards: Sequence[FeatureCard], judgements: str | Path, *, title: str = "Feature cards", port: int = 0
) -> Iterator[CardServer]:
    """Serve a page of cards on 127.0.0.1 inside a ``with``; judgements are saved as they are made.

    Verdicts that the file already has are shown, so judging goes on where it ended. Of two tabs the last judgement of
    a feature stays. Lines on other nodes are kept; a score goes when its feature is judged anew.

    Args:
        judgements: file of verdicts, which ends in ``.jsonl``; made at the first judgement.
        port: 0 takes any that is free.

    Raises:
        OptionError: no cards, two of one node, another ending, or a port that cannot be used.
        FileError: a file that is damaged.
    """
    path = Path(judgements)
    if path.suffix != ".jsonl":
        raise OptionError(f"{path} does not end in .jsonl, as a file of verdicts does; name it {path.stem}.jsonl.")
    kept = _Kept(path, tuple(card.node for card in cards))
    kept.verdicts()  # a damaged file is told now, not at the first judgement
    site = _Site(_served(cards, path, title), secrets.token_urlsafe(24), kept)
    with _listening(site, port) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), name="feature cards", daemon=True)
        thread.start()
        try:
            yield CardServer(f"http://{ADDRESS}:{server.server_address[1]}/{site.token}/", path, kept)
        finally:
            server.shutdown()
            thread.join()


def serve_cards(
    cards: Sequence[FeatureCard],
    judgements: str | Path,
    *,
    title: str = "Feature cards",
    port: int = 0,
    tell: Callable[[str], Any] | None = None,
) -> list[Verdict]:
    """As `card_server`, until Ctrl-C.

    Args:
        tell: called with the page's address, such as ``webbrowser.open``; None logs it.

    Returns:
        one verdict a card, in their order; None where nobody judged.
    """
    with card_server(cards, judgements, title=title, port=port) as server, suppress(KeyboardInterrupt):
        (tell or _tell)(server.url)
        Event().wait()
    return server.verdicts()


def _tell(url: str) -> None:
    log.warning("Judge the features at %s and end with Ctrl-C.", url)  # the level that is shown without any set-up


def _served(cards: Sequence[FeatureCard], path: Path, title: str) -> str:
    """The page that `view_cards` writes, which may connect to its own server and saves there."""
    with TemporaryDirectory() as folder:
        text = view_cards(cards, Path(folder) / f"{path.stem}.html", title=title).read_text("utf-8")
    text = text.replace(POLICY, f"{POLICY}; connect-src 'self'", 1)
    return text.replace("</head>", f'<link rel="icon" href="data:,"><script>{SAVING}</script></head>', 1)


@dataclass(frozen=True)
class _Kept:
    """The verdicts on some nodes in their file, which several requests may change at once."""

    path: Path
    nodes: tuple[str, ...]
    lock: Any = field(default_factory=Lock)

    def verdicts(self) -> list[Verdict]:
        found = {one.node: one for one in self._file()}
        return [found.get(node, Verdict(node, None)) for node in self.nodes]

    def read(self, data: bytes) -> list[Verdict]:
        """Verdicts that were sent; FileError where they are none, or on other nodes."""
        new = read_verdicts(data, "the request")
        if foreign := {one.node for one in new} - set(self.nodes):
            raise FileError(f"no cards of {sorted(foreign)[:3]!r:.200} are here; send verdicts on this page's nodes.")
        return new

    def put(self, new: Sequence[Verdict]) -> None:
        """These verdicts into the file, in place of earlier ones on their nodes."""
        with self.lock:
            merged = {one.node: one for one in [*self._read(), *new]}
            save_verdicts(list(merged.values()), self.path)

    def _file(self) -> list[Verdict]:
        with self.lock:
            return self._read()

    def _read(self) -> list[Verdict]:
        return load_verdicts(self.path) if self.path.exists() else []


@dataclass(frozen=True)
class _Site:
    """What is served."""

    page: str
    token: str
    kept: _Kept

    def html(self) -> str:
        """The page with the verdicts as they are now."""
        judged = escape(verdict_lines(self.kept.verdicts()))
        return self.page.replace('<main id="cards"', f'<main id="cards" data-judged="{judged}"', 1)

    def refusal(self, path: str, hosts: Sequence[str], origin: str | None) -> tuple[int, str] | None:
        """Status and reason for a request that gets nothing: made under another name than this machine's (a foreign
        page whose name was turned to this address), by another page, or without the token."""
        if len(hosts) != 1 or not HOSTS.fullmatch(hosts[0].lower()):
            return 403, f"this page is served as {ADDRESS} or localhost only"
        if origin is not None and origin.lower() != f"http://{hosts[0].lower()}":
            return 403, "another page has no business here"
        if not secrets.compare_digest(path.encode("utf-8", "replace"), f"/{self.token}/".encode()):
            return 404, "nothing is here"
        return None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two servers share a port
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that left in the middle is no fault of ours; everything else is logged."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a request for the page of feature cards failed")


def _listening(site: _Site, port: int) -> _Server:
    try:
        return _Server((ADDRESS, port), type("_Answer", (_Answer,), {"site": site}))
    except (OSError, OverflowError) as error:
        raise OptionError(f"port {port} cannot be used ({error}); give another up to 65535, or 0 for any.") from error


class _Refused(Exception):  # noqa: N818 - no error: ends a request with a status and a reason
    pass


class _Answer(BaseHTTPRequestHandler):
    """One request."""

    site: ClassVar[_Site]
    timeout = 10  # seconds without a word from the browser
    server_version, sys_version = "interp", ""

    def do_GET(self) -> None:
        self._reply(self.site.html, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        self._reply(self._save, "text/plain; charset=utf-8")

    def log_message(self, *_: Any) -> None:
        """Quiet: the addresses of requests hold the token."""

    def _save(self) -> str:
        data = self._body()
        try:
            new = self.site.kept.read(data)
        except FileError as error:
            raise _Refused(400, str(error)) from error
        self.site.kept.put(new)
        return "saved"

    def _body(self) -> bytes:
        """What was sent, whole."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or "Transfer-Encoding" in self.headers:
            raise _Refused(411, "say how long it is")
        if int(length) > MAX_BODY:
            raise _Refused(413, f"{length} bytes are too many; allowed: {MAX_BODY}")
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise _Refused(400, "it ended too early")
        return data

    def _reply(self, content: Callable[[], str], kind: str) -> None:
        refusal = self.site.refusal(self.path, self.headers.get_all("Host", []), self.headers.get("Origin"))
        try:
            if refusal:
                raise _Refused(*refusal)
            status, text = 200, content()
        except _Refused as refused:
            (status, text), kind = refused.args, "text/plain; charset=utf-8"
        except (FileError, OSError) as error:
            status, text, kind = 500, str(error), "text/plain; charset=utf-8"
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
