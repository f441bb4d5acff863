// The bell and its panel. What a notification says is put together here, as text: never as HTML.

const texts = {
  "scheduled-post-published": data => `“${data.title}” is out`,
  "order-shipped": data => `Order ${data.order} is on its way`,
};
const say = n => texts[n.type]?.(n.data) ?? n.data.text ?? n.type;

const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
function when(date) {
  const seconds = (date - Date.now()) / 1000;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return ago.format(Math.round(seconds / size), unit);
  }
  return "just now";
}

export function show(inbox) {
  const $ = id => document.getElementById(id);
  const rows = new Map(); // by id

  function row(n) {
    const item = document.createElement("li"), button = document.createElement("button"), text = document.createElement("span"), time = document.createElement("time");
    item.dataset.id = n.id;
    button.type = "button";
    text.textContent = say(n);
    time.dateTime = n.created_at;
    time.title = new Date(n.created_at).toLocaleString();
    button.append(text, time);
    button.addEventListener("click", () => mark([n.id]));
    item.append(button);
    return item;
  }

  function draw() {
    const unread = inbox.unread, list = inbox.list;
    $("count").hidden = unread === 0;
    $("count").textContent = unread > 99 ? "99+" : unread;
    $("bell-label").textContent = unread ? `Notifications, ${unread} unread` : "Notifications, none unread";
    document.title = unread ? `(${unread}) Notifications` : "Notifications";
    $("read-all").disabled = unread === 0;
    $("empty").hidden = list.length > 0 || inbox.state === "connecting";
    list.forEach((n, i) => {
      if (!rows.has(n.id)) rows.set(n.id, row(n));
      const item = rows.get(n.id);
      if ($("list").children[i] !== item) $("list").insertBefore(item, $("list").children[i] ?? null);
      item.classList.toggle("unread", !n.read_at);
      item.firstChild.setAttribute("aria-label", `${n.read_at ? "" : "Unread: "}${say(n)}, ${when(new Date(n.created_at))}`);
      item.querySelector("time").textContent = when(new Date(n.created_at));
    });
  }

  function drawState() {
    document.body.dataset.state = inbox.state;
    $("state").textContent = { online: "", connecting: "Connecting …", offline: "Offline. What you see may be old; trying again …" }[inbox.state];
    draw();
  }

  async function mark(ids) {
    try {
      await inbox.markRead(ids);
    } catch {
      $("state").textContent = "That could not be saved. Try again in a moment.";
    }
  }

  function open(yes) {
    $("panel").hidden = !yes;
    $("bell").setAttribute("aria-expanded", yes);
    if (yes) ($("list").querySelector("button") ?? $("bell")).focus({ preventScroll: true });
  }

  $("bell").addEventListener("click", () => open($("panel").hidden));
  $("read-all").addEventListener("click", () => mark(inbox.list.map(n => n.id)));
  document.addEventListener("keydown", event => {
    if ($("panel").hidden) return;
    if (event.key === "Escape") {
      open(false);
      $("bell").focus();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...$("list").querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
    if (step && at >= 0) {
      event.preventDefault();
      buttons[Math.min(Math.max(at + step, 0), buttons.length - 1)].focus();
    }
  });
  document.addEventListener("click", event => !event.target.closest(".inbox") && open(false));

  inbox.addEventListener("change", ({ detail }) => {
    draw();
    const fresh = detail.fresh.filter(n => !n.read_at);
    if (inbox.state === "online" && fresh.length) $("live").textContent = fresh.length === 1 ? say(fresh[0]) : `${fresh.length} new notifications`;
  });
  inbox.addEventListener("state", drawState);
  setInterval(draw, 30_000);
  drawState();
}
