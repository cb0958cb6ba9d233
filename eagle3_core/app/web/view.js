// The explorer in the page, before and after the notebook is live. The first paint hydrates the
// server's markup at once; when the notebook's widget arrives it takes over the same element.
// One view a page. The address bar is the undo stack: each settled change is one entry.
globalThis.E3View ??= (() => {
  const held = { root: null, handle: null, payload: null, model: null, untold: 0 };
  const timers = {};
  const later = (name, ms, run) => { clearTimeout(timers[name]); timers[name] = setTimeout(run, ms); };
  const sorted = (query) => { const q = new URLSearchParams(query); q.delete("d"); q.delete("vs"); q.sort(); return q.toString(); };

  function address(size) {
    const { query, recommended } = held.payload;
    const parts = [query, held.handle.pinned ? "vs=" + held.handle.pinned : "", size === recommended ? "" : "d=" + size].filter(Boolean);
    return location.pathname + (parts.length ? "?" + parts.join("&") : "") + location.hash;
  }
  function write(replace) {
    if (!held.handle || held.payload.embedded) return;
    const to = address(held.handle.size);
    if (to !== location.pathname + location.search + location.hash)
      history[replace ? "replaceState" : "pushState"](null, "", to);
  }
  function tell(values) {
    if (!held.model) return;
    for (const [key, value] of Object.entries(values)) held.model.set(key, value);
    held.model.save_changes();
  }
  function onSize(size) {
    loadVega();
    // A size not told yet outlives new inputs that arrive in between.
    held.untold = size;
    later("tell", 120, () => { held.untold = 0; tell({ size }); });
    later("write", 350, () => write(false));
  }
  function onPin(pin) { tell({ pin }); write(false); }
  const linked = () => Number(new URLSearchParams(location.search).get("vs")) || 0;
  function restore(query) { tell({ restore: Date.now() + "|" + query }); busy(true); }
  function busy(on) { if (held.root) held.root.classList.toggle("stale", on); }

  function hydrate() {
    held.handle = E3.hydrate(held.root, held.payload, { onSize, onPin, pinned: linked(), onReady: () => held.root.dispatchEvent(new CustomEvent("e3-drawn")) });
    for (const link of held.root.querySelectorAll("[data-query]")) link.addEventListener("click", (event) => {
      if (!held.model || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.pushState(null, "", location.pathname + (link.dataset.query ? "?" + link.dataset.query : ""));
      restore(link.dataset.query);
    });
    const copy = held.root.querySelector("[data-copy]");
    if (copy) copy.addEventListener("click", async () => {
      write(false);
      let done = true;
      try { await navigator.clipboard.writeText(location.href); } catch { done = false; }
      copy.textContent = done ? "Link copied" : "Copy the address bar";
      later("copy", 1600, () => { copy.textContent = "Copy link"; });
    });
    for (const button of held.root.querySelectorAll("[data-dismiss]")) button.addEventListener("click", () => {
      const box = button.closest("[data-tour]");
      if (box) { try { localStorage.setItem("e3-tour", "done"); } catch { /* private window */ } box.remove(); }
    });
    const tour = held.root.querySelector("[data-tour]");
    if (tour) { let seen = false; try { seen = localStorage.getItem("e3-tour") === "done"; } catch { /* private window */ }
      tour.hidden = seen; }
  }
  function open(markup, payload) {
    const old = held.root.querySelector(".charts"), size = held.handle && held.handle.size;
    if (held.handle) held.handle.destroy();
    held.payload = payload;
    if (markup !== null) {
      held.root.innerHTML = markup;
      // The old pictures stay, dimmed, until the new ones are drawn.
      const charts = held.root.querySelector(".charts");
      if (old && charts && !charts.firstElementChild) charts.replaceChildren(...old.childNodes);
      if (charts) charts.dataset.stale = "true";
    }
    busy(false);
    hydrate();
    return size;
  }
  // The first paint has pictures; Vega, a large script, waits until the controls are live or a hand moves.
  const vega = { url: null, asked: false };
  function loadVega() {
    if (!vega.url || vega.asked || globalThis.vegaEmbed) return;
    vega.asked = true;
    const script = document.createElement("script");
    script.src = vega.url;
    script.onload = () => held.handle && held.handle.draw();
    document.head.append(script);
  }
  function waitForVega(url) {
    vega.url = url;
    if (!held.root || !held.root.querySelector(".charts svg")) loadVega();
    setTimeout(loadVega, 8000);
  }
  function first() {
    const data = document.getElementById("e3-data");
    held.root = document.querySelector("#first-paint .e3-view");
    if (!data || !held.root) return;
    held.payload = JSON.parse(data.textContent);
    hydrate();
  }
  function uncover() {
    const cover = document.getElementById("first-paint");
    if (cover) cover.remove();
    document.documentElement.dataset.live = "true";
    // Half a second of script: the controls beside the pictures come first.
    if (globalThis.requestIdleCallback) setTimeout(() => requestIdleCallback(loadVega, { timeout: 4000 }), 1200);
    else setTimeout(loadVega, 2000);
  }
  // Called by the notebook's widget, again whenever its element is made anew.
  function attach({ model, el }) {
    held.model = model;
    el.classList.add("e3");
    const parsed = (name) => { const text = model.get(name); return text ? JSON.parse(text) : null; };
    const payload = parsed("payload");
    let painted = Boolean(held.root && held.payload && document.getElementById("first-paint"));
    const fill = () => {
      const next = parsed("payload");
      if (!next || !next.rows) return;
      // The first paint shows this already.
      const same = painted && sorted(held.payload.query) === sorted(next.query);
      painted = false;
      if (same) { el.classList.remove("stale"); tell({ size: held.handle.size, pin: held.handle.pinned }); uncover(); return; }
      const began = held.payload && sorted(held.payload.query) === sorted(next.query);
      const untold = held.untold, vocab = held.payload && held.payload.vocab;
      open(model.get("markup"), next);
      if (untold && vocab === next.vocab) held.handle.setSize(untold);
      el.classList.remove("stale");
      write(began);
      tell({ size: held.handle.size, pin: held.handle.pinned });
      uncover();
    };
    if (held.root && held.payload && payload && payload.rows && sorted(held.payload.query) === sorted(payload.query)) {
      el.replaceChildren(held.root);
      held.handle.draw();
      tell({ size: held.handle.size, pin: held.handle.pinned });
      uncover();
    } else {
      if (!held.root) { held.root = document.createElement("div"); held.root.className = "e3-view"; }
      el.replaceChildren(held.root);
      if (payload && payload.rows) fill();
    }
    const chart = () => {
      if (!held.handle || held.payload.chart) return;
      const next = parsed("chart");
      if (next && next.spec && held.handle && next.query === held.payload.query && !held.payload.chart) held.handle.setChart(next.spec);
    };
    chart();
    const extra = () => { const row = model.get("extra"); if (row && row.draft_vocab && held.handle) held.handle.addRow(row); };
    const want = () => { const size = model.get("want"); if (size && held.handle) held.handle.setSize(size); };
    // Nothing to draw: let the page be seen all the same.
    const stale = () => { busy(model.get("stale")); if (model.get("stale")) uncover(); };
    model.on("change:version", () => setTimeout(() => { fill(); chart(); }, 0));
    model.on("change:chart", () => setTimeout(chart, 0));
    model.on("change:extra", extra);
    model.on("change:want", want);
    model.on("change:stale", stale);
    return () => { if (held.model === model) held.model = null; };
  }
  // Names for marimo 0.25's controls that have none for a screen reader.
  function nameControls() {
    const everywhere = (root, selector) => [...root.querySelectorAll(selector),
      ...[...root.querySelectorAll("marimo-file,marimo-ui-element *")].flatMap((e) => e.shadowRoot ? [...e.shadowRoot.querySelectorAll(selector)] : [])];
    for (const input of everywhere(document, "input[type=file]:not([aria-label])")) input.setAttribute("aria-label", "Files to load");
    for (const button of document.querySelectorAll("#root aside button:not([aria-label]), #root button:not([aria-label])"))
      if (!button.textContent.trim() && !button.title) button.setAttribute("aria-label", "Inputs");
  }
  // The quiet text of marimo's tabs is too faint on its ground in the light theme.
  function strengthenTabs() {
    for (const tabs of document.querySelectorAll("marimo-tabs")) {
      if (!tabs.shadowRoot || tabs.shadowRoot.querySelector("[data-e3]")) continue;
      const style = document.createElement("style");
      style.dataset.e3 = "tabs";
      style.textContent = "@media (prefers-color-scheme: light) { .text-muted-foreground { color: #46535f !important; } }";
      tabs.shadowRoot.append(style);
    }
  }
  const rename = () => { strengthenTabs(); later("names", 300, nameControls); };
  if (document.getElementById("root")) new MutationObserver(rename).observe(document.getElementById("root"), { childList: true, subtree: true });
  else addEventListener("DOMContentLoaded", () => {
    const page = document.getElementById("root");
    if (page) new MutationObserver(rename).observe(page, { childList: true, subtree: true });
  });
  // Say so when the server is gone: the size still moves, the inputs wait until it is back.
  function watchServer() {
    const said = document.querySelector(".e3-nav .said");
    if (!said) return;
    const usual = said.textContent;
    setInterval(async () => {
      if (document.hidden) return;
      let up = false;
      try { up = (await fetch("/healthz", { cache: "no-store" })).ok; } catch { /* down */ }
      const text = up ? usual : "Server not reachable: the size still moves, the inputs wait";
      if (said.textContent !== text) { said.textContent = text; said.classList.toggle("down", !up); }
    }, 5000);
  }
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", watchServer);
  else watchServer();
  addEventListener("popstate", () => {
    if (!held.payload || held.payload.embedded) return;
    const query = new URLSearchParams(location.search), size = Number(query.get("d")) || held.payload.recommended;
    if (sorted(location.search) === sorted(held.payload.query)) {
      held.handle.setSize(size, true);
      held.handle.setPin(linked(), true);
      later("tell", 120, () => tell({ size, pin: held.handle.pinned }));
    } else if (held.model) restore(location.search.slice(1));
    else location.reload();
  });
  return { first, attach, held, vega: waitForVega };
})();
