// What the pages do beyond links, forms and htmx: copying, charts, and charts that move.
// Everything works without it but charts of runs, which have their numbers in a table as well.
"use strict";

const styles = () => getComputedStyle(document.documentElement);
const color = (name) => styles().getPropertyValue(name).trim();

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select it";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// A menu closes when something else is clicked, or by Escape.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = event.target.closest?.("details.menu[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

// The tab that is shown is in sight, also where there is room for few.
for (const tab of document.querySelectorAll(".tabs [aria-current]")) {
  const row = tab.parentElement;
  row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
}

// Links that MLflow's client prints of its experiments and runs lead to their pages.
const logged = location.hash.match(/^#\/experiments\/[^/]+(?:\/runs\/([\w.-]+))?/);
const runs = document.querySelector(".tabs a[href$='/-/runs']");
if (logged && runs) location.replace(logged[1] ? `${runs.href}/${logged[1]}` : runs.href);

// Ctrl+Enter sends the form of a box with several lines.
document.addEventListener("keydown", (event) => {
  const form = event.target.closest?.("[data-submit-keys]");
  if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    form.requestSubmit();
  }
});

// A button that needs several things ticked waits for them.
for (const button of document.querySelectorAll("[data-least]")) {
  const count = () => {
    const ticked = button.form.querySelectorAll("input:checked").length;
    button.disabled = ticked < Number(button.dataset.least);
  };
  button.form.addEventListener("change", count);
  addEventListener("pageshow", count);  // going back keeps what was ticked
  count();
}

// Charts of runs: points are fetched when a chart comes into view, and go on by server-sent events.
const charts = new Map();  // element: its plot and its data

function seriesColor(at) { return color(`--c${at % 8}`); }

function plotOptions(element, names) {
  const ink = color("--quiet"), line = color("--line");
  // Use of a machine is told from nothing up: else a hundredth of a percent looks like a cliff.
  const fromZero = element.dataset.x === "seconds";
  const isShare = element.dataset.chart.endsWith("_percent");
  const top = (high) => isShare ? Math.max(high, 100) : (high || 1) * 1.1;
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 },
    font: "11px system-ui, sans-serif" };
  return {
    width: element.clientWidth, height: 220, cursor: { drag: { x: true, y: false } },
    legend: { live: true },
    scales: { x: { time: false }, y: fromZero ? { range: (_, low, high) => [0, top(high)] } : {} },
    axes: [axis, { ...axis, size: 62 }],
    series: [{ label: element.dataset.x }, ...names.map((name, at) => ({
      label: names.length > 1 ? name : "value", stroke: seriesColor(at), width: 1.6, spanGaps: true,
      value: (_, value) => value == null ? "" : short(value),
    }))],
  };
}

function short(value) {
  return typeof value === "number" ? Number(value.toPrecision(5)).toString() : String(value);
}

function joined(series) {
  return uPlot.join(series.map((one) => [one.steps, one.values.map(
    (value) => typeof value === "number" ? value : null)]));
}

function draw(element) {
  const { series, names, plot } = charts.get(element);
  plot?.destroy();
  element.replaceChildren();
  element.classList.toggle("single", names.length === 1);
  const made = new uPlot(plotOptions(element, names), joined(series), element);
  made.root.querySelector("canvas").setAttribute("role", "img");
  made.root.querySelector("canvas").setAttribute("aria-label",
    `Chart of ${element.dataset.chart} by ${element.dataset.x}`);
  charts.get(element).plot = made;
}

async function fill(element) {
  const answer = await fetch(element.dataset.points, { headers: { Accept: "application/json" } });
  if (!answer.ok) {
    element.textContent = "The points cannot be read now.";
    return;
  }
  const { series } = await answer.json();
  charts.set(element, { series, names: JSON.parse(element.dataset.names), plot: null });
  draw(element);
}

const arriving = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    arriving.unobserve(entry.target);
    fill(entry.target);
  }
}, { rootMargin: "200px" });

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    charts.get(target)?.plot?.setSize({ width: target.clientWidth, height: 220 });
  }
});

for (const element of document.querySelectorAll("[data-chart]")) {
  arriving.observe(element);
  resized.observe(element);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const element of charts.keys()) draw(element);
});

function follow(url, elements) {
  const source = new EventSource(url);
  source.addEventListener("points", (event) => {
    const told = JSON.parse(event.data);  // metric: {steps, values}
    for (const element of elements) {
      const known = charts.get(element), news = told[element.dataset.chart];
      if (!known || !news) continue;
      const [first] = known.series, last = first.steps.at(-1) ?? -Infinity;
      news.steps.forEach((step, at) => {
        if (step <= last) return;
        first.steps.push(step);
        first.values.push(news.values[at]);
      });
      known.plot?.setData(joined(known.series));
      element.dataset.lastStep = first.steps.at(-1);
      for (const place of document.querySelectorAll("[data-last]")) {
        if (place.dataset.last !== element.dataset.chart) continue;
        place.textContent = short(first.values.at(-1));
      }
    }
  });
  source.addEventListener("end", () => { source.close(); location.reload(); });
}

const followed = new Map();
for (const element of document.querySelectorAll("[data-live]")) {
  const url = element.dataset.live;
  followed.set(url, [...(followed.get(url) ?? []), element]);
}
for (const [url, elements] of followed) follow(url, elements);
