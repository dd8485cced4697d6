/* The console's script: theme, keys, and parts that load themselves again.
   Pages work without it; it sends nothing anywhere but to this site. */
"use strict";

const root = document.documentElement;
const THEME = "rocketpoll-theme";
const REFRESH_MS = 5000;

/* Before the first paint, so that no other theme flashes up. */
function stored() {
  try { return localStorage.getItem(THEME); } catch { return null; }
}
if (stored()) root.dataset.theme = stored();
root.dataset.script = ""; /* shows what works by a script alone */

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  try { localStorage.setItem(THEME, root.dataset.theme); } catch { /* private windows keep nothing */ }
}

/* ---- times in the browser's zone: the site writes them in its own */

const pad = (number, width = 2) => String(number).padStart(width, "0");
const dayOf = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
const clockOf = (at) => `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
const zoneNames = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });
const zoneOf = (at) => zoneNames.formatToParts(at).find((part) => part.type === "timeZoneName").value;

function offsetOf(at) {
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  return `${minutes < 0 ? "-" : "+"}${pad(Math.trunc(size / 60))}:${pad(size % 60)}`;
}

function localize(part) {
  const now = new Date();
  for (const each of part.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    const exact = `${clockOf(at)}.${pad(at.getMilliseconds(), 3)}`;
    each.title = `${dayOf(at)} ${exact} ${zoneOf(at)}`;
    if (each.matches(".axis")) each.textContent = clockOf(at);
    if (!each.matches(".stamp")) continue;
    each.querySelector(".day").textContent = `${dayOf(at)} `;
    each.querySelector(".clock").textContent = exact;
    each.querySelector(".zone").textContent = ` ${zoneOf(at)}`;
    each.classList.toggle("other-day", dayOf(at) !== dayOf(now));
  }
  for (const each of part.querySelectorAll(".zone")) {
    if (!each.closest("time")) each.textContent = ` ${zoneOf(now)}`;
  }
}

/* A time that is typed without a zone is in the browser's zone, as all times that pages show. */
const TYPED = /^@?(?:(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?|(\d{1,2}):(\d\d)(?::(\d\d))?)$/;

function withZone(text) {
  const found = TYPED.exec(text.trim());
  if (!found) return text;
  const now = new Date();
  const [year, month, day] = found[1] ? found.slice(1, 4) : dayOf(now).split("-");
  const [hour, minute, second] = (found[1] ? found.slice(4, 7) : found.slice(7, 10)).map((each) => Number(each ?? 0));
  const at = new Date(year, month - 1, day, hour, minute, second);
  const typed = `${year}-${month}-${day} ${pad(hour)}:${pad(minute)}:${pad(second)}`;
  if (`${dayOf(at)} ${clockOf(at)}` !== typed) return text; /* the site says what is wrong */
  return `${dayOf(at)}T${clockOf(at)}${offsetOf(at)}`;
}

/* ---- parts that load themselves again

   A list whose rows have changed holds still while the pointer or the focus is on it: a button
   above it says how many rows are new, and shows them. So does a part whose new content would move
   the row under the pointer. */

let isStale = false;

function setStale(value) {
  isStale = value;
  const mark = document.getElementById("stale");
  if (mark) mark.hidden = !isStale;
}

/* A cluster that takes long is asked less often. */
async function refreshAgain() {
  const began = performance.now();
  await refresh();
  setTimeout(refreshAgain, Math.max(REFRESH_MS, 10 * (performance.now() - began)));
}

async function refresh() {
  if (document.querySelector("[data-again]")) return tryAgain();
  const parts = [...document.querySelectorAll("[data-live]")];
  if (!parts.length || document.hidden || document.querySelector("dialog[open]")) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const isComplete = parts.every((part) => fresh.getElementById(part.id));
    if (!answer.ok && !isComplete) throw new Error(String(answer.status));
    for (const part of parts) {
      const other = fresh.getElementById(part.id);
      if (!other) continue;
      if (String(getSelection()) && getSelection().containsNode(part, true)) continue;
      localize(other);
      if (isHeld(part) && addressesOf(part).join() !== addressesOf(other).join()) offer(part, other);
      else replaceInPlace(part, other);
    }
    setStale(false);
  } catch {
    setStale(true);
  }
}

function replace(part, other) {
  const chosen = part.querySelector("tr.chosen")?.dataset.href;
  const focused = part.contains(document.activeElement)
    ? document.activeElement.getAttribute("href") : null;
  document.querySelector(`[data-offer="${part.id}"]`)?.remove();
  part.replaceChildren(...other.childNodes);
  if (chosen) part.querySelector(`tr[data-href="${CSS.escape(chosen)}"]`)?.classList.add("chosen");
  if (focused) {
    part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

/* Puts the old content back, before anybody sees the new one, if that moves the row in use. */
function replaceInPlace(part, other) {
  const row = document.querySelector("[data-live] tr[data-href]:hover") ?? current();
  const top = row?.getBoundingClientRect().top;
  const old = [...part.childNodes];
  const focused = document.activeElement;
  replace(part, other);
  const again = row?.isConnected
    ? row : row && part.querySelector(`tr[data-href="${CSS.escape(row.dataset.href)}"]`);
  if (!again || Math.abs(again.getBoundingClientRect().top - top) < 1) return;
  other.replaceChildren(...part.childNodes);
  part.replaceChildren(...old);
  if (part.contains(focused)) focused.focus({ preventScroll: true });
  offer(part, other);
}

const addressesOf = (part) => rows(part).map((row) => row.dataset.href);
const isHeld = (part) => part.matches(":hover") || part.contains(document.activeElement)
  || Boolean(part.querySelector("tr.chosen"));

function offer(part, other) {
  const shown = new Set(addressesOf(part));
  const count = addressesOf(other).filter((each) => !shown.has(each)).length;
  let button = document.querySelector(`[data-offer="${part.id}"]`);
  if (!button) {
    button = document.createElement("button");
    button.type = "button";
    button.className = "offer";
    button.setAttribute("aria-live", "polite");
    button.dataset.offer = part.id;
    part.before(button);
  }
  const isSame = addressesOf(part).join() === addressesOf(other).join();
  button.textContent = count ? `${count} new` : isSame ? "Page changed" : "Order changed";
  button.title = "Show the list as it is now. It holds still while the pointer or the focus is on it.";
  button.onclick = () => replace(part, other);
}

/* A page that only says that the cluster is away gives way to what was asked for. */
async function tryAgain() {
  if (document.hidden || document.querySelector("dialog[open]")) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok) location.reload();
  } catch { /* the console itself is away */ }
}

/* ---- rows by keys */

function rows(part = document) {
  return [...part.querySelectorAll("tr[data-href]")];
}

function current() {
  return document.querySelector("tr.chosen");
}

function choose(index) {
  const all = rows();
  if (!all.length) return;
  const row = all[Math.min(Math.max(index, 0), all.length - 1)];
  current()?.classList.remove("chosen");
  row.classList.add("chosen");
  row.scrollIntoView({ block: "nearest" });
}

function follow(row) {
  if (row?.dataset.href?.startsWith("/")) location.assign(row.dataset.href);
}

/* ---- keys */

const PLACES = {
  o: "/", t: "/topics", g: "/groups", d: "/dead-letters", c: "/checkpoints", a: "/access",
  m: "/charts",
};
let wentAt = -Infinity; /* not 0: a page's time begins there, and the first key may come within it */

const KEYS = {
  "/": () => document.getElementById("search")?.focus(),
  j: () => choose(rows().indexOf(current()) + 1),
  k: () => choose(rows().indexOf(current()) - 1),
  Enter: () => follow(current()),
  Escape: () => current()?.classList.remove("chosen"),
  u: () => [...document.querySelectorAll("a[data-up]")].pop()?.click(),
  n: () => document.querySelector("[data-offer]")?.click(),
  t: switchTheme,
  "?": () => document.getElementById("keys")?.showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  const isSecond = event.timeStamp - wentAt < 1200;
  wentAt = -Infinity;
  if (isSecond && Object.hasOwn(PLACES, event.key)) {
    event.preventDefault();
    location.assign(PLACES[event.key]);
  } else if (event.key === "g") {
    wentAt = event.timeStamp;
  } else if (Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

/* ---- the figure below a pointer on a chart */

function onPointer(event) {
  const plot = event.target.closest?.("svg.plot[data-points]");
  for (const each of document.querySelectorAll(".chart.read")) {
    if (!plot || !each.contains(plot)) unread(each);
  }
  if (!plot) return;
  const points = plot.dataset.points.split(" ").map((each) => each.split("|"));
  const box = plot.getBoundingClientRect();
  const first = Number(points[0][0]);
  const span = Number(points[points.length - 1][0]) - first || 1;
  const at = first + ((event.clientX - box.left) / box.width) * span;
  const distance = (point) => Math.abs(Number(point[0]) - at);
  const near = points.reduce((best, each) => (distance(each) < distance(best) ? each : best));
  const chart = plot.closest(".chart");
  const now = chart.querySelector(".chart-now");
  now.dataset.now ??= now.textContent;
  now.textContent = `${near[1].replaceAll("_", " ")}  ${clockOf(new Date(Number(near[0]) * 1000))}`;
  chart.classList.add("read");
}

function unread(chart) {
  const now = chart.querySelector(".chart-now");
  if (now.dataset.now !== undefined) now.textContent = now.dataset.now;
  delete now.dataset.now;
  chart.classList.remove("read");
}

/* ---- forms that change something */

/* A second click would have the browser forget the answer to the first, which says what was done. */
function onSubmit(event) {
  const form = event.target;
  for (const field of form.querySelectorAll("input[data-time]")) field.value = withZone(field.value);
  if (form.method !== "post") return;
  if (form.dataset.sent || isTooLarge(form)) event.preventDefault();
  else form.dataset.sent = "yes";
}

/* The site refuses a form that is much too large without showing it again: what was typed stays. */
function isTooLarge(form) {
  for (const area of form.querySelectorAll("textarea[data-bytes-max]")) {
    const most = Number(area.dataset.bytesMax);
    const isHex = form.elements.format?.value === "hex";
    const size = isHex ? area.value.replace(/\s/g, "").length / 2 : new Blob([area.value]).size;
    if (size <= most) continue;
    const note = document.getElementById(area.getAttribute("aria-describedby"));
    const fault = document.createElement("span");
    fault.className = "fault";
    fault.setAttribute("role", "alert");
    fault.textContent = `The body has ${size} bytes; a form takes up to ${most}. `
      + "Send it with rocketpoll produce TOPIC FILE --whole.";
    note.replaceChildren(fault);
    area.setAttribute("aria-invalid", "true");
    area.focus();
    return true;
  }
  return false;
}

/* Back on the page by the browser's memory, it may be sent: the site says whether it was. */
function onShown() {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
}

/* ---- commands that are copied */

/* Only pages of this machine or with TLS have the clipboard; elsewhere the selection is copied. */
async function copyCommand(button) {
  const box = button.closest(".command");
  const code = box.querySelector("code");
  const what = button.dataset.copy[0].toUpperCase() + button.dataset.copy.slice(1);
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    isCopied = document.execCommand("copy");
    if (isCopied) getSelection().removeAllRanges();
  }
  button.textContent = isCopied ? "Copied" : "Press Ctrl+C";
  box.querySelector("[role=status]").textContent = isCopied ? `${what} copied` : `${what} selected`;
  setTimeout(() => {
    button.textContent = "Copy";
    box.querySelector("[role=status]").textContent = "";
  }, 2000);
}

/* ---- the page */

function onClick(event) {
  if (event.target.closest("#theme")) return switchTheme();
  const copying = event.target.closest("[data-copy]");
  if (copying) return copyCommand(copying);
  const row = event.target.closest("tr[data-href]");
  const isOther = event.target.closest("a, button, input, label");
  if (row && !isOther && !String(getSelection())) follow(row);
}

/* A name that its column cuts is shown whole as a tooltip. */
function onPointerOver(event) {
  const cell = event.target.closest("td.grow");
  if (cell && cell.scrollWidth > cell.clientWidth) cell.title = cell.textContent;
}

function onChange(event) {
  if (!event.target.matches("[data-all]")) return;
  for (const each of document.querySelectorAll('input[type="checkbox"][name="at"]')) {
    each.checked = event.target.checked;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("change", onChange);
  document.addEventListener("pointermove", onPointer);
  document.addEventListener("pointerover", onPointerOver);
  document.addEventListener("submit", onSubmit);
  addEventListener("pageshow", onShown);
  localize(document);
  setTimeout(refreshAgain, REFRESH_MS);
});
