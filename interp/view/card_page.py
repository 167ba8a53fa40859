"""What the page of feature cards looks like and does, as CSS and JavaScript without any data in them.

Judgements are kept as the text of their file: one JSON object a line with node, verdict (null: none yet) and note. The
same text goes into the download and into the browser's storage, which may refuse; then the page works without it.
"""

STYLE = """
body { margin: 0 20px 40px; }
.bar { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: center;
  padding: 10px 0 8px; background: var(--page); border-bottom: 1px solid var(--rule); font-size: 13px; }
.bar h1 { font-size: 17px; margin: 0 8px 0 0; } .bar output { color: #777; }
input, select, button, textarea { font: inherit; color: inherit; background: var(--page);
  border: 1px solid var(--rule); border-radius: 4px; padding: 3px 7px; }
#filter { width: 17em; } button { cursor: pointer; } #warning { color: #b35900; }
.hint { font-size: 12px; color: #777; margin: 6px 0 10px; }
.card { border: 1px solid var(--rule); border-left: 5px solid var(--rule); border-radius: 5px; margin-bottom: 12px;
  padding: 7px 12px 9px; font-size: 12.5px; content-visibility: auto; contain-intrinsic-size: auto 290px; }
.card[data-verdict=relevant] { border-left-color: #4393c3; }
.card[data-verdict=irrelevant] { border-left-color: #d6604d; }
.card[data-verdict=unsure] { border-left-color: #e0a030; }
.top { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: center; margin-bottom: 6px; }
.top h2 { font: 600 13.5px ui-monospace, monospace; margin: 0; overflow-wrap: anywhere; }
.stat { color: #777; font-variant-numeric: tabular-nums; } .stat b { color: var(--text); font-weight: 600; }
.stat .up { color: #4393c3; } .stat .down { color: #d6604d; }
.judge { display: flex; flex: 1 1 20em; gap: 8px; justify-content: flex-end; align-items: center; }
.judge fieldset { display: flex; border: 0; padding: 0; margin: 0; }
.judge label { border: 1px solid var(--rule); padding: 2px 8px; cursor: pointer; margin-left: -1px; }
.judge label:first-of-type { border-radius: 4px 0 0 4px; } .judge label:last-of-type { border-radius: 0 4px 4px 0; }
.judge input { position: absolute; opacity: 0; } .judge label:focus-within { outline: 2px solid #4393c3; }
.judge label:has([value=relevant]:checked) { background: #4393c3; color: #fff; }
.judge label:has([value=irrelevant]:checked) { background: #d6604d; color: #fff; }
.judge label:has([value=unsure]:checked) { background: #e0a030; color: #222; }
.judge textarea { flex: 0 1 24em; height: 1.5em; min-height: 1.5em; resize: vertical; }
.body { display: flex; flex-wrap: wrap; gap: 8px 22px; }
.contexts { flex: 3 1 480px; min-width: 0; } .side { flex: 1 1 440px; display: flex; gap: 18px; }
.context { display: flex; line-height: 19px; cursor: pointer; white-space: pre; }
.left, .right { overflow: hidden; } .left { flex: 0 0 60%; display: flex; justify-content: flex-end; }
.right { flex: 1; } .value { flex: 0 0 4.5em; text-align: right; color: #777; font-variant-numeric: tabular-nums; }
.context.whole { white-space: pre-wrap; } .whole .left, .whole .right { display: inline; overflow: visible; }
.context.whole { display: block; border: solid var(--rule); border-width: 1px 0; margin: -1px 0; }
.whole .value { float: right; }
.p { background: rgba(67, 147, 195, var(--a)); } .n { background: rgba(214, 96, 77, var(--a)); }
.p, .n { border-radius: 2px; } .off { opacity: .45; } .peak { font-weight: 600; }
.ids span { margin-right: .35em; }
.side > div { flex: 1; min-width: 0; } .side h3 { font-size: 11px; font-weight: 600; color: #777; margin: 0 0 2px; }
.side ol { list-style: none; margin: 0; padding: 0; }
.side li { display: flex; justify-content: space-between; gap: 6px; line-height: 17px; white-space: pre; }
.side li span { overflow: hidden; text-overflow: ellipsis; }
.side li i { font-style: normal; color: #777; font-variant-numeric: tabular-nums; }
.side svg { display: block; width: 100%; height: 140px; }
.side rect { fill: #4393c3; } .side rect.neg { fill: #d6604d; }
.ends { display: flex; justify-content: space-between; color: #777; font-size: 11px; }
.why { color: #777; font-size: 11.5px; }
"""

