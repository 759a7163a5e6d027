// The tree of name scopes over the nodes of a report. Draws nothing.
"use strict";

const MOST_CHILDREN = 30; // what a reader takes in, and dagre lays out in an instant

// A scope's own nodes and scopes are in `children`, in the order of the graph: a number
// is a node, an object a scope. One with very many is cut into parts, as often as needed,
// so that opening a scope never lays out more than a few.
function makeScopes(nodes) {
  const root = newScope("", "", null);
  nodes.forEach((node, place) => {
    let scope = root;
    for (const [name, label] of scopesOf(node.node)) {
      let inner = scope.byName.get(label);
      if (!inner) {
        inner = newScope(name, label, scope);
        scope.byName.set(label, inner);
        scope.children.push(inner);
      }
      scope = inner;
    }
    scope.children.push(place);
  });
  finish(root, nodes);
  return root;
}

function newScope(name, label, parent) {
  return { name, label, parent, children: [], byName: new Map(), size: 0, low: 0, seconds: 0, id: 0 };
}

// "f::a/b/c" is in the scopes "f::", "f::a" and "f::a/b".
function scopesOf(name) {
  const found = [];
  const cut = name.lastIndexOf("::") + 2;
  if (cut > 1) found.push([name.slice(0, cut), name.slice(0, cut)]);
  const start = Math.max(cut > 1 ? cut : 0, 0);
  const parts = name.slice(start).split("/");
  for (let i = 1; i < parts.length; i += 1) {
    found.push([name.slice(0, start) + parts.slice(0, i).join("/"), parts[i - 1]]);
  }
  return found;
}

let scopeCount = 0;

function finish(scope, nodes) {
  scope.byName = null;
  scope.id = scopeCount;
  scopeCount += 1;
  scope.children = scope.children.map((child) => {
    while (typeof child === "object" && child.children.length === 1 && typeof child.children[0] === "object") {
      const only = child.children[0]; // a/b where a holds nothing but b
      only.label = `${child.label}/${only.label}`;
      only.parent = scope;
      child = only;
    }
    const one = typeof child === "object" && child.children.length === 1;
    return one ? child.children[0] : child; // a scope of one node is that node
  });
  if (scope.children.length > MOST_CHILDREN) cutUp(scope, nodes);
  for (const child of scope.children) {
    if (typeof child === "number") {
      scope.size += 1;
      scope.low += nodes[child].dtype === "float32" ? 0 : 1;
      scope.seconds += secondsOf(nodes[child]);
    } else {
      child.parent = scope;
      finish(child, nodes);
      scope.size += child.size;
      scope.low += child.low;
      scope.seconds += child.seconds;
    }
  }
}

function secondsOf(node) {
  return node.dtype === "float32" ? node.seconds32 : node.seconds16;
}

function cutUp(scope, nodes) {
  const parts = Math.min(MOST_CHILDREN, Math.ceil(scope.children.length / MOST_CHILDREN));
  const length = Math.ceil(scope.children.length / parts);
  const cut = [];
  for (let i = 0; i < scope.children.length; i += length) {
    const some = scope.children.slice(i, i + length);
    const ends = [some[0], some[some.length - 1]].map((child) => labelOf(child, nodes));
    const part = newScope(`${scope.name} part ${i}`, `${ends[0]} … ${ends[1]}`, scope);
    part.children = some;
    cut.push(part);
  }
  scope.children = cut;
}

function labelOf(child, nodes) {
  if (typeof child === "object") return child.label;
  const name = nodes[child].node;
  return name.slice(Math.max(name.lastIndexOf("/"), name.lastIndexOf(":")) + 1);
}

// For each node the scope that its `children` stand in.
function homesOf(root, count) {
  const homes = new Array(count);
  const visit = (scope) => {
    for (const child of scope.children) {
      if (typeof child === "number") homes[child] = scope;
      else visit(child);
    }
  };
  visit(root);
  return homes;
}

function* everyScope(scope) {
  for (const child of scope.children) {
    if (typeof child === "object") {
      yield child;
      yield* everyScope(child);
    }
  }
}
