"""The page of feature cards with a server: what is saved where, who is let in, and a person's way through a browser."""

import http.client
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from interp.cards import Context, FeatureCard, TokenValue, save_cards
from interp.errors import FileError, OptionError
from interp.judges import HumanJudge
from interp.verdicts import Verdict, load_verdicts, save_verdicts
from interp.view.page import POLICY
from interp.view.serve import MAX_BODY, card_server, serve_cards

EVIL = "<img src=x onerror=alert(1)> & 'one'"
CARD = FeatureCard(
    "resid_post[0] unit 0", "resid_post[0]", 0, n_tokens=400, density=0.01, max=2.0, mean=0.01, edges=(0.0, 1.0, 2.0),
    counts=(4, 2), contexts=(Context(4, 0, 1, ("Once", " she", f" {EVIL}"), (None, 2.0, 0.5)),),
    top_tokens=(TokenValue(" she", 2.0, 2),), promoted=(TokenValue(" her", 7.5),), suppressed=(TokenValue("is", -3.0),),
)  # fmt: skip
NODES = [f"resid_post[0] featurizer '{EVIL}' unit {unit}" for unit in range(5)]
CARDS = [replace(CARD, node=node, unit=unit) for unit, node in enumerate(NODES)]


def asked(url: str, method: str = "GET", body: str | bytes | None = None, **headers: str) -> tuple[int, str, Any]:
    """Status, text and headers of an answer."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    try:
        connection.request(method, where.path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def line(node: str, verdict: str | None, note: str = "") -> str:
    return json.dumps({"node": node, "verdict": verdict, "note": note}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "judged.jsonl"


# --- what is saved ---


def test_a_judgement_is_in_the_file_at_once_and_replaces_its_nodes_earlier_one(path):
    with card_server(CARDS, path) as server:
        assert not path.exists()
        assert asked(server.url, "POST", line(NODES[0], "relevant", "é\n") + line(NODES[1], "unsure"))[:2] == (
            200,
            "saved",
        )
        assert load_verdicts(path) == [Verdict(NODES[0], "relevant", "é\n"), Verdict(NODES[1], "unsure")]
        assert asked(server.url, "POST", line(NODES[0], "irrelevant"))[0] == 200
        assert load_verdicts(path) == [Verdict(NODES[0], "irrelevant"), Verdict(NODES[1], "unsure")]
        assert [one.verdict for one in server.verdicts()] == ["irrelevant", "unsure", None, None, None]
        assert server.judgements == path
    assert [file.name for file in path.parent.iterdir()] == ["judged.jsonl"]


def test_verdicts_of_other_nodes_and_scores_of_untouched_ones_stay_in_the_file(path):
    there = [Verdict("other", "relevant", "mine"), Verdict(NODES[1], "unsure", score=0.5)]
    save_verdicts([*there, Verdict(NODES[2], "unsure", score=0.25)], path)
    with card_server(CARDS, path) as server:
        assert asked(server.url, "POST", line(NODES[2], "relevant"))[0] == 200
    assert load_verdicts(path) == [*there, Verdict(NODES[2], "relevant")]


def test_two_tabs_at_once_lose_nothing(path):
    with card_server(CARDS, path) as server:

        def judge(node: str) -> None:
            for note in range(15):
                assert asked(server.url, "POST", line(node, "relevant", str(note)))[0] == 200

        threads = [threading.Thread(target=judge, args=(node,)) for node in NODES]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert server.verdicts() == [Verdict(node, "relevant", "14") for node in NODES]


def test_the_page_shows_what_the_file_has_when_it_is_asked_for(path):
    with card_server(CARDS, path, title="A & B") as server:
        status, page, headers = asked(server.url)
        assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<h1>A &amp; B</h1>" in page and page.count("data-judged=") == 1 and EVIL not in page
        save_verdicts([Verdict(NODES[3], "relevant", "by hand")], path)
        assert "by hand" in asked(server.url)[1]


def test_a_file_that_was_damaged_meanwhile_is_left_alone_and_the_page_is_told(path):
    with card_server(CARDS, path) as server:
        path.parent.mkdir()
        path.write_text("no line\n")
        status, text, _ = asked(server.url, "POST", line(NODES[0], "relevant"))
        assert status == 500 and "line 1: no JSON" in text and path.read_text() == "no line\n"
        assert asked(server.url)[0] == 500


# --- who is let in ---


def test_the_policy_of_the_page_lets_it_connect_to_its_server_and_to_nothing_else(path):
    with card_server(CARDS, path) as server:
        _, page, headers = asked(server.url)
    assert page.count(f"content=\"{POLICY}; connect-src 'self'\"") == 1 and page.count("Content-Security-Policy") == 1
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'" and headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]


def test_without_the_token_there_is_nothing(path):
    with card_server(CARDS, path) as server:
        base = server.url[: server.url.rindex("/", 0, -1)]
        token = server.url.split("/")[3]
        others = [
            "/",
            "/x/",
            f"/{token}",
            f"/{token}/cards.html",
            f"/{token}/../{token}/",
            "/favicon.ico",
            f"/{token[:-1]}/",
        ]
        for other in others:
            assert asked(base + other)[:2] == (404, "nothing is here")
            assert asked(base + other, "POST", line(NODES[0], "relevant"))[0] == 404
        assert asked(server.url, "PUT", line(NODES[0], "relevant"))[0] == 501
        assert asked(server.url, "OPTIONS")[0] == 501
    assert not path.exists() and len(token) >= 32


def test_every_start_has_a_token_of_its_own(path):
    with card_server(CARDS, path) as one, card_server(CARDS, path) as other:
        assert one.url.split("/")[3] != other.url.split("/")[3]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1:1", 200), ("evil.example", 403), ("", 403),
        ("127.0.0.1.evil.example", 403), ("localhost.evil.example:80", 403), ("127.0.0.1:80@evil.example", 403),
        ("[::1]:80", 403),
    ],
)  # fmt: skip
def test_a_foreign_name_that_was_turned_to_this_machine_is_refused(host, status, path):
    with card_server(CARDS, path) as server:
        assert asked(server.url, Host=host)[0] == status
        assert asked(server.url, "POST", line(NODES[0], "relevant"), Host=host)[0] == status
    assert path.exists() == (status == 200)


def test_another_pages_request_is_refused_even_with_the_token(path):
    with card_server(CARDS, path) as server:
        own = server.url.rsplit("/", 2)[0]
        for origin, status in ((own, 200), ("http://evil.example", 403), ("null", 403), (own + "0", 403)):
            assert asked(server.url, "POST", line(NODES[0], "relevant"), Origin=origin)[0] == status


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("no json\n", "the request: line 1: no JSON"),
        (line("elsewhere", "relevant"), r"no cards of ['elsewhere'] are here"),
        (line(NODES[0], "relevant") + line(NODES[0], "unsure"), "line 2: "),
        (line(NODES[0], "remove"), "line 1: verdict is 'remove'"),
        (b"\xff\xfe", "line 1: not UTF-8"),
    ],
)
def test_what_is_no_verdict_on_these_cards_is_refused_and_changes_nothing(body, message, path):
    save_verdicts([Verdict(NODES[0], "unsure")], path)
    with card_server(CARDS, path) as server:
        status, text, headers = asked(server.url, "POST", body)
    assert status == 400 and message in text and headers["Content-Type"].startswith("text/plain")
    assert load_verdicts(path) == [Verdict(NODES[0], "unsure")]


def test_a_body_without_a_length_or_with_a_large_one_is_refused_unread(path):
    with card_server(CARDS, path) as server:
        assert asked(server.url, "POST", None, Content_Length=str(MAX_BODY + 1))[0] == 413
        assert asked(server.url, "POST", None, Content_Length="-1")[0] == 411
        assert asked(server.url, "POST", None, Content_Length="1_0")[0] == 411
        assert asked(server.url, "POST", None, Content_Length="5", Transfer_Encoding="chunked")[0] == 411


def test_nothing_is_said_on_the_console_and_the_server_is_gone_after_its_block(path, capfd, caplog):
    with card_server(CARDS, path) as server:
        asked(server.url)
        asked(server.url + "x")
        where = urlsplit(server.url)
        half = http.client.HTTPConnection(where.hostname, where.port)
        half.putrequest("POST", where.path)
        half.putheader("Content-Length", "100")
        half.endheaders(b"{")
        half.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # breaks off in the middle
        half.close()
        time.sleep(0.2)
    with pytest.raises(ConnectionRefusedError):
        asked(server.url)
    assert capfd.readouterr() == ("", "") and caplog.records == [] and not path.exists()
    assert "feature cards" not in [one.name for one in threading.enumerate()]


# --- mistakes ---


def test_what_cannot_be_served_is_refused_at_the_start(path, tmp_path):
    with (
        pytest.raises(OptionError, match="does not end in .jsonl, as a file of verdicts does; name it a.jsonl"),
        card_server(CARDS, tmp_path / "a.json"),
    ):
        pass  # fmt: skip
    with pytest.raises(OptionError, match="there are no cards"), card_server([], path):
        pass
    with pytest.raises(OptionError, match="port 70000 cannot be used"), card_server(CARDS, path, port=70_000):
        pass
    with card_server(CARDS, path) as server:
        port = int(urlsplit(server.url).port or 0)
        with (
            pytest.raises(OptionError, match=f"port {port} cannot be used .*give another"),
            card_server(CARDS, path, port=port),
        ):
            pass  # fmt: skip
    with card_server(CARDS, path, port=port) as server:  # free again at once
        assert urlsplit(server.url).port == port
    path.parent.mkdir(exist_ok=True)
    path.write_text("no line\n")
    with pytest.raises(FileError, match="line 1: no JSON"), card_server(CARDS, path):
        pass


def test_serving_until_ctrl_c_tells_the_address_and_returns_the_verdicts(path, tmp_path):
    save_cards(CARDS, tmp_path / "cards.json")
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from interp.cards import load_cards; from interp.view.serve import serve_cards;"
        f"print([one.verdict for one in serve_cards(load_cards({str(tmp_path / 'cards.json')!r}), {str(path)!r})])"
    )
    process = subprocess.Popen([sys.executable, "-W", "error", "-c", code], stdout=-1, stderr=-1, text=True)
    told = process.stderr.readline()
    url = next(word for word in told.split() if word.startswith("http://127.0.0.1:"))
    assert asked(url, "POST", line(NODES[1], "irrelevant"))[0] == 200
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=30)
    assert (said, errors, process.returncode) == ("[None, 'irrelevant', None, None, None]\n", "", 0)
    with pytest.raises(ConnectionRefusedError):
        asked(url)


def test_the_address_is_told_to_whom_the_caller_says(path):
    def tell(url: str) -> None:
        assert asked(url)[0] == 200
        raise KeyboardInterrupt

    assert serve_cards(CARDS, path, tell=tell) == [Verdict(node, None) for node in NODES]


# --- in a browser ---

browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the chromium browser")


class Tab:
    """A page in a headless browser, driven through its debugging pipe: JSON messages that end in a zero byte."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive, self.session, self.number, self.rest = send, receive, "", 0, b""
        self.said: list[str] = []  # what the page said on the console, and its dialogs
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for area in ("Page", "Runtime", "Log"):
            self.call(f"{area}.enable")

    def call(self, method: str, **values: Any) -> dict:
        wanted = self._post(method, **values)
        while True:
            answer = self._next()
            if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.said.append(json.dumps(answer["params"]))
            if answer.get("method") == "Page.javascriptDialogOpening":
                self.said.append(f"dialog {answer['params']['type']}")
                self._post("Page.handleJavaScriptDialog", accept=True)
            if answer.get("id") == wanted:
                assert "result" in answer, answer
                return answer["result"]

    def _post(self, method: str, **values: Any) -> int:
        self.number += 1
        session = {"sessionId": self.session} if self.session else {}
        message = {"id": self.number, "method": method, "params": values, **session}
        os.write(self.send, json.dumps(message).encode() + b"\0")
        return self.number

    def _next(self) -> dict:
        while b"\0" not in self.rest:
            assert select.select([self.receive], [], [], 60)[0], f"the browser is silent; it said {self.said}"
            self.rest += os.read(self.receive, 1 << 16)
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def run(self, code: str) -> Any:
        """The value of an expression in the page, awaited."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, code: str) -> None:
        """Until an expression is true in the page."""
        for _ in range(200):
            if self.run(code):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {code}; {self.run('document.body.innerText')}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && !!document.getElementById('judged')?.textContent")

    def press(self, keys: str) -> None:
        """Keys, one after the other, as the keyboard sends them."""
        for key in keys:
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def escape(self) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        self.call("Input.dispatchKeyEvent", type="keyUp", key="Escape")

    def shown(self) -> list[list]:
        """Verdict and note of every card."""
        one = "[card.dataset.verdict, card.querySelector('textarea').value]"
        return self.run(f"[...document.querySelectorAll('.card')].map(card => {one})")

    def text(self, name: str) -> str:
        return self.run(f"document.getElementById({name!r})?.textContent ?? ''")


@contextmanager
def tabs(profile: Path, count: int = 1) -> Iterator[list[Tab]]:
    """Pages of one browser with a profile of its own."""
    to_browser, send = os.pipe()
    receive, from_browser = os.pipe()
    options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    command = f'exec chromium {options} --remote-debugging-pipe --user-data-dir="$1" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", str(profile)], pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        first = Tab(send, receive)
        yield [first, *(Tab(send, receive) for _ in range(count - 1))]
        session, first.session = first.session, ""
        first.call("Browser.close")
        first.session = session
    finally:
        os.close(send)
        os.close(receive)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


SAVED = "document.getElementById('saved').textContent === 'saved in judged.jsonl'"


@pytest.mark.slow
@browser
def test_judgements_reach_the_file_and_are_shown_again_by_a_new_server(path, tmp_path):
    with tabs(tmp_path / "profile") as [tab]:
        with card_server(CARDS, path) as server:
            tab.open(server.url)
            assert "onerror=alert(1)" in tab.run("document.querySelector('.right').textContent")
            tab.press("jijrjujrni am not sure")  # in a note the keys are letters
            tab.escape()
            tab.press("jijkk")
            tab.run("document.querySelectorAll('.card')[2].querySelector('[value=relevant]').click()")
            tab.wait(f"document.getElementById('judged').textContent === '5 of 5 judged' && {SAVED}")
        words = ["irrelevant", "relevant", "relevant", "relevant", "irrelevant"]
        wanted = [Verdict(node, word) for node, word in zip(NODES, words, strict=True)]
        wanted[3] = replace(wanted[3], note="i am not sure")
        assert sorted(load_verdicts(path), key=lambda one: one.node) == wanted
        assert HumanJudge(path)(CARDS) == wanted
        with card_server(CARDS, path) as server:
            tab.open(server.url)
            assert tab.shown() == [[one.verdict, one.note] for one in wanted]
            assert tab.text("judged") == "5 of 5 judged" and tab.text("saved") == "saved in judged.jsonl"
            tab.press("ji")  # the same verdict again takes it back
            tab.wait(f"document.getElementById('judged').textContent === '4 of 5 judged' && {SAVED}")
            assert server.verdicts() == [Verdict(NODES[0], None), *wanted[1:]]
        assert tab.said == []


@pytest.mark.slow
@browser
def test_of_two_tabs_the_last_judgement_stays_and_neither_undoes_the_others(path, tmp_path):
    with card_server(CARDS, path) as server, tabs(tmp_path / "profile", 2) as [one, other]:
        for tab in (one, other):
            tab.open(server.url)
        for tab, keys in ((one, "jrjr"), (other, "ji")):
            tab.press(keys)
            tab.wait(SAVED)
        assert [verdict.verdict for verdict in server.verdicts()][:3] == ["irrelevant", "relevant", None]


@pytest.mark.slow
@browser
def test_without_its_server_the_page_says_so_and_keeps_the_judgements(path, tmp_path):
    with tabs(tmp_path / "profile") as [tab]:
        with card_server(CARDS, path) as server:
            tab.open(server.url)
            tab.press("jr")
            tab.wait(SAVED)
        tab.press("jijujnlate")
        tab.wait("document.getElementById('saved').className === 'fault'")
        told = tab.text("saved")
        assert told.startswith("3 not saved in judged.jsonl: the server is gone.") and "Download" in told
        stored = "Object.entries(localStorage).find(([name]) => !name.endsWith('unsaved'))[1]"
        kept = [json.loads(one) for one in tab.run(stored).splitlines()]
        assert [(one["verdict"], one["note"]) for one in kept] == [
            ("relevant", ""), ("irrelevant", ""), ("unsure", ""), (None, "late"), (None, ""),
        ]  # fmt: skip
        assert load_verdicts(path) == [Verdict(NODES[0], "relevant")]


@pytest.mark.slow
@browser
def test_what_could_not_be_saved_is_sent_again_after_a_reload(path, tmp_path):
    with card_server(CARDS, path) as server, tabs(tmp_path / "profile") as [tab]:
        tab.open(server.url)
        path.parent.mkdir()
        path.write_text("no line\n")
        tab.press("jr")
        tab.wait("document.getElementById('saved').textContent.includes('line 1: no JSON')")
        path.unlink()
        tab.run("dispatchEvent(new Event('focus'))")
        tab.wait(SAVED)
        assert server.verdicts()[0] == Verdict(NODES[0], "relevant")
        path.write_text("no line\n")
        tab.press("i")
        tab.wait("document.getElementById('saved').className === 'fault'")
        path.unlink()
        tab.open(server.url)
        assert "dialog beforeunload" in tab.said  # the browser asks before such a page is left
        tab.wait(SAVED)
        assert server.verdicts()[0] == Verdict(NODES[0], "irrelevant") and tab.shown()[0] == ["irrelevant", ""]
