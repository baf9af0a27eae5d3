"""Shares over two axes, as a table and as a heat map: SVG by hand, a number in every cell, one panel below another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDE, HIGH = 88, 56
LEFT, RIGHT, HEAD, GAP, FOOT, LEAST = 92, 84, 40, 36, 52, 660
"""Pixels: margins, room above and below a panel, and the width that title and caption need."""
SHADES = ((244, 241, 234), (190, 212, 228), (120, 168, 206), (58, 118, 172), (24, 66, 110))
"""From 0 to 1, light to dark, so that it also reads without colour."""
INK, PALE = "#1b1f24", "#ffffff"


@dataclass(frozen=True)
class Cell:
    share: float
    mark: str = ""
    """Right behind the number: something that the caption explains."""
    notes: Sequence[str] = ()
    """Small print below the number."""

    def __str__(self) -> str:
        return ", ".join([percent(self.share) + self.mark, *self.notes])


@dataclass(frozen=True)
class Panel:
    """One method."""

    title: str
    remark: str
    cells: Mapping[tuple[str, str], Cell]
    """By (row, column); what is missing is drawn empty."""


def percent(share: float) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{int(100.0 * share + 1e-6)} %"


def table(x: str, y: str, columns: Sequence[str], rows: Sequence[str], panels: Sequence[Panel]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| method | {y} ↓ {x} → | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for panel in panels:
        lines += [f"| {panel.title} | {row} | {' | '.join(_said(panel, row, columns))} |" for row in rows]
    return lines


def _said(panel: Panel, row: str, columns: Sequence[str]) -> list[str]:
    return [str(panel.cells.get((row, column), "–")) for column in columns]


def heat_map(
    title: str,
    x: str,
    y: str,
    columns: Sequence[str],
    rows: Sequence[str],
    panels: Sequence[Panel],
    caption: str,
    left: int = LEFT,
) -> str:
    """`x` and `y` name the axes; `caption` stands at the foot, one line for each of its lines; `left` is the room for
    the names of the rows.
    """
    across, down = WIDE * len(columns), HIGH * len(rows)
    each, lines = GAP + down + FOOT, caption.splitlines()
    width, height = max(left + across + RIGHT, LEAST), HEAD + each * len(panels) + 17 * len(lines) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="white" stroke="#d0d4d9"/>',
        _text(16, 27, title, size=16, anchor="start"),
    ]
    for k, panel in enumerate(panels):
        top = HEAD + k * each + GAP
        parts.append(_text(left, top - 10, panel.title, anchor="start", weight="bold"))
        parts.append(_text(left + max(across, 440), top - 10, panel.remark, size=12, anchor="end"))
        for i, row in enumerate(rows):
            parts.append(_text(left - 8, top + HIGH * (i + 0.5) + 4, row, anchor="end"))
            for j, column in enumerate(columns):
                parts += _cell(left + WIDE * j, top + HIGH * i, panel.cells.get((row, column)))
        parts += [_text(left + WIDE * (j + 0.5), top + down + 18, column) for j, column in enumerate(columns)]
        parts.append(_text(left + across / 2, top + down + 38, x))
        middle = top + down / 2
        parts.append(_text(24, middle, y, more=f' transform="rotate(-90 24 {middle:g})"'))
        parts += _scale(left + across + 20, top, down)
    foot = HEAD + each * len(panels) + 8
    parts += [_text(16, foot + 17 * i, line, size=12, anchor="start") for i, line in enumerate(lines)]
    return "\n".join([*parts, "</svg>\n"])


def _cell(x: float, y: float, cell: Cell | None) -> list[str]:
    if cell is None:
        return [_box(x, y, "none"), _text(x + WIDE / 2, y + HIGH / 2 + 4, "–", ink="#8a9099")]
    ink = PALE if cell.share > 0.7 else INK
    first = y + HIGH / 2 + 5 - 6 * len(cell.notes)
    number = _text(x + WIDE / 2, first, percent(cell.share) + cell.mark, size=15, ink=ink)
    small = [_text(x + WIDE / 2, first + 14 + 12 * i, note, size=10.5, ink=ink) for i, note in enumerate(cell.notes)]
    return [_box(x, y, _shade(cell.share)), number, *small]


def _scale(x: float, y: float, high: float) -> list[str]:
    steps = 40
    bars = [
        f'<rect x="{x:g}" y="{y + high * k / steps:.2f}" width="12" height="{high / steps + 0.5:.2f}" '
        f'fill="{_shade(1.0 - (k + 0.5) / steps)}"/>'
        for k in range(steps)
    ]
    ticks = [(0.0, "100 %"), (0.5, "50 %"), (1.0, "0 %")]
    return bars + [_text(x + 17, y + high * at + 4, said, size=11, anchor="start") for at, said in ticks]


def _box(x: float, y: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" fill="{fill}" stroke="#c3c8ce"/>'


def _shade(share: float) -> str:
    at = min(max(share, 0.0), 1.0) * (len(SHADES) - 1)
    k = min(int(at), len(SHADES) - 2)
    mixed = [round(a + (at - k) * (b - a)) for a, b in zip(SHADES[k], SHADES[k + 1], strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _text(
    x: float,
    y: float,
    said: str,
    *,
    size: float = 13,
    anchor: str = "middle",
    weight: str = "normal",
    ink: str = INK,
    more: str = "",
) -> str:
    style = f'font-size="{size:g}" text-anchor="{anchor}" font-weight="{weight}" fill="{ink}"'
    return f'<text x="{x:g}" y="{y:g}" {style}{more}>{escape(said)}</text>'
