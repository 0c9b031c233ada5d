"use strict";

/* The section of one run set: legend, figures, numbers, draws, settings. */

const AXES = {
  step: { label: "steps", format: (x) => `step ${formatNumber(x)}` },
  evaluations: { label: "gradient evaluations, those for scores included", format: (x) => `${formatNumber(x)} evaluations` },
  seconds: { label: "seconds, scoring included", format: (x) => `${formatNumber(x, 3)} s` },
};

const PANELS = [
  { column: "train_loss", title: "Training loss", note: "the objective, L2 term included", loss: true },
  { column: "train_accuracy", title: "Training accuracy" },
  { column: "test_loss", title: "Held-out loss", loss: true },
  { column: "test_accuracy", title: "Held-out accuracy" },
];

class SetSection {
  constructor(set, page, state) {
    this.set = set;
    this.page = page;
    this.state = state;
    this.hidden = new Set(set.series.filter((series) => !series.shown).map((series) => series.name));
    this.gained = "train_loss";
    this.column = set.diagnostics.length ? set.diagnostics[0].column : null;
    this.charts = [];
    this.node = make(
      "section",
      { id: set.id, class: "set", "aria-labelledby": `${set.id}-title` },
      make("h2", { id: `${set.id}-title` }, set.title),
      this.summary(),
      set.folded ? this.fold() : this.body(),
    );
  }

  body() {
    const charts = [this.curves(), this.improvement(), this.costs(), this.diagnostics(), this.distributions()];
    return [this.legend(), make("div", { class: "charts" }, charts), this.numbers(), this.set.draws.length ? buildExamples(this.set) : null, this.settings()];
  }

  fold() {
    this.folder = make("details", { class: "fold" }, make("summary", {}, "Figures and numbers"), this.body());
    this.folder.addEventListener("toggle", () => this.redraw());
    return this.folder;
  }

  get visible() {
    return this.set.series.filter((series) => !this.hidden.has(series.name));
  }

  redraw() {
    if (this.folder && !this.folder.open) return;
    for (const chart of this.charts) chart.redraw();
  }

  add(chart) {
    this.charts.push(chart);
    return chart.node;
  }

  summary() {
    const { steps, seeds, device } = this.set.settings;
    const batch = this.set.settings["batch size"];
    const refreshes = [...new Set(this.set.series.map((series) => series.refresh).filter(isNumber))];
    const refresh = refreshes.length ? `, scores refreshed every ${refreshes.map((own) => formatNumber(own)).join(" or ")} steps` : "";
    const over = seeds > 1 ? `${formatNumber(seeds)} paired seeds; lines are means, bands 95 % bootstrap intervals over seeds` : "a single seed, so no intervals";
    return make("p", { class: "summary" }, `${formatNumber(steps)} steps, batch ${formatNumber(batch)}${refresh}, on ${device}; ${over}.`);
  }

  legend() {
    const buttons = this.set.series.map((series) => {
      const button = make(
        "button",
        { type: "button", class: "method", "aria-pressed": !this.hidden.has(series.name) ? "true" : "false", "data-name": series.name },
        lineSample(series, true),
        series.label,
        make("span", { class: "rate" }, `α = ${trim(formatNumber(series.lr, 3))}`),
      );
      button.addEventListener("click", () => {
        if (this.hidden.has(series.name)) this.hidden.delete(series.name);
        else this.hidden.add(series.name);
        button.setAttribute("aria-pressed", this.hidden.has(series.name) ? "false" : "true");
        this.redraw();
      });
      return button;
    });
    const all = (shown) => () => {
      this.hidden = new Set(shown ? [] : this.set.series.map((series) => series.name));
      for (const button of buttons) button.setAttribute("aria-pressed", shown ? "true" : "false");
      this.redraw();
    };
    const both = [make("button", { type: "button", class: "plain", onclick: all(true) }, "all"), make("button", { type: "button", class: "plain", onclick: all(false) }, "none")];
    return make("div", { class: "legend", role: "group", "aria-label": `Methods shown in ${this.set.title}` }, buttons, buttons.length > 4 ? both : null);
  }

