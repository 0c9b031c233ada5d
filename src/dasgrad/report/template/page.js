"use strict";

/* The page: what it is of, the claims, one section for each run set, and what was left out. */

const VERDICTS = { reproduced: "✓", partly: "◐", "not reproduced": "✗", "not run": "–" };
const SUPPORT = { yes: ["✓", "supports"], no: ["✗", "speaks against"], unclear: ["○", "unclear"] };
const MAX_NAMED = 100;

function buildHeader(page) {
  const runs = page.sets.reduce((sum, set) => sum + set.series.reduce((own, series) => own + series.seeds, 0), 0);
  const links = page.sets.map((set) => make("li", {}, make("a", { href: `#${set.id}` }, set.title)));
  document.getElementById("top").append(
    make("h1", {}, "DASGrad: what the runs show"),
    make("p", { class: "lead" }, `${formatNumber(runs)} runs in “${page.name}”, dasgrad ${page.version}. Adaptive methods draw examples by importance and weigh them so that the gradient stays unbiased; every method is charged its own scoring.`),
    make("nav", { "aria-label": "Contents" }, make("ul", {}, make("li", {}, make("a", { href: "#claims" }, "The paper’s claims")), links)),
  );
}

function choiceGroup(label, choices, current, change) {
  const buttons = Object.entries(choices).map(([value, text]) =>
    make("button", { type: "button", "data-value": value, "aria-pressed": value === current ? "true" : "false" }, text),
  );
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", other === button ? "true" : "false");
      change(button.dataset.value);
    });
  }
  return make("div", { class: "group", role: "group", "aria-label": label }, make("span", { class: "grouplabel" }, label), buttons);
}

function buildControls(state, redraw) {
  const axes = { step: "steps", evaluations: "gradient evaluations", seconds: "seconds" };
  document.getElementById("controls").append(
    choiceGroup("Axis", axes, state.axis, (value) => {
      state.axis = value;
      redraw();
    }),
    choiceGroup("Loss", { log: "log", linear: "linear" }, state.scale, (value) => {
      state.scale = value;
      redraw();
    }),
  );
}

function buildFinding(finding) {
  const format = { share: FORMATS.gain, points: FORMATS.points, number: FORMATS.number }[finding.unit];
  const [sign, word] = SUPPORT[finding.supports];
  return make(
    "li",
    { class: `finding ${finding.supports}` },
    make("span", { class: "sign", title: word, role: "img", "aria-label": word }, sign),
    make("span", {}, finding.text, " ", make("strong", {}, formatInterval(finding, format))),
  );
}

function buildClaim(claim, page) {
  const links = claim.sets.map((name) => page.sets.find((set) => set.name === name)).filter((set) => set);
  const missing = claim.verdict === "not run" ? `needs ${claim.needs.map((name) => `dasgrad run ${name}`).join(" and ") || "paired runs"}` : null;
  return make(
    "tr",
    { "data-claim": claim.name, class: claim.verdict.replace(" ", "-") },
    make(
      "th",
      { scope: "row" },
      make("div", {}, claim.text),
      make("div", { class: "note" }, claim.source, claim.note ? `. ${claim.note}` : null),
      links.length ? make("div", { class: "note" }, "runs: ", links.map((set, k) => [k ? ", " : null, make("a", { href: `#${set.id}` }, set.name)])) : null,
    ),
    make("td", {}, make("span", { class: "verdict" }, make("span", { "aria-hidden": "true" }, `${VERDICTS[claim.verdict]} `), claim.verdict)),
    make("td", {}, missing ? make("span", { class: "note" }, missing) : findingsList(claim.findings)),
  );
}

function findingsList(findings) {
  const list = make("ul", { class: "findings" }, findings.map(buildFinding));
  if (findings.length <= 8) return list;
  const count = (kind) => findings.filter((finding) => finding.supports === kind).length;
  return make("details", {}, make("summary", {}, `${findings.length} numbers: ${count("yes")} support, ${count("no")} speak against, ${count("unclear")} unclear`), list);
}

