// The page of `ronde top`: draws what the server tells by events. Nothing is loaded from elsewhere.
"use strict";

const MINUTE = 60, MOST_ROWS = 100, MOST_RANKS = 64;
const COLOURS = ["#2f7ed8", "#e08a1e", "#3a9d5d", "#b0529e", "#c8504a", "#6f7bd6", "#8a8f3c", "#2aa1a8"];
const element = (id) => document.getElementById(id);
const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const columns = [];
const colours = new Map();
let figures = null, base = 0, following = true, ended = false, asking = false, drawn = false;

function colour(name) {
  if (!colours.has(name)) colours.set(name, COLOURS[colours.size % COLOURS.length]);
  return colours.get(name);
}

function seconds(value) {
  if (value < 1e-3) return (value * 1e6).toFixed(0) + " µs";
  if (value < 1) return (value * 1e3).toFixed(1) + " ms";
  return value < 100 ? value.toFixed(1) + " s" : (value / 60).toFixed(0) + " min";
}

function count(value) {
  for (const unit of ["", " K", " M", " G"]) {
    if (value < 999.5) return value.toFixed(value < 10 && unit ? 1 : 0) + unit;
    value /= 1000;
  }
  return value.toFixed(0) + " T";
}

const percent = (value) => (100 * value).toFixed(0) + " %";
const date = (value) => new Date(value * 1000);

function several(ranks) {
  const first = ranks.first, shown = ranks.count > 4 ? first.slice(0, 2) : first;
  if (ranks.count > 2 && ranks.count === first.length && first.every((rank, i) => rank === first[0] + i))
    return first[0] + "–" + first[first.length - 1];
  return shown.join(", ") + (ranks.count > shown.length ? ` +${ranks.count - shown.length}` : "");
}

function layout(more) {
  const axis = { gridcolor: shade("--grid"), linecolor: shade("--line"), zeroline: false, automargin: true };
  const times = { type: "date", tickformat: "%H:%M:%S", nticks: 6 };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: shade("--ink"), size: 11 },
    margin: { l: 46, r: 12, t: 8, b: 28 }, showlegend: false, hoverlabel: { namelength: -1 },
    legend: { orientation: "h", y: 1.14, x: 0 },
  };
  return { ...base, ...more, xaxis: { ...axis, ...(more.xaxis.type ? {} : times), ...more.xaxis }, yaxis: { ...axis, ...more.yaxis } };
}

const CONFIG = { responsive: true, displayModeBar: false };

function range() {
  const last = columns.length ? columns[columns.length - 1].ended : Date.now() / 1000;
  return [Math.max(last - MINUTE, Math.min(last - 5, columns.length ? columns[0].began : last)), last];
}

function drawThroughput() {
  const names = [...new Set(columns.flatMap((column) => Object.keys(column.throughput)))].sort();
  const traces = names.map((name) => ({
    name, type: "scatter", mode: "lines", line: { color: colour(name), width: 1.6 },
    x: columns.map((column) => date(column.ended)), y: columns.map((column) => (column.throughput[name] || [0])[0]),
    customdata: columns.map((column) => (column.throughput[name] || [0, 0])[1]),
    hovertemplate: "%{y:.3s}B/s, %{customdata:.3s} calls/s",
  }));
  Plotly.react("throughput", traces, layout({
    showlegend: true, hovermode: "x unified", uirevision: "throughput",
    xaxis: { range: range().map(date) }, yaxis: { ticksuffix: "B/s", tickformat: ".2s", rangemode: "tozero" },
  }), CONFIG);
}

function drawWaiting() {
  const size = figures.size;
  const z = [];
  for (let rank = 0; rank < size; rank++) z.push(columns.map((column) => column.waiting[rank]));
  Plotly.react("waiting", [{
    type: "heatmap", x: columns.map((column) => date(column.ended)), z, zmin: 0, zmax: 1, hoverongaps: false,
    colorscale: [[0, shade("--scale-0")], [0.5, shade("--scale-1")], [1, shade("--scale-2")]],
    colorbar: { tickformat: ".0%", thickness: 10, outlinewidth: 0, len: 1 },
    hovertemplate: "rank %{y}<br>%{x|%H:%M:%S}<br>waits %{z:.0%}<extra></extra>",
  }], layout({
    uirevision: "waiting", xaxis: { range: range().map(date) },
    yaxis: { autorange: "reversed", title: { text: "rank" }, tickformat: "d", dtick: size <= 12 ? 1 : undefined },
  }), CONFIG);
}

