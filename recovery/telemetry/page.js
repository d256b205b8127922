// The page of a job: it asks for /data.json each second and draws what has changed. All texts become text nodes.
// In a report the data lie in the page itself, nothing is asked for, and all views are drawn one below the other.
"use strict";

const EVERY = 1000;
const PHASES = ["decided", "restarted", "downloaded", "opened", "caught_up"];
const HUES = ["var(--one)", "var(--two)", "var(--three)", "var(--four)", "var(--five)"];
const REPORT = document.getElementById("data") && JSON.parse(document.getElementById("data").textContent);
let data = REPORT && REPORT.data, tree = REPORT && REPORT.tree, before = null, failures = 0, chosen = null, armed = null, answer = "";

// --- small helpers -----------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...inside) {
  const svg = ["svg", "g", "rect", "path", "text", "title", "line", "polyline"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (name === "style") node.style.cssText = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const one of inside.flat(Infinity)) if (one !== null && one !== undefined) node.append(one);
  return node;
}
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const count = (n) => (n === null || n === undefined ? "" : whole.format(n));
const rate = (n) => (n >= 1e6 ? (n / 1e6).toFixed(2) + "M" : n >= 1e4 ? (n / 1e3).toFixed(1) + "k" : count(n)) + "/s";
function bytes(n) {
  if (n === null || n === undefined) return "";
  for (const [size, unit] of [[1 << 30, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]]) if (n >= size) return (n / size).toFixed(1) + " " + unit;
  return n + " B";
}
function span(ms) {
  if (ms === null || ms === undefined) return "";
  return ms < 1000 ? ms.toFixed(ms < 10 ? 1 : 0) + " ms" : ms < 120000 ? (ms / 1000).toFixed(1) + " s" : (ms / 60000).toFixed(1) + " min";
}
function clock(at) {
  const time = new Date(at * 1000), today = new Date(data.now * 1000).toDateString() === time.toDateString();
  return today && !REPORT ? time.toLocaleTimeString() : time.toLocaleString();
}
const ago = (at) => (at === null ? "never" : span(Math.max(0, (data.now - at) * 1000)) + " ago");

function table(caption, heads, rows, text = []) {
  const cell = (value, place) => place === 0
    ? make("th", { scope: "row", class: "text" }, value)
    : make("td", text.includes(place) ? { class: "text" } : {}, value);
  return make("div", { class: "wide" }, make("table", {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, heads.map((head, place) => make("th", { scope: "col", class: text.includes(place) ? "text" : null }, head)))),
    make("tbody", {}, rows.length ? rows.map((row) => make("tr", {}, row.map(cell)))
      : make("tr", {}, make("td", { colspan: heads.length, class: "soft" }, "none")))));
}
function facts(...pairs) {
  return make("div", { class: "facts" }, pairs.map(([name, value, mood]) =>
    make("div", {}, make("dl", {}, make("dt", {}, name), make("dd", mood ? { class: mood } : {}, value)))));
}
function bar(parts, whole, said) {
  const known = parts.filter(([, value]) => value > 0);
  return make("span", { class: "bar", role: "img", "aria-label": said, title: said }, known.map(([hue, value]) =>
    make("i", { style: `background:${hue};width:${Math.min(100, (100 * value) / (whole || 1)).toFixed(2)}%` })));
}
const legend = (names, hues) => make("p", { class: "legend" }, names.map((name, place) =>
  [make("b", { style: `background:${hues[place]}` }), name]));

// --- how busy a stage was between two looks -----------------------------------------------------------------------

