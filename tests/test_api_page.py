"""The reference page tells of every public name, as the source does now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import ridgescope as rs

ROOT = Path(__file__).parent.parent


def test_every_public_name_is_on_the_reference_page_which_is_up_to_date():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    homes = {"rs.": rs, "rs.oracle.": rs.oracle, "rs.targets.": rs.targets}
    missing = [
        prefix + name
        for prefix, home in homes.items()
        for name in home.__all__
        if not re.search(rf"{re.escape(prefix + name)}\b", text)
    ]
    missing += [name for name in rs.paper.__all__ if not re.search(rf"^\| `{name}\b", text, re.MULTILINE)]
    assert not missing
    assert "rs.RidgeSumRegressor" in text
    assert text == runpy.run_path(str(ROOT / "benchmarks" / "api_page.py"))["page"](), (
        "run: python benchmarks/api_page.py docs/api.md"
    )
