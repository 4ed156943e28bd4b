// Draws the snapshots that GET /ui/events sends. Text from the cluster only ever becomes a text node.
"use strict";

const $ = (id) => document.getElementById(id);
const RETRY_MS = 2000;
const STALE_MS = 5000;
const SILENT_MS = 15000; // a stream that is silent for so long is dead: a machine that slept is not told that it ended
const PLAIN = /^[\x20-\x7e]+$/; // what a header can carry
const OUTLIER = 5; // times the median
const KIND_OF = { ready: "good", failing: "bad", sick: "bad" }; // any other state of a worker passes
let seenAt = 0;
let heardAt = 0;
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
const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`);
const bytes = (n) => (n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : `${Math.round(n / 2 ** 20)} MiB`);
const sum = (list, of = (x) => x) => list.reduce((total, one) => total + of(one), 0);
const plural = (n, one) => `${whole.format(n)} ${one}${n === 1 ? "" : "s"}`;

function bar(parts, all, words) {
  const shares = parts.map(([kind, n]) => el("i", { class: kind, style: { width: `${all ? Math.min(100, (100 * n) / all) : 0}%` } }));
  return el("div", { class: "bar", role: "img", "aria-label": words, title: words }, ...shares);
}

function facts(pairs) {
  return pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

function table(headings, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const cell = (heading, tag, content) => el(tag, { class: heading.startsWith(">") ? "n" : undefined, scope: tag === "th" ? "col" : undefined }, content);
  const head = el("tr", {}, ...headings.map((heading) => cell(heading, "th", heading.replace(">", ""))));
  const body = rows.map((row) => el("tr", {}, ...row.map((content, at) => cell(headings[at], "td", content))));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
}

const list = (pairs) => el("dl", { class: "list" }, ...facts(pairs));

const clipped = (text) => el("div", { class: "clip", title: text }, text);

// --- the parts of the page ---

function slotRow(worker, slot, running) {
  const now = running.find((one) => one.worker === worker.name && one.slot === slot.slot);
  const held = Math.max(slot.tokens, now ? now.prompt_tokens + (now.told || 0) : 0);
  const fresh = now ? Math.max(0, held - now.cached_tokens) : 0;
  const words = slot.busy && now
    ? `${tokens(held - fresh)} cached, ${tokens(fresh)} new of ${tokens(worker.context_tokens)} tokens`
    : `${tokens(held)} of ${tokens(worker.context_tokens)} tokens`;
  const who = (now && now.agent) || slot.agent || (slot.conversation ? "a conversation" : slot.busy ? "an answer" : "free");
  return el("li", { class: slot.busy ? "slot busy" : slot.conversation ? "slot" : "slot free" },
    el("b", {}, String(slot.slot)), el("span", { class: "who", title: who }, who),
    el("span", { class: "much" }, tokens(held)), bar([["kept", held - fresh], ["fresh", fresh]], worker.context_tokens, words));
}

function workerCard(worker, running) {
  const good = worker.state === "ready";
  const rates = `${tokens(Math.round(worker.rates.prefill_tokens_per_s))} prefill, ${tokens(Math.round(worker.rates.decode_tokens_per_s))} decode tokens/s`;
  const memory = worker.engine_bytes ? `, engine ${bytes(worker.engine_bytes)}` : "";
  return el("article", { class: "card" },
    el("header", {}, el("h3", {}, worker.name), el("p", { class: `pill ${KIND_OF[worker.state] || "soon"}` }, worker.state)),
    el("p", {}, worker.reason || `${worker.model || "no model yet"}${memory}`),
    good ? el("p", {}, rates) : null,
    el("ul", { class: "slots", "aria-label": `Slots of ${worker.name}` }, ...worker.slots.map((slot) => slotRow(worker, slot, running))));
}

function queueOf(worker) {
  const waiting = sum(worker.queued);
  const levels = worker.queued.map((n, level) => el("li", { class: n ? "some" : undefined, "aria-label": `level ${level}: ${n} waiting` }, el("b", {}, String(n)), String(level)));
  const waiters = worker.line.slice(0, 8).map((job) => el("li", {}, el("b", {}, `${job.place}. ${job.agent}`),
    el("span", {}, `level ${job.level}, has waited ${seconds(job.waited_s * 1000)}${job.expected_s === null ? "" : `, expected in ${seconds(job.expected_s * 1000)}`}`)));
  return el("div", { class: "line" }, el("h3", {}, `${worker.name}: ${plural(waiting, "request")} waiting`),
    el("ul", { class: "levels", "aria-label": "Waiting by level, most urgent first" }, ...levels),
    waiters.length ? el("ul", { class: "waiters" }, ...waiters) : null);
}

function runningTable(running) {
  const rows = running.map((one) => [clipped(one.agent || "?"), one.kind || "", one.worker ? `${one.worker}${one.slot === undefined ? "" : ` / ${one.slot}`}` : "",
    one.queue_ms === undefined ? "waits" : one.told ? "answers" : "prefills",
    one.prompt_tokens === undefined ? "" : tokens(one.prompt_tokens), one.prompt_tokens === undefined ? "" : percent(one.cached_tokens, one.prompt_tokens),
    one.told === undefined ? "" : tokens(one.told), one.per_s === undefined ? "" : one.per_s.toFixed(1), seconds(one.took_ms)]);
  return table(["Agent", "Kind", "Worker / slot", "Now", ">Prompt", ">Cached", ">Told", ">Tokens/s", ">For"], rows, "Nothing is running.");
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
  const words = [...known, ["other", rest]].map(([name, ms]) => `${name} ${seconds(ms)}`).join(", ");
  const drawn = bar([...known, ["other", rest]], Math.max(longest, one.took_ms), words);
  drawn.classList.toggle("over", one.took_ms > longest);
  return drawn;
}

function recentTable(recent) {
  const shown = recent.slice(0, 25);
  const times = shown.map((one) => one.took_ms).sort((a, b) => a - b);
  const longest = Math.max(1, Math.min(times.at(-1), OUTLIER * times[times.length >> 1])); // one that is far longer runs out of its bar
  const rows = shown.map((one) => [clipped(one.agent || "?"), timeline(one, longest),
    el("span", { class: one.outcome === "failed" ? "failed" : undefined }, (one.outcome === "failed" ? one.reason || "failed" : one.stop_reason || one.outcome).replaceAll("_", " ")),
    one.first_ms === undefined ? "" : seconds(one.first_ms), seconds(one.took_ms),
    one.eta_ms === undefined || one.eta_ms === null ? "" : `${seconds(one.eta_ms)} / ${one.queue_ms === undefined ? "–" : seconds(one.queue_ms)}`,
    one.prompt_tokens === undefined ? "" : tokens(one.prompt_tokens), one.prompt_tokens === undefined ? "" : percent(one.cached_tokens, one.prompt_tokens),
    one.output_tokens === undefined ? "" : tokens(one.output_tokens), one.miss && one.miss !== "none" ? one.miss.replaceAll("_", " ") : "", one.worker || "", one.kind || ""]);
  return table(["Agent", "Timeline", "End", ">First token", ">In all", ">Wait told / real", ">Prompt", ">Cached", ">Output", "Miss", "Worker", "Kind"], rows, "No request has ended yet.");
}

function cacheCards(state) {
  const misses = Object.entries(state.misses).sort(([, a], [, b]) => b.ms - a.ms)
    .map(([cause, n]) => [cause.replaceAll("_", " "), whole.format(n.count), tokens(n.tokens), seconds(n.ms)]);
  const wait = state.wait;
  const saved = state.workers.filter((worker) => !worker.store.off)
    .map((worker) => [worker.name, bytes(worker.store.used_bytes), whole.format(worker.store.saves), whole.format(worker.store.restores)]);
  const card = (heading, ...content) => el("article", { class: "card" }, el("h3", {}, heading), ...content);
  return [
    card("What cache misses cost", table(["Cause", ">Times", ">Tokens", ">Time"], misses, "No turn has lost anything.")),
    card("Saved caches", table(["Worker", ">Held", ">Saves", ">Restores"], saved, "No worker saves its slots.")),
    card("Waits, told and real", wait.waits ? list([["Waits seen", whole.format(wait.waits)], ["Median error", seconds(wait.median_error_s * 1000)],
      ["90 % of errors are below", seconds(wait.p90_error_s * 1000)]]) : el("p", { class: "quiet" }, "Nobody has waited yet.")),
    card("Line", list([["Refused", whole.format(sum(Object.values(wait.refused)))], ["Came back as promised", whole.format(wait.promises_kept)],
      ["Waited in vain", whole.format(wait.in_vain)], ["Moved to another worker", whole.format(wait.moved)], ["Answered together", whole.format(state.coalesced)]])),
  ];
}

function totals(state) {
  const ended = state.recent.filter((one) => one.prompt_tokens !== undefined);
  const speed = sum(state.running, (one) => one.per_s || 0);
  return facts([
    ["running", whole.format(sum(state.workers, (worker) => worker.running))], ["waiting", whole.format(state.waiting)],
    ["tokens/s", speed.toFixed(0)], ["reuse", percent(sum(ended, (one) => one.cached_tokens), sum(ended, (one) => one.prompt_tokens))]]);
}

function draw(state) {
  seenAt = Date.now();
  const ready = state.workers.filter((worker) => worker.state === "ready").length;
  const [words, kind] = !state.broker ? ["the broker does not answer", "bad"] : ready ? [`${plural(ready, "worker")} ready`, "good"] : ["no worker is ready", "bad"];
  said(words, kind);
  $("totals").replaceChildren(...totals(state));
  $("workers").replaceChildren(...(state.workers.length ? state.workers.map((worker) => workerCard(worker, state.running)) : [el("p", { class: "quiet" }, "No worker is here. Start one with `corral worker`.")]));
  $("running").replaceChildren(runningTable(state.running));
  const lines = state.workers.filter((worker) => sum(worker.queued));
  $("queues").replaceChildren(...(lines.length ? lines.map(queueOf) : [el("div", { class: "line" }, el("p", { class: "quiet" }, "Nobody waits."))]));
  $("recent").replaceChildren(recentTable(state.recent));
  $("cache").replaceChildren(...cacheCards(state));
  $("api").textContent = state.api;
  $("about").hidden = false;
}

// --- the stream ---

function said(words, kind) {
  const state = $("state");
  if (state.textContent !== words) state.textContent = words; // else a screen reader would say it each second
  state.className = `pill ${kind}`;
}

function askForKey(again) {
  $("key").hidden = false;
  $("main").hidden = true;
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
    if (events.length) draw(JSON.parse(events.at(-1).slice("data: ".length)));
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
  $("main").hidden = false;
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
  run();
});
setInterval(() => {
  document.body.classList.toggle("stale", Date.now() - seenAt > STALE_MS);
  if (stream && Date.now() - heardAt > SILENT_MS) stream.abort();
}, 1000);
run();
