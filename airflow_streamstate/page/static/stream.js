// The page of one stream: what it is doing, its life, and what can be done with it.

import { eachSecond, partAddress, read, refresh } from "./api.js";
import { actButtons } from "./acts.js";
import { lineageChart, downtimeWords, handoverWaterfall, planChart, timelineChart, waterfall } from "./charts.js";
import { badge, ended, h, problem, put, putAttribute, table } from "./dom.js";
import { age, ageOf, bytes, count, duration, lag, rate, time } from "./format.js";

const REFRESH_SECONDS = 5;
const OLD_SECONDS = 2 * REFRESH_SECONDS;
const yes = (is) => (is ? "yes" : "");

/**
 * @param opened  what a link asks for: the deployment, upgrade, rehearsal and snapshot of one run; by default the
 *                current ones
 */
export function showStream(place, connId, streamId, me, opened = openedBy(window.location.search)) {
  place.name(`${streamId} · Streams`);
  const asked = { conn_id: connId, stream_id: streamId };
  const known = { status: null, timeline: null, upgrades: null, snapshots: null, read_at: null };

  const state = h("span", { class: "state" });
  const version = h("span", { class: "quiet" });
  const aged = h("span", { class: "quiet", id: "aged" });
  const owned = h("span", { class: "owned" });
  const acts = h("div", { class: "acts", role: "group", "aria-label": "Act on this stream" });
  const link = h("p", { class: "note", id: "opened", hidden: true });
  const notes = h("div", { class: "notes" }, h("p", { class: "quiet loading" }, "Reading the stream…"));
  const tiles = h("dl", { class: "tiles" });
  const back = h("a", { href: place.streams }, "Streams");
  place.view.replaceChildren(h("nav", { "aria-label": "Place" }, back), h("header", { class: "top" }, h("h1", {}, streamId), state, version, aged, owned, acts), link, notes, tiles);

  const tabs = [];
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of this stream" });
  const panels = h("div", { class: "panels" });
  function addTab(id, title, make) {
    const panel = h("section", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, tabindex: "0", hidden: true });
    const tab = h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`, "aria-selected": "false", tabindex: "-1", onclick: () => choose(id) }, title);
    list.append(tab);
    panels.append(panel);
    tabs.push({ id, tab, panel, look: make(panel) });
  }
  const shown = () => tabs.find((one) => one.id === window.location.hash.slice(1)) ?? tabs[0];
  function choose(id, focuses = false) {
    place.keep({ hash: id });
    for (const one of tabs) {
      const is = one === shown();
      one.panel.hidden = !is;
      putAttribute(one.tab, "aria-selected", is);
      putAttribute(one.tab, "tabindex", is ? "0" : "-1");
      if (is && focuses) one.tab.focus();
    }
    void lookAtTab();
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose(tabs[(tabs.indexOf(shown()) + step + tabs.length) % tabs.length].id, true);
  });

  async function lookAtTab() {
    const { panel, look } = shown();
    const isLate = setTimeout(() => panel.setAttribute("aria-busy", "true"), 300);
    try {
      await look();
      panel.querySelector(":scope > .problem")?.remove();
    } catch (error) {
      panel.querySelector(":scope > .problem")?.remove();
      panel.prepend(problem(error));
    } finally {
      clearTimeout(isLate);
      panel.removeAttribute("aria-busy");
      panel.dataset.read = "true";
    }
  }

  /** The upgrade that a link asks for, as soon as it is read. */
  async function openedUpgrade() {
    if (!opened.upgrade) return null;
    const isIn = (found) => found?.upgrades.some((one) => one.upgrade_id === opened.upgrade);
    if (!isIn(known.upgrades)) known.upgrades = await read("upgrades", { ...asked, upgrade_id: opened.upgrade });
    return known.upgrades.upgrades.find((one) => one.upgrade_id === opened.upgrade) ?? null;
  }

  /** The deployment that a link asks for: by its id, or as the one in which an upgrade ended; "": not set. */
  async function openedDeployment() {
    if (opened.deployment) return opened.deployment;
    const upgrade = await openedUpgrade();
    return upgrade?.returned_deployment_id ?? upgrade?.new_deployment_id ?? upgrade?.old_deployment_id ?? "";
  }

  async function showOpened() {
    const parts = [opened.deployment, opened.upgrade, opened.plan && `the plan ${opened.plan}`, opened.snapshot].filter(Boolean);
    link.hidden = !parts.length;
    if (!parts.length) return;
    const deployment = await openedDeployment();
    const isCurrent = !deployment || deployment === known.status.deployment_id;
    const now = isCurrent ? "" : ` The state above is that of ${known.status.deployment_id}, which runs the stream since.`;
    if (link.firstChild) put(link.firstChild, `Opened at ${parts.join(", ")}.${now} `);
    else link.append(`Opened at ${parts.join(", ")}.${now} `, h("button", { type: "button", class: "link", onclick: () => leaveOpened() }, "Show the current ones"));
  }

  function leaveOpened() {
    const query = new URLSearchParams(window.location.search);
    for (const name of Object.keys(opened)) { delete opened[name]; query.delete(name); }
    place.keep({ search: query.toString() });
    for (const one of tabs) one.panel.dispatchEvent(new CustomEvent("current"));
    link.hidden = true;
    void lookAtTab();
  }

  /** Which deployment a panel shows; the current one where none is chosen, and no link asks for one. */
  function deploymentChoice(panel, what) {
    const choice = h("select", { "aria-label": `Deployment of the ${what}`, onchange: () => { isChosen = true; void lookAtTab(); } });
    let isChosen = false;
    panel.append(h("p", {}, h("label", {}, "Deployment ", choice)));
    panel.addEventListener("current", () => { choice.value = ""; isChosen = true; });
    return async () => {
      known.timeline ??= await read("timeline", asked);
      const wanted = isChosen ? "" : await openedDeployment();
      const ids = known.timeline.deployments.map((one) => [one.deployment_id, one.version]).reverse();
      if (wanted && !ids.some(([id]) => id === wanted)) ids.push([wanted, ""]); // an old one
      const text = JSON.stringify(ids);
      if (choice.dataset.of !== text) {
        const value = wanted || choice.value;
        choice.dataset.of = text;
        choice.replaceChildren(h("option", { value: "" }, "the current one"), ...ids.map(([id, name]) => h("option", { value: id }, `${id} ${name}`.trim())));
        choice.value = ids.some(([id]) => id === value) ? value : "";
      }
      if (wanted) choice.value = wanted;
      return choice.value ? { deployment_id: choice.value } : {};
    };
  }

  /** A panel that is drawn again only where its data differ. */
  const drawn = (part, draw, what = null, also = async () => ({})) => (panel) => {
    const chosen = what === null ? async () => ({}) : deploymentChoice(panel, what);
    const more = async () => ({ ...await chosen(), ...await also() });
    const content = h("div", { class: "content" }, h("p", { class: "quiet loading" }, "Reading…"));
    panel.append(content);
    let before = null;
    return async () => {
      const found = await read(part, { ...asked, ...await more() });
      const text = JSON.stringify(found);
      if (text === before) return;
      before = text;
      known[part] = found;
      content.replaceChildren(...draw(found).flat(Infinity).filter(Boolean));
    };
  };

  addTab("overview", "Overview", (panel) => {
    const queries = h("div", {});
    const chart = timelineChart();
    const reading = h("p", { class: "quiet loading" }, "Reading the timeline…");
    panel.append(h("h2", {}, "Timeline"), reading, chart.node, h("h2", {}, "Queries"), queries);
    chart.node.hidden = true;
    let before = "";
    let isShown = false;
    return async () => {
      const found = await read("timeline", asked);
      const deployment = await openedDeployment();
      reading.remove();
      chart.node.hidden = false;
      if (!isShown || known.timeline?.now !== found.now) chart.show(found, deployment);
      isShown = true;
      known.timeline = found;
      const text = JSON.stringify(known.status?.queries ?? null);
      if (text !== before) queries.replaceChildren(queriesTable(known.status));
      before = text;
    };
  });
  const ofUpgrade = async () => (opened.upgrade ? { upgrade_id: opened.upgrade } : {});
  addTab("upgrades", "Upgrades", drawn("upgrades", (found) => upgradesView(found, opened.upgrade), null, ofUpgrade));
  addTab("plan", "Plan", (panel) => {
    let isChosen = false;
    panel.addEventListener("change", () => { isChosen = true; }, true);
    // A version that never ran has a plan all the same: that of its rehearsal.
    return drawn("plan", (found) => planView(found), "plan", async () => {
      if (isChosen) return {};
      if (opened.plan) return { rehearsal_id: opened.plan };
      const upgrade = await openedUpgrade();
      return upgrade && !upgrade.new_deployment_id && upgrade.rehearsal_id ? { rehearsal_id: upgrade.rehearsal_id } : {};
    })(panel);
  });
  addTab("snapshots", "Snapshots", drawn("snapshots", (found) => snapshotsView(found, opened.snapshot)));
  addTab("lineage", "Lineage", drawn("lineage", (found) => lineageView(found)));
  addTab("replay", "Replay", drawn("replay", (found) => replayView(found)));
  addTab("log", "Driver log", (panel) => {
    const text = h("pre", { class: "log", tabindex: "0", "aria-label": "End of the driver's log" });
    const told = h("p", { class: "quiet loading" }, "Reading…");
    const more = deploymentChoice(panel, "log");
    panel.append(told, text);
    return async () => {
      const found = await read("log", { ...asked, ...await more() });
      told.classList.remove("loading");
      const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 20;
      put(told, `${found.deployment_id} attempt ${found.attempt}, its end; secrets are hidden`);
      put(text, found.log || "The driver has written nothing yet.");
      if (isAtEnd) text.scrollTop = text.scrollHeight;
    };
  });
  addTab("stream_events", "Events", drawn("stream_events", (found) => [found.events.length ? table("Stream events", [
    { title: "At", cell: (one) => (one.at ? time(one.at) : "now") },
    { title: "Event", isHead: true, cell: (one) => one.kind },
    { title: "Deployment", cell: (one) => one.deployment_id },
    { title: "What happened", cell: (one) => one.text },
  ], found.events) : h("p", { class: "empty" }, "Nothing has happened to this stream yet.")]));
  addTab("events", "Journal", drawn("events", (found) => [found.events.length ? table("Events", [
    { title: "#", number: true, cell: (one) => count(one.number) },
    { title: "At", cell: (one) => time(one.at) },
    { title: "Attempt", number: true, cell: (one) => count(one.attempt) },
    { title: "Event", isHead: true, cell: (one) => one.kind },
    { title: "Facts", cell: (one) => Object.entries(one.facts).map(([name, value]) => h("span", { class: "fact" }, h("b", {}, `${name} `), value)) },
  ], found.events) : h("p", { class: "empty" }, "No events yet.")], "events"));
  place.view.append(list, panels);

  const refreshed = refresh(async () => {
    try {
      const status = await read("stream", asked);
      Object.assign(known, { status, read_at: Date.now() });
      showAge();
      await showOpened().catch(() => null); // the parts themselves say what is wrong
      put(state, status.state);
      putAttribute(state, "data-state", status.state);
      put(version, [status.version_label || status.application, status.deployment_id, `attempt ${status.attempt}`].filter(Boolean).join(" · "));
      showOwned(status);
      showNotes(status);
      showTiles(status);
      if (!acts.childElementCount) acts.replaceChildren(...await actButtons(place, connId, streamId, known, me, () => { void refreshed.now(); }));
      acts.dispatchEvent(new CustomEvent("known"));
      for (const button of acts.children) button.dispatchEvent(new CustomEvent("known"));
      list.hidden = panels.hidden = false;
      await lookAtTab();
    } catch (error) {
      notes.replaceChildren(problem(error), error.status === 404 || error.status === 400 ? h("p", {}, h("a", { href: place.streams }, "All streams")) : "");
      notes.dataset.of = "";
      place.say(error.message);
      if (!known.status) list.hidden = panels.hidden = true;
    }
  }, REFRESH_SECONDS, place.signal);
  eachSecond(showAge, place.signal);
  place.moved(() => choose(shown().id));
  list.hidden = panels.hidden = true;
  choose(shown().id);

  /** What is shown ages where no answer comes, and while nobody looks. */
  function showAge() {
    const seconds = known.read_at === null ? 0 : Math.floor((Date.now() - known.read_at) / 1000);
    const isOld = seconds > OLD_SECONDS;
    putAttribute(place.view, "data-old", isOld || null);
    put(aged, isOld ? `as of ${age(seconds)}` : "");
  }

  function showOwned(status) {
    const text = JSON.stringify([status.owner, status.labels]);
    if (owned.dataset.of === text) return;
    owned.dataset.of = text;
    owned.replaceChildren(...[status.owner && h("span", {}, `owner ${status.owner}`),
      ...Object.entries(status.labels).map(([name, value]) => h("span", { class: "label" }, `${name}=${value}`))].filter(Boolean));
  }

  function showNotes(status) {
    const bad = ["failed", "degraded", "lost", "silent", "unreadable"].includes(status.state);
    const said = [
      status.upgrade && ["", status.upgrade],
      (status.error || bad) && ["bad", status.error || status.why],
      status.next_step && ["", status.next_step],
      status.restarts && ["", restartWords(status.restarts)],
      status.intent && ["", `deploying ${status.intent}`],
      status.stop_reason && ["", status.stop_reason],
      status.repeats && ["", status.repeats],
      ...status.orders.map((order) => ["", `${order.verb} of ${order.requested_by}: ${order.why}`]),
      ...Object.entries(status.remarks).flatMap(([name, remarks]) => remarks.map((one) => ["", one.startsWith(`query ${name} `) ? one : `query ${name}: ${one}`])),
    ].filter(Boolean);
    const text = JSON.stringify(said);
    if (notes.dataset.of === text) return;
    notes.dataset.of = text;
    notes.replaceChildren(...said.map(([kind, words]) => h("p", { class: `note ${kind}` }, words)));
  }

  const shownTiles = new Map();
  function showTiles(status) {
    const queries = Object.values(status.queries);
    const rows = queries.reduce((sum, one) => sum + (one.state_rows ?? 0), 0);
    const slowest = Math.max(...queries.map((one) => one.batch_seconds ?? -1));
    const tile = {
      Lag: lag(status.lags) || "-",
      "Watermark delay": duration(status.watermark_delay_seconds) || "-",
      "Batch time": slowest < 0 ? "-" : duration(slowest),
      "State rows": queries.some((one) => one.state_rows !== null) ? count(rows) : "-",
      "Last snapshot": age(status.snapshot_age_seconds) || "-",
      Heartbeat: age(status.heartbeat_age_seconds) || "-",
      Restarts: count(Math.max(status.attempt - 1, 0)),
    };
    for (const [name, value] of Object.entries(tile)) {
      if (!shownTiles.has(name)) {
        const cell = h("dd", {});
        shownTiles.set(name, cell);
        tiles.append(h("div", {}, h("dt", {}, name), cell));
      }
      put(shownTiles.get(name), value);
    }
    for (const [name, link] of Object.entries(status.links)) {
      // Without an address the page is made for the user who opens it.
      const address = link || partAddress("open", { ...asked, deployment_id: status.deployment_id, page: name });
      if (shownTiles.has(name) || !/^https?:/.test(address)) continue;
      shownTiles.set(name, null);
      tiles.append(h("div", {}, h("dt", {}, name), h("dd", {}, h("a", { href: address, target: "_blank", rel: "noreferrer" }, "open"))));
    }
  }
}

function queriesTable(status) {
  const rows = Object.entries(status?.queries ?? {});
  if (!rows.length) return h("p", { class: "empty" }, "No query has started yet.");
  return table("Queries", [
    { title: "Query", isHead: true, cell: ([name]) => name },
    { title: "", cell: ([, one]) => (one.error ? badge("failed") : one.is_active ? badge("running") : "") },
    { title: "Batch", number: true, cell: ([, one]) => count(one.batch_id) },
    { title: "Input", number: true, cell: ([, one]) => rate(one.input_rows_per_second) },
    { title: "Processed", number: true, cell: ([, one]) => rate(one.processed_rows_per_second) },
    { title: "Batch time", number: true, cell: ([, one]) => duration(one.batch_seconds) },
    { title: "Behind", cell: ([, one]) => one.behind ?? "" },
    { title: "Watermark", cell: ([, one]) => (one.watermark_at?.startsWith("1970") ? "none yet" : time(one.watermark_at)) },
    { title: "State rows", number: true, cell: ([, one]) => count(one.state_rows) },
    { title: "Since the snapshot", cell: ([, one]) => one.since_snapshot ?? "" },
    { title: "Problem", cell: ([, one]) => one.error },
  ], rows);
}

/** The parts of a link, by the names in its address. */
export function openedBy(search) {
  const query = new URLSearchParams(search);
  const parts = ["deployment", "upgrade", "plan", "snapshot"].map((name) => [name, query.get(name)]);
  return Object.fromEntries(parts.filter(([, value]) => value));
}

/** The restart policy, which is one word until it has done something. */
function restartWords(text) {
  if (text.startsWith("abandoned: ")) return text.replace("abandoned: ", "not restarted any more: ");
  return text.replace(/^restart(?=$|:)/, "restarts on failure").replace(/^alert(?=$|:)/, "alerts on failure, and is not restarted");
}

function snapshotsView(found, opened) {
  const most = Math.max(...found.snapshots.map((one) => one.bytes), 1);
  const sized = (one) => {
    const bar = h("span", { class: "size" });
    bar.style.width = `${(72 * one.bytes) / most}px`;
    return [bar, bytes(one.bytes)];
  };
  return [
    found.unreadable.map((id) => h("p", { class: "note bad" }, `${id} cannot be read; streamstate snapshot verify shows why.`)),
    found.snapshots.length ? table("Snapshots", [
      { title: "Snapshot", isHead: true, cell: (one) => (one.snapshot_id === opened ? h("mark", {}, one.snapshot_id) : one.snapshot_id) },
      { title: "Kind", cell: (one) => one.kind },
      { title: "Taken", cell: (one) => h("time", { datetime: one.taken_at, title: time(one.taken_at) }, ageOf(one.taken_at)) },
      { title: "Size", number: true, cell: sized },
      { title: "Shared", number: true, cell: (one) => bytes(one.shared_bytes) },
      { title: "Files", number: true, cell: (one) => count(one.files) },
      { title: "Batches", cell: (one) => Object.entries(one.batches).map(([name, batch]) => `${name} ${batch ?? "-"}`).join(", ") },
      { title: "Pinned", cell: (one) => yes(one.is_pinned) },
      { title: "Known good", cell: (one) => yes(one.is_known_good) },
    ], found.snapshots) : h("p", { class: "empty" }, "No complete snapshot yet."),
  ];
}

function planView(found) {
  if (!found.queries.length) return [h("p", { class: "empty" }, "No plan is recorded yet: a driver records it when it starts a query.")];
  return [
    h("p", {}, found.before ? [`${found.rehearsal_id ? `the plan ${found.rehearsal_id}` : found.deployment_id} compared with ${found.before}: `, h("strong", {}, found.verdict ?? "not comparable")] : `${found.deployment_id}, the first version`),
    found.rehearsal_id && !found.queries.length && h("p", { class: "quiet" }, "Its plans are not kept any more."),
    found.queries.map((one) => [
      h("h2", {}, one.query, " ", one.verdict && h("span", { class: "verdict", "data-verdict": one.verdict }, one.verdict)),
      h("p", { class: "quiet" }, one.is_gone ? "not started any more" : `${one.output_mode}, trigger ${one.trigger}, into ${one.sink}`),
      one.differences.length > 0 && h("ul", { class: "differences" }, one.differences.map((each) => h("li", {},
        h("span", { class: "verdict", "data-verdict": each.verdict }, each.verdict), " ", h("code", {}, each.code), ` ${ended(each.reason)} `, h("span", { class: "quiet" }, each.remedy)))),
      one.nodes.length > 0 && planChart(one.query, one.nodes),
    ]),
  ];
}

function lineageView(found) {
  return [
    h("p", { class: `note ${found.ok ? "good" : "bad"}` }, !found.ok ? "The lineage is not complete."
      : found.settled || found.deployments.some((one) => Object.keys(one.queries).length > 0) ? "Every deployment started exactly where its predecessor ended."
        : "No query has run yet, so there is nothing to compare."),
    found.unread.map((words) => h("p", { class: "note bad" }, `not read: ${words}`)),
    lineageChart(found),
    found.not_running.length > 0 && [h("h2", {}, "No query ran"), table("No query ran", [
      { title: "After", isHead: true, cell: (one) => one.after },
      { title: "Until", cell: (one) => one.before || "now" },
      { title: "For", number: true, cell: (one) => (one.seconds === null ? "" : `${one.at_most ? "at most " : ""}${duration(one.seconds)}`) },
      { title: "", cell: (one) => (one.between_runs ? "between two runs of its trigger" : "") },
    ], found.not_running.slice().reverse())],
  ];
}

function upgradesView(found, opened) {
  if (!found.upgrades.length) return [h("p", { class: "empty" }, "This stream was never upgraded or rolled back.")];
  const first = found.upgrades.filter((one) => one.upgrade_id === opened);
  return [...first, ...found.upgrades.filter((one) => !first.includes(one))].map((one, at) => h("details", { class: "upgrade", open: at === 0, "data-upgrade": one.upgrade_id },
    h("summary", {}, h("strong", {}, `${one.asked} `), badge(one.outcome ?? one.phase), ` ${time(one.created_at)} by ${one.requested_by}`,
      one.downtimes.length > 0 && h("span", { class: "quiet" }, ` · ${upgradeDowntime(one)}`)),
    h("p", { class: "quiet" }, one.upgrade_id),
    h("p", {}, [one.old_deployment_id, one.new_deployment_id, one.returned_deployment_id].filter(Boolean).join(" → "), one.mode && ` · ${one.mode}`, one.verdict && [" · ", h("span", { class: "verdict", "data-verdict": one.verdict }, one.verdict)]),
    one.asked_reason && h("p", { class: "quiet" }, one.asked_reason),
    one.reason && h("p", { class: "note" }, one.reason),
    one.warnings.map((words) => h("p", { class: "note" }, words)),
    one.differences.length > 0 && h("ul", { class: "differences" }, one.differences.map((each) => h("li", {}, h("code", {}, each.code), ` ${each.query}: ${ended(each.reason)} `, h("span", { class: "quiet" }, each.remedy)))),
    h("h3", {}, "Phases"),
    waterfall("Phases of the upgrade", phaseBars(one.steps)),
    one.downtimes.filter((down) => down.waterfall.length > 1).map((down) => [h("h3", {}, `Handover of ${down.query}: ${downtimeWords(down)}`), handoverWaterfall(down, found.phases)])));
}

/** The downtime, and the time in which there was nothing to commit. */
function upgradeDowntime(one) {
  const idle = Math.max(...one.downtimes.map((down) => down.idle_seconds));
  const ran = idle > 0 ? `, and ${duration(idle)} with nothing to commit` : "";
  return one.seconds === null ? "no new batch yet" : `${duration(one.seconds)} down${ran}`;
}

function phaseBars(steps) {
  let from = 0;
  return steps.map((step) => {
    const bar = { name: step.words, from, seconds: step.seconds, kind: step.phase, title: [step.phase, time(step.at), step.text].filter(Boolean).join(", ") };
    from += step.seconds;
    return bar;
  });
}

function replayView(found) {
  if (!found.replay) return [h("p", { class: "empty" }, "No batch of this stream was replayed; a plan with replay_batches, or streamstate replay, does.")];
  const { replay } = found;
  return [
    h("p", {}, `${replay.replay_id} of ${replay.deployment_id}: `, badge(replay.outcome), ` in ${duration(replay.seconds)}`, found.speed && h("span", { class: "quiet" }, ` · ${found.speed}`)),
    replay.error && h("p", { class: "note bad" }, replay.error),
    replay.notes.map((words) => h("p", { class: "note" }, words)),
    found.rows.length > 0
      ? table("Batches in both versions", found.columns.map((title, at) => ({ title, isHead: at === 0, number: at > 0, cell: (row) => row[at] })), found.rows)
      : table("Batches", [
        { title: "Query", isHead: true, cell: ([name]) => name },
        { title: "Batch", number: true, cell: ([, one]) => count(one.batch_id) },
        { title: "Rows in", number: true, cell: ([, one]) => count(one.rows_in) },
        { title: "Rows out", number: true, cell: ([, one]) => count(one.rows_out) },
        { title: "Took", number: true, cell: ([, one]) => duration(one.seconds) },
        { title: "Problem", cell: ([, one]) => one.error },
      ], Object.entries(replay.queries).flatMap(([name, query]) => query.batches.map((one) => [name, one]))),
    Object.entries(found.samples).map(([title, sample]) => [h("h3", {}, title),
      table(title, sample.columns.map((name, at) => ({ title: name, isHead: at === 0, cell: (row) => row[at] })), sample.rows)]),
  ];
}

