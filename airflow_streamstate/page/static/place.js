// Where the page is shown: in a window of its own, in a frame of Airflow, or as a view among Airflow's own.

import { AIRFLOW, ROOT } from "./api.js";
import { put } from "./dom.js";

const FIELDS = ["INPUT", "SELECT", "TEXTAREA"];

export class Place {
  /**
   * @param page    the element with the class "page": all that is shown is in it, dialogs too
   * @param base    the address below which the parts of the page have theirs
   * @param router  the window whose address Airflow's interface follows; null where there is none around the page
   * @param signal  ends listeners and reads when the page is no longer shown
   */
  constructor(page, { base, router, signal }) {
    this.page = page;
    this.view = page.querySelector(".view");
    this.signal = signal;
    this.base = base;
    this.router = router;
    this.title = document.title;
    page.addEventListener("click", (event) => this.#follow(event), { signal });
    // Airflow has keys of its own, and would take those that are typed here for them.
    page.addEventListener("keydown", (event) => { if (this.isTyping(event)) event.stopPropagation(); }, { signal });
    signal.addEventListener("abort", () => { document.title = this.title; });
  }

  /** What the address asks for, e.g. `streams/CONNECTION/STREAM`; "" for the table. */
  get path() { return window.location.pathname.slice(this.base.pathname.length); }

  get streams() { return this.base.href; }

  stream(connId, streamId) { return new URL(`streams/${encodeURIComponent(connId)}/${encodeURIComponent(streamId)}`, this.base).href; }

  name(words) { document.title = words; }

  /** Tell a screen reader. */
  say(text) { put(this.page.querySelector('[role="status"]'), text); }

  /** The element that has the focus, if it is in the page. */
  get focused() { return this.page.getRootNode().activeElement; }

  isTyping(event) { return FIELDS.includes(event.target.tagName) || event.target.isContentEditable; }

  /** Keep what is shown in the address, without a step of the history. */
  keep(part) {
    const address = Object.assign(new URL(window.location.href), part);
    if (address.href === window.location.href) return;
    try { window.history.replaceState(window.history.state, "", address); } catch { /* a browser refuses many in a short time */ }
  }

  /** Call when the address has changed, and still asks for the same part of the page. */
  moved(act) {
    const { pathname } = window.location;
    window.addEventListener("popstate", () => { if (window.location.pathname === pathname) act(); }, { signal: this.signal });
  }

  /** A link to a page of Airflow is followed by its interface, without a new load of it. */
  #follow(event) {
    const link = event.target.closest("a[href]");
    if (!link || link.target || !this.router || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (!link.href.startsWith(AIRFLOW.href) || link.href.startsWith(ROOT.href)) return;
    event.preventDefault();
    this.router.history.pushState(null, "", link.href);
    this.router.dispatchEvent(new PopStateEvent("popstate"));
  }
}