function shares(partition, uid) {
  const now = partition.stages[uid];
  const old = before && before.partitions.find((one) => one.partition === partition.partition);
  const then = (old && old.stages[uid]) || { busy_ms: 0, blocked_ms: 0, idle_ms: 0 };
  if (!now) return null;
  const [busy, blocked, idle] = ["busy_ms", "blocked_ms", "idle_ms"].map((name) => Math.max(0, now[name] - then[name]));
  const all = busy + blocked + idle;
  return all > 0 ? { busy: busy / all, blocked: blocked / all } : null;
}
const known = new Map();  // the last share of each stage in each partition, for looks between two figures
function share(partition, uid) {
  const key = partition.partition + " " + uid, found = shares(partition, uid);
  if (found) known.set(key, found);
  return known.get(key) || { busy: 0, blocked: 0 };
}
const percent = (part) => (100 * part).toFixed(0) + " %";
function load(part) {
  const said = `busy ${percent(part.busy)}, back-pressured ${percent(part.blocked)}`;
  return make("span", {}, bar([["var(--busy)", part.busy], ["var(--blocked)", part.blocked]], 1, said), " ", percent(part.busy));
}
function busiest(uid) {
  const all = data.partitions.map((one) => share(one, uid));
  return { busy: Math.max(0, ...all.map((one) => one.busy)), blocked: Math.max(0, ...all.map((one) => one.blocked)) };
}

// --- the views ----------------------------------------------------------------------------------------------------

function graph() {
  const depth = {};
  for (const node of data.nodes) depth[node.uid] = Math.max(-1, ...node.inputs.map(([from]) => depth[from] ?? -1)) + 1;
  const rows = {}, at = {};
  for (const node of data.nodes) {
    const row = (rows[depth[node.uid]] = (rows[depth[node.uid]] ?? -1) + 1);
    at[node.uid] = { x: 10 + depth[node.uid] * 260, y: 10 + row * 112 };
  }
  const width = 10 + 260 * (Math.max(0, ...Object.values(depth)) + 1), height = 10 + 112 * (Math.max(0, ...Object.values(rows)) + 1);
  const edges = data.nodes.flatMap((node) => node.inputs.map(([from, how]) => {
    const a = at[from], b = at[node.uid];
    if (!a) return null;
    const x1 = a.x + 200, y1 = a.y + 46, x2 = b.x, y2 = b.y + 46;
    return make("g", {}, make("path", { class: "edge", d: `M${x1},${y1} C${x1 + 30},${y1} ${x2 - 30},${y2} ${x2},${y2}` }),
      make("title", {}, `${from} to ${node.uid}: ${how}`));
  }));
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const sends = new Set(data.nodes.flatMap((node) => node.inputs.map(([from]) => from)));
  const boxes = data.nodes.map((node) => {
    const { x, y } = at[node.uid], stage = data.stages[node.uid], part = busiest(node.uid);
    return make("g", {}, make("title", {}, [node.uid + ": " + node.title, ...node.lines].join("\n")),
      make("rect", { class: "box", x, y, width: 200, height: 92, rx: 6 }),
      make("text", { x: x + 10, y: y + 20, "font-weight": 600 }, short(node.uid, 26)),
      make("text", { x: x + 10, y: y + 38, class: "dim" }, short(node.title, 30)),
      make("text", { x: x + 10, y: y + 58 }, stage ? `${rate(stage.rate_in)} in` + (sends.has(node.uid) ? `, ${rate(stage.rate_out)} out` : "") : "no figures yet"),
      make("rect", { x: x + 10, y: y + 70, width: 180, height: 8, fill: "var(--idle)" }),
      make("rect", { x: x + 10, y: y + 70, width: 180 * part.busy, height: 8, fill: "var(--busy)" }),
      make("rect", { x: x + 10 + 180 * part.busy, y: y + 70, width: 180 * Math.min(part.blocked, 1 - part.busy), height: 8, fill: "var(--blocked)" }));
  });
  return make("div", { class: "wide" }, make("svg", { width, height, role: "img", "aria-label": "The stages of the program; the table below has the same figures" }, edges, boxes));
}

