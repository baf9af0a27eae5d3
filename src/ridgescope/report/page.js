"use strict";
(() => {
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const AT_ONCE = 48;
  const byId = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const svg = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // -- light and dark ---------------------------------------------------------------------------------------
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const ink = () => getComputedStyle(root).getPropertyValue("--ink").trim();
  const repaint = () => {
    for (const plot of document.querySelectorAll(".plot.drawn")) Plotly.relayout(plot, { "font.color": ink() });
  };
  byId("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; repaint(); });
  system.addEventListener("change", repaint);

  // -- figures, drawn when they come into view ----------------------------------------------------------------
  const SETTINGS = { responsive: false, displaylogo: false, displayModeBar: false };
  const sizes = "ResizeObserver" in window
    ? new ResizeObserver((entries) => entries.forEach((entry) => Plotly.Plots.resize(entry.target))) : null;
  const draw = (place) => {
    if (place.classList.contains("drawn")) return;
    const { data, layout } = JSON.parse(byId(`figure-${place.dataset.figure}`).textContent);
    layout.font = { ...layout.font, color: ink() };
    layout.dragmode = false;
    delete layout.height;  // the style of the page sets the height
    place.classList.add("drawn");
    Plotly.newPlot(place, data, layout, SETTINGS).then(() => sizes?.observe(place));
  };
  const places = [...document.querySelectorAll(".plot[data-figure]")];
  if ("IntersectionObserver" in window) {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { draw(entry.target); watcher.unobserve(entry.target); }
    }, { rootMargin: "800px" });
    places.forEach((place) => watcher.observe(place));
  } else places.forEach(draw);
  window.addEventListener("beforeprint", () => places.forEach(draw));

  // -- the gallery --------------------------------------------------------------------------------------------
  if (!byId("features")) return;
  const { radius, features } = JSON.parse(byId("features").textContent);
  const cards = byId("cards"), more = byId("more"), tip = byId("tip"), large = byId("large");
  const WIDE = 200, HIGH = 100;
  const figure = (number) => (number === null ? "–" : String(Number(number.toPrecision(3))));
  const radians = (number) => (number === null ? "–" : number.toExponential(1));

  const range = (curves) => {
    let low = 0, high = 0;
    for (const curve of curves) for (const y of curve) { if (y < low) low = y; if (y > high) high = y; }
    return high > low ? [low, high] : [low - 1, high + 1];
  };

  // what is drawn of a feature: its response, and of a gated one its gain
  const responses = (feature) => ({ z: feature.z, curves: feature.s, bands: feature.band, first: 0 });
  const gains = (feature) => ({ z: feature.tz, curves: [feature.t], bands: feature.t_band && [feature.t_band], first: 1 });

  const picture = ({ z: zs, curves, bands, first }, kinks) => {
    const [low, high] = range(curves);
    const x = (z) => (((z + radius) / (2 * radius)) * WIDE).toFixed(1);
    const y = (s) => Math.max(-HIGH, Math.min(2 * HIGH, (1 - (s - low) / (high - low)) * (HIGH - 8) + 4)).toFixed(1);
    const path = (zs, ys) => zs.map((z, k) => `${k ? "L" : "M"}${x(z)} ${y(ys[k] ?? 0)}`).join("");
    const drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none" },
      svg("path", { class: "axis", d: `M0 ${y(0)}H${WIDE}M${WIDE / 2} 0V${HIGH}` }));
    for (const t of kinks) drawing.append(svg("path", { class: "kink", d: `M${x(t)} 0V${HIGH}` }));
    curves.forEach((curve, k) => {
      const colour = COLOURS[(first + k) % COLOURS.length];
      if (bands) {
        const upper = curve.map((s, j) => s + bands[k][j]), lower = curve.map((s, j) => s - bands[k][j]);
        const back = [...zs].reverse();
        drawing.append(svg("path", { class: "band", fill: colour,
          d: path(zs, upper) + path(back, lower.reverse()).replace("M", "L") + "Z" }));
      }
      drawing.append(svg("path", { class: "curve", stroke: colour, d: path(zs, curve) }));
    });
    return drawing;
  };

  const ends = (curves) => {
    const [low, high] = range(curves);
    const shown = (y) => figure(Math.abs(y) < 1e-9 * (high - low) ? 0 : y);  // rounding
    return make("div", { className: "ends" }, make("span", { textContent: `−${figure(radius)}` }),
      make("span", { textContent: `${shown(low)} … ${shown(high)}` }), make("span", { textContent: figure(radius) }));
  };

  const GATE = "gate: listens to v; lets through t(v·x) of u·x";
  const vector = (letter, text) => make("span", { className: "formula", textContent: `${letter} = ${text}` });
  const drawings = (feature) => feature.t ? [
    make("div", { className: "what", textContent: "s(z), where u·x = 0" }), picture(responses(feature), feature.kinks), ends(feature.s),
    make("div", { className: "what", textContent: "t(z), let through of u·x" }), picture(gains(feature), feature.kinks), ends([feature.t]),
    make("div", { className: "what", textContent: GATE }), vector("v", feature.v_text), vector("u", feature.u_text),
    ...(feature.o_text ? [make("span", { className: "formula", textContent: `drawn along ${feature.o_text}` })] : []),
  ] : [picture(responses(feature), feature.kinks), ends(feature.s)];

  const card = (feature) => {
    const made = make("div", { className: feature.t ? "card gated" : "card", tabIndex: 0 },
      make("div", { className: "name" }, make("b", { textContent: `#${feature.i}${feature.t ? " gated" : ""}` }),
        make("span", { textContent: `${figure(feature.strength)}, ± ${radians(feature.angle)} rad` })),
      ...drawings(feature),
      make("span", { className: "formula", textContent: feature.formula || "no closed form" }));
    made.dataset.feature = feature.i;
    made.setAttribute("role", "button");
    made.setAttribute("aria-label", `feature ${feature.i}`);
    made.addEventListener("pointerenter", () => point(feature, made));
    made.addEventListener("focus", () => point(feature, made));
    made.addEventListener("pointerleave", () => { tip.hidden = true; });
    made.addEventListener("blur", () => { tip.hidden = true; });
    made.addEventListener("click", () => enlarge(feature));
    made.addEventListener("keydown", (event) => { if (event.key === "Enter") enlarge(feature); });
    return made;
  };

  const bars = (names, values, most) => {
    const table = make("div", { className: "bars" });
    names.slice(0, most).forEach((name, k) => {
      const bar = make("i"), value = values[k], wide = Math.abs(value) * 50;
      bar.style.setProperty("--wide", `${wide}%`);
      bar.style.setProperty("--from", `${value < 0 ? 50 - wide : 50}%`);
      table.append(make("span", { textContent: name }), bar, make("span", { textContent: value.toFixed(3) }));
    });
    return table;
  };

  const about = (feature, most) => {
    const parts = [make("b", { textContent: `feature ${feature.i}: ${feature.formula || "no closed form"}` })];
    if (feature.t) parts.push(make("div", { textContent: GATE }));
    else if (feature.r2 !== null) parts.push(make("div", { textContent: `explains ${(100 * feature.r2).toFixed(2)} % of the response` }));
    if (feature.kinks.length) parts.push(make("div", { textContent: `kinks at ${feature.kinks.map(figure).join(", ")}` }));
    const hidden = feature.direction.length + feature.rest - Math.min(most, feature.direction.length);
    const without = (count) => (count ? `, without ${count} smaller coordinates` : "");
    parts.push(make("div", { textContent: `direction${feature.t ? " v of the gate" : ""}${without(hidden)}` }),
      bars(feature.where.map((k) => `x${k}`), feature.direction, most));
    if (feature.t) parts.push(
      make("div", { textContent: `carrier u, ± ${radians(feature.u_error)} rad${
        without(feature.u.length + feature.u_rest - Math.min(most, feature.u.length))}` }),
      bars(feature.u_where.map((k) => `x${k}`), feature.u, most));
    if (feature.out) parts.push(
      make("div", { textContent: `output direction (${(100 * feature.out_share).toFixed(1)} % of the variation)` }),
      bars(feature.out_where.map((k) => `y${k}`), feature.out, most));
    return parts;
  };

  const point = (feature, element) => {
    tip.replaceChildren(...about(feature, feature.t ? 5 : 8));
    tip.hidden = false;
    const at = element.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const below = at.bottom + size.height + 12 < window.innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, window.innerWidth - size.width - 8))}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
  };

  const enlarge = (feature) => {
    tip.hidden = true;
    const place = make("div", { className: "plot drawn" }), below = make("div", { className: "plot drawn" });
    const close = make("button", { type: "button", textContent: "close" });
    close.addEventListener("click", () => large.close());
    large.replaceChildren(make("div", { className: "top" }, make("h3", { textContent: `Feature ${feature.i}` }), close),
      place, ...(feature.t ? [below] : []), ...about(feature, 64));
    large.showModal();
    chart(place, responses(feature), feature, feature.t ? "s(z), where u·x = 0" : "s(z)");
    if (feature.t) chart(below, gains(feature), feature, "t(z), let through of u·x");
  };

  const chart = (place, { z, curves, bands, first }, feature, title) => {
    const traces = [];
    curves.forEach((curve, k) => {
      const colour = COLOURS[(first + k) % COLOURS.length];
      if (bands) traces.push({ x: [...z, ...[...z].reverse()], mode: "none", fill: "toself",
        y: [...curve.map((s, j) => s + bands[k][j]), ...curve.map((s, j) => s - bands[k][j]).reverse()],
        fillcolor: colour, opacity: 0.25, hoverinfo: "skip", showlegend: false });
      traces.push({ x: z, y: curve, mode: "lines", line: { color: colour, width: 2 },
        name: feature.t ? (feature.o_text ?? "f") : `output ${feature.outputs[k]}` });
    });
    const line = (t) => ({ type: "line", x0: t, x1: t, yref: "paper", y0: 0, y1: 1, line: { dash: "dot", width: 1, color: "#888" } });
    const axis = { gridcolor: "rgba(128,128,128,.22)", zerolinecolor: "rgba(128,128,128,.4)" };
    Plotly.newPlot(place, traces, { font: { color: ink() }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { t: 10, r: 10, b: 45, l: 60 }, shapes: feature.kinks.map(line), showlegend: curves.length > 1,
      xaxis: { title: { text: "z = v·x" }, ...axis }, yaxis: { title: { text: title }, ...axis } }, SETTINGS);
  };
  large.addEventListener("click", (event) => { if (event.target === large) large.close(); });

  const last = Infinity;
  const orders = {
    strength: (a, b) => (b.strength ?? -last) - (a.strength ?? -last) || a.i - b.i,
    angle: (a, b) => (b.angle ?? last) - (a.angle ?? last) || a.i - b.i,
    shape: (a, b) => (a.shape === "") - (b.shape === "") || a.shape.localeCompare(b.shape) || a.i - b.i,
  };
  let sorted = [], shown = 0;
  const show = (count) => {
    cards.append(...sorted.slice(shown, shown + count).map(card));
    shown = Math.min(shown + count, sorted.length);
    more.hidden = shown === sorted.length;
    more.textContent = `show ${Math.min(AT_ONCE, sorted.length - shown)} more of ${sorted.length - shown}`;
  };
  const sortBy = (key) => {
    sorted = [...features].sort(orders[key]);
    const count = Math.max(shown, AT_ONCE);
    shown = 0;
    cards.replaceChildren();
    show(count);
    for (const button of document.querySelectorAll("[data-sort]"))
      button.setAttribute("aria-pressed", String(button.dataset.sort === key));
  };
  more.addEventListener("click", () => show(AT_ONCE));
  for (const button of document.querySelectorAll("[data-sort]"))
    button.addEventListener("click", () => sortBy(button.dataset.sort));
  sortBy("strength");
})();
