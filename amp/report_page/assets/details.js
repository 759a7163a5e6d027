// What is known of the chosen node or scope: its reason, and the chain of causes.
"use strict";

// Follows from cause to cause; a chain that meets itself ends there.
function chainOf(place, causes) {
  const found = [place];
  for (let next = causes[place]; next >= 0 && !found.includes(next); next = causes[next]) found.push(next);
  return found;
}

// What would give the node at the root of a chain another type.
function changeOf(root, { changes }) {
  const name = root.node.split("::").pop();
  return (changes[root.change || root.rule] || "").replaceAll("{op}", root.op).replaceAll("{name}", name);
}

function showNode(data, place, choose) {
  const { report, rules, causes } = data;
  const node = report.decisions[place];
  const readers = report.decisions.flatMap((other, at) => (other.reads.includes(place) ? [at] : []));
  const chain = chainOf(place, causes);
  const link = (at) => nodeLink(report.decisions[at], at, choose);
  fill(
    make("p", { class: "name" }, node.node),
    pairs([
      ["op", node.op],
      ...(node.layer ? [["layer", node.layer]] : []),
      ["type", tag(node.dtype)],
      ["in float32", format.time(node.seconds32)],
      ["in 16 bits", format.time(node.seconds16)],
      ["elements", format.count(node.elements)],
      ["sizes", node.sizes],
    ]),
    node.source ? make("p", { class: "source" }, node.source, make("code", {}, report.source_text[node.source] || "")) : null,
    make("h3", {}, "Why"),
    reason(node, rules),
    chain.length > 1 ? make("h3", {}, "Chain of causes") : null,
    chain.length > 1 ? make("ol", { class: "chain" }, ...chain.map((at) => make("li", {}, link(at), " ", reason(report.decisions[at], rules)))) : null,
    make("h3", {}, "What would change it"),
    make("p", { class: "change" }, changeOf(report.decisions[chain[chain.length - 1]], data)),
    ...neighbours("Reads", node.reads, link),
    ...neighbours("Read by", readers, link),
  );
}

function reason(node, rules) {
  return make("div", { class: "reason" }, `${rules[node.rule] || node.rule} `, make("span", { class: "hint" }, `[${node.rule}: ${node.cause}]`));
}

function neighbours(title, places, link) {
  if (!places.length) return [];
  const more = places.length - 12;
  return [
    make("h3", {}, `${title} (${format.count(places.length)})`),
    make("ol", {}, ...places.slice(0, 12).map((at) => make("li", {}, link(at)))),
    more > 0 ? make("p", { class: "hint" }, `${more} more`) : null,
  ];
}

function tag(dtype) {
  return make("span", { class: dtype === "float32" ? "tag" : "tag low" }, dtype);
}

function showScope(scope, foldThis) {
  fill(
    make("p", { class: "name" }, scope.label),
    pairs([
      ["nodes", format.count(scope.size)],
      ["of them in 16 bits", format.count(scope.low)],
      ["time as decided", format.time(scope.seconds)],
    ]),
    make("p", {}, make("button", { type: "button", id: "fold-scope", onclick: foldThis }, "Fold this scope")),
  );
}

function fill(...content) {
  document.getElementById("details").replaceChildren(...content.filter(Boolean));
}
