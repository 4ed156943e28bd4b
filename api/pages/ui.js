// Draws the snapshots that GET /ui/events sends. Text from the cluster only ever becomes a text node.
"use strict";

const $ = (id) => document.getElementById(id);
const RETRY_MS = 2000;
const STALE_MS = 5000;
const SILENT_MS = 15000; // a stream that is silent for so long is dead: a machine that slept is not told that it ended
const PLAIN = /^[\x20-\x7e]+$/; // what a header can carry
const OUTLIER = 3; // times the median
const LEAST_WAIT_MS = 50; // less is no wait to tell of
const KIND_OF = { ready: "good", failing: "bad", sick: "bad" }; // any other state of a worker passes
let seenAt = 0;
let heardAt = 0;
let paused = false;
const count = { heard: 0, drawn: 0 }; // snapshots; tests wait for them
let stream = null; // of the snapshots, while one is asked for or read

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(node.style, value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// --- figures as people read them ---

const whole = new Intl.NumberFormat("en");
const tokens = (n) => (n >= 10000 ? `${(n / 1000).toFixed(n >= 100000 ? 0 : 1)}k` : whole.format(n));
const percent = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "–");
const minutes = (s) => `${Math.floor(s / 60)} min ${s % 60} s`;
const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : minutes(Math.round(ms / 1000)));
const bytes = (n) => (n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : `${Math.round(n / 2 ** 20)} MiB`);
const sum = (list, of = (x) => x) => list.reduce((total, one) => total + of(one), 0);
const median = (list) => {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : undefined;
};
const plural = (n, one) => `${whole.format(n)} ${one}${n === 1 ? "" : "s"}`;

function bar(parts, all, words) {
  const shares = parts.map(([kind, n]) => el("i", { class: kind, style: { width: `${all ? Math.min(100, (100 * n) / all) : 0}%` } }));
  return el("div", { class: "bar", role: "img", "aria-label": words, title: words }, ...shares);
}

function facts(pairs) {
  return pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

function table(name, headings, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  // On a narrow screen a row becomes a block, which is no table to a screen reader unless it is told so.
  const cell = (heading, tag, role, content) => el(tag, { role, class: heading.startsWith(">") ? "n" : undefined, scope: tag === "th" ? "col" : undefined,
    "data-name": tag === "td" ? heading.replace(">", "") : undefined }, content);
  const head = el("tr", { role: "row" }, ...headings.map((heading) => cell(heading, "th", "columnheader", heading.replace(">", ""))));
  const body = rows.map((row) => el("tr", { role: "row" }, ...row.map((content, at) => cell(headings[at], "td", "cell", content))));
  return el("table", { role: "table", "aria-label": name }, el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, ...body));
}

const list = (pairs) => el("dl", { class: "list" }, ...facts(pairs));

const clipped = (text) => el("div", { class: "clip", title: text }, text);

const card = (heading, ...content) => el("article", { class: "card" }, el("h3", {}, heading), ...content);

const quiet = (words) => el("p", { class: "quiet" }, words);

const words = (name) => name.replaceAll("_", " ");

// --- the parts of the page ---

function totals(state) {
  const slots = sum(state.workers, (worker) => worker.slots.length);
  const speed = sum(state.running, (one) => one.per_s || 0);
  const found = state.recent.filter((one) => one.prompt_tokens !== undefined);
  const first = median(state.recent.filter((one) => one.first_ms !== undefined).map((one) => one.first_ms));
  const tile = (name, value, beside) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), beside ? el("span", {}, beside) : null));
  return [
    tile("Running", whole.format(sum(state.workers, (worker) => worker.running)), slots ? `of ${plural(slots, "slot")}` : ""),
    tile("Waiting", whole.format(state.waiting), ""),
    tile("Speed", whole.format(Math.round(speed)), "tokens/s"),
    tile("Reuse", percent(sum(found, (one) => one.cached_tokens), sum(found, (one) => one.prompt_tokens)), "of late prompts"),
    tile("First token", first === undefined ? "–" : seconds(first), first === undefined ? "" : "median"),
  ];
}