SCRIPT = """
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const at = id => document.getElementById(id);
  const cards = [...document.querySelectorAll(".card")];
  const note = card => card.querySelector("textarea");
  const choices = card => [...card.querySelectorAll("input")];
  const verdict = card => choices(card).find(one => one.checked)?.value ?? null;
  const byNode = new Map(cards.map(card => [card.dataset.node, card]));
  const told = card => [...card.querySelectorAll("h2, .context, li, .why")].map(one => one.textContent);
  const texts = new Map(cards.map(card => [card, told(card).join("\\n").toLowerCase()]));
  const key = at("cards").dataset.key;

  const lines = () => cards.map(card =>
    JSON.stringify({node: card.dataset.node, verdict: verdict(card), note: note(card).value}) + "\\n").join("");

  function read(text) {  // lines of this page's nodes; how many others there are
    let foreign = 0;
    for (const line of text.split("\\n").filter(line => line.trim())) {
      let one = null;
      try { one = JSON.parse(line); } catch { /* counted below */ }
      const card = byNode.get(one?.node);
      if (!card) { foreign += 1; continue; }
      for (const choice of choices(card)) choice.checked = choice.value === one.verdict;
      note(card).value = typeof one.note === "string" ? one.note : "";
    }
    return foreign;
  }

  function tally() {
    for (const card of cards) card.dataset.verdict = verdict(card) ?? "";
    at("judged").textContent = `${cards.filter(verdict).length} of ${cards.length} judged`;
  }

  function keep() {
    tally();
    try { localStorage.setItem(key, lines()); }
    catch { at("warning").textContent = "This browser keeps no judgements: download them before you leave."; }
  }

  function show() {
    const wanted = at("filter").value.toLowerCase(), which = at("which").value;
    let shown = 0;
    for (const card of cards) {
      const found = texts.get(card).includes(wanted) || note(card).value.toLowerCase().includes(wanted);
      const right = which === "all" || (verdict(card) ?? "unjudged") === which;
      card.hidden = !(found && right);
      shown += found && right;
    }
    at("shown").textContent = `${shown} of ${cards.length} shown`;
  }

  const effect = card => card.dataset.effect;
  const density = card => Number(card.dataset.density);
  const ranks = {  // larger comes first, what has no effect last
    magnitude: card => effect(card) ? Math.abs(Number(effect(card))) : -1,
    effect: card => effect(card) ? Number(effect(card)) : -Number.MAX_VALUE,
    densest: density,
    rarest: card => -density(card),
    given: () => 0,
  };

  function sort() {
    const rank = ranks[at("order").value];
    at("cards").append(...[...cards].sort((a, b) => rank(b) - rank(a)));
  }

  at("filter").addEventListener("input", show);
  at("which").addEventListener("change", show);
  at("order").addEventListener("change", sort);
  at("cards").addEventListener("input", keep);
  at("cards").addEventListener("click", event => event.target.closest(".context")?.classList.toggle("whole"));
  at("download").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines()], {type: "application/x-ndjson"}));
    link.download = at("cards").dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  at("load").addEventListener("click", () => at("file").click());
  at("file").addEventListener("change", async () => {
    const [file] = at("file").files;
    if (!file) return;
    const foreign = read(await file.text());
    keep();
    if (foreign) at("warning").textContent = `${foreign} lines of that file belong to no card here.`;
    at("file").value = "";
  });

  try { read(localStorage.getItem(key) ?? ""); } catch { /* said at the first judgement */ }
  tally();
  sort();
  show();
});
"""