function buildClaims(page) {
  const judged = page.claims.filter((claim) => claim.verdict !== "not run");
  const open = page.claims.filter((claim) => claim.verdict === "not run");
  return make(
    "section",
    { id: "claims", "aria-labelledby": "claims-title" },
    make("h2", { id: "claims-title" }, "The paper’s claims, and what these runs say"),
    make(
      "p",
      { class: "note" },
      "A claim rests on numbers that must be above 0, each with its 95 % interval over paired seeds. The whole interval above 0 supports (✓), below 0 speaks against (✗), otherwise it is unclear (○). All support: reproduced; some: partly; none: not reproduced.",
    ),
    make(
      "table",
      { class: "claims" },
      make("thead", {}, make("tr", {}, ["claim", "verdict", "numbers"].map((cell) => make("th", { scope: "col" }, cell)))),
      make("tbody", {}, [...judged, ...open].map((claim) => buildClaim(claim, page))),
    ),
  );
}

function buildFooter(page) {
  const foot = document.getElementById("foot");
  if (page.leftOut.length) {
    const named = page.leftOut.slice(0, MAX_NAMED);
    foot.append(
      make("h2", {}, "Left out"),
      make("p", {}, "These files in the folder are not shown:"),
      make("ul", { id: "left-out" }, named.map((left) => make("li", {}, make("code", {}, left.file), `: ${left.reason}`))),
      page.leftOut.length > MAX_NAMED ? make("p", {}, `and ${formatNumber(page.leftOut.length - MAX_NAMED)} more.`) : "",
    );
  }
  foot.append(make("p", { class: "note" }, "Axes: a scored example counts as one gradient evaluation; seconds are of training and scoring, not of measuring. On the axes of evaluations and seconds, improvements compare runs at the same cost, by straight lines between measurements."));
}

/* A link to a section that is folded up unfolds it. */
function openTarget() {
  const section = document.getElementById(window.location.hash.slice(1));
  const folded = section && section.querySelector("details.fold");
  if (folded) folded.open = true;
}

/* Experiments at several variances: the final improvement against the variance. */
function buildTrends(page) {
  const power = (x) => trim(formatNumber(Number((10 ** x).toPrecision(3)), 3));
  return page.trends.map(
    (trend, k) =>
      new LineChart({
        name: `trend${k}`,
        title: `${trend.experiment}${trend.kind ? `, ${trend.kind}` : ""}`,
        note: "paired improvement in final training loss against the variance of the features",
        lines: () => trend.lines.map((line) => ({ ...line, x: line.x.map(Math.log10) })),
        axis: () => ({ label: "variance, log scale", format: (x) => `variance ${power(x)}`, tick: power }),
        format: FORMATS.gain,
        tick: (value) => signed(value, `${trim((100 * value).toFixed(2))} %`),
        zero: 0,
        key: true,
      }),
  );
}

function start() {
  const page = JSON.parse(document.getElementById("data").textContent);
  const state = { axis: "step", scale: "log" };
  const sections = page.sets.map((set) => new SetSection(set, page, state));
  const trends = buildTrends(page);
  const redraw = () => [...trends, ...sections].forEach((part) => part.redraw());
  buildHeader(page);
  buildControls(state, redraw);
  document.getElementById("main").append(buildClaims(page), trends.length ? make("section", { class: "trends" }, make("h2", {}, "Improvement and variance"), make("div", { class: "charts" }, trends.map((chart) => chart.node))) : "", ...sections.map((section) => section.node));
  buildFooter(page);
  redraw();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) {
      width = window.innerWidth;
      redraw();
    }
  });
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((details) => details.setAttribute("open", ""));
    redraw();
  });
  window.addEventListener("hashchange", openTarget);
  openTarget();
  document.documentElement.dataset.ready = "true";
}

start();
