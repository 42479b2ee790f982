// The page's script: signs in, follows links without reloading, keeps what is shown up to date, asks before it acts.
// The token stands in this origin's storage and goes out as a header, never as a cookie: no other site can use it.
"use strict";
(() => {
  const KEY = "starling-token";
  const $ = (s, root = document) => root.querySelector(s);
  const $$ = (s, root = document) => [...root.querySelectorAll(s)];
  const store = (kind) => { try { return window[kind]; } catch { return null; } };
  let token = store("sessionStorage")?.getItem(KEY) ?? store("localStorage")?.getItem(KEY) ?? "";
  let shownAt = performance.now();
  let generation = 0;

  function keep(value, remember) {
    token = value;
    for (const kind of ["sessionStorage", "localStorage"]) {
      const s = store(kind);
      if (!value) s?.removeItem(KEY);
      else if (kind === "sessionStorage" || remember) s?.setItem(KEY, value);
    }
  }
  // The address that `starling page` prints carries the token behind #, which browsers never send.
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.get("token")) {
    keep(fragment.get("token"), false);
    history.replaceState(null, "", location.pathname + location.search);
  }

  function ask(url, options = {}) {
    const headers = new Headers(options.headers ?? {});
    if (token) headers.set("Authorization", `Bearer ${token}`);
    return fetch(url, { ...options, headers, credentials: "same-origin", cache: "no-store" });
  }

  // ---- ages ----
  function brief(ms) {
    const s = Math.floor(ms / 1000);
    if (s < 1) return "now";
    if (s < 120) return `${s} s`;
    if (s < 7200) return `${Math.floor(s / 60)} min`;
    if (s < 172800) return `${Math.floor(s / 3600)} h`;
    return `${Math.floor(s / 86400)} d`;
  }
  function ages() {
    const since = performance.now() - shownAt;
    for (const e of $$("[data-age]")) {
      const text = brief(Number(e.dataset.age) + since);
      const full = text === "now" || e.dataset.plain !== undefined ? text : `${text} ago`;
      if (e.textContent !== full) e.textContent = full;
    }
  }

  // ---- showing ----
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.dataset?.key ?? "") !== (fresh.dataset?.key ?? "")) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (old.dataset.keep !== undefined) return;
    if (old === document.activeElement && ["INPUT", "SELECT"].includes(old.nodeName)) return;
    const keyed = new Map([...old.children].filter((c) => c.dataset.key).map((c) => [c.dataset.key, c]));
    let at = old.firstChild;
    for (const want of [...fresh.childNodes]) {
      const known = want.dataset?.key ? keyed.get(want.dataset.key) : undefined;
      if (known && known !== at) { old.insertBefore(known, at); at = known; }
      if (!at) { old.appendChild(want); continue; }
      const next = at.nextSibling;
      if (want.dataset?.key && !known) { old.insertBefore(want, at); continue; }
      morph(at, want);
      at = next;
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  // What a person asked for comes before what asks again by itself: that never takes its place.
  let asked = 0;
  async function load(url, { push = false, quiet = false } = {}) {
    if (quiet && asked > 0) return;
    // What was typed into a view that is left must not bring it back.
    if (!quiet) clearTimeout(typing);
    if (!quiet) asked += 1;
    try { await show(url, push, quiet); } finally { if (!quiet) asked -= 1; }
  }
  async function show(url, push, quiet) {
    const mine = ++generation;
    let response;
    try {
      response = await ask(url, { headers: { Accept: "text/html" } });
    } catch {
      live("off", "no answer");
      if (!quiet) toast("This peer does not answer. Open the page of another one: it shows the same.", true);
      return;
    }
    if (mine !== generation) return;
    const text = await response.text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (fresh.body.dataset.shell !== undefined) { signIn(token ? "This token is not the one of this peer." : ""); return; }
    if (mine !== generation) return;
    if (push) history.pushState(null, "", url);
    const here = push || document.body.dataset.shell !== undefined;
    document.title = fresh.title;
    if (document.body.dataset.shell !== undefined) {
      delete document.body.dataset.shell;
      document.body.replaceChildren(...fresh.body.childNodes);
      follow();
    } else {
      morph($(".top nav"), $(".top nav", fresh));
      const main = $("main"), next = $("main", fresh);
      if (push || main.dataset.view !== next.dataset.view) main.replaceWith(next); else morph(main, next);
    }
    shownAt = performance.now();
    ages();
    logs();
    if (here) { if (push) { scrollTo(0, 0); $("main")?.focus({ preventScroll: true }); } }
  }

  let again = 0;
  function refresh() {
    const wait = document.hidden ? 5000 : 120;
    if (again) return;
    again = setTimeout(async () => { again = 0; await load(location.pathname + location.search, { quiet: true }); }, wait);
  }

  function signIn(why) {
    if (document.body.dataset.shell === undefined) { location.reload(); return; }
    const form = $("#signin");
    form.hidden = false;
    $("#wait").hidden = true;
    $("#why").textContent = why;
    $("#token").focus();
    form.onsubmit = (e) => {
      e.preventDefault();
      keep($("#token").value.trim(), $("#remember").checked);
      load(location.pathname + location.search);
    };
  }

  // ---- live ----
  function live(state, text) {
    const e = $("#live");
    if (e) { e.dataset.state = state; e.textContent = text; }
  }
  async function* lines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split("\n");
      rest = parts.pop();
      yield* parts;
    }
  }
  let following = false;
  async function follow() {
    if (following) return;
    following = true;
    for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
      try {
        const response = await ask("/page/live");
        if (response.ok) {
          live("on", "live");
          pause = 500;
          refresh();
          for await (const line of lines(response)) {
            if (!line.startsWith("data:")) continue;
            const topics = JSON.parse(line.slice(5)).topics;
            const wants = ($("main")?.dataset.live ?? "").split(" ");
            if (topics.some((t) => wants.includes(t))) refresh();
          }
        }
      } catch { /* shown below */ }
      live("off", "not live");
      await new Promise((r) => setTimeout(r, pause));
    }
  }

  // ---- logs ----
  let reading = null;
  async function logs() {
    const pre = $("pre.logs");
    const key = pre ? pre.dataset.src : "";
    if (reading?.key === key && (!pre || reading.pre === pre)) return;
    reading?.stop.abort();
    reading = null;
    if (!pre || !key) return;
    const stop = new AbortController();
    reading = { key, pre, stop };
    pre.textContent = "";
    try {
      const response = await ask(key, { signal: stop.signal });
      if (!response.ok) {
        const body = await response.json().catch(() => null);
        pre.textContent = body?.error?.message ?? `status ${response.status}`;
        // Logs that are not there yet may come.
        setTimeout(() => { if (reading?.stop === stop) { reading = null; logs(); } }, 2000);
        return;
      }
      const decoder = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await decoder.read();
        if (done) break;
        const end = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
        pre.append(document.createTextNode(value));
        while (pre.childNodes.length > 400) pre.firstChild.remove();
        if (end) pre.scrollTop = pre.scrollHeight;
      }
      if (!pre.textContent) pre.textContent = "(nothing was written)";
    } catch (e) {
      if (e.name !== "AbortError") pre.append(document.createTextNode("\n[the stream broke]\n"));
    }
  }

  // ---- acting ----
  function toast(text, bad = false) {
    const e = $("#toast");
    if (!e) return;
    e.className = bad ? "bad" : "";
    e.textContent = text;
    clearTimeout(toast.timer);
    toast.timer = setTimeout(() => { e.textContent = ""; }, bad ? 12000 : 5000);
  }
  function confirmed(button) {
    const dialog = $("#ask");
    $("#ask-title").textContent = button.dataset.ask;
    $("#ask-text").textContent = button.dataset.risk ?? "";
    const go = $("#ask-go");
    go.textContent = button.dataset.verb ?? button.textContent;
    go.classList.toggle("danger", button.classList.contains("danger"));
    const select = $("#ask-choice");
    const choices = button.dataset.choices ? button.dataset.choices.split(" ") : [];
    select.hidden = choices.length === 0;
    select.replaceChildren(...choices.map((c) => new Option(c, c)));
    dialog.returnValue = "";
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "go"), { once: true }));
  }
  async function act(button) {
    if (!(await confirmed(button))) return;
    const [method, url] = button.dataset.act.split(" ");
    const choice = $("#ask-choice").value;
    const body = button.dataset.body?.replace("CHOICE", choice);
    const headers = { "X-Starling-Page": "1" };
    if (body) headers["Content-Type"] = "application/json";
    try {
      const response = await ask(url, { method, headers, body });
      const answer = await response.json().catch(() => null);
      if (!response.ok) toast([answer?.error?.message ?? `status ${response.status}`, answer?.error?.hint].filter(Boolean).join(": "), true);
      else if (button.dataset.goto && answer?.id) { await load(button.dataset.goto + answer.id, { push: true }); toast("Submitted again under a new id."); }
      else toast(answer?.state ? `Done: ${answer.state}` : "Done.");
    } catch { toast("No answer: the outcome is unknown. Look again before you repeat it.", true); }
    refresh();
  }

  // ---- listening ----
  document.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-act]");
    if (button) { act(button); return; }
    if (e.target.closest("#theme")) { theme(true); return; }
    const row = e.target.closest("tr[data-href]");
    const link = e.target.closest("a[href]");
    const href = link?.getAttribute("href") ?? (row && !getSelection().toString() ? row.dataset.href : null);
    if (!href || !/^[/?]/.test(href) || e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0) return;
    e.preventDefault();
    load(href, { push: true });
  });
  document.addEventListener("submit", (e) => {
    const form = e.target.closest("form.find");
    if (!form) return;
    e.preventDefault();
    find(form, true);
  });
  let typing = 0;
  function find(form, push) {
    const query = new URLSearchParams([...new FormData(form)].filter(([, v]) => v !== ""));
    const url = `${form.getAttribute("action")}?${query}`;
    if (push) load(url, { push }); else { history.replaceState(null, "", url); load(url, { quiet: true }); }
  }
  document.addEventListener("input", (e) => {
    const form = e.target.closest("form.find");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => find(form, false), 250);
  });
  addEventListener("popstate", () => load(location.pathname + location.search));

  function theme(next) {
    const s = store("localStorage");
    let now = s?.getItem("starling-theme") ?? "system";
    if (next) { now = { system: "dark", dark: "light", light: "system" }[now] ?? "system"; s?.setItem("starling-theme", now); }
    if (now === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = now;
    const button = $("#theme");
    if (button) { button.textContent = { system: "auto", dark: "dark", light: "light" }[now]; button.setAttribute("aria-label", `Colours: ${now}. Change`); }
  }

  const GO = { o: "/", j: "/jobs", l: "/links", r: "/ring", e: "/events", c: "/clusters" };
  let waiting = "";
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.nodeName)) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    if ($("dialog[open]")) return;
    if (waiting === "g" && GO[e.key]) { waiting = ""; load(GO[e.key], { push: true }); return; }
    waiting = e.key === "g" ? "g" : "";
    if (e.key === "/") { const box = $("form.find input[type=search]"); if (box) { e.preventDefault(); box.focus(); box.select(); } }
    if (e.key === "?") $("#keys")?.showModal();
    if (e.key === "n") $("a[rel=next]")?.click();
    if (e.key === "p") $("a[rel=prev]")?.click();
    if (e.key === "j" || e.key === "k") {
      const rows = $$("tr[data-href] a.id, tbody th a").filter((a) => a.offsetParent);
      const at = rows.indexOf(document.activeElement);
      rows[Math.max(0, Math.min(rows.length - 1, at + (e.key === "j" ? 1 : -1)))]?.focus();
    }
  });

  // A new tab asks the others of this origin, which are signed in, for the token.
  const tabs = "BroadcastChannel" in window ? new BroadcastChannel("starling") : null;
  if (tabs) tabs.onmessage = ({ data }) => {
    if (data === "who" && token) tabs.postMessage({ token });
    else if (data?.token && !token) { keep(data.token, false); if (document.body.dataset.shell !== undefined) load(location.pathname + location.search); }
  };

  theme(false);
  setInterval(ages, 1000);
  if (document.body.dataset.shell !== undefined) {
    if (token) load(location.pathname + location.search);
    else { tabs?.postMessage("who"); setTimeout(() => { if (!token) signIn(""); }, tabs ? 150 : 0); }
  } else { ages(); logs(); follow(); }
  new MutationObserver(() => theme(false)).observe(document.body, { childList: true });
})();
