"use strict";

/* What is drawn: the distribution of p over time, and the examples at its two ends. */

const NUM_CARDS = 12;

/* Positions on another axis for the steps at which draws were noted. */
function onAxis(steps, series, axis) {
  if (axis === "step" || !series) return steps;
  const from = series.x.step;
  const to = series.x[axis];
  return steps.map((step) => {
    const k = from.findIndex((value) => value >= step);
    if (k <= 0) return k === 0 ? to[0] : to[to.length - 1];
    const share = (step - from[k - 1]) / (from[k] - from[k - 1]);
    return to[k - 1] + share * (to[k] - to[k - 1]);
  });
}

function distributionLines(draws, series, axis) {
  const x = onAxis(draws.steps, series, axis);
  const color = series ? series.color : "#333333";
  const lines = [];
  const last = draws.levels.length - 1;
  for (let k = 0; k < last - k; k++) {
    const [low, high] = [draws.levels[k], draws.levels[last - k]];
    const label = k === 0 && low === 0 ? "all examples" : `middle ${trim((100 * (high - low)).toFixed(1))} %`;
    lines.push({ name: `level${k}`, label, color, dash: [], x, low: draws.quantiles[k], high: draws.quantiles[last - k], opacity: 0.1 + 0.08 * k });
  }
  const middle = draws.levels.indexOf(0.5);
  if (middle >= 0) lines.push({ name: "median", label: "median", color: "#111111", dash: [], x, mean: draws.quantiles[middle] });
  return lines;
}

/* A slider over the run; at each point the examples that are drawn most and least often then. */
function buildExamples(set) {
  let draws = set.draws[0];
  let position = draws.steps.length - 1;
  const most = make("div", { class: "cards" });
  const least = make("div", { class: "cards" });
  const when = make("output", { class: "when" });
  const slider = make("input", { type: "range", min: 0, max: position, value: position, "aria-label": "Moment of the run", oninput: () => move(Number(slider.value)) });
  const choice = make(
    "select",
    { "aria-label": "Method", onchange: () => choose(Number(choice.value)) },
    set.draws.map((own, k) => make("option", { value: k }, labelOf(set, own.series))),
  );

  function choose(k) {
    draws = set.draws[k];
    slider.max = String(draws.steps.length - 1);
    move(Math.min(position, draws.steps.length - 1));
  }

  function move(to) {
    position = to;
    slider.value = String(to);
    const step = formatNumber(draws.steps[to]);
    slider.setAttribute("aria-valuetext", `step ${step}`);
    when.textContent = `step ${step}`;
    const order = draws.indices.map((_, k) => k).sort((a, b) => draws.ratios[b][to] - draws.ratios[a][to] || b - a);
    const half = Math.min(NUM_CARDS, Math.floor(order.length / 2));
    most.replaceChildren(...order.slice(0, half).map((k) => card(draws, k, to)));
    least.replaceChildren(...order.slice(-half).reverse().map((k) => card(draws, k, to)));
  }

  move(position);
  return make(
    "section",
    { class: "examples", "data-figure": "examples" },
    make("h3", {}, "Examples drawn most and least"),
    make(
      "p",
      { class: "note" },
      `Of the ${formatNumber(draws.numExamples)} training examples of one seed, the record keeps ${draws.indices.length} at the two ends. ` +
        "Each shows how many times as often as by uniform draws it is drawn (n·p), the weight w of its gradient when it is, " +
        "how many times it was drawn so far, and n·p along the run on a log scale, with a dashed line at 1.",
    ),
    make("div", { class: "slider" }, set.draws.length > 1 ? choice : make("span", {}, labelOf(set, draws.series)), slider, when),
    make("h4", {}, "Drawn most"),
    most,
    make("h4", {}, "Drawn least"),
    least,
  );
}

function labelOf(set, name) {
  const series = set.series.find((one) => one.name === name);
  return series ? series.label : name;
}

function card(draws, k, position) {
  const named = `example ${draws.indices[k]}` + (draws.labels ? `, class ${draws.labels[k]}` : "");
  const ratio = draws.ratios[k][position];
  return make(
    "div",
    { class: "card", "data-example": draws.indices[k] },
    draws.pictures ? make("img", { src: draws.pictures[k], alt: named, title: named }) : make("div", { class: "nopicture" }, named),
    make("div", { class: "cardtext" }, make("strong", {}, `${formatNumber(ratio, 3)}×`), make("span", {}, `w ${formatNumber(draws.weights[k][position], 3)}`)),
    make("div", { class: "cardtext" }, make("span", {}, `drawn ${formatNumber(draws.counts[k][position])}×`), draws.labels && draws.pictures ? make("span", {}, `“${draws.labels[k]}”`) : null),
    spark(draws, k, position),
  );
}

function spark(draws, k, position) {
  const [width, height] = [84, 26];
  const all = draws.quantiles;
  const low = Math.log(Math.max(1e-6, Math.min(...all[0].filter(isNumber))));
  const high = Math.log(Math.max(1.0001, ...all[all.length - 1].filter(isNumber)));
  const x = (j) => 2 + (j / Math.max(1, draws.steps.length - 1)) * (width - 4);
  const y = (value) => height - 3 - ((Math.log(Math.max(1e-6, value)) - low) / (high - low || 1)) * (height - 6);
  const points = draws.ratios[k].map((value, j) => `${x(j).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return draw(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    draw("line", { class: "uniform", x1: 0, x2: width, y1: y(1), y2: y(1) }),
    draw("polyline", { points }),
    draw("circle", { cx: x(position), cy: y(draws.ratios[k][position]), r: 2.6 }),
  );
}