function heldBack() {  // from the stage that is furthest behind up to the one that its inputs do not explain
  const behind = (uid, partition) => ((partition.stages[uid] || {}).behind_ms ?? null);
  const found = data.partitions.flatMap((one) => data.nodes.map((node) => ({ node, partition: one, ms: behind(node.uid, one) }))).filter((one) => one.ms !== null);
  let at = found.sort((a, b) => b.ms - a.ms)[0];
  for (let step = 0; at && step < data.nodes.length; step += 1) {
    const inputs = at.node.inputs.map(([from]) => from);
    const before = found.filter((one) => inputs.includes(one.node.uid) && one.ms >= 0.9 * at.ms - 1000)[0];
    if (!before) break;
    at = before;
  }
  return at && { uid: at.node.uid, partition: at.partition.partition };
}
function mostBusy() {
  const found = data.partitions.flatMap((one) => data.nodes.map((node) => ({ uid: node.uid, partition: one.partition, busy: share(one, node.uid).busy })));
  return found.filter((one) => one.busy > 0).sort((a, b) => b.busy - a.busy)[0];
}
function overview() {
  const newest = data.epochs[0];
  const rows = data.nodes.map((node) => {
    const stage = data.stages[node.uid] || {}, part = busiest(node.uid);
    return [node.uid, rate(stage.rate_in || 0), rate(stage.rate_out || 0), load(part), percent(part.blocked), bytes(stage.queued),
      count(stage.late), count(stage.bad), stage.behind_ms === null ? "" : span(stage.behind_ms)];
  });
  const held = heldBack(), pressed = mostBusy();
  return [
    data.actions ? orders() : null,
    facts(["State", data.state, mood(data.state)], ["Complete epoch", (data.complete || "none") + ", " + ago(data.completed_at)],
      ["Last epoch took", newest ? span(newest.took_ms) : "none yet"], ["Roll-backs", count(data.restarts), data.restarts ? "warn" : "good"],
      ["Processes of each partition", "at least " + data.redundancy], ["Epochs abandoned", count(data.abandoned), data.abandoned ? "warn" : "good"], ["Event time is held back by", held ? `${held.uid}, partition ${held.partition}` : "nothing"],
      ["Busiest", pressed ? `${pressed.uid}, partition ${pressed.partition}: ${percent(pressed.busy)}` : "nothing is known"]),
    data.trouble ? make("p", { class: "warn" }, "Trouble: " + data.trouble) : null,
    data.failure ? make("p", { class: "bad" }, "Last failure: " + data.failure) : null,
    graph(),
    legend(["busy", "back-pressured", "idle"], ["var(--busy)", "var(--blocked)", "var(--idle)"]),
    table("Stages; busy and back-pressured are of the partition where it is most", ["stage", "in", "out", "busy", "back-pressured", "waiting", "late rows", "left out", "behind the clock"], rows),
    make("h2", {}, "What happened"),
    table("Newest first", ["time", "event", ""], data.notes.slice(0, REPORT ? 200 : 40).map((note) =>
      [clock(note.at), make("span", { class: "kind " + (note.level === "error" ? "bad" : note.level === "warning" ? "warn" : "soft") }, note.kind), make("pre", {}, note.text)]), [1, 2]),
  ];
}

function partitions() {
  const uids = data.nodes.map((node) => node.uid);
  const most = Object.fromEntries(uids.map((uid) => [uid, Math.max(1, ...data.partitions.map((one) => (one.stages[uid] || {}).rows_in || 0))]));
  const shown = data.partitions.slice(0, 300);
  return [
    table("Partitions" + (shown.length < data.partitions.length ? `; the first ${shown.length} of ${data.partitions.length}` : ""),
      ["partition", "process", "executor", "memory", "behind its source", "longest turn"], shown.map((one) =>
        ["partition " + one.partition, one.members.map((each) => (one.members.length > 1 ? `${one.partition}.${each.replica}${each.primary ? " (primary)" : ""}: ` : "") + each.where).join("; "),
          one.members.map((each) => each.executor).filter(Boolean).join("; "), bytes(one.memory), span(one.lag_ms), span(one.longest_turn_ms)]), [1, 2]),
    make("h2", {}, "How busy, and how even"),
    table("Rows that came in, as a share of the partition with most, and how busy it is", ["partition", ...uids], shown.map((one) =>
      ["partition " + one.partition, ...uids.map((uid) => {
        const stage = one.stages[uid];
        if (!stage) return "";
        return make("span", { title: stage.waits_for || null }, count(stage.rows_in) + " ",
          bar([["var(--three)", stage.rows_in]], most[uid], `${percent(stage.rows_in / most[uid])} of the most`), " ", load(share(one, uid)));
      })])),
    make("h2", {}, "Standing by"),
    table("Processes without a partition", ["process", "executor", "has epoch", "memory", "downloaded", "problem"],
      data.standbys.map((one) => [one.where || one.worker, one.executor, one.epoch || "", bytes(one.memory), bytes(one.downloaded), one.problem]), [1, 5]),
  ];
}

