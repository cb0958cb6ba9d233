// The part of the page that moves with the size: slider, figures, charts, side-by-side table.
// Used by the report (plain page) and by the app (inside a widget). All text goes in by textContent.
const E3 = (() => {
  const nf = (x, d) => x.toLocaleString("en-US", { minimumFractionDigits: d, maximumFractionDigits: d });
  const whole = (x) => nf(x, 0);
  // The same roundings as report/text.py.
  const fmt = {
    percent: (s) => { const v = s * 100; return v >= 99 && v < 99.995 ? v.toFixed(2) + " %" : v.toFixed(1) + " %"; },
    count: (v) => (v >= 1e9 ? (v / 1e9).toFixed(2) + "B" : (v / 1e6).toFixed(1) + "M"),
    bytes: (v) => (v >= 1e9 ? (v / 1e9).toFixed(2) + " GB" : (v / 1e6).toFixed(0) + " MB"),
    ms: (v) => (v < 99.95 ? String(Number(v.toPrecision(3))) : v.toFixed(0)) + " ms",
    signed: (x, d) => (x < 0 ? "-" : "+") + Math.abs(x).toFixed(d),
    change: (v, b) => { const s = v / b - 1;
      return Math.abs(s) < 0.0005 ? "same" : fmt.signed(s * 100, Math.abs(s) < 0.1 ? 1 : 0) + " %"; },
    points: (v, b) => { const d = (v - b) * 100;
      return Math.abs(d) < 0.005 ? "same" : fmt.signed(d, Math.abs(d) >= 0.1 ? 1 : 2) + " points"; },
    against: (change, name) => (change === "same" ? "the same as " + name : change + " against " + name),
    digits: (r) => (r.speedup_high - r.speedup_low >= 0.1 ? 1 : 2),
  };

  function rowAt(rows, size) {
    let i = rows.findIndex((r) => r.draft_vocab >= size);
    if (i < 0) i = rows.length - 1;
    if (rows[i].draft_vocab === size || i === 0) return rows[i];
    const a = rows[i - 1], b = rows[i], out = { ...b, draft_vocab: size, between: true };
    const t = (Math.log(size) - Math.log(a.draft_vocab)) / (Math.log(b.draft_vocab) - Math.log(a.draft_vocab));
    const linear = (size - a.draft_vocab) / (b.draft_vocab - a.draft_vocab);
    const exact = ["lm_head_params", "trainable_params", "total_params", "lm_head_bytes", "training_bytes"];
    for (const key of Object.keys(b)) {
      if (typeof b[key] !== "number" || typeof a[key] !== "number" || key === "draft_vocab") continue;
      out[key] = a[key] + (b[key] - a[key]) * (exact.includes(key) ? linear : t);
    }
    out.domains = {};
    for (const key of Object.keys(b.domains)) out.domains[key] = a.domains[key] + (b.domains[key] - a.domains[key]) * t;
    return out;
  }

  function cards(row, base, best, name) {
    const d = fmt.digits(row), behind = 1 - row.speedup / best;
    return {
      coverage: [fmt.percent(row.coverage), "worst: " + row.worst_domain + " " + fmt.percent(row.worst_coverage),
        fmt.against(fmt.points(row.coverage, base.coverage), name)],
      lm_head_params: [fmt.count(row.lm_head_params), fmt.bytes(row.lm_head_bytes) + "; trainable " + fmt.count(row.trainable_params),
        fmt.against(fmt.change(row.lm_head_params, base.lm_head_params), name)],
      step_ms: [fmt.ms(row.step_ms), fmt.ms(row.step_low_ms) + " to " + fmt.ms(row.step_high_ms),
        fmt.against(fmt.change(row.step_ms, base.step_ms), name)],
      speedup: [row.speedup.toFixed(d) + "x",
        row.speedup_low.toFixed(d) + " to " + row.speedup_high.toFixed(d) + "; tau " + row.tau.toFixed(2),
        behind < 0.0005 ? "the best" : (behind * 100).toFixed(1) + " % behind the best"],
    };
  }

  const EVIDENCE = { coverage: "coverage_evidence", step_ms: "latency_evidence", speedup: "speedup_evidence" };
  const OPTION_ROWS = [
    ["coverage", (r) => fmt.percent(r.coverage)], ["worst", (r) => r.worst_domain + " " + fmt.percent(r.worst_coverage)],
    ["lm_head", (r) => fmt.count(r.lm_head_params)], ["bytes", (r) => fmt.bytes(r.lm_head_bytes)],
    ["trainable", (r) => fmt.count(r.trainable_params)], ["training", (r) => fmt.bytes(r.training_bytes)],
    ["step", (r) => fmt.ms(r.step_ms)], ["tau", (r) => r.tau.toFixed(2)],
    ["speedup", (r) => r.speedup.toFixed(fmt.digits(r)) + "x, " + r.speedup_low.toFixed(fmt.digits(r)) + " to " + r.speedup_high.toFixed(fmt.digits(r))],
    ["even", (r) => (r.break_even_alpha === null ? "none" : r.break_even_alpha.toFixed(2))],
  ];

  function themed(spec, themes, dark) {
    let text = JSON.stringify(spec);
    if (dark) {
      for (const key of Object.keys(themes.light)) text = text.split(themes.light[key]).join(themes.dark[key]);
      text = text.split("#0072B2").join("#4aa3df").split("#009E73").join("#2fc39a").split("#D55E00").join("#ff9a52");
    }
    return JSON.parse(text);
  }

  function laidOut(spec, width) {
    // Plots of equal width with room for the axis at their left, each under its figure: the cards stand 10 apart.
    const columns = width >= 900 ? 4 : width >= 560 ? 2 : 1, axis = 44;
    const panel = Math.floor((width - 10 * (columns - 1)) / columns) - axis - 10;
    spec.columns = columns;
    spec.bounds = "flush";
    spec.spacing = { column: axis + 20, row: columns === 4 ? 20 : 84 };
    spec.config.axisY = { ...spec.config.axisY, minExtent: axis - 8, maxExtent: axis - 8 };
    for (const part of spec.concat) { part.width = panel; part.height = columns === 4 ? 190 : 160; }
    return spec;
  }

  // root: the element holding the explorer's static markup. Returns handles for the host page.
  function hydrate(root, payload, options) {
    const find = (selector) => root.querySelector(selector), all = (selector) => [...root.querySelectorAll(selector)];
    const { rows, vocab } = payload;
    const sizes = rows.map((r) => r.draft_vocab);
    const best = Math.max(...rows.map((r) => r.speedup));
    let size = payload.size, pinned = (options && options.pinned) || 0, view = null, gone = false, announce = 0;
    const slider = find("input[type=range]"), field = find("input[type=number]"), live = find(".live");
    slider.max = String(sizes.length - 1);
    const nearest = (s) => sizes.reduce((m, x, i) => (Math.abs(Math.log(x / s)) < Math.abs(Math.log(sizes[m] / s)) ? i : m), 0);

    function show() {
      const other = pinned || payload.baseline, whose = !pinned && payload.baselineName ? payload.baselineName + " " : "";
      const base = !pinned && payload.baselineRow || rowAt(rows, other);
      const row = rowAt(rows, size), figures = cards(row, base, best, other === vocab ? "full" : whose + whole(other));
      for (const [key, [value, detail, against]] of Object.entries(figures)) {
        const card = find(`[data-card=${key}]`);
        card.querySelector(".value").textContent = value;
        card.querySelector(".detail").textContent = detail;
        card.querySelector(".against").textContent = against;
        // Between two rows a figure is interpolated, whatever the rows themselves are.
        const mark = row[EVIDENCE[key]] || "derived";
        card.querySelector(".mark").textContent = row.between && mark !== "derived" ? mark + ", between rows" : mark;
      }
      for (const [key, make] of OPTION_ROWS)
        for (const cell of all(`[data-option=${key}]`)) {
          if (cell.dataset.size === "fixed") continue;
          const at = cell.dataset.size === "chosen" ? size : Number(cell.dataset.size);
          cell.textContent = make(rowAt(rows, at));
        }
      for (const cell of all("[data-domain]")) cell.textContent = fmt.percent(row.domains[cell.dataset.domain]);
      for (const cell of all("[data-share]")) cell.textContent = fmt.percent(row[cell.dataset.share]);
      for (const cell of all("[data-chosen-size]")) cell.textContent = whole(size);
      slider.value = String(nearest(size));
      slider.setAttribute("aria-valuetext", whole(size) + " tokens");
      if (field !== root.getRootNode().activeElement) field.value = String(size);
      for (const button of all("[data-pick]")) button.setAttribute("aria-pressed", String(Number(button.dataset.pick) === size));
      if (view) view.signal("size", size).runAsync();
      clearTimeout(announce);
      announce = setTimeout(() => { live.textContent = whole(size) + " tokens: coverage " + figures.coverage[0] + ", speedup " + figures.speedup[0]; }, 400);
    }

    function setSize(next, told) {
      next = Math.round(Number(next));
      if (!Number.isFinite(next)) return;
      next = Math.min(Math.max(next, Math.min(64, vocab)), vocab);
      if (next === size) return;
      size = next;
      show();
      if (!told && options && options.onSize) options.onSize(size);
    }

    const onSlide = () => setSize(sizes[Number(slider.value)]);
    slider.addEventListener("input", onSlide);
    slider.addEventListener("keydown", (event) => {
      const step = { PageUp: 8, PageDown: -8 }[event.key];
      if (!step) return;
      event.preventDefault();
      const at = Math.min(Math.max(nearest(size) + step, 0), sizes.length - 1);
      setSize(sizes[at]);
    });
    field.addEventListener("change", () => { setSize(field.value); field.value = String(size); });
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") { setSize(field.value); field.value = String(size); } });
    for (const button of all("[data-pick]")) button.addEventListener("click", () => setSize(Number(button.dataset.pick)));
    const pin = find("[data-pin]");
    function setPin(next, told) {
      pinned = next > 0 && next <= vocab ? next : 0;
      if (pin) {
        pin.setAttribute("aria-pressed", String(pinned > 0));
        pin.textContent = pinned ? "Comparing with " + whole(pinned) + ": stop" : "Compare with this size";
      }
      show();
      if (!told && options && options.onPin) options.onPin(pinned);
    }
    if (pin) pin.addEventListener("click", () => setPin(pinned ? 0 : size));

    const box = find(".charts"), query = matchMedia("(prefers-color-scheme: dark)");
    let drawn = 0;
    async function draw() {
      const width = Math.floor(box.clientWidth);
      if (!globalThis.vegaEmbed || !payload.chart || gone || width < 50) return;
      drawn = width;
      const spec = laidOut(themed(payload.chart, payload.themes, query.matches), width);
      for (const param of spec.params || []) if (param.name === "size") param.value = size;
      const holder = document.createElement("div");
      const result = await globalThis.vegaEmbed(holder, spec, { ast: true, actions: false, renderer: "svg", tooltip: false });
      if (gone) { result.finalize(); return; }
      if (view) view.finalize();
      view = result.view;
      for (let n = 1; n <= 4; n++) {
        try { view.addSignalListener("pick" + n, (_, value) => { const d = value && value.d; if (d && d.length) setSize(d[0]); }); }
        catch (error) { console.warn("chart without click to pick", error.message); }
      }
      view.signal("size", size);
      await view.runAsync();
      box.replaceChildren(holder);
      box.dataset.ready = "true";
      if (options && options.onReady) options.onReady();
    }
    const redraw = () => { if (Math.abs(box.clientWidth - drawn) > 24) draw(); };
    const observer = new ResizeObserver(() => { clearTimeout(observer.timer); observer.timer = setTimeout(redraw, 120); });
    observer.observe(box);
    query.addEventListener("change", draw);
    setPin(pinned, true);
    draw();
    // One more row of the table, for a size between those of the slider.
    function addRow(row) {
      const at = rows.findIndex((r) => r.draft_vocab >= row.draft_vocab);
      if (at < 0 || rows[at].draft_vocab === row.draft_vocab) return;
      rows.splice(at, 0, row);
      show();
    }
    function setChart(chart) { payload.chart = chart; return draw(); }
    return { setSize, setPin, draw, addRow, setChart, get size() { return size; }, get pinned() { return pinned; }, get view() { return view; }, rowAt: (s) => rowAt(rows, s),
      destroy() { gone = true; observer.disconnect(); query.removeEventListener("change", draw); if (view) view.finalize(); } };
  }
  return { hydrate, rowAt, fmt };
})();
