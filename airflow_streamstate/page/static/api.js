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

async function answered(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused(0, { message: "Airflow does not answer", next_step: "The page goes on as soon as it does." });
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  if (body?.error) throw new Refused(response.status, body.error);
  const detail = typeof body?.detail === "string" ? body.detail : `Airflow answered ${response.status}`;
  throw new Refused(response.status, { message: detail });
}

export function read(part, parameters = {}) {
  const address = new URL(`api/${part}`, ROOT);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) address.searchParams.set(name, value);
  }
  return answered(address, {});
}

export const airflow = (method, path, body) => answered(new URL(`api/v2/${path}`, AIRFLOW), {
  method,
  headers: { "Content-Type": "application/json", Accept: "application/json" },
  body: body === undefined ? undefined : JSON.stringify(body),
});

/** The address of a page of Airflow. */
export const airflowPage = (path) => new URL(path, AIRFLOW).href;

/** Call again every so often while the page is seen; once at a time. */
export function refresh(act, seconds, signal) {
  let isBusy = false;
  let hasEnded = signal.aborted;
  const once = async () => {
    if (isBusy || hasEnded || document.hidden) return;
    isBusy = true;
    try { await act(); } finally { isBusy = false; }
  };
  const timer = setInterval(once, seconds * 1000);
  const end = () => { hasEnded = true; clearInterval(timer); document.removeEventListener("visibilitychange", once); };
  document.addEventListener("visibilitychange", once);
  signal.addEventListener("abort", end);
  void once();
  return { now: once, end };
}
