// The table of nodes: sorted, filtered, and only the rows in view are there.
"use strict";

const COLUMNS = [
  { name: "node", of: (node) => node.node, text: (name) => `\u200e${name}`, kind: "name" },
  { name: "op", of: (node) => node.op, extra: true },
  { name: "type", of: (node) => node.dtype, kind: "dtype" },
  { name: "rule", of: (node) => node.rule },
  { name: "cause", of: (node) => node.cause, extra: true },
  { name: "float32", of: (node) => node.seconds32, text: format.time, kind: "number", extra: true },
  { name: "16 bits", of: (node) => node.seconds16, text: format.time, kind: "number", extra: true },
  { name: "time", of: secondsOf, text: format.time, kind: "number" },
];

function makeTable(report, rules, choose) {
  const nodes = report.decisions;
  const table = document.getElementById("table");
  const rows = document.getElementById("rows");
  const space = document.getElementById("space");
  const words = nodes.map((node) => `${node.node}\n${node.op}\n${node.cause}`.toLowerCase());
  const state = { column: COLUMNS[7], down: true, order: [], chosen: -1 };
  const inputs = { text: field("filter"), type: field("filter-type"), rule: field("filter-rule") };

  for (const type of new Set(nodes.map((node) => node.dtype))) inputs.type.append(make("option", { value: type }, type));
  for (const rule of [...new Set(nodes.map((node) => node.rule))].sort()) {
    inputs.rule.append(make("option", { value: rule, title: rules[rule] || rule }, rule));
  }
  const heads = COLUMNS.map((column) => make("button", {
    type: "button", role: "columnheader", class: classOf(column),
    onclick: () => sortBy(column),
  }, column.name));
  document.getElementById("columns").append(...heads);
  table.addEventListener("scroll", draw);
  window.addEventListener("resize", draw);
  arrange();

  function field(id) {
    const found = document.getElementById(id);
    found.addEventListener("input", arrange);
    return found;
  }

  function classOf(column) {
    return [column.kind === "number" ? "number" : "", column.extra ? "extra" : ""].join(" ").trim();
  }

  function sortBy(column) {
    state.down = state.column === column ? !state.down : column.kind === "number";
    state.column = column;
    arrange();
  }

  function arrange() {
    const text = inputs.text.value.trim().toLowerCase();
    const keep = (place) => (!text || words[place].includes(text))
      && (!inputs.type.value || nodes[place].dtype === inputs.type.value)
      && (!inputs.rule.value || nodes[place].rule === inputs.rule.value);
    const { of } = state.column;
    const sign = state.down ? -1 : 1;
    const keys = nodes.map(of);
    const before = (a, b) => (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : a - b);
    state.order = [...nodes.keys()].filter(keep).sort(before);
    heads.forEach((head, i) => {
      const mine = COLUMNS[i] === state.column;
      head.setAttribute("aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
      head.textContent = COLUMNS[i].name + (mine ? (state.down ? " ↓" : " ↑") : "");
    });
    document.getElementById("count").textContent = `${format.count(state.order.length)} of ${format.count(nodes.length)}`;
    table.scrollTop = 0;
    draw();
  }

  function rowHeight() {
    return window.matchMedia("(max-width: 760px)").matches ? 36 : 28;
  }

  function draw() {
    const height = rowHeight();
    const first = Math.max(Math.floor(table.scrollTop / height) - 5, 0);
    const last = Math.min(first + Math.ceil(table.clientHeight / height) + 10, state.order.length);
    space.style.height = `${state.order.length * height}px`;
    rows.replaceChildren(...state.order.slice(first, last).map((place, i) => row(place, (first + i) * height)));
  }

  function row(place, top) {
    const node = nodes[place];
    const cells = COLUMNS.map((column) => {
      const value = column.of(node);
      const low = column.kind === "dtype" && value !== "float32" ? " low" : "";
      const shown = column.text ? column.text(value) : value;
      return make("span", { role: "cell", class: `${column.kind || ""}${low} ${classOf(column)}`, title: shown }, shown);
    });
    const element = make("div", { class: place === state.chosen ? "row chosen" : "row", role: "row", "data-place": place, onclick: () => choose(place) }, ...cells);
    element.style.top = `${top}px`;
    return element;
  }

  return {
    choose(place) { state.chosen = place; draw(); },
    order: () => state.order,
  };
}