  curveLines(column) {
    return this.visible.filter((series) => series.bands[column]).map((series) => ({ ...series, x: series.x[this.state.axis], ...series.bands[column] }));
  }

  curves() {
    return PANELS.filter(({ column }) => this.set.series.some((series) => series.bands[column].mean.some(isNumber))).map(({ column, title, note, loss }) =>
      this.add(
        new LineChart({
          name: column,
          title,
          note,
          about: `${title}, ${this.set.title}`,
          lines: () => this.curveLines(column),
          axis: () => AXES[this.state.axis],
          logarithmic: () => loss && this.state.scale === "log",
          format: loss ? FORMATS.number : FORMATS.share,
          tick: loss ? undefined : (value) => `${trim((100 * value).toFixed(2))} %`,
          settled: loss ? 0 : 0.05,
          most: loss ? undefined : 1,
        }),
      ),
    );
  }

  improvement() {
    const { comparisons } = this.set;
    if (!comparisons.length) return null;
    const choice = make(
      "select",
      { "aria-label": "Improvement in", class: "quantity" },
      this.page.quantities.map((quantity) => make("option", { value: quantity.column }, quantity.label)),
    );
    const format = () => (this.page.quantities.find((quantity) => quantity.column === this.gained).relative ? FORMATS.gain : FORMATS.points);
    const chart = new LineChart({
      name: "improvement",
      title: "Paired improvement",
      note: "over a baseline, seed by seed; relative for losses, percentage points for accuracies; the first quarter may leave the frame",
      about: `Paired improvement over the baselines, ${this.set.title}`,
      controls: make("label", { class: "choice" }, "in ", choice),
      lines: () => comparisons.map((own) => this.comparisonLine(own)).filter((line) => line !== null),
      axis: () => AXES[this.state.axis],
      format: (value) => format()(value),
      tick: (value) => signed(value, `${trim((100 * value).toFixed(2))}${format() === FORMATS.gain ? " %" : ""}`),
      zero: 0,
      key: true,
      settled: 0.25,
    });
    choice.addEventListener("change", () => {
      this.gained = choice.value;
      chart.redraw();
    });
    return this.add(chart);
  }

  comparisonLine(own) {
    if (this.hidden.has(own.ours) || this.hidden.has(own.baseline)) return null;
    const [ours, baseline] = [own.ours, own.baseline].map((name) => this.set.series.find((series) => series.name === name));
    const first = this.set.comparisons.find((other) => other.ours === own.ours) === own;
    const style = first ? ours : { color: baseline.color, dash: baseline.dash.length ? baseline.dash : [3, 1] };
    const label = `${ours.label} over ${baseline.label}`;
    const curve = own.curves[this.gained][this.state.axis];
    const last = Math.max(1, curve.mean.length - 1);
    const x = isNumber(curve.end) ? curve.mean.map((_, k) => (k / last) * curve.end) : ours.x.step;
    return { name: `${own.ours}/${own.baseline}`, label, color: style.color, dash: style.dash, ...curve, x };
  }

  costs() {
    const rows = (parts) => () => this.visible.map((series) => ({ label: series.label, color: series.color, parts: parts(series.cost) }));
    const seconds = new BarChart({
      name: "cost-seconds",
      title: "Seconds of a run",
      note: "stepping, filled; scoring, hatched",
      format: (value) => `${formatNumber(value, 3)} s`,
      rows: rows((cost) => [
        { label: "stepping", value: Math.max(0, cost.seconds - cost.scoringSeconds) },
        { label: "scoring", value: cost.scoringSeconds, hatched: true },
      ]),
    });
    const gradients = new BarChart({
      name: "cost-evaluations",
      title: "Gradient evaluations of a run",
      note: "examples in steps, filled; examples scored, hatched",
      format: (value) => shortNumber(value),
      rows: rows((cost) => [
        { label: "in steps", value: cost.gradients },
        { label: "scored", value: cost.scored, hatched: true },
      ]),
    });
    return [this.add(seconds), this.add(gradients)];
  }