function why(one) {
  const parts = { "waiting for markers": one.alignment_ms, "cutting": one.sync_ms, "storing": one.async_ms };
  const [what, took] = Object.entries(parts).sort((a, b) => b[1] - a[1])[0];
  const last = one.partitions && one.partitions.slice().sort((a, b) => b.since_trigger_ms - a.since_trigger_ms)[0];
  const rest = one.took_ms - took, mostly = took >= rest ? `${what}, ${span(took)}` : `between the parts, ${span(rest)}: markers on their way, or the journal`;
  return mostly + (last ? `; partition ${last.partition} was last` : "");
}
function epochs() {
  const shown = data.epochs.slice(0, 100), most = Math.max(1, ...shown.map((one) => one.took_ms));
  const picked = shown.find((one) => one.epoch === chosen) || shown[0];
  const slowest = shown.slice().sort((a, b) => b.took_ms - a.took_ms)[0];
  const parts = (one) => [["var(--one)", one.alignment_ms], ["var(--two)", one.sync_ms], ["var(--three)", one.async_ms]];
  const said = (one) => `aligned ${span(one.alignment_ms)}, cut ${span(one.sync_ms)}, stored ${span(one.async_ms)}`;
  return [
    facts(["In flight", data.in_flight.join(", ") || "none"], ["Abandoned", count(data.abandoned)], ["Skipped", count(data.skipped) + (data.skip_reason ? ", as " + data.skip_reason : "")],
      ["Slowest of these", slowest ? make("button", { onclick: () => { chosen = slowest.epoch; draw(); } }, `${slowest.epoch}: ${span(slowest.took_ms)}`) : "none"]),
    slowest ? make("p", {}, `Where the time of ${slowest.epoch} went: ${why(slowest)}.`) : null,
    legend(["aligned", "cut", "stored"], HUES),
    picked && picked.partitions ? [make("h2", {}, "Epoch " + picked.epoch + ", partition by partition"),
      table("Slowest first", ["partition", "durable after", "", "aligned", "cut", "stored", "state", "in flight"],
        picked.partitions.slice().sort((a, b) => b.since_trigger_ms - a.since_trigger_ms).slice(0, 200).map((one) =>
          ["partition " + one.partition, span(one.since_trigger_ms), bar(parts(one), picked.took_ms, said(one)), span(one.alignment_ms), span(one.sync_ms),
            span(one.async_ms), bytes(one.state_bytes), bytes(one.channel_bytes)]))] : null,
    make("h2", {}, "All"),
    table("Complete epochs, newest first", ["epoch", "complete", "took", "", "aligned", "cut", "stored", "state", "in flight"], shown.map((one) =>
      [make("button", { onclick: () => { chosen = one.epoch; draw(); } }, one.epoch + (one.savepoint ? " (savepoint)" : "")), clock(one.at), span(one.took_ms),
        bar(parts(one), most, said(one)), span(one.alignment_ms), span(one.sync_ms), span(one.async_ms), bytes(one.state_bytes), bytes(one.channel_bytes)])),
    make("h2", {}, "Abandoned"),
    table("Newest first", ["epoch", "time", "why"], data.given_up.slice(0, 50).map((one) => [one.epoch, clock(one.at), one.reason + (one.detail ? ": " + one.detail : "")]), [2]),
  ];
}

