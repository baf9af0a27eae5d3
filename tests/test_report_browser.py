"""The report in a real browser: everything is drawn, nothing complains, and it can be used.

A script at the end of the page acts as a reader would and writes what it saw into an attribute of the body.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import extraction
from ridgescope.report import page
from test_gated_features import Layer

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.optional, pytest.mark.skipif(BROWSER is None, reason="no Chromium here")]

WATCH = """<script>
window.complaints = [];
window.addEventListener("error", (event) => complaints.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => complaints.push(String(event.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => complaints.push(words.map(String).join(" "));
</script>"""
ACT = """<script>
const order = () => [...document.querySelectorAll(".card")].map((card) => Number(card.dataset.feature));
const seen = {};
const press = (selector) => document.querySelector(selector).click();
setTimeout(() => {
  window.dispatchEvent(new Event("beforeprint"));
  seen.strength = order();
  press("[data-sort=angle]"); seen.angle = order();
  press("[data-sort=shape]"); seen.shape = order();
  seen.pressed = document.querySelector("[aria-pressed=true]").dataset.sort;
  press("[data-sort=strength]");
  document.querySelector(".card").dispatchEvent(new PointerEvent("pointerenter"));
  seen.tip = document.getElementById("tip").hidden ? "" : document.getElementById("tip").textContent;
  const colour = () => getComputedStyle(document.body).backgroundColor;
  const before = colour();
  seen.ink = getComputedStyle(document.body).color;
  seen.asked = matchMedia("(prefers-color-scheme: dark)").matches;
  press("#theme"); seen.themes = [before, colour()];
  const more = document.getElementById("more");
  if (!more.hidden) { more.click(); seen.more = order().length; }
  press(".card"); seen.dialog = document.getElementById("large").open;
}, 500);
setTimeout(() => {
  const drawn = [...document.querySelectorAll(".plot")];
  seen.plots = drawn.filter((plot) => plot.querySelector(".main-svg")).length;
  seen.empty = drawn.filter((plot) => !plot.querySelector(".main-svg")).map((plot) => plot.dataset.figure);
  seen.large = Boolean(document.querySelector("dialog .main-svg"));
  const visible = () => document.querySelector("[data-figure=star]").data.map((trace) => trace.visible);
  const star = document.querySelector("[data-figure=star]");
  seen.first = visible();
  const step = star.layout.sliders[0]?.steps[1];
  const finish = () => {
    seen.second = visible();
    seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    seen.complaints = complaints;
    document.body.setAttribute("data-seen", JSON.stringify(seen));
  };
  step ? Plotly.restyle(star, step.args[0]).then(finish) : finish();
}, 4000);
</script>"""


def read(found, folder, width=1200, scheme="light"):
    """What the script saw of this result's page, on a machine whose owner likes it light or dark."""
    text = page(found)
    path = folder / "page.html"
    path.write_text(text.replace("<head>", f"<head>{WATCH}", 1).replace("</body>", f"{ACT}</body>"), encoding="utf-8")
    switches = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    switches += "disable-component-update disable-sync virtual-time-budget=9000 dump-dom"
    switches += f" blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    command = [BROWSER, *(f"--{switch}" for switch in switches.split()), f"--window-size={width},900"]
    done = subprocess.run(
        [*command, f"--user-data-dir={folder / 'profile'}", path.as_uri()],
        capture_output=True,
        check=True,
        timeout=300,
    )
    attribute = re.search(r'data-seen="([^"]*)"', done.stdout.decode())
    assert attribute, "the page's script did not get to its end"
    return json.loads(html.unescape(attribute[1]))


def test_a_reader_can_use_the_page(tmp_path):
    found = rs.extract(rs.targets.CASES["small"].make(0), rng=0)
    seen = read(found, tmp_path)
    assert seen["complaints"] == []
    assert seen["empty"] == []
    assert seen["plots"] == 10  # nine figures, and the large one
    errors = [f.angle_error for f in found.features]
    assert seen["strength"] == list(range(8))
    assert np.all(np.diff([errors[i] for i in seen["angle"]]) <= 0), "least certain first"
    names = [found.features[i].shape.name for i in seen["shape"] if found.features[i].shape is not None]
    assert names == sorted(names)
    assert seen["pressed"] == "shape"
    assert "x0" in seen["tip"]
    assert "direction" in seen["tip"]
    assert len(set(seen["themes"])) == 2
    assert seen["dialog"]
    assert seen["large"]
    assert seen["first"] != seen["second"], "the slider shows another plane"
    assert seen["wide"] <= 0, "nothing sticks out to the right"


def test_500_features_with_many_outputs_are_shown_in_portions(tmp_path):
    directions = rs.targets.planted(40, 500, ("sine",), rng=0).directions
    made = extraction(12, features=500, dim=40)
    features = tuple(replace(f, direction=v) for f, v in zip(made.features, directions, strict=True))
    seen = read(replace(made, features=features), tmp_path, 500)
    assert seen["complaints"] == []
    assert seen["empty"] == []
    assert len(seen["strength"]) == 48
    assert seen["more"] == 96
    assert "output direction" in seen["tip"]
    assert seen["wide"] <= 0


def lightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_comes_in_the_scheme_that_the_reader_likes_and_can_be_turned(tmp_path, scheme):
    seen = read(extraction(features=3), tmp_path, scheme=scheme)
    assert seen["asked"] == (scheme == "dark")
    first, turned = map(lightness, seen["themes"])
    assert (first < 0.2 < 0.8 < turned) if scheme == "dark" else (turned < 0.2 < 0.8 < first)
    assert abs(lightness(seen["ink"]) - first) > 0.6, "words can be read"
    assert seen["complaints"] == []


def test_gated_features_are_shown_and_enlarged(tmp_path):
    seen = read(rs.extract(Layer(6, 4, 4, "silu", 11), dim=6, rng=11), tmp_path, 500)
    assert seen["complaints"] == []
    assert seen["empty"] == []
    assert seen["plots"] == 11  # nine figures, and two large ones: response and gain
    assert "lets through t(v·x) of u·x" in seen["tip"]
    assert "carrier u" in seen["tip"]
    assert seen["wide"] <= 0