  diagnostics() {
    if (!this.set.diagnostics.length) return null;
    const choice = make(
      "select",
      { "aria-label": "Quantity", class: "diagnostic" },
      this.set.diagnostics.map(({ column, label }) => make("option", { value: column }, label)),
    );
    const chart = new LineChart({
      name: "diagnostics",
      title: "Along the run",
      about: `Other measurements, ${this.set.title}`,
      controls: make("label", { class: "choice" }, choice),
      lines: () => this.curveLines(this.column).filter((line) => line.mean.some(isNumber)),
      axis: () => AXES[this.state.axis],
      format: FORMATS.number,
    });
    choice.addEventListener("change", () => {
      this.column = choice.value;
      chart.redraw();
    });
    return this.add(chart);
  }

  distributions() {
    return this.set.draws.map((draws) => {
      const series = this.set.series.find((one) => one.name === draws.series);
      return this.add(
        new LineChart({
          name: "distribution",
          title: `Distribution of p: ${labelOf(this.set, draws.series)}`,
          note: "n·p over all examples; 1 is uniform",
          about: `Distribution of the probabilities over time, ${labelOf(this.set, draws.series)}`,
          lines: () => distributionLines(draws, series, this.state.axis),
          axis: () => AXES[this.state.axis],
          logarithmic: () => true,
          format: (value) => formatNumber(value, 3),
          zero: 1,
          key: true,
        }),
      );
    });
  }

  numbers() {
    const reference = labelOf(this.set, this.set.reference);
    const head = ["method", "seeds", "training loss", "held-out loss", "training accuracy", "held-out accuracy", "seconds", "steps", "evaluations", "seconds"];
    const rows = this.set.series.map((series) => {
      const share = (column) => intervalCell(series.final[column], FORMATS.share);
      const loss = (column) => intervalCell(series.final[column], FORMATS.number);
      const reached = series.reached
        ? [formatNumber(series.reached.step), formatNumber(series.reached.evaluations), formatNumber(series.reached.seconds, 3)]
        : ["not reached", "–", "–"];
      const cells = [series.seeds, loss("train_loss"), loss("test_loss"), share("train_accuracy"), share("test_accuracy"), intervalCell(series.final.seconds, (value) => formatNumber(value, 3)), ...reached];
      return make("tr", {}, make("th", { scope: "row" }, lineSample(series, false), series.label), cells.map((cell) => (cell instanceof Node ? cell : make("td", {}, cell))));
    });
    return make(
      "section",
      { class: "numbers" },
      make("h3", {}, "At the end"),
      scrolling(
        `Final numbers of ${this.set.title}`,
        make(
          "table",
          {},
          make(
            "thead",
            {},
            make("tr", {}, make("td", { colspan: 7 }), make("th", { colspan: 3, scope: "colgroup" }, `to the mean final training loss of ${reference}`)),
            make("tr", {}, head.map((cell) => make("th", { scope: "col" }, cell))),
          ),
          make("tbody", {}, rows),
        ),
      ),
    );
  }

  settings() {
    const { common, columns, rows } = this.set.options;
    const list = (pairs) => make("dl", {}, Object.entries(pairs).map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value))));
    const table = make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ["method", ...columns].map((cell) => make("th", { scope: "col" }, cell)))),
      make("tbody", {}, rows.map((row) => make("tr", {}, make("th", { scope: "row" }, row.series), columns.map((column) => make("td", {}, column in row ? row[column] : "–"))))),
    );
    const environments = this.set.environments.map((own) => [make("h4", {}, `Versions and machine of ${formatNumber(own.runs)} runs`), list({ ...own.versions, ...own.machine })]);
    return make(
      "details",
      { class: "settings" },
      make("summary", {}, "Configuration, versions and machine"),
      list(this.set.settings),
      make("h4", {}, "The same for all methods"),
      list(common),
      columns.length ? [make("h4", {}, "By method"), scrolling(`Options by method of ${this.set.title}`, table)] : null,
      environments,
    );
  }
}

function scrolling(label, table) {
  return make("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": label }, table);
}
