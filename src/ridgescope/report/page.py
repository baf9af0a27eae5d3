"""The report: one HTML file that opens without a network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..result import Extraction
from .figures import MOST, geometry, responses

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1d2530; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse }
td, th { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid #e3e6ea }
td:last-child, th:last-child { text-align: left }
.met { color: #16703c } .missed { color: #a3261b }
"""


def write_report(found: Extraction, path: Path) -> Path:
    """Write the page and return its path; everything that came from outside is escaped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(found), encoding="utf-8")
    return path


def page(found: Extraction) -> str:
    """The whole page as text."""
    n, d = len(found.features), found.dim
    verdict = "met" if found.certificate.met else "missed"
    parts = [
        f"<h1>{n} feature{'s' * (n != 1)} in {d} dimension{'s' * (d != 1)}</h1>",
        f'<p class="{verdict}">{escape(found.certificate.sentence)}.</p>',
        *(f"<p>{escape(text)}</p>" for text in (found.stopped, found.diagnosis) if text),
    ]
    if n:
        plots = responses(found).to_html(full_html=False, include_plotlyjs=True)
        angles = geometry(found).to_html(full_html=False, include_plotlyjs=False)
        first = f" (the {MOST} strongest)" if n > MOST else ""
        parts += [f"<h2>Responses{first}</h2>", plots, _features(found), "<h2>|cos| between directions</h2>", angles]
    parts += ["<h2>Where the queries went</h2>", _queries(found), _history(found), _reproduce(found)]
    head = f"<meta charset='utf-8'><title>ridgescope: {n} features</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def _features(found: Extraction) -> str:
    cells = (
        f"{i}</td><td>{f.strength:.3g}</td><td>{f.angle_error:.1e}</td><td>{escape(str(f.shape or '–'))}"
        for i, f in enumerate(found.features)
    )
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    return f"<table><tr><th>#</th><th>strength</th><th>angle error (rad)</th><th>shape</th></tr>{rows}</table>"


def _queries(found: Extraction) -> str:
    rows = "".join(f"<tr><td>{v:,}</td><td>{escape(k)}</td></tr>" for k, v in found.queries_by_stage.items())
    return (
        f"<table><tr><th>queries</th><th>stage</th></tr>{rows}<tr><td>{found.queries:,}</td><td>all</td></tr></table>"
    )


def _history(found: Extraction) -> str:
    return "<ol>" + "".join(f"<li>{escape(str(line))}</li>" for line in found.history) + "</ol>"


def _reproduce(found: Extraction) -> str:
    return (
        f"<p>ridgescope {escape(found.version)}, seed {escape(found.seed)}, radius {found.radius:g}, "
        f"tolerance {found.certificate.tolerance:g}.</p>"
    )
