"use strict";

/* Line charts with bands: hover or arrow keys read the values, and the axis can be changed. */

const CHART_HEIGHT = 270;
const MARGIN = { top: 12, right: 14, bottom: 40, left: 62 };

let chartCount = 0;

class LineChart {
  /*
   * options: name, title, note, about (for readers of the screen),
   *   lines() -> [{name, label, color, dash, x, mean, low, high}], mean or band may be missing,
   *   axis() -> {label, format}, logarithmic() -> bool, format(value), tick(value), zero (a line to be in view), most,
   *   key (whether to name the lines below),
   *   settled: the share of the axis whose steep beginning does not decide what is in view
   */
  constructor(options) {
    this.options = options;
    this.clip = `clip${chartCount++}`;
    this.cursor = null;
    this.plot = make("div", { class: "plot" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.spoken = make("p", { class: "spoken", "aria-live": "polite" });
    this.plot.append(this.tip);
    this.key = options.key ? make("ul", { class: "key" }) : null;
    this.node = make(
      "figure",
      { class: "chart", "data-figure": options.name },
      make("figcaption", {}, make("strong", {}, options.title), options.note ? make("span", { class: "note" }, options.note) : null),
      options.controls || null,
      this.plot,
      this.key,
      this.spoken,
    );
  }

  redraw() {
    const width = Math.max(240, this.plot.clientWidth || 400);
    const { lines, axis, logarithmic } = this.options;
    this.lines = lines().filter((line) => line.x.length > 0);
    this.axis = axis();
    this.width = width;
    const height = CHART_HEIGHT;
    const picture = draw("svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${this.options.about || this.options.title} against ${this.axis.label}. Arrow keys read the values.`,
    });
    const focused = this.picture && document.activeElement === this.picture;
    if (this.picture) this.picture.remove();
    this.picture = picture;
    this.plot.prepend(picture);
    this.hideCursor();
    if (this.key) this.key.replaceChildren(...this.lines.map((line) => make("li", {}, lineSample(line, !line.mean), line.label)));
    const domain = this.findDomain(logarithmic ? logarithmic() : false);
    if (!domain) {
      picture.append(draw("text", { x: width / 2, y: height / 2, class: "empty" }, this.lines.length ? "no values" : "every method is hidden"));
      return;
    }
    this.makeScales(domain, width, height);
    this.drawAxes(picture, domain, width, height);
    this.drawLines(picture, width, height);
    this.mark = draw("g", { class: "cursor" });
    picture.append(this.mark);
    picture.addEventListener("pointermove", (event) => this.follow(event));
    picture.addEventListener("pointerdown", (event) => this.follow(event));
    picture.addEventListener("pointerleave", () => this.hideCursor());
    picture.addEventListener("blur", () => this.hideCursor());
    picture.addEventListener("keydown", (event) => this.step(event));
    if (focused) picture.focus();
  }

  findDomain(wantLog) {
    const xs = [];
    const ys = [];
    const from = (this.options.settled || 0) * Math.max(...this.lines.flatMap((line) => line.x.filter(isNumber)));
    for (const line of this.lines) {
      xs.push(...line.x.filter(isNumber));
      for (const values of [line.mean, line.low, line.high]) {
        if (values) ys.push(...values.filter((value, k) => isNumber(value) && line.x[k] >= from));
      }
    }
    if (!xs.length || !ys.length) return null;
    if (isNumber(this.options.zero)) ys.push(this.options.zero);
    const positive = ys.filter((value) => value > 0);
    const log = wantLog && positive.length > 0;
    const used = log ? positive : ys;
    let low = used.reduce((a, b) => Math.min(a, b));
    let high = used.reduce((a, b) => Math.max(a, b));
    if (log) {
      if (high / low < 1.02) [low, high] = [low / 1.1, high * 1.1];
      const pad = (high / low) ** 0.04;
      [low, high] = [low / pad, high * pad];
    } else {
      if (high - low < 1e-12 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)];
      const pad = 0.05 * (high - low);
      const touchesZero = low >= 0 && low - pad < 0;
      [low, high] = [touchesZero ? 0 : low - pad, high + pad];
      if (this.options.most && high > this.options.most) high = this.options.most + 0.2 * pad;
    }
    const start = xs.reduce((a, b) => Math.min(a, b), this.axis.tick ? Infinity : 0);
    const end = xs.reduce((a, b) => Math.max(a, b));
    return { x: [start, end > start ? end : start + 1], y: [low, high], log };
  }

  makeScales(domain, width, height) {
    const [x0, x1] = domain.x;
    const right = width - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    this.xToPixel = (x) => MARGIN.left + ((x - x0) / (x1 - x0)) * (right - MARGIN.left);
    this.pixelToX = (pixel) => x0 + ((pixel - MARGIN.left) / (right - MARGIN.left)) * (x1 - x0);
    const shape = domain.log ? (y) => Math.log(Math.max(y, domain.y[0] * 1e-3)) : (y) => y;
    const [y0, y1] = domain.y.map(shape);
    this.yToPixel = (y) => bottom - ((shape(y) - y0) / (y1 - y0)) * (bottom - MARGIN.top);
  }

