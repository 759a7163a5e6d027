// Ties the parts together: the data, the theme, the search.
"use strict";

(function start() {
  const begun = performance.now();
  const data = JSON.parse(document.getElementById("data").textContent);
  const { report, rules } = data;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let theme = null; // the reader's, where it was switched
  setTheme();

  const root = makeScopes(report.decisions);
  const graph = makeGraph(report, root, chosen, chosenScope);
  const narrow = window.matchMedia("(max-width: 760px)");
  const choose = (place) => {
    graph.choose(place, true);
    const seen = narrow.matches ? "#details" : ".stage";
    document.querySelector(seen).scrollIntoView({ block: narrow.matches ? "start" : "nearest" });
  };
  showSummary(data, choose);
  const table = makeTable(report, rules, choose);
  makeSearch(report.decisions, root);
  on("fold", () => graph.foldAll());
  on("fit", () => graph.fit());
  on("in", () => graph.zoom(1.4));
  on("out", () => graph.zoom(1 / 1.4));
  on("theme", () => {
    theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme();
    graph.colour();
  });
  dark.addEventListener("change", () => {
    setTheme();
    graph.colour();
  });
  window.ampReport = { data, graph, table };
  // From the start of the page's loading to the first view, for whoever measures it.
  requestAnimationFrame(() => {
    document.documentElement.dataset.ready = performance.now().toFixed(0);
    document.documentElement.dataset.scripts = (performance.now() - begun).toFixed(0);
  });

  function on(id, action) {
    document.getElementById(id).addEventListener("click", action);
  }

  function setTheme() {
    const name = theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = name;
    document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
  }

  function chosen(place) {
    table.choose(place);
    showNode(data, place, choose);
  }

  function chosenScope(scope) {
    showScope(scope, () => graph.foldScope(scope));
  }

  function makeSearch(nodes, top) {
    const input = document.getElementById("search");
    const list = document.getElementById("matches");
    const names = nodes.map((node) => node.node.toLowerCase());
    const scopes = [...everyScope(top)].filter((scope) => !scope.name.includes(" part "));
    let first = null;
    input.addEventListener("input", show);
    input.addEventListener("focus", show);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && first) first();
      if (event.key === "Escape") list.hidden = true;
    });
    document.addEventListener("click", (event) => {
      if (!event.target.closest(".search")) list.hidden = true;
    });

    function show() {
      const text = input.value.trim().toLowerCase();
      const found = text ? matches(text) : [];
      first = found.length ? found[0].go : null;
      list.replaceChildren(...found.map((one, i) => make("li", { class: i ? "" : "first", onclick: one.go }, one.label)));
      if (text && !found.length) list.append(make("li", { class: "hint" }, "nothing by that name"));
      list.hidden = !text;
    }

    function matches(text) {
      const found = [];
      const add = (label, action) => found.push({ label, go: () => { list.hidden = true; action(); } });
      names.forEach((name, place) => {
        const exact = name === text || name.endsWith(`/${text}`) || name.endsWith(`::${text}`);
        if (exact && found.length < 8) add(nodes[place].node, () => choose(place));
      });
      for (const scope of scopes) {
        if (found.length < 12 && scope.name.toLowerCase().endsWith(text)) add(`${scope.name}/ (${format.count(scope.size)} nodes)`, () => { graph.unfold(scope); document.getElementById("graph").scrollIntoView({ block: "nearest" }); });
      }
      const known = new Set(found.map((one) => one.label));
      for (let place = 0; place < names.length && found.length < 20; place += 1) {
        if (names[place].includes(text) && !known.has(nodes[place].node)) add(nodes[place].node, () => choose(place));
      }
      return found;
    }
  }
})();
