(() => {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const unpack = (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (ch) => ch.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };
  const root = document.body;
  const remember = (size) => history.replaceState(null, "", "#d=" + size);
  const explorer = E3.hydrate(root, payload, { onSize: remember });
  const fromHash = () => {
    const found = /^#d=(\d{1,9})$/.exec(location.hash);
    if (found) explorer.setSize(Number(found[1]), true);
  };
  addEventListener("hashchange", fromHash);
  fromHash();
  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const csv = () => {
    const keys = Object.keys(payload.rows[0]).filter((key) => key !== "domains");
    const domains = Object.keys(payload.rows[0].domains);
    const cell = (value) => (value === null ? "" : /[",\n]/.test(String(value)) ? '"' + String(value).replaceAll('"', '""') + '"' : String(value));
    const lines = [[...keys, ...domains.map((name) => "coverage:" + name)].map(cell).join(",")];
    for (const row of payload.rows) lines.push([...keys.map((key) => cell(row[key])), ...domains.map((name) => cell(row.domains[name]))].join(","));
    return lines.join("\n") + "\n";
  };
  for (const button of document.querySelectorAll("[data-save]")) {
    button.hidden = false;
    button.addEventListener("click", async () => (button.dataset.save === "csv"
      ? save("tradeoff.csv", "text/csv", csv())
      : save("decision.json", "application/json", await unpack("decision"))));
  }
  document.documentElement.dataset.live = "true";
  // Figures are live by now; pictures follow when the page has been painted. The policy holds this script's hash.
  const pictures = async () => {
    const script = document.createElement("script");
    script.textContent = await unpack("vega");
    document.head.append(script);
    await explorer.draw();
  };
  if (globalThis.DecompressionStream) requestAnimationFrame(() => setTimeout(pictures));
})();