function recoveries() {
  const most = Math.max(1, ...data.recoveries.map((one) => Math.max(0, ...PHASES.map((name) => one.marks[name] || 0))));
  const phases = (marks) => {
    let at = 0;
    return PHASES.map((name, place) => {
      const until = marks[name];
      if (until === null || until < at) return [HUES[place], 0];
      const took = until - at;
      at = until;
      return [HUES[place], took];
    });
  };
  const cost = data.cost;
  return [
    facts(["Recoveries", count(cost.recoveries), cost.recoveries ? "warn" : "good"], ["Without all of its state", span(cost.down_ms)],
      ["Work done again", span(cost.again_ms)], ["Oldest output at its commit", cost.oldest_ms === null ? "none" : span(cost.oldest_ms)],
      ["Uploaded in vain", bytes(cost.orphan_bytes)]),
    data.recoveries.slice(0, 1).map(plot),
    legend(PHASES, HUES),
    table("Recoveries, newest first: milliseconds after the failure was detected", ["time", "from epoch", "", ...PHASES, "first output"], data.recoveries.map((one) =>
      [clock(one.failed_at), one.epoch || "the beginning", bar(phases(one.marks), most, PHASES.map((name) => `${name} ${span(one.marks[name])}`).join(", ")),
        ...PHASES.map((name) => span(one.marks[name])), span(one.marks.first_output)])),
    make("h2", {}, "Who was lost, and what was done again"),
    table("Newest first", ["time", "work done again", "who was lost, and why"], data.recoveries.map((one) => [clock(one.failed_at), span(one.again_ms),
      make("pre", {}, [...new Set([...one.lost, ...one.failures].map(firstLine))].slice(0, 4).join("\n") || "not known")]), [2]),
    data.recoveries.slice(1, REPORT ? 20 : 5).map(plot),
    make("h2", {}, "Failures"),
    table("Newest first", ["time", "what", ""], data.failures.map((one) => [clock(one.at), one.cause, make("pre", {}, one.text)]), [1, 2]),
  ];
}
const firstLine = (text) => text.split("\n")[0];
function plot(one) {
  if (one.ages.length < 2) return null;
  const [left, right, top, bottom] = [70, 700, 12, 150], ages = one.ages;
  const from = Math.min(ages[0][0], one.failed_at), until = Math.max(ages[ages.length - 1][0], one.at);
  const most = Math.max(...ages.map((age) => age[2])) || 1, opened = one.failed_at + (one.marks.opened || 0) / 1000;
  const x = (at) => left + (right - left) * (at - from) / (until - from || 1), y = (ms) => bottom - (bottom - top) * ms / most;
  const line = (column, hue) => make("polyline", { points: ages.map((age) => `${x(age[0]).toFixed(1)},${y(age[column]).toFixed(1)}`).join(" "), fill: "none", stroke: hue, "stroke-width": 2 });
  const worst = ages.slice().sort((a, b) => b[2] - a[2])[0], calm = ages.filter((age) => age[0] < one.failed_at);
  const usual = calm.length ? Math.max(...calm.map((age) => age[2])) : null;
  const said = `Failure at ${clock(one.failed_at)}: output was ${span(worst[2])} old at its commit at worst, ` + (usual === null ? "and nothing was committed shortly before" : `${span(usual)} at most before`);
  return [make("p", {}, said), make("div", { class: "wide" }, make("svg", { width: 720, height: 178, role: "img", "aria-label": said },
    make("rect", { x: x(one.failed_at), y: top, width: Math.max(2, x(opened) - x(one.failed_at)), height: bottom - top, fill: "var(--blocked)", opacity: 0.25 }),
    make("line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--soft)" }), line(2, "var(--one)"), line(3, "var(--three)"),
    make("text", { x: 0, y: top + 8, class: "dim" }, span(most)), make("text", { x: 0, y: bottom, class: "dim" }, "0"),
    make("text", { x: left, y: bottom + 18, class: "dim" }, clock(from)), make("text", { x: right - 60, y: bottom + 18, class: "dim" }, clock(until)))),
    legend(["the oldest row of each epoch when it was committed", "the newest", "no partition, or not all, had its state"], ["var(--one)", "var(--three)", "var(--blocked)"])];
}

