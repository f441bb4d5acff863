// A recipient's notifications, kept equal to the server's list.
//
// The list is the truth: before each (re)connect what is above the highest id is asked for, page by page, and the stream
// then goes on from there. Both are in the order of ids and leave none out, so nothing is missed; an id that is there
// already changes nothing, so nothing is there twice.

const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000];
const SILENCE_MS = 40_000; // the server says something every 15 s
const CHECK_MS = 2_000;

export class Inbox extends EventTarget {
  #server; #token; #source; #highest = 0; #round = 0; #failures = 0; #timer; #heardAt = 0; #checkedAt = 0; #tabs;
  items = new Map(); // by id
  state = "connecting"; // or online, offline

  constructor({ server, token }) {
    super();
    this.#server = server.replace(/\/$/, "");
    this.#token = token; // async () => string
  }

  get list() { return [...this.items.values()].sort((a, b) => b.id - a.id); }
  get unread() { return [...this.items.values()].filter(n => !n.read_at).length; }

  start() {
    addEventListener("online", () => this.#connect());
    addEventListener("offline", () => this.#lost());
    addEventListener("pageshow", event => event.persisted && this.#connect());
    document.addEventListener("visibilitychange", () => !document.hidden && this.state !== "online" && this.#connect());
    // A connection may be dead without anybody having said so: after sleep, for one.
    this.#checkedAt = Date.now();
    setInterval(() => {
      const slept = Date.now() - this.#checkedAt > SILENCE_MS;
      this.#checkedAt = Date.now();
      if (slept || this.state === "online" && Date.now() - this.#heardAt > SILENCE_MS) this.#connect();
    }, CHECK_MS);
    // What is marked in another tab is marked here, too.
    this.#tabs = new BroadcastChannel("notifications-read");
    this.#tabs.onmessage = ({ data }) => this.#marked(data.ids, data.at);
    this.#connect();
  }

  async markRead(ids) {
    ids = ids.filter(id => this.items.has(id) && !this.items.get(id).read_at);
    for (let i = 0; i < ids.length; i += 500) {
      const part = ids.slice(i, i + 500), at = new Date().toISOString();
      await this.#ask("/notifications/read", await this.#token(),
        { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ids: part }) });
      this.#marked(part, at);
      this.#tabs.postMessage({ ids: part, at });
    }
  }

  // The one way to begin and to begin again. A later round ends an earlier one.
  async #connect() {
    const round = ++this.#round;
    clearTimeout(this.#timer);
    this.#source?.close();
    if (this.state === "online") this.#become("connecting");
    try {
      const token = await this.#token();
      for (let more = true; more && round === this.#round;) {
        const page = await this.#ask(`/notifications?after=${this.#highest}&limit=200`, token);
        this.#take(page.notifications);
        more = page.more;
      }
      if (round !== this.#round) return;
      this.#stream(token, round);
    } catch {
      if (round === this.#round) this.#lost();
    }
  }

  #stream(token, round) {
    const source = new EventSource(`${this.#server}/events?${new URLSearchParams({ token, last_event_id: this.#highest })}`);
    this.#source = source;
    const on = (name, f) => source.addEventListener(name, event => {
      this.#heardAt = Date.now();
      if (round === this.#round) f(event);
    });
    on("ready", () => { this.#failures = 0; this.#become("online"); });
    on("heartbeat", () => {});
    on("notification", event => this.#take([JSON.parse(event.data)]));
    on("expired", () => this.#connect());
    on("stopping", event => this.#lost(JSON.parse(event.data).retry_ms));
    // EventSource would come back by itself, but with the old token, and after some answers not at all.
    on("error", () => this.#lost());
    this.#heardAt = Date.now();
  }

  #lost(ms = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2)) {
    const round = ++this.#round;
    this.#source?.close();
    this.#become("offline");
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => round === this.#round && this.#connect(), ms);
  }

  async #ask(path, token, options = {}) {
    const answer = await fetch(this.#server + path,
      { ...options, headers: { ...options.headers, Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(10_000) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }

  #take(notifications) {
    const fresh = notifications.filter(n => !this.items.has(n.id));
    for (const n of fresh) this.items.set(n.id, n);
    for (const n of notifications) this.#highest = Math.max(this.#highest, n.id);
    if (fresh.length) this.dispatchEvent(new CustomEvent("change", { detail: { fresh } }));
  }

  #marked(ids, at) {
    for (const id of ids) {
      const n = this.items.get(id);
      if (n) n.read_at ??= at;
    }
    this.dispatchEvent(new CustomEvent("change", { detail: { fresh: [] } }));
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state"));
  }
}