function slotRow(worker, slot, running) {
  const now = running.find((one) => one.worker === worker.name && one.slot === slot.slot);
  const held = Math.max(slot.tokens, now ? now.prompt_tokens + (now.told || 0) : 0);
  const fresh = now ? Math.max(0, held - now.cached_tokens) : 0;
  const said = slot.busy && now
    ? `${tokens(held - fresh)} cached, ${tokens(fresh)} new of ${tokens(worker.context_tokens)} tokens`
    : `${tokens(held)} of ${tokens(worker.context_tokens)} tokens`;
  const who = (now && now.agent) || slot.agent || (slot.conversation ? "a conversation" : slot.busy ? "an answer" : "free");
  return el("li", { class: slot.busy ? "slot busy" : slot.conversation ? "slot" : "slot free" },
    el("b", {}, String(slot.slot)), el("span", { class: "who", title: who }, who, slot.busy ? el("span", { class: "said" }, ", answering") : null),
    el("span", { class: "much" }, slot.conversation || slot.busy ? `${tokens(held)} / ${tokens(worker.context_tokens)}` : ""),
    bar([["kept", held - fresh], ["fresh", fresh]], worker.context_tokens, said));
}

function workerCard(worker, running) {
  const busy = sum(worker.slots, (slot) => (slot.busy ? 1 : 0));
  const speeds = `${tokens(Math.round(worker.rates.prefill_tokens_per_s))} prefill, ${tokens(Math.round(worker.rates.decode_tokens_per_s))} decode tokens/s`;
  const kind = worker.state === "ready" && worker.reason ? "soon" : KIND_OF[worker.state] || "soon"; // silent, but not given up yet
  const drafts = worker.tallies && worker.tallies.drafted_tokens ? `drafts right: ${percent(worker.tallies.accepted_tokens, worker.tallies.drafted_tokens)}` : "";
  const more = [`${busy} of ${plural(worker.slots.length, "slot")} busy`, worker.state === "ready" ? speeds : "", worker.engine_bytes ? `engine ${bytes(worker.engine_bytes)}` : "", drafts];
  return el("article", { class: "card" },
    el("header", {}, el("h3", {}, worker.name), el("p", { class: `pill ${kind}` }, worker.state)),
    el("p", {}, worker.model || "no model yet"), worker.reason ? el("p", { class: "why" }, worker.reason) : null,
    el("ul", { class: "slots", "aria-label": `Slots of ${worker.name}` }, ...worker.slots.map((slot) => slotRow(worker, slot, running))),
    el("ul", { class: "foot", "aria-label": `Figures of ${worker.name}` }, ...more.filter(Boolean).map((one) => el("li", {}, one))));
}

function lostCard(lost) {
  const left = lost.running + sum(lost.queued);
  return el("article", { class: "card lost" }, el("header", {}, el("h3", {}, lost.name), el("p", { class: "pill bad" }, "gone")),
    el("p", {}, `${whole.format(left)} of its requests ${left === 1 ? "goes" : "go"} to another worker, or ${left === 1 ? "waits" : "wait"} until one comes.`));
}

function levelsOf(name, queued) {
  const cells = queued.map((n, level) => el("li", { class: n ? "some" : undefined }, el("span", { class: "said" }, `level ${level}: `), el("b", {}, String(n)),
    el("span", { "aria-hidden": "true" }, String(level))));
  return el("ul", { class: "levels", "aria-label": `Waiting at ${name} by level, 0 is first` }, ...cells);
}

function queueCard(worker) {
  const waiters = (worker.line || []).slice(0, 8).map((job) => [clipped(`${job.place}. ${job.agent}`), String(job.level), seconds(job.waited_s * 1000),
    job.expected_s === null ? "–" : seconds(job.expected_s * 1000)]);
  const rest = sum(worker.queued) - waiters.length;
  return card(`${worker.name}: ${plural(sum(worker.queued), "request")}`, levelsOf(worker.name, worker.queued),
    waiters.length ? table(`Who waits at ${worker.name}`, ["Who", ">Level", ">Has waited", ">Starts in"], waiters, "") : null,
    waiters.length && rest > 0 ? quiet(`and ${whole.format(rest)} more`) : null);
}

const NOW = (one) => (one.waits_again ? "waits again" : one.queue_ms === undefined ? "waits" : one.told ? "answers" : "prefills");

function runningTable(running) {
  const rows = running.map((one) => [clipped(one.agent || "?"), NOW(one), one.worker ? `${one.worker}${one.slot === undefined ? "" : ` / ${one.slot}`}` : "–",
    one.prompt_tokens === undefined ? "–" : tokens(one.prompt_tokens), one.prompt_tokens === undefined ? "–" : percent(one.cached_tokens, one.prompt_tokens),
    one.told === undefined ? "–" : tokens(one.told), one.per_s === undefined ? "–" : one.per_s.toFixed(1), seconds(one.took_ms), one.kind || "–"]);
  return table("Running requests", ["Agent", "Now", "Slot", ">Prompt", ">Cached", ">Told", ">Tokens/s", ">For", "Kind"], rows, "Nothing is running.");
}

