// The live page: asks the router once a second, draws what it said. Everything that is shown goes in as text.

import { drawTree, svg } from "./tree.js";

const PERIOD_MS = 1000, HISTORY = 300, ROWS = 50;
const COLOURS = { waiting: "--two", prefill: "--three", running: "--one", ended: "--dim" };
const $ = (id) => document.getElementById(id);
const colour = (name) => { // what the variable is now, light or dark
  $("grid").style.color = `var(${name})`;
  return getComputedStyle($("grid")).color;
};
const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const history = []; // {time, tokens, running, waiting} of each look
let last = null; // the look before
let sessions = { columns: [], rows: [] };
let page = 0;

async function ask(path) {
  const reply = await fetch(path);
  const value = await reply.json();
  if (!reply.ok) throw new Error(value.error ?? reply.statusText);
  return value;
}

function fill(table, heads, rows) {
  const head = document.createElement("tr");
  head.append(...heads.map((text) => cell("th", text)));
  table.replaceChildren(head, ...rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.map((value) => cell("td", value)));
    return line;
  }));
}

// A value: text, a number, an element, or {text, kind} with a class.
function cell(name, value) {
  const element = document.createElement(name);
  if (value instanceof Element) element.append(value);
  else if (value !== null && typeof value === "object") {
    element.textContent = value.text;
    element.title = value.text;
    element.className = value.kind;
  } else {
    element.textContent = value;
    element.title = value;
    if (typeof value === "number") element.className = "number";
  }
  return element;
}

function share(used, whole, unit) {
  const box = document.createElement("span"), meter = document.createElement("meter");
  meter.max = Math.max(whole, 1);
  meter.value = used;
  box.append(meter, ` ${number(used)} of ${number(whole)} ${unit}`);
  return box;
}

const total = (state, name) => (state.totals[name] ?? []).reduce((sum, sample) => sum + sample.at(-1), 0);

function drawTiles(state, rates) {
  const running = state.targets.reduce((sum, target) => sum + target.requests, 0);
  const tiles = [
    [number(rates.tokens), "tokens a second"],
    [number(running), "requests running"],
    [number(state.waiting), `waiting, of ${number(state.max_waiting)}`],
    [rates.accepted === null ? "–" : rates.accepted.toFixed(2), "tokens a speculative round"],
    [number(rates.finished, 1), "requests finished a second"],
    [number(total(state, "paceline_router_replays")), "replays since the start"],
    [number(total(state, "paceline_router_request_failures")), "failed or cancelled since the start"],
  ];
  $("tiles").replaceChildren(...tiles.map(([value, text]) => {
    const tile = document.createElement("div"), bold = document.createElement("b"), span = document.createElement("span");
    tile.className = "tile";
    bold.textContent = value;
    span.textContent = text;
    tile.append(bold, span);
    return tile;
  }));
}

function key(element, entries) {
  element.replaceChildren(...entries.flatMap(([name, text]) => {
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = `var(${name})`;
    return [swatch, text];
  }));
}

