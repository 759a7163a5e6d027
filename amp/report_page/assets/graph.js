// The drawn graph: which scopes are open, colours, and what a click does.
"use strict";

const MOST_VISIBLE = 260; // then the scopes that were opened first fold again
const MOST_FIRST = 45; // what is drawn before anything is opened

// `chosen(place)` and `chosenScope(scope)` are called for what the reader clicks.
function makeGraph(report, root, chosen, chosenScope) {
  const nodes = report.decisions;
  const homes = homesOf(root, nodes.length);
  const scopes = new Map(Array.from(everyScope(root), (scope) => [`s${scope.id}`, scope]));
  const open = new Set();
  const cy = cytoscape({
    container: document.getElementById("graph"),
    minZoom: 0.02, maxZoom: 3, boxSelectionEnabled: false, autoungrabify: true,
    pixelRatio: Math.min(window.devicePixelRatio || 1, 2),
  });
  const shown = () => [...standing.values()];
  let standing = new Map();

  cy.on("tap", "node", (event) => {
    const id = event.target.id();
    if (id.startsWith("n")) return choose(Number(id.slice(1)), false);
    const scope = scopes.get(id);
    if (open.has(scope)) chosenScope(scope);
    else unfold(scope);
    return undefined;
  });

  function draw(focus) {
    const ids = standIns(root, open, nodes.length);
    const edges = edgesBetween(nodes, ids);
    standing = layOut(root, open, nodes, edges);
    const elements = [];
    for (const [id, box] of standing) elements.push(element(id, box));
    for (const [from, to, reads] of edges) {
      elements.push({ data: { id: `${from}>${to}`, source: from, target: to, reads, thick: 1 + Math.min(Math.log2(reads), 5) } });
    }
    cy.batch(() => {
      cy.elements().remove();
      cy.add(elements);
    });
    if (focus) show(focus);
    else cy.fit(undefined, 24);
  }

  function element(id, box) {
    const scope = scopes.get(id);
    const position = { x: box.x, y: box.y };
    const size = { width: box.width, height: box.height, parent: box.parent };
    if (!scope) {
      const node = nodes[Number(id.slice(1))];
      const kind = node.dtype === "float32" ? "high" : "low";
      return { data: { id, label: labelOf(Number(id.slice(1)), nodes), ...size }, position, classes: `leaf ${kind}` };
    }
    const share = Math.round((100 * scope.low) / Math.max(scope.size, 1));
    const kind = open.has(scope) ? "open" : "folded";
    const label = open.has(scope) ? scope.label : scopeLabel(scope);
    return { data: { id, label, stops: `0% ${share}% ${share}% 100%`, ...size }, position, classes: kind };
  }

  function show(id) {
    const target = cy.getElementById(id);
    if (!target.length) return;
    const box = target.boundingBox();
    const zoom = Math.min((0.8 * cy.width()) / box.w, (0.8 * cy.height()) / box.h, 1.1);
    cy.zoom(Math.max(zoom, 0.05));
    cy.center(target);
  }

  function unfold(scope) {
    openUpTo(scope);
    draw(`s${scope.id}`);
    chosenScope(scope);
  }

  function openUpTo(scope) {
    const around = new Set();
    for (let at = scope; at && at.parent; at = at.parent) around.add(at);
    for (const one of [...around].reverse()) {
      open.delete(one); // the newest come last
      open.add(one);
    }
    const visible = () => [root, ...open].reduce((sum, one) => sum + one.children.length, 0);
    for (const one of [...open]) if (visible() > MOST_VISIBLE && !around.has(one)) fold(one);
  }

  // What is seen first: scopes that hold most of the graph are open, while there is room.
  function openMost() {
    let room = MOST_FIRST - root.children.length;
    let at = root;
    while (at) {
      at = at.children.find((child) => typeof child === "object" && child.size > root.size / 2);
      if (at) room -= at.children.length;
      if (room < 0) at = undefined;
      if (at) open.add(at);
    }
  }

  function fold(scope) {
    for (const one of [...open]) {
      for (let at = one; at; at = at.parent) if (at === scope) open.delete(one);
    }
  }

  function choose(place, move) {
    if (move) {
      openUpTo(homes[place]);
      draw(`n${place}`);
    }
    cy.elements().removeClass("chosen");
    const box = cy.getElementById(`n${place}`);
    box.union(box.connectedEdges()).addClass("chosen");
    chosen(place);
  }

  function colour() {
    const css = getComputedStyle(document.documentElement);
    const get = (name) => css.getPropertyValue(name).trim();
    cy.style(stylesOf(get));
  }

  colour();
  openMost();
  draw();
  return {
    cy, colour, shown, choose,
    unfold,
    foldScope(scope) { fold(scope); draw(`s${scope.id}`); },
    foldAll() { open.clear(); draw(); },
    fit() { cy.fit(undefined, 24); },
    zoom(factor) { cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } }); },
    isOpen: (scope) => open.has(scope),
  };
}

function stylesOf(get) {
  const label = {
    label: "data(label)", "text-valign": "center", "text-halign": "center", "font-size": 12,
    "font-family": "system-ui, sans-serif", "text-wrap": "ellipsis", "text-max-width": `${BOX.most - 14}px`,
    "min-zoomed-font-size": 5,
  };
  const box = { shape: "round-rectangle", width: "data(width)", height: "data(height)" };
  return [
    { selector: "node.leaf", style: { ...label, ...box, color: get("--on"), "background-color": get("--high") } },
    { selector: "node.leaf.low", style: { "background-color": get("--low") } },
    {
      selector: "node.folded",
      style: {
        ...label, ...box, color: get("--on"), "background-fill": "linear-gradient",
        "background-gradient-direction": "to-right",
        "background-gradient-stop-colors": `${get("--low")} ${get("--low")} ${get("--high")} ${get("--high")}`,
        "background-gradient-stop-positions": "data(stops)",
        "border-width": 3, "border-style": "double", "border-color": get("--card"),
      },
    },
    {
      selector: "node.open",
      style: {
        ...label, shape: "round-rectangle", color: get("--text"), "text-valign": "top", "text-margin-y": -2,
        "background-color": get("--soft"), "background-opacity": 0.08, "border-width": 1,
        "border-color": get("--soft"), padding: "18px", "text-max-width": "600px", "font-weight": 600,
      },
    },
    { selector: "node.chosen", style: { "border-width": 4, "border-color": get("--text") } },
    {
      selector: "edge",
      style: {
        width: "data(thick)", "line-color": get("--soft"), "line-opacity": 0.55, "curve-style": "bezier",
        "target-arrow-shape": "triangle", "target-arrow-color": get("--soft"), "arrow-scale": 0.8,
      },
    },
    {
      selector: "edge.chosen",
      style: { "line-color": get("--text"), "target-arrow-color": get("--text"), "line-opacity": 1, "z-index": 9 },
    },
  ];
}