// The time of one that ended early was not told by its engine: until its first token it was prefill, then decode.
function stages(one) {
  if (one.queue_ms === undefined) return [];
  if (one.prefill_ms !== undefined) return [["queue", one.queue_ms], ["prefill", one.prefill_ms], ["decode", one.decode_ms || 0]];
  const first = one.first_ms === undefined ? one.took_ms : one.first_ms;
  return [["queue", one.queue_ms], ["prefill", Math.max(0, first - one.queue_ms)], ["decode", one.took_ms - first]];
}

function timeline(one, longest) {
  const known = stages(one);
  const rest = Math.max(0, one.took_ms - sum(known, ([, ms]) => ms));
  const said = [...known, ["other", rest]].map(([name, ms]) => `${name} ${seconds(ms)}`).join(", ");
  const drawn = bar([...known, ["other", rest]], Math.max(longest, one.took_ms), said);
  drawn.classList.toggle("over", one.took_ms > longest);
  return drawn;
}

function outcome(one) {
  if (one.outcome === "failed") return el("span", { class: "failed" }, words(one.reason || "failed"));
  return words(one.stop_reason || one.outcome);
}

function recentTable(recent) {
  const shown = recent.slice(0, 25);
  const times = shown.map((one) => one.took_ms);
  const longest = Math.max(1, Math.min(Math.max(...times), OUTLIER * (median(times) || 0))); // one that is far longer runs out of its bar
  const told = (ms) => (ms === undefined || ms === null ? "–" : seconds(ms));
  const rows = shown.map((one) => [clipped(one.agent || "?"), timeline(one, longest), outcome(one), told(one.first_ms), seconds(one.took_ms),
    `${told(one.eta_ms)} / ${told(one.queue_ms)}`, one.prompt_tokens === undefined ? "–" : tokens(one.prompt_tokens),
    one.prompt_tokens === undefined ? "–" : percent(one.cached_tokens, one.prompt_tokens), one.output_tokens === undefined ? "–" : tokens(one.output_tokens),
    one.miss && one.miss !== "none" ? words(one.miss) : "–", one.worker || "–", one.kind || "–"]);
  const headings = ["Agent", "Timeline", "End", ">First token", ">In all", ">Wait told / real", ">Prompt", ">Cached", ">Output", "Miss", "Worker", "Kind"];
  return table("Recent requests", headings, rows, "No request has ended yet.");
}

// Told against real, a dot each; on the line they agree.
function scatter(recent) {
  const seen = recent.filter((one) => Number.isFinite(one.eta_ms) && Number.isFinite(one.queue_ms) && Math.max(one.eta_ms, one.queue_ms) >= LEAST_WAIT_MS);
  if (!seen.length) return null;
  const most = Math.max(...seen.map((one) => Math.max(one.eta_ms, one.queue_ms)));
  const shape = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const dots = seen.map((one) => shape("circle", { cx: 6 + (188 * one.eta_ms) / most, cy: 66 - (60 * one.queue_ms) / most, r: 3 }));
  const drawn = shape("svg", { viewBox: "0 0 200 72", class: "dots", role: "img", "aria-label": `Waits of ${seen.length} late requests, told against real, up to ${seconds(most)}` },
    shape("path", { d: "M6 66L194 6" }), ...dots);
  return el("figure", {}, drawn, el("figcaption", {}, `Right: told, up: real, to ${seconds(most)}. On the line both agree.`));
}

function cacheCards(state) {
  const misses = Object.entries(state.misses).sort(([, a], [, b]) => b.ms - a.ms)
    .map(([cause, n]) => [words(cause), whole.format(n.count), tokens(n.tokens), seconds(n.ms)]);
  const wait = state.wait;
  const saved = state.workers.filter((worker) => !worker.store.off)
    .map((worker) => [clipped(worker.name), bytes(worker.store.used_bytes), whole.format(worker.store.saves), whole.format(worker.store.restores)]);
  return [
    card("What cache misses cost", table("Cache misses", ["Cause", ">Times", ">Tokens", ">Time"], misses, "No turn has lost anything.")),
    card("Saved caches", table("Saved caches", ["Worker", ">Held", ">Saves", ">Restores"], saved, "No worker saves its slots.")),
    card("Waits, told and real", wait.waits ? list([["Waits seen", whole.format(wait.waits)], ["Median error", seconds(wait.median_error_s * 1000)],
      ["90 % of errors are below", seconds(wait.p90_error_s * 1000)]]) : quiet("Nobody has waited yet."), scatter(state.recent)),
    card("In and out of line", list([["Refused", whole.format(sum(Object.values(wait.refused)))], ["Came back as promised", whole.format(wait.promises_kept)],
      ["Waited in vain", whole.format(wait.in_vain)], ["Moved to another worker", whole.format(wait.moved)], ["Answered together", whole.format(state.coalesced)]])),
  ];
}

