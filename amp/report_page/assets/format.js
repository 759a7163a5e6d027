// Numbers as text, and elements of the page. Knows nothing of reports.
"use strict";

const format = {
  // As `figures.time` writes it in the report's text.
  time(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(1)} us`;
    if (seconds < 10) return `${(seconds * 1e3).toFixed(2)} ms`;
    return `${seconds.toFixed(1)} s`;
  },
  bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (count >= 1024 && unit < units.length - 1) {
      count /= 1024;
      unit += 1;
    }
    return `${unit ? count.toFixed(count < 10 ? 1 : 0) : count} ${units[unit]}`;
  },
  count(number) {
    return number.toLocaleString("en");
  },
  // A gain of less than 1 is a loss, and is called one.
  gain(before, after) {
    if (!before || !after) return "";
    const ratio = before / after;
    if (Math.abs(ratio - 1) < 0.005) return "none";
    return ratio >= 1 ? `${ratio.toFixed(2)}x faster` : `${(1 / ratio).toFixed(2)}x slower`;
  },
};

// An element with attributes (`on…` is a listener) and children (text or elements).
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
