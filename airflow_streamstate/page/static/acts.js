// What can be done: each act is a run of a DAG of the signed-in user, by Airflow's public API. There is no other way.

import { airflow, airflowPage, read } from "./api.js";
import { ended, h, problem, put } from "./dom.js";
import { age, bytes, counted, duration } from "./format.js";

const RUNS = ["running", "launching", "degraded"];
const SILENT = "its driver is silent and would not obey: `streamstate kill` ends it";
const LOOK_MILLIS = 1500;

/** Why a verb is refused that would move a stream which an upgrade holds; "" where none holds it. */
const held = ({ status }) => (status.upgrade && status.upgrade_hold !== "gone" ? "an upgrade holds the stream: continue it, or cancel it" : "");

const lastDowntimes = (known) => (known.upgrades?.upgrades ?? []).map((one) => one.seconds).filter((seconds) => seconds !== null).slice(0, 5);
const stateRows = (known) => Object.values(known.status.queries).reduce((sum, one) => sum + (one.state_rows ?? 0), 0);

function expected(known) {
  const last = lastDowntimes(known);
  if (!last.length) return "How long the stream will commit nothing is not known: no upgrade of it was measured yet.";
  return `The stream commits nothing for about ${duration(Math.max(...last))}: ${last.length === 1 ? "the last upgrade took" : "the last upgrades took"} ${last.map(duration).join(", ")}.`;
}

/** By act: its words, when it can be asked for, and what will happen. */
export const ACTS = {
  snapshot: {
    title: "Snapshot", verb: "Take a snapshot",
    why: (known) => (RUNS.includes(known.status.state) ? "" : known.status.state === "silent" ? SILENT : "only a stream that runs can be asked for one"),
    happens: (known) => [
      "The stream runs on. Its state is kept as of a committed batch.",
      known.snapshots?.snapshots.length ? `The last one has ${bytes(known.snapshots.snapshots[0].bytes)}, and was taken ${age(known.status.snapshot_age_seconds)}.` : "It is the first one.",
    ],
  },
  stop: {
    title: "Stop", verb: "Stop the stream",
    why: (known) => held(known) || (RUNS.includes(known.status.state) ? "" : known.status.state === "silent" ? SILENT : "it does not run"),
    happens: (known) => [
      "The batch in flight is committed, then the driver ends. No row is lost, doubled or written early.",
      `The state (${counted(stateRows(known), "rows")}) is kept in a snapshot.`,
      "Nothing is read until somebody resumes or deploys the stream.",
    ],
  },
  drain: {
    title: "Drain", verb: "Drain the stream", isGrave: true,
    why: (known) => held(known) || (RUNS.includes(known.status.state) || ["stopped", "failed", "finished"].includes(known.status.state) ? "" : known.status.state === "silent" ? SILENT : "it cannot be drained now"),
    happens: (known) => [
      stateRows(known) ? `Up to ${counted(stateRows(known), "rows")} of state are written now: windows that are still open come out early, with what has arrived so far.` : "As far as is known no state is kept, so nothing comes out early.",
      "The driver first tries this on a copy of the state, and refuses where state would be left.",
      "Then it ends. The next version starts at the next row, with empty state.",
    ],
  },
  resume: {
    title: "Resume", verb: "Resume the stream",
    why: (known) => held(known) || (["stopped", "failed", "lost", "finished", "fenced"].includes(known.status.state) ? "" : known.status.state === "silent" ? SILENT : "it runs, or was drained"),
    happens: (known) => [
      `Attempt ${known.status.attempt + 1} of ${known.status.deployment_id} starts, with its recorded code, on its own checkpoints.`,
      known.status.state === "lost" ? "Nobody knows whether the old driver still runs. Airflow's task refuses then, unless the driver is known to be dead." : "A batch that was cut off runs again over the same rows.",
    ],
  },
  rollback: {
    title: "Roll back", verb: "Roll back to the version before", isGrave: true,
    why: (known) => held(known) || (known.status.start.predecessor_id ? "" : "there is no version before"),
    happens: (known) => [
      `The version before (${known.status.start.predecessor_id}) runs again, without a lost or doubled row, or nothing is touched.`,
      expected(known),
    ],
  },
  answer: {
    title: "Answer upgrade", verb: "Approve or reject the plan",
    why: (known) => (awaiting(known) ? "" : "no upgrade waits for an approval"),
    happens: (known) => {
      const one = awaiting(known);
      return [
        `${one.asked} ${one.upgrade_id} by ${one.requested_by}: ${one.verdict ? `the verdict is ${one.verdict}` : "the plan is not known yet"}.`,
        ...one.differences.map((each) => `${each.query}: ${ended(each.reason)} ${each.remedy}`),
        expected(known),
        ...(one.approved_by_another ? ["Another person than the one who asked has to approve it."] : []),
        "A rejection changes nothing: the stream runs on.",
      ];
    },
  },
  continue: {
    title: "Continue upgrade", verb: "Continue the upgrade", isOfUpgrade: true,
    why: (known) => (!known.status.upgrade ? "no upgrade is under way" : known.status.upgrade_hold === "waiting" ? "it waits for an approval" : ""),
    happens: (known) => [
      `${known.status.upgrade}.`,
      "It continues from its last recorded step, until a version is healthy or the old one is back. A task or shell that still drives it is not in the way.",
      expected(known),
    ],
  },
  cancel: {
    title: "Cancel upgrade", verb: "Give the upgrade up", isOfUpgrade: true, isGrave: true,
    why: (known) => (known.status.upgrade ? "" : "no upgrade is under way"),
    happens: (known) => [
      `${known.status.upgrade}.`,
      ["moving", "abandoned"].includes(known.status.upgrade_hold)
        ? "If the old version was already ordered to stop, it is brought back, without a lost or doubled row; else nothing has happened, and the stream runs on."
        : "Nothing of the stream was touched yet, so it runs on as it is.",
    ],
  },
};

