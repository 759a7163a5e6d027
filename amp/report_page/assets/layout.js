// Where the visible nodes and scopes stand. Each open scope is laid out by itself, as one
// box in the scope around it, so that a click costs a layout of a few boxes only.
"use strict";

const BOX = { height: 34, pad: 18, title: 26, gap: 22, letter: 7.2, least: 70, most: 230 };

// What stands for each node: itself, or the outermost folded scope around it.
// Returns ids "n<place>" and "s<id>" by place.
function standIns(root, open, count) {
  const found = new Array(count);
  const visit = (scope, as) => {
    for (const child of scope.children) {
      if (typeof child === "number") found[child] = as || `n${child}`;
      else visit(child, as || (open.has(child) ? null : `s${child.id}`));
    }
  };
  visit(root, null);
  return found;
}

// The edges between stand-ins: [from, to, how many reads].
function edgesBetween(nodes, ids) {
  const counts = new Map();
  nodes.forEach((node, place) => {
    for (const from of node.reads) {
      if (ids[from] !== ids[place]) {
        const key = `${ids[from]}>${ids[place]}`;
        counts.set(key, (counts.get(key) || 0) + 1);
      }
    }
  });
  return Array.from(counts, ([key, reads]) => [...key.split(">"), reads]);
}

// Returns for each visible id its box {x, y, width, height, parent}, x and y its centre.
function layOut(root, open, nodes, edges) {
  const inside = insides(root, open);
  const boxes = new Map();
  place(root, 0, 0);
  return boxes;

  function place(scope, left, top) {
    const drawn = arranged(scope);
    for (const [id, box] of drawn.boxes) {
      const parent = scope === root ? undefined : `s${scope.id}`;
      boxes.set(id, { ...box, x: left + box.x, y: top + box.y, parent });
      if (box.scope && open.has(box.scope)) {
        place(box.scope, left + box.x - box.width / 2, top + box.y - box.height / 2);
      }
    }
  }

  function arranged(scope) {
    if (scope.drawn && scope.drawn.key === keyOf(scope)) return scope.drawn;
    const frame = scope === root ? { pad: 0, title: 0 } : BOX;
    const children = scope.children.map((child) => {
      if (typeof child === "number") return [`n${child}`, sizeOf(labelOf(child, nodes))];
      if (!open.has(child)) return [`s${child.id}`, { ...sizeOf(scopeLabel(child)), scope: child }];
      const { width, height } = arranged(child);
      return [`s${child.id}`, { width, height, scope: child }];
    });
    const own = edges
      .map(([from, to]) => [inside(from, scope), inside(to, scope)])
      .filter(([from, to]) => from && to && from !== to);
    scope.drawn = { ...arrange(children, own, frame), key: keyOf(scope) };
    return scope.drawn;
  }

  // A scope is laid out anew only where something in it was opened or folded.
  function keyOf(scope) {
    const inner = scope.children.filter((child) => typeof child === "object" && open.has(child));
    return inner.map((child) => `${child.id}(${keyOf(child)})`).join(",");
  }
}

function scopeLabel(scope) {
  return `${scope.label} (${format.count(scope.size)})`;
}

function sizeOf(label) {
  const width = label.length * BOX.letter + 20;
  return { width: Math.min(Math.max(width, BOX.least), BOX.most), height: BOX.height };
}

// A function that tells which child of a scope an id is, or is in; undefined if none.
function insides(root, open) {
  const parents = new Map();
  const visit = (scope) => {
    for (const child of scope.children) {
      if (typeof child === "number") parents.set(`n${child}`, scope);
      else {
        parents.set(`s${child.id}`, scope);
        if (open.has(child)) visit(child);
      }
    }
  };
  visit(root);
  return (id, scope) => {
    let at = id;
    for (let around = parents.get(at); around; around = parents.get(at)) {
      if (around === scope) return at;
      at = `s${around.id}`;
    }
    return undefined;
  };
}

// Layers from top to bottom; what has no edge stands in a grid below them.
function arrange(children, edges, frame) {
  const linked = new Set(edges.flat());
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: BOX.gap, ranksep: 38, ranker: "tight-tree" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const [id, box] of children) if (linked.has(id)) graph.setNode(id, { ...box });
  for (const [from, to] of edges) graph.setEdge(from, to);
  if (linked.size) dagre.layout(graph);
  const boxes = new Map();
  let width = linked.size ? graph.graph().width : 0;
  let below = linked.size ? graph.graph().height : 0;
  for (const [id, box] of children) {
    if (linked.has(id)) {
      const { x, y } = graph.node(id);
      boxes.set(id, { ...box, x: x + frame.pad, y: y + frame.title + frame.pad / 2 });
    }
  }
  const loose = children.filter(([id]) => !linked.has(id));
  const grid = inGrid(loose, Math.max(width, 640), linked.size ? below + BOX.gap : 0);
  for (const [id, box] of grid.boxes) {
    boxes.set(id, { ...box, x: box.x + frame.pad, y: box.y + frame.title + frame.pad / 2 });
  }
  width = Math.max(width, grid.width);
  below = Math.max(below, grid.below);
  return { boxes, width: width + 2 * frame.pad, height: below + frame.title + 1.5 * frame.pad };
}

function inGrid(children, most, top) {
  const boxes = [];
  let [x, y, row, width] = [0, top, 0, 0];
  for (const [id, box] of children) {
    if (x && x + box.width > most) [x, y, row] = [0, y + row + BOX.gap, 0];
    boxes.push([id, { ...box, x: x + box.width / 2, y: y + box.height / 2 }]);
    x += box.width + BOX.gap;
    row = Math.max(row, box.height);
    width = Math.max(width, x - BOX.gap);
  }
  return { boxes, width, below: boxes.length ? y + row : 0 };
}