  drawAxes(picture, domain, width, height) {
    const bottom = height - MARGIN.bottom;
    const tick = this.options.tick || ((value) => trim(formatNumber(value, 3)));
    const axes = draw("g", { class: "axes", "aria-hidden": "true" });
    const rows = domain.log ? logTicks(...domain.y) : linearTicks(...domain.y, 5);
    for (const value of rows) {
      const y = this.yToPixel(value);
      axes.append(draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
      axes.append(draw("text", { class: "ytick", x: MARGIN.left - 7, y: y + 4 }, tick(value)));
    }
    const places = linearTicks(...domain.x, Math.max(2, Math.min(6, width / 90)));
    const decades = places.filter(Number.isInteger);
    for (const value of this.axis.tick && decades.length > 1 ? decades : places) {
      const x = this.xToPixel(value);
      axes.append(draw("line", { class: "grid", x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
      axes.append(draw("text", { class: "xtick", x, y: bottom + 17 }, (this.axis.tick || shortNumber)(value)));
    }
    axes.append(draw("line", { class: "edge", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
    axes.append(draw("text", { class: "xlabel", x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 5 }, this.axis.label));
    if (isNumber(this.options.zero)) {
      const y = this.yToPixel(this.options.zero);
      axes.append(draw("line", { class: "zero", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
      if (this.options.zero === 0) {
        const right = width - MARGIN.right - 4;
        axes.append(draw("text", { class: "word", x: right, y: MARGIN.top + 12 }, "better"));
        axes.append(draw("text", { class: "word", x: right, y: bottom - 6 }, "worse"));
      }
    }
    picture.append(axes);
  }

  drawLines(picture, width, height) {
    const area = { x: MARGIN.left, y: MARGIN.top - 4, width: width - MARGIN.left - MARGIN.right + 2, height: height - MARGIN.top - MARGIN.bottom + 6 };
    picture.append(draw("defs", {}, draw("clipPath", { id: this.clip }, draw("rect", area))));
    const bands = draw("g", { "clip-path": `url(#${this.clip})`, "aria-hidden": "true" });
    const curves = draw("g", { "clip-path": `url(#${this.clip})`, "aria-hidden": "true" });
    for (const line of this.lines) {
      if (line.low && line.high) {
        bands.append(draw("path", { class: "band", "data-name": line.name, d: this.bandPath(line), fill: line.color, opacity: line.opacity || 0.17 }));
      }
      if (line.mean) {
        curves.append(
          draw("path", { class: "line", "data-name": line.name, d: this.linePath(line.x, line.mean), stroke: line.color, "stroke-dasharray": dashOf(line, 2) }),
        );
      }
    }
    picture.append(bands, curves);
  }

  linePath(xs, ys) {
    let path = "";
    let pen = "M";
    xs.forEach((x, k) => {
      if (!isNumber(x) || !isNumber(ys[k])) {
        pen = "M";
        return;
      }
      path += `${pen}${this.xToPixel(x).toFixed(1)},${this.yToPixel(ys[k]).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  bandPath(line) {
    const whole = line.x.map((_, k) => k).filter((k) => isNumber(line.x[k]) && isNumber(line.low[k]) && isNumber(line.high[k]));
    const point = (k, values) => `${this.xToPixel(line.x[k]).toFixed(1)},${this.yToPixel(values[k]).toFixed(1)}`;
    if (!whole.length) return "";
    const there = whole.map((k) => point(k, line.high)).join("L");
    const back = whole.slice().reverse().map((k) => point(k, line.low)).join("L");
    return `M${there}L${back}Z`;
  }

  follow(event) {
    const box = this.picture.getBoundingClientRect();
    if (!box.width || !this.pixelToX) return;
    this.showCursor(this.pixelToX(((event.clientX - box.left) / box.width) * this.width), false);
  }

  step(event) {
    const longest = this.lines.reduce((a, b) => (b.x.length > a.x.length ? b : a), this.lines[0]);
    if (!longest) return;
    const last = longest.x.length - 1;
    const now = this.cursor === null ? -1 : nearest(longest.x, this.cursor);
    const moves = { ArrowRight: now + 1, ArrowLeft: now < 0 ? last : now - 1, Home: 0, End: last, PageDown: now + 10, PageUp: now - 10 };
    if (event.key === "Escape") this.hideCursor();
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.showCursor(longest.x[Math.max(0, Math.min(last, moves[event.key]))], true);
  }

  showCursor(x, aloud) {
    const readings = this.lines
      .map((line) => ({ line, k: nearest(line.x, x) }))
      .filter(({ line, k }) => isNumber((line.mean || line.high)[k]))
      .sort((a, b) => (b.line.mean || b.line.high)[b.k] - (a.line.mean || a.line.high)[a.k]);
    if (!readings.length) return this.hideCursor();
    const closest = readings.reduce((a, b) => (Math.abs(b.line.x[b.k] - x) < Math.abs(a.line.x[a.k] - x) ? b : a));
    this.cursor = closest.line.x[closest.k];
    const pixel = this.xToPixel(this.cursor);
    this.mark.replaceChildren(draw("line", { x1: pixel, x2: pixel, y1: MARGIN.top, y2: CHART_HEIGHT - MARGIN.bottom }));
    for (const { line, k } of readings) {
      if (line.mean) this.mark.append(draw("circle", { cx: this.xToPixel(line.x[k]), cy: this.yToPixel(line.mean[k]), r: 3.4, fill: line.color }));
    }
    const heading = `${this.axis.format(this.cursor)}`;
    const rows = readings.map(({ line, k }) => ({ line, text: this.read(line, k) }));
    this.tip.replaceChildren(
      make("div", { class: "tiphead" }, heading),
      make("table", {}, make("tbody", {}, rows.map(({ line, text }) => make("tr", {}, make("td", {}, lineSample(line, !line.mean)), make("td", {}, line.label), make("td", {}, text))))),
    );
    this.tip.hidden = false;
    const scale = this.plot.clientWidth / this.width;
    const room = this.plot.clientWidth - this.tip.offsetWidth;
    const beside = pixel * scale > this.plot.clientWidth / 2 ? pixel * scale - this.tip.offsetWidth - 12 : pixel * scale + 12;
    const box = this.plot.getBoundingClientRect();
    const below = box.bottom + this.tip.offsetHeight < window.innerHeight || box.top < this.tip.offsetHeight + 60;
    this.tip.style.top = below ? "100%" : `${-this.tip.offsetHeight}px`;
    this.tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    if (aloud) this.spoken.textContent = `${heading}: ${rows.map(({ line, text }) => `${line.label} ${text}`).join("; ")}`;
    return undefined;
  }

  read(line, k) {
    const format = this.options.format;
    if (!line.mean) return `${format(line.low[k])} to ${format(line.high[k])}`;
    return formatInterval({ mean: line.mean[k], low: line.low && line.low[k], high: line.high && line.high[k] }, format);
  }

  hideCursor() {
    this.cursor = null;
    this.tip.hidden = true;
    if (this.mark) this.mark.replaceChildren();
  }
}

function nearest(values, wanted) {
  let best = 0;
  for (let k = 1; k < values.length; k++) {
    if (Math.abs(values[k] - wanted) < Math.abs(values[best] - wanted)) best = k;
  }
  return best;
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${trim((value / 1e3).toPrecision(3))}k`;
  return trim(formatNumber(value, 3));
}

/* Stacked horizontal bars: parts() -> [{label, value, hatched}] of each row. */
class BarChart {
  constructor(options) {
    this.options = options;
    this.plot = make("div", { class: "plot" });
    this.node = make(
      "figure",
      { class: "chart bars", "data-figure": options.name },
      make("figcaption", {}, make("strong", {}, options.title), make("span", { class: "note" }, options.note)),
      this.plot,
    );
  }

  redraw() {
    const rows = this.options.rows();
    const width = Math.max(240, this.plot.clientWidth || 400);
    const height = Math.max(40, rows.length * 40 + 6);
    const most = Math.max(...rows.map((row) => row.parts.reduce((sum, part) => sum + part.value, 0)), 1e-12);
    const words = rows.map((row) => `${row.label}: ${row.parts.map((part) => `${part.label} ${this.options.format(part.value)}`).join(", ")}`);
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${this.options.title}. ${words.join("; ")}` });
    rows.forEach((row, k) => {
      const top = k * 40 + 18;
      const total = row.parts.reduce((sum, part) => sum + part.value, 0);
      picture.append(draw("text", { class: "barlabel", x: 0, y: top - 4 }, row.label));
      picture.append(draw("text", { class: "barvalue", x: width, y: top - 4 }, row.parts.map((part) => this.options.format(part.value)).join(" + ")));
      let left = 0;
      for (const part of row.parts) {
        const length = (part.value / most) * width;
        if (length > 0) picture.append(this.bar(row, part, left, top, length, `${chartCount++}`));
        left += length;
      }
      picture.append(draw("title", {}, `${row.label}: ${this.options.format(total)}`));
    });
    this.plot.replaceChildren(picture);
  }

  bar(row, part, x, y, width, id) {
    const about = draw("title", {}, `${row.label}, ${part.label}: ${this.options.format(part.value)}`);
    const box = { class: "bar", x, y, width: Math.max(width, 0.5), height: 16, stroke: row.color };
    if (!part.hatched) return draw("rect", { ...box, fill: row.color }, about);
    const pattern = draw(
      "pattern",
      { id: `hatch${id}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      draw("rect", { width: 6, height: 6, fill: "#fff" }),
      draw("rect", { width: 2.2, height: 6, fill: row.color }),
    );
    return draw("g", {}, draw("defs", {}, pattern), draw("rect", { ...box, fill: `url(#hatch${id})` }, about));
  }
}