function state() {
  const rows = Object.entries(data.states).map(([uid, by]) => {
    const sizes = Object.values(by), all = sizes.reduce((a, b) => a + b, 0), most = Math.max(0, ...sizes);
    const where = Object.keys(by).find((one) => by[one] === most);
    return [uid, bytes(all), bytes(all / (sizes.length || 1)), `partition ${where}: ${bytes(most)}`];
  });
  const uids = Object.keys(data.states), numbers = [...new Set(uids.flatMap((uid) => Object.keys(data.states[uid])))].sort((a, b) => a - b).slice(0, 300);
  const most = Object.fromEntries(uids.map((uid) => [uid, Math.max(1, ...Object.values(data.states[uid]))]));
  return [
    table("Files that the newest complete epoch names", ["operator", "all partitions", "on average", "largest"], rows),
    make("h2", {}, "By partition"),
    table("", ["partition", ...uids], numbers.map((one) => ["partition " + one, ...uids.map((uid) => {
      const size = data.states[uid][one];
      return size === undefined ? "" : make("span", {}, bytes(size) + " ", bar([["var(--four)", size]], most[uid], percent(size / most[uid]) + " of the largest"));
    })])),
  ];
}

function savepoints() {
  if (!tree) { look(); return [make("p", { class: "soft" }, "Reading the job's tree.")]; }
  const pinned = tree.epochs.filter((one) => one.pins.length || one.kind === "savepoint"), others = tree.epochs.filter((one) => !pinned.includes(one));
  const listed = (title, found) => table(title, ["epoch", "taken", "kind", "state", "pinned by", "partitions", "size", "of its own", "files", "program", "made by", "problem"], found.slice(0, 300).map((one) =>
    [one.epoch, one.created_at === null ? "" : clock(one.created_at / 1000), one.kind || "", one.state, one.pins.join(", "), count(one.parallelism), bytes(one.full_bytes), bytes(one.new_bytes), count(one.files),
      one.program, one.origin ? `${one.origin.how} of ${one.origin.uri}` : "", one.problem ? make("span", { class: "bad" }, one.problem) : ""]), [2, 3, 4, 9, 10, 11]);
  return [
    tree.problem ? make("p", { class: "bad" }, tree.problem) : null,
    data.actions ? orders() : null,
    listed("Savepoints, newest first", pinned), make("h2", {}, "Other epochs in the tree"), listed("Newest first", others),
    make("p", { class: "soft" }, `They lie at ${tree.uri}.`),
  ];
}

function configuration() {
  return [
    facts(["Job", data.job], ["Scheme", data.scheme], ["Partitions", count(data.parallelism)], ["Generation, attempt", data.attempt || "none yet"]),
    table("Options; those that differ from their defaults come first", ["option", "value", ""],
      data.configuration.slice().sort((a, b) => b[2] - a[2]).map(([name, value, set]) => [name, value, set ? "set" : ""]), [1, 2]),
  ];
}

const VIEWS = { overview: ["Overview", overview], partitions: ["Partitions", partitions], epochs: ["Epochs", epochs],
  recoveries: ["Recoveries", recoveries], state: ["State", state], savepoints: ["Savepoints", savepoints], configuration: ["Configuration", configuration] };

// --- what the page may ask for, where it is allowed to --------------------------------------------------------------