function aboutWords(state) {
  const silent = state.apis_silent ? `, ${state.apis_silent} more not heard yet` : "";
  const whose = state.apis.length > 1 ? `Requests are those of ${state.apis.join(", ")}${silent}; waits told and real are those of ${state.api}.` : `Requests are those of the gateway ${state.api}${silent}.`;
  return `${whose} Workers and queues are the whole cluster's.`;
}

function headline(state) {
  const ready = state.workers.filter((worker) => worker.state === "ready").length;
  if (!state.broker) return ["the broker does not answer", "bad"];
  return ready ? [`${plural(ready, "worker")} ready`, "good"] : ["no worker is ready", "bad"];
}

function draw(state) {
  const bad = state.workers.filter((worker) => KIND_OF[worker.state] === "bad"); // first: they want somebody
  const well = state.workers.filter((worker) => !bad.includes(worker));
  const workers = [...state.lost.map(lostCard), ...[...bad, ...well].map((worker) => workerCard(worker, state.running))];
  const lines = [...state.workers, ...state.lost].filter((worker) => sum(worker.queued));
  $("totals").replaceChildren(...totals(state));
  $("workers").replaceChildren(...(workers.length ? workers : [quiet("No worker is here. Start one with `corral worker`.")]));
  $("running").replaceChildren(runningTable(state.running));
  $("queues").replaceChildren(...(lines.length ? lines.map(queueCard) : [el("div", { class: "sheet" }, quiet("Nobody waits."))]));
  $("recent").replaceChildren(recentTable(state.recent));
  $("cache").replaceChildren(...cacheCards(state));
  $("about").textContent = aboutWords(state);
}

function heard(state) {
  seenAt = Date.now();
  $("all").hidden = $("pause").hidden = false;
  document.body.dataset.heard = String((count.heard += 1));
  if (paused) {
    said("paused", "soon");
    return;
  }
  said(...headline(state));
  draw(state);
  document.body.dataset.drawn = String((count.drawn += 1));
}

// --- the stream ---

function said(words, kind) {
  const state = $("state");
  if (state.textContent !== words) state.textContent = words; // else a screen reader would say it each second
  state.className = `pill ${kind}`;
}

function askForKey(again) {
  $("key").hidden = false;
  $("all").hidden = true;
  $("pause").hidden = true;
  $("wrong").textContent = again ? "That key is not known here." : "";
  said("a key is needed", "bad");
  $("secret").focus();
}

async function read(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    heardAt = Date.now();
    const events = (text + part.value).split("\n\n");
    text = events.pop();
    if (events.length) heard(JSON.parse(events.at(-1).slice("data: ".length)));
  }
}

async function follow() {
  const key = sessionStorage.getItem("corral-key");
  stream = new AbortController();
  heardAt = Date.now();
  const response = await fetch("ui/events", { headers: key ? { "x-api-key": key } : {}, cache: "no-store", signal: stream.signal });
  if (response.status === 401 || response.status === 403) {
    stream = null;
    askForKey(Boolean(key));
    return false;
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  $("key").hidden = true;
  await read(response);
  return true;
}

async function run() {
  for (;;) {
    try {
      if (!(await follow())) return;
    } catch {
      // The gateway is away; it may come back.
    }
    if (stream) stream.abort(); // one that could not be drawn would stay open beside the next
    said("the gateway does not answer", "bad");
    seenAt = 0; // what stands there is old at once, and stays so
    document.body.classList.add("stale");
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("secret").value;
  $("secret").value = "";
  if (!PLAIN.test(key)) {
    askForKey(true);
    return;
  }
  sessionStorage.setItem("corral-key", key);
  $("key").hidden = true; // asked twice, two streams would be drawn
  $("main").focus(); // else who has no mouse begins at the top again
  run();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) said("paused", "soon");
});
setInterval(() => {
  document.body.classList.toggle("stale", Date.now() - seenAt > STALE_MS);
  if (stream && Date.now() - heardAt > SILENT_MS) stream.abort();
}, 1000);
run();
