"use strict";

/* Elements and numbers. Text only ever becomes text: nothing here reads HTML from a string. */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function trim(text) {
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace("-", "−");
}

/* A number in about four figures, with separators between thousands. */
function formatNumber(value, figures = 4) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  const whole = Number.isInteger(value) && size < 1e9;
  if (!whole && (size >= 1e7 || size < 1e-4)) return value.toExponential(Math.max(0, figures - 2)).replace("e+", "e").replaceAll("-", "−");
  const decimals = whole ? 0 : Math.max(0, figures - 1 - Math.floor(Math.log10(size)));
  const text = value.toFixed(Math.min(decimals, 12));
  const [front, rest] = text.replace("-", "").split(".");
  const grouped = front.replace(/\B(?=(\d{3})+$)/g, ",");
  return (value < 0 ? "−" : "") + (rest ? `${grouped}.${rest}` : grouped);
}

function formatShare(value, decimals = 1) {
  return isNumber(value) ? `${(100 * value).toFixed(decimals).replace("-", "−")} %` : "–";
}

function signed(value, text) {
  return isNumber(value) && value > 0 ? `+${text}` : text;
}

const FORMATS = {
  number: (value) => formatNumber(value),
  share: (value) => formatShare(value, 2),
  gain: (value) => signed(value, formatShare(value)),
  points: (value) => (isNumber(value) ? `${signed(value, (100 * value).toFixed(2).replace("-", "−"))} pp` : "–"),
};

/* A mean with its interval in words; runs with one seed have none. */
function formatInterval(value, format) {
  if (!value || !isNumber(value.mean)) return "–";
  if (!isNumber(value.low) || !isNumber(value.high)) return format(value.mean);
  return `${format(value.mean)} [${format(value.low)}, ${format(value.high)}]`;
}

/* The same in two lines for a table. */
function intervalCell(value, format) {
  const known = value && isNumber(value.low) && isNumber(value.high);
  return make("td", {}, format(value ? value.mean : null), known ? make("div", { class: "note" }, `[${format(value.low)}, ${format(value.high)}]`) : null);
}

/* Round numbers between two ends: about `count` of them. */
function linearTicks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high) {
  for (const factors of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of factors) {
        const tick = Number((factor * 10 ** power).toPrecision(3));
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    if (ticks.length >= 3) return ticks.length > 9 ? ticks.filter((_, k) => k % Math.ceil(ticks.length / 7) === 0) : ticks;
  }
  return linearTicks(low, high, 4);
}

function lineSample(style, withBand) {
  const sample = draw("svg", { class: "sample", width: 34, height: 14, viewBox: "0 0 34 14", "aria-hidden": "true" });
  if (withBand) sample.append(draw("rect", { x: 0, y: 1, width: 34, height: 12, fill: style.color, opacity: style.opacity || 0.18 }));
  if (style.opacity) return sample;
  sample.append(draw("line", { x1: 1, x2: 33, y1: 7, y2: 7, stroke: style.color, "stroke-width": 2.4, "stroke-dasharray": dashOf(style, 2.4) }));
  return sample;
}

function dashOf(style, width) {
  return style.dash && style.dash.length ? style.dash.map((part) => (part * width).toFixed(2)).join(" ") : null;
}
