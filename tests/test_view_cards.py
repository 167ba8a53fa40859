"""The page of feature cards: what it shows, that texts stay texts, and what it does in a browser."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from interp.cards import Context, FeatureCard, TokenValue
from interp.errors import OptionError
from interp.judges import HumanJudge
from interp.verdicts import Verdict, load_verdicts
from interp.view import view_cards
from interp.view.page import POLICY

EVIL = "<script>alert(1)</script>"
NODES = ["mlp_out[5] featurizer 'sae \"one\"' unit 3", "resid_post[2] unit 7", "z[0] head 1 unit 4"]
CARD = FeatureCard(
    NODES[0], "mlp_out[5]", 3, n_tokens=400, density=0.0125, max=2.0, mean=0.015, edges=(-1.0, 0.0, 1.0, 2.0),
    counts=(1, 0, 9), contexts=(Context(4, 10, 12, ("Once", " upon", " a", "\ntime"), (None, -1.0, 2.0, 0.0)),),
    top_tokens=(TokenValue(" a", 1.25, 6),), promoted=(TokenValue(" time", 7.5),), suppressed=(TokenValue("ly", -3.0),),
    effect=-0.75,
)  # fmt: skip


def three() -> list[FeatureCard]:
    """Of different effects, densities and words; the last has neither effect nor contexts."""
    words = Context(0, 0, 0, ("Harbour",), (1.0,))
    second = replace(CARD, node=NODES[1], density=0.5, effect=0.25, contexts=(words,))
    silent = {"density": 0.0, "max": 0.0, "mean": 0.0, "edges": (), "counts": (), "contexts": (), "top_tokens": ()}
    return [second, CARD, replace(CARD, node=NODES[2], effect=None, no_lens="not in the stream", **silent)]


def hostile() -> FeatureCard:
    """A card with markup wherever text can stand."""
    value = TokenValue(EVIL, 1.0, 1)
    return replace(
        CARD, node=f'{EVIL}" onclick="alert(2)', site=EVIL, no_lens=EVIL, top_tokens=(value,), promoted=(value,),
        contexts=(Context(0, 0, 1, (EVIL, '" onmouseover="alert(3)'), (0.5, 1.0)),),
    )  # fmt: skip


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# --- the file ---


def test_a_page_tells_what_is_on_each_card(tmp_path):
    page = text_of(view_cards(three(), tmp_path / "cards.html", title="A & B"))
    assert "<title>A &amp; B</title>" in page and "<h1>A &amp; B</h1>" in page
    for node in NODES:
        assert f"<h2>{html.escape(node)}</h2>" in page
    assert '<b class="down">-0.75</b>' in page and '<b class="up">+0.25</b>' in page
    assert "active at <b>1.25%</b> of 400 tokens" in page and "mean when active <b>1.2</b>" in page
    assert '<span class="off" title="not looked at">Once</span>' in page
    assert '<span class="n" style="--a:0.42" title="-1"> upon</span>' in page
    assert '<span class="p peak" style="--a:0.85" title="2"> a</span><span title="0">\\ntime</span>' in page
    assert 'title="prompt 4, position 12">2</span>' in page
    assert '<li><span>·a</span><i title="occurs 6 times">1.25</i></li>' in page
    assert "<li><span>·time</span><i>7.5</i></li>" in page and "<li><span>ly</span><i>-3</i></li>" in page
    assert "<title>1 to 2: 9 tokens</title>" in page and page.count("class=neg") == 2
    assert "0 in all of these prompts." in page and "none: not in the stream" in page


def test_a_page_says_what_each_verdict_will_do_and_has_no_script_for_a_server(tmp_path):
    page = text_of(view_cards([CARD], tmp_path / "cards.html"))
    assert '<b class="out">irrelevant</b>: no, it will be removed. <b class="in">relevant</b>: yes, it stays.' in page
    assert '<label title="will be removed (key i)"><input type="radio" name="verdict-0" value="irrelevant">' in page
    assert '<label title="stays (key u)">' in page and '<label title="stays (key r)">' in page
    assert "fetch" not in page and "connect-src" not in page


def test_orders_by_effect_are_offered_where_there_are_effects(tmp_path):
    without = text_of(view_cards([replace(CARD, effect=None)], tmp_path / "a.html"))
    assert "highest effect" not in without and '<option value="densest">' in without
    assert "highest effect" in text_of(view_cards([CARD], tmp_path / "a.html"))


def test_markup_on_a_card_stays_text(tmp_path):
    page = text_of(view_cards([hostile()], tmp_path / "cards.html", title=EVIL))
    assert EVIL not in page and page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 7
    tags: list[tuple[str, dict]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(page)
    assert not [attrs for _, attrs in tags if {"onclick", "onmouseover", "src", "href", "action"} & attrs.keys()]
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in tags
    assert [tag for tag, _ in tags].count("script") == 1


def test_a_page_needs_no_plotly_and_equal_cards_give_equal_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    first, second = (view_cards(three(), tmp_path / folder / "cards.html").read_bytes() for folder in "ab")
    assert first == second and len(first) < 40_000


@pytest.mark.parametrize(
    ("cards", "name", "message"),
    [
        ([], "a.html", "there are no cards; give at least one card, and one a node"),
        ([CARD, CARD], "a.html", r"nodes \[.*sae.*\] have several cards"),
        ([CARD], "a.txt", r"a.txt does not end in .html"),
    ],
)
def test_what_makes_no_page_is_refused(cards, name, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        view_cards(cards, tmp_path / name)


# --- in a browser ---

BEFORE = """
const say = [];
addEventListener("error", event => say.push("error: " + event.message));
addEventListener("securitypolicyviolation", event => say.push("blocked: " + event.blockedURI));
"""
AFTER = """
const at = id => document.getElementById(id);
const shown = () => [...document.querySelectorAll(".card")].filter(one => one.checkVisibility());
const nodes = () => shown().map(one => one.dataset.node);
const set = (id, value) => {
  at(id).value = value;
  at(id).dispatchEvent(new Event(id === "filter" ? "input" : "change"));
};
const card = node => [...document.querySelectorAll(".card")].find(one => one.dataset.node.startsWith(node));
const judge = (node, verdict) => card(node).querySelector(`[value=${verdict}]`).click();
const remark = (node, text) => {
  card(node).querySelector("textarea").value = text;
  card(node).querySelector("textarea").dispatchEvent(new Event("input", {bubbles: true}));
};
const blobs = new Map(), saved = [];
const make = URL.createObjectURL;
URL.createObjectURL = blob => { const url = make.call(URL, blob); blobs.set(url, blob); return url; };
HTMLAnchorElement.prototype.click = function () { saved.push([this.download, blobs.get(this.href)]); };
const download = async () => { at("download").click(); return saved.at(-1)[1].text(); };
const upload = async text => {
  const data = new DataTransfer();
  data.items.add(new File([text], "judgements.jsonl"));
  at("file").files = data.files;
  at("file").dispatchEvent(new Event("change"));
  await new Promise(done => setTimeout(done, 200));
};
const end = result => {
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify({result, say, requests: performance.getEntriesByType("resource").length});
  document.body.append(out);
};
document.addEventListener("DOMContentLoaded", async () => { %s });
"""
CHROMIUM = (
    "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync "
    "--virtual-time-budget=5000 --enable-logging=stderr --dump-dom"
)


def browsed(page: Path, steps: str, before: str = "") -> object:
    """What `steps`, run in the page, hand to `end`; no error, request or word on the console may come of it."""
    text = text_of(page).replace("<head>", f"<head><script>{BEFORE}{before}</script>")
    page.write_text(text.replace("</body>", f"<script>{AFTER % steps}</script></body>"), encoding="utf-8")
    done = subprocess.run(
        [*CHROMIUM.split(), f"--user-data-dir={page.parent}/profile", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr
    answer = json.loads(html.unescape(found[1]))
    assert answer["say"] == [] and answer["requests"] == 0
    return answer["result"]


browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the chromium browser")


@pytest.mark.slow
@browser
def test_cards_are_sorted_and_filtered(tmp_path):
    page = view_cards(three(), tmp_path / "cards.html")
    found = browsed(
        page,
        """
        const seen = [nodes()];
        for (const order of ["effect", "densest", "rarest", "given"]) { set("order", order); seen.push(nodes()); }
        const texts = ["HARBOUR", "upon a", "unit 7", "not in the stream", "relevant", "tokens", "nothing has this"];
        for (const text of texts) {
          set("filter", text); seen.push(nodes());
        }
        set("filter", ""); judge("mlp_out", "relevant");
        for (const which of ["relevant", "unjudged", "unsure", "all"]) { set("which", which); seen.push(nodes()); }
        remark("z[0]", "A Remark"); set("filter", "remark"); seen.push(nodes());
        end([seen, at("shown").textContent, at("judged").textContent]);
        """,
    )
    one, two, three_ = NODES
    orders = [[one, two, three_], [two, one, three_], [two, one, three_], [three_, one, two], [two, one, three_]]
    filters = [[two], [one], [two], [three_], [], [], []]
    verdicts = [[one], [two, three_], [], [two, one, three_]]
    assert found == [[*orders, *filters, *verdicts, [three_]], "1 of 3 shown", "1 of 3 judged"]


JUDGED = r"""
    judge("resid", "irrelevant"); judge("resid", "unsure"); judge("z[0]", "relevant");
    remark("z[0]", 'a "b"\nc');
    """
WANTED = [
    {"node": NODES[1], "verdict": "unsure", "note": ""},
    {"node": NODES[0], "verdict": None, "note": ""},
    {"node": NODES[2], "verdict": "relevant", "note": 'a "b"\nc'},
]


@pytest.mark.slow
@browser
def test_judgements_are_downloaded_one_line_a_card_whatever_is_shown_and_survive_a_reload(tmp_path):
    page = view_cards(three(), tmp_path / "cards.html")
    steps = f"""
        if (location.hash) {{ end([await download(), saved[0][0], at("judged").textContent]); return; }}
        {JUDGED}
        set("filter", "unit 7");
        location.hash = "#again";
        location.reload();
        """
    lines, name, judged = browsed(page, steps)
    assert [json.loads(line) for line in lines.splitlines()] == WANTED and lines.endswith("}\n")
    assert (name, judged) == ("cards.jsonl", "2 of 3 judged")


@pytest.mark.slow
@browser
def test_without_storage_the_page_works_and_says_that_nothing_is_kept(tmp_path):
    page = view_cards(three(), tmp_path / "cards.html")
    refuse = (
        'Object.defineProperty(window, "localStorage", {get() { throw new DOMException("no", "SecurityError"); }});'
    )
    steps = f"{JUDGED} end([await download(), at('warning').textContent]);"
    lines, warning = browsed(page, steps, before=refuse)
    assert [json.loads(line) for line in lines.splitlines()] == WANTED
    assert "keeps no judgements: download them before you leave" in warning


@pytest.mark.slow
@browser
def test_a_downloaded_file_is_loaded_again_and_foreign_lines_are_counted(tmp_path):
    page = view_cards(three(), tmp_path / "cards.html")
    text = "".join(json.dumps(one) + "\n" for one in WANTED)
    strange = '{"node": "__proto__", "verdict": "relevant"}\nno json\nnull\n'
    steps = f"""
        judge("mlp_out", "relevant");
        await upload({json.dumps(text + strange)});
        end([await download(), at("warning").textContent, card("resid").dataset.verdict]);
        """
    lines, warning, verdict = browsed(page, steps)
    assert [json.loads(line) for line in lines.splitlines()] == WANTED
    assert warning == "3 lines of that file belong to no card here." and verdict == "unsure"


@pytest.mark.slow
@browser
def test_hostile_cards_run_nothing_and_their_nodes_come_back_as_they_are(tmp_path):
    page = view_cards([hostile()], tmp_path / "cards.html")
    steps = """
        const token = document.querySelector(".right span");
        document.querySelector(".context").click();
        end([await download(), token.textContent, document.querySelector(".context").className]);
        """
    line, token, look = browsed(page, steps, before="window.alert = text => say.push('alert: ' + text);")
    assert json.loads(line)["node"] == hostile().node
    assert token == '" onmouseover="alert(3)' and look == "context whole"


PRESS = """
    const press = (where, key, more = {}) =>
      where.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true, ...more}));
    const here = () => document.activeElement.closest(".card")?.dataset.node ?? null;
    """


@pytest.mark.slow
@browser
def test_cards_are_judged_by_keys_which_are_letters_in_a_note(tmp_path):
    page = view_cards(three(), tmp_path / "cards.html")
    steps = f"""{PRESS}
        const seen = [], body = document.body, verdicts = () => nodes().map(node => card(node).dataset.verdict);
        press(body, "i"); seen.push(verdicts(), here());
        press(body, "j"); seen.push(here());
        press(document.activeElement, "j"); press(document.activeElement, "i"); seen.push(here(), verdicts());
        press(document.activeElement, "i", {{repeat: true}}); press(document.activeElement, "r", {{ctrlKey: true}});
        press(document.activeElement, "k"); press(document.activeElement, "k"); press(document.activeElement, "u");
        seen.push(here(), verdicts());
        press(document.activeElement, "u"); press(document.activeElement, "n");
        seen.push(document.activeElement.tagName, verdicts());
        press(document.activeElement, "r"); press(document.activeElement, "j"); press(at("filter"), "r");
        press(document.activeElement, "Escape");
        seen.push(document.activeElement.className, here(), verdicts());
        set("which", "unjudged"); card("mlp_out").focus(); press(document.activeElement, "j");
        press(document.activeElement, "r"); seen.push(here());
        end([seen, await download()]);
        """
    seen, lines = browsed(page, steps)
    one, two, three_ = NODES
    assert seen == [
        ["", "", ""], None, one, two, ["", "irrelevant", ""], one, ["unsure", "irrelevant", ""], "TEXTAREA",
        ["", "irrelevant", ""], "card", one, ["", "irrelevant", ""], three_,
    ]  # fmt: skip
    assert [json.loads(line)["verdict"] for line in lines.splitlines()] == ["irrelevant", None, "relevant"]


@pytest.mark.slow
@browser
def test_five_judged_features_with_notes_survive_a_reload_and_become_a_persons_verdicts(tmp_path):
    cards = [replace(CARD, node=f"{EVIL} unit {unit}", contexts=hostile().contexts) for unit in range(5)]
    words = ["irrelevant", "relevant", "unsure", "irrelevant", "relevant"]
    notes = ["pronouns", 'a "b"\nc', EVIL, "é\u2028\\n", ""]
    page = view_cards(cards, tmp_path / "cards.html")
    steps = f"""
        if (location.hash) {{ end([await download(), document.querySelector(".right").textContent]); return; }}
        const notes = {json.dumps(notes)}, words = {json.dumps(words)};
        document.querySelectorAll(".card").forEach((one, number) => {{
          one.querySelector(`[value=${{words[number]}}]`).click();
          one.querySelector("textarea").value = notes[number];
          one.querySelector("textarea").dispatchEvent(new Event("input", {{bubbles: true}}));
        }});
        location.hash = "#again";
        location.reload();
        """
    lines, shown = browsed(page, steps.replace("</", "<\\/"))
    path = tmp_path / "cards.jsonl"
    path.write_text(lines, encoding="utf-8", newline="\n")
    wanted = [Verdict(card.node, *row) for card, row in zip(cards, zip(words, notes, strict=True), strict=True)]
    assert load_verdicts(path) == wanted == HumanJudge(path)(cards)
    assert shown == '" onmouseover="alert(3)'