// The timeline has a plain axis, in seconds since the page was opened: dates of JavaScript end at milliseconds.
async function drawTimeline() {
  if (asking || !figures) return;
  asking = true;
  try {
    const shown = following ? range() : element("timeline").layout.xaxis.range.map((at) => at + base);
    const first = Number(element("first").value) || 0, last = Math.min(figures.size, first + MOST_RANKS);
    const answer = await fetch(`calls?from=${shown[0]}&to=${shown[1]}&rank=${first}`);
    if (!answer.ok) return;
    const { kinds, calls, count: all } = await answer.json();
    const rows = calls.map(([rank, began, over, kind]) => [rank, began, over, kinds[kind][0], kinds[kind][1], ""]);
    for (const rank of figures.ranks)
      if (rank.call && !figures.over && rank.rank >= first && rank.rank < last && rank.seconds > 0.01)
        rows.push([rank.rank, figures.time - rank.seconds, figures.time, rank.call.collective, rank.call.text, " so far"]);
    const names = [...new Set(rows.map((one) => one[3]))].sort();
    const width = Math.max(3, Math.min(18, 200 / (last - first)));
    const traces = names.map((name) => {
      const x = [], y = [], said = [];
      for (const [rank, began, over, collective, text, more] of rows) {
        if (collective !== name) continue;
        const words = `rank ${rank}: ${text}<br>${seconds(over - began)}${more}`;
        x.push(began - base, over - base, null);
        y.push(rank, rank, null);
        said.push(words, words, null);
      }
      return {
        name, type: "scatter", mode: "lines", x, y, text: said, hoverinfo: "text",
        line: { color: colour(name), width, simplify: false },
      };
    });
    await Plotly.react("timeline", traces, layout({
      showlegend: true, hovermode: "closest", dragmode: "zoom", uirevision: "timeline" + following,
      xaxis: { type: "linear", range: shown.map((at) => at - base), ticksuffix: " s" },
      yaxis: { range: [last - 0.5, first - 0.5], fixedrange: true, title: { text: "rank" }, tickformat: "d", dtick: last - first <= 16 ? 1 : undefined },
    }), CONFIG);
    element("timeline-note").textContent = (all
      ? (all > calls.length ? `the ${count(calls.length)} longest of ${count(all)} calls` : `${count(all)} calls`)
      : "no call has ended in this time")
      + `; seconds since ${date(base).toLocaleTimeString()}; drag to zoom`;
    if (!drawn) {
      drawn = true;
      element("timeline").on("plotly_relayout", (change) => {
        if ("xaxis.range[0]" in change || "xaxis.range" in change) follow(false);
        else if (change["xaxis.autorange"]) follow(true);
      });
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;  // the viewer has ended: the drawing stays as it is
  } finally {
    asking = false;
  }
}

function follow(yes) {
  if (following === yes && yes) return;
  following = yes;
  element("follow").hidden = yes;
  setTimeout(drawTimeline, 0);
}

function row(cells, kind = "td", bad = false) {
  const line = document.createElement("tr");
  if (bad) line.className = "bad";
  for (const [text, style] of cells) {
    const cell = document.createElement(kind);
    if (style) cell.className = style;
    if (text instanceof Node) cell.append(text);
    else { cell.textContent = text; if ((style || "").includes("call")) cell.title = text; }
    line.append(cell);
  }
  return line;
}

function share(value) {
  const cell = document.createElement("span"), bar = document.createElement("span");
  bar.className = "share";
  bar.style.width = (value * 60).toFixed(0) + "px";
  cell.append(bar, percent(value));
  return cell;
}

function table(id, head, rows) {
  element(id).replaceChildren(row(head, "th"), ...rows);
}

function drawTables() {
  const several_hosts = figures.hosts.length > 1;
  element("hosts").closest("section").hidden = !several_hosts;
  table("hosts",
    [["host", "text"], ["ranks", "text"], ["alive"], ["waiting"], ["calls/s"], ["B/s"], ["in calls"], ["causes of the waiting", "text"]],
    figures.hosts.slice(0, MOST_ROWS).map((host) => row([
      [host.host, "text"], [several(host.ranks), "text"], [host.alive], [host.waiting], [count(host.calls_per_second)],
      [count(host.bytes_per_second)], [percent(host.communicating)], [share(host.share), "text"],
    ], "td", host.alive === 0)));
  const worst = [...figures.ranks].sort((a, b) => b.caused - a.caused);
  table("ranks",
    [["rank"], ["host", "text"], ["pid"], ["in", "text"], ["for"], ["waits for", "text"], ["calls/s"], ["B/s"], ["in calls"],
      ["waits for a core"], ["causes of the waiting", "text"], [""]],
    worst.slice(0, MOST_ROWS).map((rank) => {
      const button = document.createElement("button");
      button.textContent = "stack";
      button.onclick = () => showStack(rank);
      const doing = rank.call && !["failed", "dead", "closed"].includes(rank.state) ? rank.call.text : rank.state;
      return row([
        [rank.rank], [rank.host, "text"], [rank.pid], [doing, "text call"], [seconds(rank.seconds)],
        [several(rank.waits_for), "text"], [count(rank.calls_per_second)], [count(rank.bytes_per_second)],
        [percent(rank.communicating)], [rank.run_delay === null ? "" : percent(rank.run_delay)], [share(rank.share), "text"],
        [button],
      ], "td", ["failed", "dead"].includes(rank.state));
    }));
  element("ranks-note").textContent = worst.length > MOST_ROWS ? `the worst ${MOST_ROWS} of ${worst.length} ranks` : "";
  table("slowest",
    [["call", "text"], ["line", "text"], ["algorithm", "text"], ["count"], ["mean"], ["longest"], ["all ranks"], ["waiting"]],
    figures.slowest.map((kind) => row([
      [kind.text, "text call"], [kind.line, "text"], [kind.algorithm, "text"], [kind.count], [seconds(kind.mean)],
      [seconds(kind.longest)], [seconds(kind.total)], [percent(kind.waiting)],
    ])));
}

function drawFindings() {
  const lines = [];
  const add = (style, head, text) => {
    const line = document.createElement("p"), bold = document.createElement("b");
    line.className = style;
    bold.textContent = head + " ";
    line.append(bold, text);
    lines.push(line);
  };
  for (const failure of figures.failures.slice(0, 2)) add("failure", `rank ${failure.rank} has failed:`, `${failure.error}: ${failure.text}`);
  for (const culprit of figures.culprits)
    add("culprit", culprit.kind + ":", (culprit.ranks.count ? `rank ${several(culprit.ranks)}` : "a link") + (culprit.host ? ` on ${culprit.host}. ` : ". ") + culprit.reason);
  if (figures.missing.count) add("", "without a record:", "rank " + several(figures.missing));
  if (figures.silent.count) add("", "no answer:", `rank ${several(figures.silent)} ${figures.trouble}`);
  if (!lines.length) add("", "", figures.over ? "The job is over." : "No rank makes the others wait noticeably.");
  element("findings").replaceChildren(...lines);
}

async function showStack(rank) {
  element("stack-title").textContent = `rank ${rank.rank} (${rank.host}, pid ${rank.pid})`;
  element("stack-text").textContent = "…";
  element("stack").showModal();
  try {
    const answer = await fetch(`stack?rank=${rank.rank}`);
    element("stack-text").textContent = await answer.text();
  } catch (error) {
    element("stack-text").textContent = "the viewer has ended";
  }
}

// Drawing takes at most a quarter of the time, so that slow machines stay usable; a hidden page is not drawn.
let drawAt = 0, waiting = false;
function draw() {
  if (waiting || document.hidden) return;
  waiting = true;
  setTimeout(async () => {
    waiting = false;
    const began = performance.now();
    await drawAll();
    document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + 1;
    drawAt = performance.now() + 3 * (performance.now() - began);
  }, Math.max(0, drawAt - performance.now()));
}

async function drawAll() {
  const hosts = figures.hosts.length;
  element("job").textContent = `${figures.program.length > 90 ? figures.program.slice(0, 90) + "…" : figures.program}, ${figures.size} ranks on ${hosts} host${hosts === 1 ? "" : "s"}, ${figures.transport}, ${figures.world}`;
  if (!ended) {
    element("state").textContent = figures.over ? "over" : date(figures.time).toLocaleTimeString();
    element("state").className = figures.over ? "state over" : "state";
  }
  element("first-label").hidden = figures.size <= MOST_RANKS;
  drawFindings();
  drawTables();
  drawThroughput();
  drawWaiting();
  if (following) await drawTimeline();
}

document.addEventListener("visibilitychange", () => figures && draw());

function listen() {
  const events = new EventSource("events");
  events.onmessage = (event) => {
    const message = JSON.parse(event.data);
    figures = message.figures;
    const known = columns.length ? columns[columns.length - 1].ended : 0;
    if (!figures.over || !columns.length) {
      if (!columns.length && message.columns.length) base = message.columns[0].began;
      columns.push(...message.columns.filter((column) => column.ended > known));
      while (columns.length && columns[0].ended < columns[columns.length - 1].ended - MINUTE) columns.shift();
    }
    element("chain").innerHTML = message.chain || "No rank waits for long.";  // SVG of the server, its texts escaped
    document.body.dataset.looks = Number(document.body.dataset.looks || 0) + 1;
    ended = false;
    draw();
  };
  const lost = () => {
    ended = true;
    element("state").textContent = "the viewer has ended";
    element("state").className = "state lost";
  };
  events.onerror = lost;
  events.addEventListener("end", () => { events.close(); lost(); });
}

element("follow").onclick = () => follow(true);
element("first").onchange = drawTimeline;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => figures && draw());
listen();
