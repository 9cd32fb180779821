# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the README and of docs/*.md run, each page's in order, in one namespace."""
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import foci
import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {"run": None, "transformers": "transformers", "timm": "timm"}


def blocks(page):
    """(kind, first line, code) of every block that calls itself `python something`."""
    found = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("```") and start is None:
            start = (line[3:].split(), number + 1)
        elif line.startswith("```"):
            kind, first = start
            start = None
            if len(kind) == 2 and kind[0] == "python":
                found.append((kind[1], first, "\n".join(lines[first - 1 : number - 1])))
    return found


PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if blocks(p)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    ran, missing = 0, set()
    for kind, first, code in blocks(page):
        needs = NEEDS[kind]
        if needs is not None and importlib.util.find_spec(needs) is None:
            missing.add(needs)
            continue
        exec(compile("\n" * (first - 1) + code, str(page), "exec"), space)
        ran += 1
    if not ran:
        pytest.skip(f"every block needs {', '.join(sorted(missing))}, which is not here")


def test_the_guide_has_blocks():
    assert {"README.md", "python.md"} <= {page.name for page in PAGES}
    assert sum(kind == "run" for kind, _, _ in blocks(ROOT / "docs" / "python.md")) >= 8


def test_the_example_runs():
    program = ROOT / "examples" / "attend.py"
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^mean( +[0-9.]+){4}$", ran.stdout, re.M), ran.stdout


@pytest.mark.parametrize("name", ["attend", "measure", "nn.Attention", "nn.Block", "nn.Cache"])
def test_what_is_public_is_documented(name):
    thing = foci
    for part in name.split("."):
        thing = getattr(thing, part)
    assert "Example:" in thing.__doc__
    for keyword in getattr(thing, "__kwdefaults__", None) or {}:
        assert re.search(rf"\b{keyword}\b", thing.__doc__), keyword


def test_settings_are_on_the_page_of_their_mechanism():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    for name in foci.Settings.__annotations__:
        assert f"{name}" in pages.replace("metric-grad", "metric_grad").replace(
            "allow-leak", "allow_leak"
        ), name
