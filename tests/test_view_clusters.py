"""The page of clusters: what it shows, that texts stay texts, and what it does in a browser."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from interp.circuit import Circuit, Score, ScoreHeader
from interp.cluster_search import ClusterCircuit
from interp.clusters import Clusters, cluster
from interp.edges import Edges
from interp.errors import OptionError
from interp.nodes import Nodes
from interp.predicted import Contexts
from interp.tokens import from_ids
from interp.view.clusters import view_clusters
from interp.view.page import POLICY

EVIL = "<script>alert(1)</script>"
LABELS = [1, 0, 0, 1, 2, 1, 1]
WORDS = ["Harbour", "river", "river", "Harbour", "lonely", "Harbour", "Harbour"]


def clusters() -> Clusters:
    """Three clusters, the last of one context."""
    noise = np.random.default_rng(0).standard_normal((7, 3)) * np.array([0.01, 0.1, 0.02])[LABELS][:, None]
    found = cluster(np.eye(3)[LABELS] + noise, 3)
    assert found.labels.tolist() == LABELS
    return found


def contexts(words: list[str] = WORDS, length: int = 4) -> Contexts:
    """One word many times over, then the answer, which is the word with a line break in it."""
    prompts = from_ids([[5] * length] * len(words))
    tokens = tuple(tuple(f" {word}{place}" for place in range(length)) for word in words)
    return Contexts(
        replace(prompts, tokens=tokens), torch.arange(7), torch.linspace(0.1, 0.2, 7),
        torch.stack([torch.arange(7), torch.arange(20, 27)], 1), tuple(f" \n{word}" for word in words),
    )  # fmt: skip


def circuit(number: int, kept: list[bool]) -> ClusterCircuit:
    names = ["mlp_out[0] unit 3", "mlp_out[0] unit 4", "resid_post[1] unit 7", "logits"]
    header = ScoreHeader("nodes", "attribution", True, metric="logprob")
    edges = Edges(np.array([0, 1]), np.array([2, 3]))
    values = np.array([0.5, -2.0, 0.25, np.nan])
    ends = np.array(kept)[edges.source] & np.array(kept)[edges.destination]
    made = Circuit(Nodes.of(names), edges, {"x": Score(header, values)}, kept_nodes=np.array(kept), kept_edges=ends)
    return ClusterCircuit(number, (0, 3), made)


CIRCUITS = [circuit(0, [True, True, True, True]), circuit(1, [True, True, False, True])]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_a_page_tells_what_each_cluster_is(tmp_path):
    path = view_clusters(contexts(), clusters(), tmp_path / "page.html", circuits=CIRCUITS, title="A & B")
    page = text_of(path)
    assert "<title>A &amp; B</title>" in page and "<h1>A &amp; B</h1>" in page
    assert "7 contexts in 3 clusters (spectral, seed 0); silhouette " in page
    cards = re.findall(r'<article class="card" id="cluster-(\d)".*?</article>', page, re.DOTALL)
    assert cards == ["0", "1", "2"]
    first, second, third = (page.split(f'id="cluster-{n}"')[1].split("</article>")[0] for n in range(3))
    assert "size <b>2</b>" in first and "size <b>1</b>" in third and "within <b>–</b>" in third
    assert f"silhouette <b>{clusters().quality['silhouette'][0]:.3g}</b>" in first
    assert first.count('class="context"') == 2 and first.count("river0 river1 river2 river3</span></span>") == 2
    assert '<span class="answer"> \\nriver</span>' in first and "Harbour" not in first
    assert "prompt 2, position 22, loss 0.133 nats" in first and f">{np.exp(-0.4 / 3):.2f}</span>" in first
    assert '<li><span title="·\\nHarbour">·\\nHarbour</span><i>4</i></li>' in second
    listed = re.findall(r'<li><span title="([a-z].*?)">.*?<i(.*?)</i>', first)
    assert listed == [("mlp_out[0] unit 4", ' class=down>-2'), ("mlp_out[0] unit 3", ">+0.5"),
                      ("resid_post[1] unit 7", ">+0.25")]  # fmt: skip
    assert "3 nodes, 2 edges, from 2 contexts" in first and "2 nodes, 1 edges" in second and "nodes," not in third
    assert 'Most in common with <a href="#cluster-1">cluster 1</a>: 0.67.' in first


def test_contexts_come_by_centrality_and_are_cut_at_their_beginning(tmp_path):
    page = text_of(view_clusters(contexts(length=40), clusters(), tmp_path / "page.html", most=2))
    order = [re.search(rf"prompt {n}, position", page) for n in clusters().members(1)]
    assert order[0] and order[1] and not any(order[2:]) and order[0].start() < order[1].start()
    assert "and 2 more" in page and "…  river10 river11" in page and "river9 " not in page


def test_circuits_pages_are_linked_to_from_where_the_page_is(tmp_path):
    target = tmp_path / "circuits" / 'a "b" & c.html'
    page = text_of(view_clusters(contexts(), clusters(), tmp_path / "view" / "page.html", pages={1: target}))
    assert page.count(">circuit</a>") == 1
    assert 'href="../circuits/a%20%22b%22%20%26%20c.html">circuit</a>' in page.split('id="cluster-1"')[1]


def test_without_a_tokenizer_ids_are_shown(tmp_path):
    bare = replace(contexts(), prompts=replace(contexts().prompts, tokens=()), answer_tokens=(), gap=" ")
    page = text_of(view_clusters(bare, clusters(), tmp_path / "page.html"))
    assert " 5 5 5 5</span></span>" in page and '<span class="answer"> 6</span>' in page


def test_markup_in_a_text_stays_text(tmp_path):
    evil = contexts([f'{EVIL}" onclick="alert(2)'] * 7)
    named = replace(CIRCUITS[0].circuit, nodes=Nodes.of([f"mlp_out[0] featurizer '{EVIL}' unit {n}" for n in range(4)]),
                    featurizers={EVIL: {}})  # fmt: skip
    circuits = [replace(CIRCUITS[0], circuit=named)]
    path = view_clusters(
        evil, clusters(), tmp_path / "page.html", circuits=circuits, title=EVIL, pages={0: "javascript:alert(1)"}
    )
    page = text_of(path)
    assert EVIL not in page and page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20
    tags: list[tuple[str, dict]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(page)
    assert not [attrs for _, attrs in tags if {"onclick", "onmouseover", "src", "action"} & attrs.keys()]
    assert not [attrs for _, attrs in tags if attrs.get("href", "").startswith("javascript:")]
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in tags
    assert [tag for tag, _ in tags].count("script") == 1


def test_a_page_needs_no_plotly_and_is_the_same_each_time(tmp_path, monkeypatch):
    found = clusters()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    one, other = (
        view_clusters(contexts(), found, tmp_path / f / "a.html", circuits=CIRCUITS).read_bytes() for f in "ab"
    )
    assert one == other and len(one) < 40_000


def test_what_makes_no_page_is_refused(tmp_path):
    for options in ({"circuits": [circuit(3, [True] * 4)]}, {"pages": {3: "a.html"}}):
        with pytest.raises(OptionError, match=r"clusters \[3\] of 3; allowed: .* clusters 0 to 2"):
            view_clusters(contexts(), clusters(), tmp_path / "a.html", **options)
    for given, most in ((contexts()[:3], 5), (contexts(), 0)):
        with pytest.raises(OptionError, match="allowed: the 7 contexts that were clustered"):
            view_clusters(given, clusters(), tmp_path / "a.html", most=most)
    with pytest.raises(OptionError, match=r"a.txt does not end in .html"):
        view_clusters(contexts(), clusters(), tmp_path / "a.txt")


# --- in a browser ---

PROBE = """
const say = [];
addEventListener("error", event => say.push("error: " + event.message));
addEventListener("securitypolicyviolation", event => say.push("blocked: " + event.blockedURI));
document.addEventListener("DOMContentLoaded", () => {
  const at = id => document.getElementById(id);
  const shown = () => [...document.querySelectorAll(".card")].filter(one => one.checkVisibility()).map(one => one.id);
  const set = (id, value, event) => { at(id).value = value; at(id).dispatchEvent(new Event(event)); return shown(); };
  const seen = [shown(), ...["size", "silhouette", "within"].map(one => set("order", one, "change")),
    ...["HARBOUR", "unit 7", "nothing has this"].map(one => set("filter", one, "input")), at("shown").textContent];
  set("filter", "", "input");
  const line = document.querySelector(".context");
  line.click();
  const out = document.createElement("pre");
  out.id = "result";
  const requests = performance.getEntriesByType("resource").length;
  out.textContent = JSON.stringify({seen, whole: line.classList.contains("whole"), say, requests});
  document.body.append(out);
});
"""
CHROMIUM = (
    "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync "
    "--virtual-time-budget=5000 --dump-dom"
)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the chromium browser")
def test_clusters_are_sorted_and_filtered_and_contexts_opened(tmp_path):
    path = view_clusters(contexts(), clusters(), tmp_path / "page.html", circuits=CIRCUITS[:1])
    path.write_text(text_of(path).replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    done = subprocess.run(
        [*CHROMIUM.split(), f"--user-data-dir={tmp_path}/profile", path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr
    given = [f"cluster-{n}" for n in range(3)]
    assert json.loads(html.unescape(found[1])) == {
        "seen": [given, [given[1], given[0], given[2]], given, given, [given[1]], [given[0]], [], "0 of 3 shown"],
        "whole": True, "say": [], "requests": 0,
    }  # fmt: skip