const awaiting = (known) => known.upgrades?.upgrades.find((one) => one.awaits_approval);
const underWay = (known) => known.upgrades?.upgrades.find((one) => one.outcome === null);

export async function actButtons(place, connId, streamId, known, me, refresh) {
  let rights = {};
  try { rights = (await me).acts; } catch { /* the buttons say that it is not allowed */ }
  return Object.entries(ACTS).map(([name, act]) => {
    const button = h("button", { type: "button", class: act.isGrave ? "grave" : "", "data-act": name, hidden: name === "answer", onclick: () => {
      if (button.getAttribute("aria-disabled") === "true") place.say(button.title);
      else void ask(name, act);
    } }, act.title);
    const show = async () => {
      if (name === "answer" && known.status.upgrade) known.upgrades = await read("upgrades", { conn_id: connId, stream_id: streamId }).catch(() => known.upgrades);
      const why = rights[name]?.is_allowed ? act.why(known) : `you have no right to run the DAG ${rights[name]?.dag_id ?? ""}`;
      button.title = why ? `${act.verb}: ${why}` : act.verb;
      button.setAttribute("aria-disabled", why !== "");
      button.hidden = (name === "answer" && !awaiting(known)) || (act.isOfUpgrade === true && !known.status.upgrade);
    };
    button.addEventListener("known", show);
    void show();
    return button;
  });

  async function ask(name, act) {
    const asked = { conn_id: connId, stream_id: streamId };
    const [upgrades, snapshots] = await Promise.all([read("upgrades", asked).catch(() => null), read("snapshots", asked).catch(() => null)]);
    Object.assign(known, { upgrades: upgrades ?? known.upgrades, snapshots: snapshots ?? known.snapshots });
    const { dag_id: dagId } = rights[name];
    const reason = h("input", { type: "text", id: "reason", maxlength: "500", autocomplete: "off" });
    const told = h("div", { class: "told", "aria-live": "polite" });
    const close = h("button", { type: "button", onclick: () => dialog.close() }, act.isOfUpgrade ? "Not now" : "Cancel");
    const buttons = name === "answer"
      ? [h("button", { type: "button", class: "main", onclick: () => run({ approve: true }) }, "Approve"), h("button", { type: "button", class: "grave", onclick: () => run({ approve: false }) }, "Reject")]
      : [h("button", { type: "button", class: act.isGrave ? "grave" : "main", onclick: () => run({}) }, act.verb)];
    const dialog = h("dialog", { "aria-labelledby": "asked", onclose: () => dialog.remove() },
      h("h2", { id: "asked" }, `${act.verb}: ${streamId}?`),
      h("ul", {}, act.happens(known).map((words) => h("li", {}, words))),
      h("p", { class: "quiet" }, "Runs the DAG ", h("code", {}, dagId), " as you."),
      h("label", { for: "reason" }, "Why (kept with the record)"), reason, told, h("div", { class: "buttons" }, close, buttons));
    place.page.append(dialog);
    dialog.showModal();

    async function run(more) {
      for (const button of buttons) button.disabled = true;
      const conf = { stream_id: streamId, conn_id: connId, reason: reason.value, ...more };
      if (name === "answer") conf.upgrade_id = awaiting(known).upgrade_id;
      if (act.isOfUpgrade) conf.upgrade_id = underWay(known)?.upgrade_id ?? known.status.upgrade.split(" ")[0];
      try {
        const dag = await airflow("GET", `dags/${dagId}`);
        const begun = await airflow("POST", `dags/${dagId}/dagRuns`, { logical_date: null, conf });
        put(close, "Close");
        await watch(begun.dag_run_id, dag.is_paused);
      } catch (error) {
        if (error.status === 404) error.next_step = `This Airflow has no DAG ${dagId}: put act_on_stream.py in its folder of DAGs.`;
        if (error.status === 403) error.next_step = `Ask an administrator of Airflow for the right to run the DAG ${dagId}.`;
        told.replaceChildren(problem(error));
        for (const button of buttons) button.disabled = false;
      }
    }

    async function watch(runId, isPaused) {
      const runPage = `dags/${dagId}/runs/${encodeURIComponent(runId)}`;
      const link = h("a", { href: airflowPage(runPage) }, "its run");
      const words = h("span", {}, "queued");
      told.replaceChildren(h("p", { class: "note" }, words, " · ", link), isPaused ? h("p", { class: "note bad" }, `The DAG ${dagId} is paused: the run starts when somebody unpauses it.`) : "");
      for (;;) {
        const { state } = await airflow("GET", `dags/${dagId}/dagRuns/${encodeURIComponent(runId)}`);
        put(words, { success: "Done", failed: "It failed; the log of the task shows why" }[state] ?? state);
        words.dataset.state = state;
        refresh();
        if (["success", "failed"].includes(state)) {
          if (state === "failed") told.append(h("p", { class: "note bad" }, await whyFailed(dagId, runId)));
          place.say(words.textContent);
          return;
        }
        if (!dialog.isConnected) return;
        await new Promise((done) => { setTimeout(done, LOOK_MILLIS); });
      }
    }
  }
}

/** The last error in the log of the task that failed; "" where there is none to be read. */
async function whyFailed(dagId, runId) {
  const run = `dags/${dagId}/dagRuns/${encodeURIComponent(runId)}/taskInstances`;
  try {
    const { task_instances: tasks } = await airflow("GET", run);
    const failed = tasks.find((task) => task.state === "failed");
    const { content } = await airflow("GET", `${run}/${encodeURIComponent(failed.task_id)}/logs/${failed.try_number}?full_content=true`);
    const lines = content.filter((line) => line.level === "error");
    return lines.flatMap((line) => line.error_detail ?? []).map((detail) => detail.exc_value).find(Boolean) ?? lines.at(-1)?.event ?? "";
  } catch {
    return "";
  }
}
