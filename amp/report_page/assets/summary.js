// The figures that come first. All of them stand in the data as they are shown.
"use strict";

function showSummary({ report, rules }, choose) {
  const summary = report.summary;
  document.getElementById("function").textContent = report.function || "graph";
  document.getElementById("verdict").textContent = report.verdict;
  document.getElementById("low-name").textContent = report.dtype || "16 bits";
  const cards = [
    figuresCard(report, summary),
    timesCard(report),
    typesCard(report, summary),
    plansCard(report),
    costliestCard(report, summary, choose),
    keptCard(summary, rules),
    accuracyCard(report),
  ];
  document.getElementById("summary").replaceChildren(...cards.filter(Boolean));
}

function card(title, wide, ...content) {
  return make("div", { class: `card ${wide}` }, make("h3", {}, title), ...content);
}

function pairs(rows) {
  const list = make("dl", {});
  for (const [name, value] of rows) {
    if (value !== "" && value !== null && value !== undefined) list.append(make("dt", {}, name), make("dd", {}, value));
  }
  return list;
}

// What a plan that was not made has no figure of.
function known(value, text) {
  return value === null || value === undefined ? "–" : text(value);
}

function rowsTable(head, rows, best = -1) {
  const table = make("table", {}, make("tr", {}, ...head.map((text) => make("th", {}, text))));
  rows.forEach((row, i) => table.append(make("tr", { class: i === best ? "best" : "" }, ...row.map((cell, column) => make("td", { class: String(cell).length > 14 ? "words" : "", "data-head": head[column] }, cell)))));
  return make("div", { class: "wide-table" }, table);
}

function figuresCard(report) {
  const emulated = report.emulated ? " (emulated)" : "";
  return card("What it is", "", pairs([
    ["16-bit type", report.dtype ? report.dtype + emulated : "off"],
    ["device", report.device],
    ["loss scale", report.loss_scale],
    ["nodes", format.count(report.nodes_total)],
    ["of them in 16 bits", format.count(report.nodes_low)],
    ["casts", format.count(report.casts)],
    ...Object.entries(report.casts_spared).filter(([, n]) => n).map(([how, n]) => [`casts ${how}`, format.count(n)]),
    ["clusters", report.clusters ? format.count(report.clusters) : ""],
    ["made for", Object.entries(report.made_for).map(([name, size]) => `${name} [${size.join(", ")}]`).join(", ")],
    ["sizes assumed", report.sizes_assumed.join(", ")],
  ]));
}

function timesCard(report) {
  if (report.emulated) return card("Time of a step", "", pairs([["predicted", "not asked: emulation shows values, no speed"]]));
  return card("Time of a step", "", pairs([
    ["predicted, float32", format.time(report.seconds32)],
    ["predicted, rewritten", format.time(report.seconds16)],
    ["predicted gain", format.gain(report.seconds32, report.seconds16)],
    ["measured, float32", report.measured32 === null ? "not measured" : format.time(report.measured32)],
    ["measured, rewritten", report.measured16 === null ? "not measured" : format.time(report.measured16)],
    ["measured gain", format.gain(report.measured32, report.measured16)],
    ["timed calls", report.timed ? format.count(report.timed) : ""],
    ["prices measured", `${Math.round(100 * report.measured_share)} %`],
    ["trial", report.trial],
  ]));
}

function typesCard(report, summary) {
  const every = Object.keys(summary.nodes).sort();
  const content = [];
  for (const [title, figures, text] of [["nodes", summary.nodes, format.count], ["bytes of results", summary.bytes, format.bytes]]) {
    const total = every.reduce((sum, type) => sum + figures[type], 0);
    const bar = make("div", { class: "bar" });
    for (const type of every) {
      const share = total ? (100 * figures[type]) / total : 0;
      const part = make("i", { class: type === "float32" ? "high" : "low", title: type });
      part.style.width = `${share}%`;
      bar.append(part);
    }
    content.push(pairs([[title, every.map((type) => `${type} ${text(figures[type])}`).join(", ")]]), bar);
  }
  const neither = report.nodes_total - every.reduce((sum, type) => sum + summary.nodes[type], 0);
  content.push(pairs([["nodes of neither type", format.count(neither)]]));
  content.push(pairs([["results, all in float32", format.bytes(summary.bytes32)]]));
  return card("Nodes and memory by type", "", ...content);
}

function plansCard(report) {
  if (!report.plans.length) return null;
  return card("Plans that raced", "full", rowsTable(
    ["plan", "what became of it", "measured", "predicted", "calls", "in 16 bits", "casts", "results"],
    report.plans.map((plan) => [
      plan.name, plan.fate, format.time(plan.seconds), format.time(plan.predicted), format.count(plan.timed),
      known(plan.low, format.count), known(plan.casts, format.count), known(plan.bytes, format.bytes),
    ]),
    report.plans.findIndex((plan) => plan.fate === "won"),
  ));
}

function costliestCard(report, summary, choose) {
  if (!summary.costliest.length) return null;
  return card("Nodes that cost most", "wide", rowsTable(
    ["node", "type", "time"],
    summary.costliest.map((place) => {
      const node = report.decisions[place];
      return [nodeLink(node, place, choose), node.dtype, format.time(secondsOf(node))];
    }),
  ));
}

function keptCard(summary, rules) {
  if (!summary.kept.length) return null;
  return card("What keeps most time in float32", "wide", rowsTable(
    ["reason", "nodes", "time"],
    summary.kept.map((one) => [`${one.rule}: ${rules[one.rule] || one.rule}`, format.count(one.nodes), format.time(one.seconds)]),
  ));
}

function accuracyCard(report) {
  if (!report.accuracy) return null;
  const worst = report.accuracy.worst.map((one) => [one.name, one.error.toPrecision(2), one.products.toPrecision(2)]);
  return card("Accuracy", "wide", make("p", {}, report.accuracy.text),
    worst.length ? rowsTable(["gradient", "error", "by products only"], worst) : null);
}

function nodeLink(node, place, choose) {
  return make("button", { type: "button", class: "link", title: node.op, onclick: () => choose(place) }, node.node);
}
