// Reads of this page, and calls of Airflow's public API as the signed-in user, by the user's own cookie.

export const ROOT = new URL("..", import.meta.url);
export const AIRFLOW = new URL("..", ROOT);

export class Refused extends Error {
  constructor(status, told) {
    super(told.message);
    this.status = status;
    this.context = told.context;
    this.next_step = told.next_step;
  }
}

const MOST_MILLIS = 30_000; // a connection that a sleeping machine has lost may never end

async function answered(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", signal: AbortSignal.timeout(MOST_MILLIS), ...options });
  } catch {
    throw new Refused(0, { message: "Airflow does not answer", next_step: "The page continues as soon as it does." });
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  if (body?.error) throw new Refused(response.status, body.error);
  const detail = typeof body?.detail === "string" ? body.detail : `Airflow answered ${response.status}`;
  throw new Refused(response.status, { message: detail });
}

/** The address of a part of this page. */
export function partAddress(part, parameters = {}) {
  const address = new URL(`api/${part}`, ROOT);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) address.searchParams.set(name, value);
  }
  return address.href;
}

export const read = (part, parameters) => answered(partAddress(part, parameters), {});

export const airflow = (method, path, body) => answered(new URL(`api/v2/${path}`, AIRFLOW), {
  method,
  headers: { "Content-Type": "application/json", Accept: "application/json" },
  body: body === undefined ? undefined : JSON.stringify(body),
});

/** The address of a page of Airflow. */
export const airflowPage = (path) => new URL(path, AIRFLOW).href;

/** Call again every so often while the page is seen, and at once when it is seen again; once at a time. */
export function refresh(act, seconds, signal) {
  let isBusy = false;
  let isWanted = false;
  let hasEnded = signal.aborted;
  const once = async () => {
    if (isBusy || hasEnded || document.hidden) return;
    isBusy = true;
    try {
      do { isWanted = false; await act(); } while (isWanted && !hasEnded);
    } finally { isBusy = false; }
  };
  // What is under way when the page is seen again was asked before: its answer may be old.
  const seen = () => { if (isBusy && !document.hidden) isWanted = true; else void once(); };
  const timer = setInterval(once, seconds * 1000);
  const end = () => { hasEnded = true; clearInterval(timer); document.removeEventListener("visibilitychange", seen); };
  document.addEventListener("visibilitychange", seen);
  signal.addEventListener("abort", end);
  void once();
  return { now: once, end };
}

/** Call every second, and at once when the page is seen again, before anything is read: what is shown has aged. */
export function eachSecond(act, signal) {
  const timer = setInterval(() => { if (!document.hidden) act(); }, 1000);
  document.addEventListener("visibilitychange", act, { signal });
  signal.addEventListener("abort", () => clearInterval(timer));
}