function drawTimeline() {
  const frame = $("timeline"), width = frame.clientWidth || 600, height = 170, bottom = height - 16;
  frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
  frame.replaceChildren(svg("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }));
  const lines = [["tokens", "--good"], ["running", "--one"], ["waiting", "--two"]];
  const most = lines.map(([name]) => Math.max(1, ...history.map((point) => point[name])));
  lines.forEach(([name, tint], i) => {
    const points = history.map((point, j) => {
      const x = width - (history.length - 1 - j) * (width / HISTORY);
      return `${x.toFixed(1)},${(bottom - (point[name] / most[i]) * (bottom - 8)).toFixed(1)}`;
    });
    const style = `fill:none;stroke-width:1.6;stroke:var(${tint})`;
    frame.append(svg("polyline", { points: points.join(" "), style }));
  });
  frame.append(svg("text", { class: "dim", x: 0, y: height - 3 }, `${number(HISTORY * PERIOD_MS / 60000)} minutes ago`));
  frame.append(svg("text", { class: "dim", x: width - 24, y: height - 3 }, "now"));
  key($("timeline-key"), lines.map(([name, tint], i) => [tint, `${name}${name === "tokens" ? " a second" : ""}, top ${number(most[i])}`]));
}

function drawDepths(state) {
  const frame = $("depths"), width = frame.clientWidth || 600, height = 170, bottom = height - 18;
  const rounds = total(state, "vllm:spec_decode_num_drafts");
  const positions = (state.totals["vllm:spec_decode_num_accepted_tokens_per_pos"] ?? [])
    .map(([position, value]) => [Number(position), value]).sort((a, b) => a[0] - b[0]);
  const groups = [["--one", `all since the start (${number(rounds)} rounds)`, positions.map(([, value]) => (rounds ? value / rounds : 0))]];
  const tints = ["--two", "--three", "--good"];
  state.targets.filter((target) => target.accepted_by_depth.length).slice(0, tints.length).forEach((target, i) => {
    const text = `${target.address}, last rounds, mean ${target.mean_accepted_length.toFixed(2)}`;
    groups.push([tints[i], text, target.accepted_by_depth]);
  });
  if (!rounds) groups.shift();
  const depths = Math.max(1, ...groups.map(([, , shares]) => shares.length));
  const step = width / depths, bar = Math.min(26, (step - 8) / Math.max(groups.length, 1));
  frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
  frame.replaceChildren(svg("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }));
  groups.forEach(([tint, text, shares], i) => shares.forEach((value, depth) => {
    const tall = value * (bottom - 12), x = depth * step + 4 + i * bar;
    const rect = svg("rect", { x, y: bottom - tall, width: Math.max(bar - 2, 1), height: tall, style: `fill:var(${tint})` });
    rect.append(svg("title", {}, `${text}: ${(100 * value).toFixed(1)} % accepted at least ${depth + 1}`));
    frame.append(rect);
    if (bar > 22) frame.append(svg("text", { class: "dim", x, y: bottom - tall - 3 }, (100 * value).toFixed(0)));
  }));
  for (let depth = 0; depth < depths; depth++) {
    frame.append(svg("text", { class: "dim", x: depth * step + 4, y: height - 4 }, `≥ ${depth + 1}`));
  }
  key($("depths-key"), groups.map(([tint, text]) => [tint, text]));
}

function standing(peer) {
  return peer.ready ? { text: "ready", kind: "good" } : { text: peer.message || "not ready", kind: "bad" };
}

function drawFleet(state) {
  fill($("targets"), ["address", "state", "slots", "KV pages", "decoding", "in prefill", "rows", "step ms", "forward ms", "wait for trees ms", "accepted"],
    state.targets.map((target) => [
      target.address, standing(target),
      share(target.decoding + target.prefilling, target.max_running, ""),
      share(Math.max(target.num_pages - target.free_pages, 0), target.num_pages, ""),
      target.decoding, target.prefilling, target.rows,
      { text: target.step_ms.toFixed(1), kind: "number" }, { text: target.forward_ms.toFixed(1), kind: "number" },
      { text: target.tree_wait_ms.toFixed(1), kind: "number" },
      { text: target.mean_accepted_length ? target.mean_accepted_length.toFixed(2) : "–", kind: "number" },
    ]));
  fill($("drafts"), ["address", "state", "sessions", "KV pages", "busy", "trees after ms", "requests of this router"],
    state.drafts.map((draft) => [
      draft.address, standing(draft), share(draft.sessions, draft.max_sessions, ""),
      share(draft.num_pages - draft.free_pages, draft.num_pages, ""), share(Math.round(100 * draft.busy), 100, "%"),
      { text: draft.propose_ms.toFixed(1), kind: "number" }, draft.requests,
    ]));
}

function drawDecisions(state) {
  fill($("in-force"), ["why", "steps,topk,nodes", "requests"], state.in_force);
  const sent = (state.totals.paceline_router_decisions ?? []).toSorted((a, b) => b[2] - a[2]);
  fill($("sent"), ["why", "speculates", "since the start"], sent);
}

function drawRequests() {
  const at = Object.fromEntries(sessions.columns.map((name, i) => [name, i]));
  drawGrid(sessions.rows.map((row) => row[at.state]));
  const wanted = $("filter").value.trim().toLowerCase();
  const rows = sessions.rows.filter((row) => !wanted || row.some((value) => String(value).toLowerCase().includes(wanted)));
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  page = Math.min(page, pages - 1);
  $("request-count").textContent = `(${number(rows.length)}${wanted ? ` of ${number(sessions.rows.length)}` : ""})`;
  $("page-number").textContent = `page ${page + 1} of ${pages}`;
  $("previous").disabled = page === 0;
  $("next").disabled = page === pages - 1;
  fill($("sessions"), sessions.columns.map((name) => name.replaceAll("_", " ")), rows.slice(page * ROWS, (page + 1) * ROWS));
}

function drawGrid(states) {
  const canvas = $("grid"), size = 7, width = canvas.clientWidth || 600;
  const across = Math.max(1, Math.floor(width / size)), ratio = window.devicePixelRatio || 1;
  const height = Math.max(1, Math.ceil(states.length / across)) * size;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  const tints = Object.fromEntries(Object.entries(COLOURS).map(([state, name]) => [state, colour(name)]));
  context.scale(ratio, ratio);
  states.forEach((state, i) => {
    context.fillStyle = tints[state];
    context.fillRect((i % across) * size, Math.floor(i / across) * size, size - 1, size - 1);
  });
}

function choose(select, entries, chosen) {
  const before = [...select.options].map((option) => option.value + option.text).join();
  const isInUse = select === document.activeElement && before !== ""; // a list that changes cannot be picked from
  if (!isInUse && before !== entries.map(([value, text]) => value + text).join()) {
    select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
  }
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
}

function drawPeers(state) {
  const peers = [...state.targets.map((peer) => ["target", peer]), ...state.drafts.map((peer) => ["draft", peer])];
  const wanted = $("peer").value || new URLSearchParams(location.hash.slice(1)).get("peer");
  choose($("peer"), peers.map(([kind, peer]) => [peer.address, `${kind} ${peer.address}`]), wanted);
}

function drawRound(round) {
  const entries = [["", "the largest tree"]];
  round.session.forEach((session, i) => {
    const accepted = round.accepted ? `, ${round.accepted[i]} accepted` : "";
    entries.push([String(session), `${session}: round ${round.round[i]}, ${round.num_nodes[i]} nodes${accepted}`]);
  });
  choose($("session"), entries, $("session").value);
  const tree = round.tree;
  drawTree($("tree"), tree, (facts) => { $("node-facts").textContent = facts; });
  const time = new Date(round.time_unix_ms).toISOString().slice(11, 23);
  const facts = round.step ? [`step ${round.step} at ${time} UTC`, `${number(round.session.length)} sessions`] : ["no round yet"];
  if (tree) {
    facts.push(`session ${tree.session}, round ${tree.round}: ${tree.base_committed_len} committed, ${tree.tokens.length} nodes`);
    if (tree.accepted) facts.push(`${tree.accepted.length - 1} accepted`);
    if (tree.kv_slots?.length) facts.push(`KV slots ${tree.kv_slots.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(" ")}`);
  }
  $("round-facts").textContent = facts.join(" · ");
  drawTimings(round.timings_ms);
}

function drawTimings(timings) {
  const frame = $("timings"), width = frame.clientWidth || 600, tints = ["--one", "--two", "--three", "--good", "--bad", "--dim"];
  const parts = Object.entries(timings).sort(), whole = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  frame.setAttribute("viewBox", `0 0 ${width} 46`);
  frame.replaceChildren();
  let left = 0;
  parts.forEach(([name, ms], i) => {
    const wide = (ms / whole) * width;
    const rect = svg("rect", { x: left, y: 4, width: Math.max(wide - 1, 0.5), height: 16, style: `fill:var(${tints[i % tints.length]})` });
    rect.append(svg("title", {}, `${name} ${ms.toFixed(2)} ms`));
    frame.append(rect);
    if (wide > 60) frame.append(svg("text", { class: "dim", x: left, y: 36 }, `${name} ${ms.toFixed(1)} ms`));
    left += wide;
  });
}

function rates(state) {
  const before = last ?? state, seconds = state.time - before.time;
  const rise = (name) => total(state, name) - total(before, name);
  const drafts = rise("vllm:spec_decode_num_drafts");
  return {
    tokens: seconds > 0 ? rise("vllm:generation_tokens") / seconds : 0,
    finished: seconds > 0 ? rise("vllm:request_success") / seconds : 0,
    accepted: drafts > 0 ? 1 + rise("vllm:spec_decode_num_accepted_tokens") / drafts : targetsMean(state),
  };
}

// Between two ends of requests the router's own counts stand still; the targets' windows do not.
function targetsMean(state) {
  const means = state.targets.map((target) => target.mean_accepted_length).filter((mean) => mean > 0);
  return means.length ? means.reduce((sum, mean) => sum + mean, 0) / means.length : null;
}

async function look() {
  const state = await ask("api/state");
  const now = rates(state);
  const running = state.targets.reduce((sum, target) => sum + target.requests, 0);
  history.push({ tokens: now.tokens, running, waiting: state.waiting });
  if (history.length > HISTORY) history.shift();
  last = state;
  $("model").textContent = state.model || "no target yet";
  $("policy").textContent = `policy ${state.policy}, version ${state.version}`;
  drawTiles(state, now);
  drawTimeline();
  drawDepths(state);
  drawFleet(state);
  drawDecisions(state);
  drawPeers(state);
  sessions = await ask("api/sessions");
  drawRequests();
  await lookAtRound();
  return state.draining ? "draining" : "live";
}

async function lookAtRound() {
  if ($("pause").getAttribute("aria-pressed") === "true" || !$("peer").value) return;
  const query = new URLSearchParams({ address: $("peer").value });
  if ($("session").value) query.set("session", $("session").value);
  if ($("kv").checked) query.set("kv", "1");
  try {
    drawRound(await ask(`api/round?${query}`));
  } catch (error) {
    $("round-facts").textContent = error.message;
    if (query.has("session")) $("session").value = "";
  }
}

async function turn() {
  const begun = performance.now();
  if (!document.hidden) {
    try {
      $("status").textContent = await look();
      $("status").className = "";
    } catch (error) {
      $("status").textContent = `no answer: ${error.message}`;
      $("status").className = "bad";
    }
  }
  setTimeout(turn, Math.max(PERIOD_MS - (performance.now() - begun), 200));
}

$("filter").addEventListener("input", () => { page = 0; drawRequests(); });
$("previous").addEventListener("click", () => { page--; drawRequests(); });
$("next").addEventListener("click", () => { page++; drawRequests(); });
$("peer").addEventListener("change", () => { $("session").value = ""; location.hash = `peer=${$("peer").value}`; lookAtRound(); });
$("session").addEventListener("change", lookAtRound);
$("kv").addEventListener("change", lookAtRound);
$("pause").addEventListener("click", () => {
  const paused = $("pause").getAttribute("aria-pressed") !== "true";
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "go on" : "pause";
});
for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
turn();
