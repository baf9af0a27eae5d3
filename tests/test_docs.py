"""No code block in the documentation goes unrun, no link into the tree is dead.

The Python blocks of a page share one namespace, top to bottom, in an empty folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__docs__"}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        source = "\n" * line + block[1]  # so that a traceback shows the line of the page
        exec(compile(source, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_into_the_tree_lead_somewhere(page):
    dead = [
        link
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not link.startswith("mailto:") and not (page.parent / link).exists()
    ]
    assert not dead


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= {
        page.parent.name for page in (tmp_path / "site").glob("*/index.html")
    }


def test_ci_runs_the_readmes_test_commands():
    commands = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    tests = [c.strip() for c in commands if "pytest" in c and "heavy" not in c]
    assert len(tests) == 2
    script = (ROOT / ".ci" / "run").read_text()
    assert [command for command in tests for part in command.split(" && ") if part not in script] == []
