"""A picture as an HTML page that plays: the ranks on a circle, and the messages of a round on their way."""

from __future__ import annotations

import json
from html import escape
from typing import Final

from collectives.drawing.picture import Picture, chunk_text
from collectives.drawing.svg import colour

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
:root { color-scheme: light dark; --page: #fff; --text: #1f2430; --line: #c3c8d4 }
@media (prefers-color-scheme: dark) { :root { --page: #14161c; --text: #e4e7ef; --line: #4a5060 } }
body { margin: 1.5rem auto; max-width: 46rem; padding: 0 1rem; font: 16px system-ui, sans-serif;
  background: var(--page); color: var(--text) }
h1 { font-size: 1.15rem }
svg { width: 100%; height: auto }
svg text { fill: var(--text); font-size: 13px; text-anchor: middle; dominant-baseline: central }
circle.rank { fill: var(--page); stroke: var(--line); stroke-width: 2 }
.controls { display: flex; gap: .6rem; align-items: center }
.controls input { flex: 1 }
output { min-height: 1.5em; display: block }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<div class="controls">
<button id="play" type="button">Pause</button>
<input id="time" type="range" min="0" max="@END@" step="0.01" value="0" aria-label="time in rounds">
</div>
<output id="label"></output>
<svg id="stage" viewBox="0 0 640 640" role="img" aria-label="@TITLE@"></svg>
<script type="application/json" id="data">@DATA@</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
const stage = document.getElementById("stage"), slider = document.getElementById("time");
const label = document.getElementById("label"), button = document.getElementById("play");
const make = (kind, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  stage.append(node);
  return node;
};
const radius = Math.min(22, 640 / data.size);
const place = rank => {
  const angle = 2 * Math.PI * rank / data.size - Math.PI / 2;
  return [320 + 270 * Math.cos(angle), 320 + 270 * Math.sin(angle)];
};
const moving = data.events.map(event => {
  const [x1, y1] = place(event.from), [x2, y2] = place(event.to);
  const line = make("line", {x1, y1, x2, y2, stroke: event.colour, "stroke-width": 1.5, opacity: 0});
  const dot = make("circle", {r: radius * 0.75, fill: event.colour, opacity: 0});
  const text = make("text", {opacity: 0, style: "fill:#fff;font-size:11px"});
  text.textContent = event.parts;
  return {event, line, dot, text, x1, y1, x2, y2};
});
for (let rank = 0; rank < data.size; rank++) {
  const [cx, cy] = place(rank);
  make("circle", {cx, cy, r: radius, class: "rank"});
  make("text", {x: cx, y: cy}).textContent = rank;
}
moving.forEach(m => stage.append(m.dot, m.text));
const show = time => {
  let words = "";
  for (const {event, line, dot, text, x1, y1, x2, y2} of moving) {
    const part = (time - event.begin) / (event.end - event.begin), under = part >= 0 && part < 1;
    for (const node of [dot, text]) node.setAttribute("opacity", under ? 1 : 0);
    line.setAttribute("opacity", under ? 0.5 : 0);
    if (!under) continue;
    words = event.label;
    const x = x1 + (x2 - x1) * part, y = y1 + (y2 - y1) * part;
    dot.setAttribute("cx", x); dot.setAttribute("cy", y);
    text.setAttribute("x", x); text.setAttribute("y", y);
  }
  label.textContent = words;
};
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let playing = !still, before = null;
button.textContent = playing ? "Pause" : "Play";
button.onclick = () => { playing = !playing; button.textContent = playing ? "Pause" : "Play"; };
slider.oninput = () => { playing = false; button.textContent = "Play"; show(+slider.value); };
const tick = now => {
  if (playing && before !== null) {
    slider.value = (+slider.value + (now - before) / 1500) % data.end;
    show(+slider.value);
  }
  before = now;
  requestAnimationFrame(tick);
};
show(0);
requestAnimationFrame(tick);
</script>
</body>
</html>
"""


def draw_animation(picture: Picture) -> str:
    """The picture as one page that needs nothing else: it plays, pauses, and shows any moment."""
    events = []
    for event in picture.events:
        if event.kind != "combine":
            source, target = (event.rank, event.peer) if event.kind == "send" else (event.peer, event.rank)
            events.append(
                {
                    "from": source,
                    "to": target,
                    "parts": chunk_text(event.chunks),
                    "begin": event.begin,
                    "end": event.end,
                    "label": event.label,
                    "colour": colour(event.chunks, picture.chunks),
                }
            )
    end = max((event.end for event in picture.events), default=1.0)
    data = json.dumps({"size": picture.size, "end": end, "events": events}).replace("<", "\\u003c")
    page = _PAGE.replace("@TITLE@", escape(picture.title)).replace("@END@", f"{end:g}")
    return page.replace("@DATA@", data)