function orders() {
  const button = (path, title) => make("button", { class: "order", onclick: () => {
    if (armed === path) { armed = null; order(path); } else { armed = path; answer = ""; }
    draw();
  } }, armed === path ? `Really: ${title.toLowerCase()}?` : title);
  return make("p", {}, button("/savepoint", "Take a savepoint"), " ", button("/stop", "Stop with a savepoint"), " ",
    make("span", { role: "status" }, answer));
}
async function order(path) {
  answer = "Asked for; this takes an epoch.";
  try {
    const said = await (await fetch(path, { method: "POST", headers: { "X-Epochcut": "page" } })).json();
    answer = said.done || "It was not done: " + said.problem;
  } catch (error) {
    answer = "It is not known whether it was done: " + error.message;
  }
  tree = null;
  draw();
}

// --- drawing and asking -------------------------------------------------------------------------------------------

function mood(state) {
  return { running: "good", finished: "good", failed: "bad", stopped: "soft" }[state] || "warn";
}
function current() {
  const name = location.hash.slice(1);
  return VIEWS[name] ? name : "overview";
}
function draw() {
  const name = current();
  document.getElementById("views").replaceChildren(...Object.entries(VIEWS).map(([one, [title]]) =>
    make("li", {}, make("a", { href: "#" + one, "aria-current": one === name ? "page" : null }, title))));
  if (REPORT) document.querySelector("nav").hidden = true;
  if (!data) return;
  document.title = `${data.job}: ${data.state}`;
  document.getElementById("job").textContent = data.job;
  document.getElementById("state").replaceChildren(make("span", { class: "badge " + mood(data.state) }, data.state));
  document.getElementById("about").textContent =
    [data.scheme, `${data.parallelism} partitions`, `complete epoch ${data.complete || "none"}, ${ago(data.completed_at)}`].filter(Boolean).join("; ");
  document.getElementById("source").textContent = data.told_by ? `As told by ${data.told_by}` : "";
  const view = document.getElementById("view"), scrolled = [...view.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  const focused = document.activeElement && view.contains(document.activeElement) ? document.activeElement.textContent : null;
  const drawn = REPORT ? Object.values(VIEWS).map(([title, draws]) => [make("h2", { class: "view" }, title), draws()]) : VIEWS[name][1]();
  view.replaceChildren(...drawn.flat(Infinity).filter((one) => one !== null && one !== undefined));
  view.querySelectorAll(".wide").forEach((one, place) => { one.scrollLeft = scrolled[place] || 0; });
  if (focused) [...view.querySelectorAll("button")].find((one) => one.textContent === focused)?.focus({ preventScroll: true });
}
async function ask() {
  const gone = document.getElementById("gone");
  try {
    const answer = await fetch("/data.json", { signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(answer.status === 401 ? "the driver wants a token: open the page with ?token=..." : "the driver says " + answer.status);
    const next = await answer.json();
    if (!data || next.partitions.some((one) => JSON.stringify(one.stages) !== JSON.stringify((data.partitions.find((old) => old.partition === one.partition) || {}).stages))) before = data;
    data = next;
    failures = 0;
    gone.hidden = true;
    if (!window.getSelection || String(window.getSelection()) === "") draw();
  } catch (error) {
    failures += 1;
    gone.hidden = false;
    gone.textContent = (data ? `No answer since ${clock(data.now)}; what is shown is of then. ` : "") + String(error.message || error) +
      ". The job has ended, or its driver is gone or busy; this page asks again.";
  }
  setTimeout(ask, document.hidden ? 10 * EVERY : Math.min(30, failures + 1) * EVERY);
}
async function look() {  // at the tree, which may be far
  if (look.under_way) return;
  look.under_way = true;
  try {
    tree = await (await fetch("/tree.json", { signal: AbortSignal.timeout(60000) })).json();
  } catch (error) {
    tree = { uri: "", epochs: [], problem: "The tree could not be read: " + error.message };
  }
  look.under_way = false;
  setTimeout(() => { if (current() === "savepoints" && !document.hidden) look(); else tree = null; }, 30 * EVERY);
  draw();
}
window.addEventListener("hashchange", draw);
draw();
if (!REPORT) ask();
