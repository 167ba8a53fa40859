"""What the page of feature cards looks like and does, as CSS and JavaScript without any data in them.

Judgements are kept as the text of their file: one JSON object a line with node, verdict (null: none yet) and note. The
same text goes into the download and into the browser's storage, which may refuse; then the page works without it.

The list of cards says ``kept`` with the lines of the cards just judged, and takes in the lines of a ``told``: this is
how `SAVING`, the script of a page that is served, sends judgements to the server and shows those that it has.
"""

STYLE = """
body { margin: 0 20px 40px; }
.bar { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: center;
  padding: 10px 0 8px; background: var(--page); border-bottom: 1px solid var(--rule); font-size: 13px; }
.bar h1 { font-size: 17px; margin: 0 8px 0 0; } .bar output { color: #777; }
input, select, button, textarea { font: inherit; color: inherit; background: var(--page);
  border: 1px solid var(--rule); border-radius: 4px; padding: 3px 7px; }
#filter { width: 17em; } button { cursor: pointer; } #warning { color: #c96a10; }
.bar output.fault { color: #fff; background: #a33b1c; border-radius: 4px; padding: 3px 8px; }
.hint { font-size: 12px; color: #777; margin: 6px 0 10px; }
.how { font-size: 13px; color: inherit; margin-bottom: 0; } .how b.out { color: #d6604d; } .how b.in { color: #4393c3; }
kbd { font: 11px ui-monospace, monospace; border: 1px solid var(--rule); border-radius: 3px; padding: 0 4px; }
.card { border: 1px solid var(--rule); border-left: 5px solid var(--rule); border-radius: 5px; margin-bottom: 12px;
  padding: 7px 12px 9px; font-size: 12.5px; content-visibility: auto; contain-intrinsic-size: auto 290px;
  scroll-margin-top: 100px; }
.card:focus { outline: 2px solid #4393c3; outline-offset: 2px; }
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

  const line = card =>
    JSON.stringify({node: card.dataset.node, verdict: verdict(card), note: note(card).value}) + "\\n";
  const lines = () => cards.map(line).join("");

  function read(text) {  // lines of this page's nodes: their cards, and how many other lines there are
    const found = new Set();
    let foreign = 0;
    for (const line of text.split("\\n").filter(line => line.trim())) {
      let one = null;
      try { one = JSON.parse(line); } catch { /* counted below */ }
      const card = byNode.get(one?.node);
      if (!card) { foreign += 1; continue; }
      found.add(card);
      for (const choice of choices(card)) choice.checked = choice.value === one.verdict;
      note(card).value = typeof one.note === "string" ? one.note : "";
    }
    return {found: [...found], foreign};
  }

  function tally() {
    for (const card of cards) card.dataset.verdict = verdict(card) ?? "";
    at("judged").textContent = `${cards.filter(verdict).length} of ${cards.length} judged`;
  }

  function keep(changed) {
    tally();
    at("cards").dispatchEvent(new CustomEvent("kept", {detail: changed.map(line).join("")}));
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

  function judge(card, value) {  // the same verdict again takes it back
    const again = verdict(card) === value;
    for (const choice of choices(card)) choice.checked = choice.value === value && !again;
    keep([card]);
  }

  function step(from, by) {  // to a neighbour; from nowhere, to the first card in sight
    const shown = [...document.querySelectorAll(".card")].filter(card => !card.hidden);
    const inSight = card => card.getBoundingClientRect().bottom > 120;
    (from ? shown[shown.indexOf(from) + by] : shown.find(inSight) ?? shown[0])?.focus();
  }

  const keys = {
    i: card => judge(card, "irrelevant"), u: card => judge(card, "unsure"), r: card => judge(card, "relevant"),
    n: card => note(card).focus(),
  };

  document.addEventListener("keydown", event => {
    const {key, target} = event, card = target.closest(".card");
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (target.matches("textarea") && key === "Escape") card.focus();
    if (target.matches("textarea, select, input:not([type=radio])")) return;
    if (key === "j" || key === "k") step(card, key === "j" ? 1 : -1);
    else if (card && Object.hasOwn(keys, key) && !event.repeat) keys[key](card);
    else return;
    event.preventDefault();
  });

  at("filter").addEventListener("input", show);
  at("which").addEventListener("change", show);
  at("order").addEventListener("change", sort);
  at("cards").addEventListener("input", event => keep([event.target.closest(".card")]));
  at("cards").addEventListener("told", event => { read(event.detail); tally(); show(); });
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
    const {found, foreign} = read(await file.text());
    keep(found);
    if (foreign) at("warning").textContent = `${foreign} lines of that file belong to no card here.`;
    at("file").value = "";
  });

  try { read(localStorage.getItem(key) ?? ""); } catch { /* said at the first judgement */ }
  tally();
  sort();
  show();
});
"""

SAVING = """
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const cards = document.getElementById("cards");
  const key = cards.dataset.key + " unsaved", file = cards.dataset.file;
  const status = document.createElement("output");
  status.id = "saved";
  document.getElementById("judged").after(status);
  const pending = new Map();  // node -> its line, which the file does not have yet
  let sending = false, fault = "";

  function add(text) {
    for (const line of text.split("\\n").filter(line => line)) pending.set(JSON.parse(line).node, line + "\\n");
  }

  function say() {
    const left = [...pending.values()].join("");
    try { if (left) localStorage.setItem(key, left); else localStorage.removeItem(key); } catch { /* said elsewhere */ }
    status.className = fault ? "fault" : "";
    status.textContent = fault ? `${pending.size} not saved in ${file}: ${fault}`
      : pending.size ? "saving ..." : `saved in ${file}`;
  }

  const gone = "the server is gone. All judgements are kept in this browser and in Download: start the server again, "
    + "open its new page and Load the download there.";

  async function send() {
    if (sending || !pending.size) return;
    sending = true;
    const sent = new Map(pending), body = [...sent.values()].join("");
    try {
      const answer = await fetch(location.pathname, {method: "POST", body, keepalive: body.length < 10000});
      if (answer.ok) for (const [node, line] of sent) if (pending.get(node) === line) pending.delete(node);
      fault = answer.ok ? "" : [403, 404].includes(answer.status) ? gone : await answer.text();
    } catch { fault = gone; }
    sending = false;
    say();
    if (!fault) send();  // what was judged meanwhile
  }

  const tell = text => cards.dispatchEvent(new CustomEvent("told", {detail: text}));
  tell(cards.dataset.judged);
  try {
    const left = localStorage.getItem(key) ?? "";
    add(left);
    tell(left);
  } catch { /* said at the first judgement */ }
  cards.addEventListener("kept", event => { add(event.detail); say(); send(); });
  addEventListener("focus", send);  // back from whatever was mended
  addEventListener("beforeunload", event => { if (pending.size) event.preventDefault(); });
  say();
  send();
});
"""
