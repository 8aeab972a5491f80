"""The report in a real browser: its numbers are the audit's, it fits, and it follows the scheme.

Needs Debian's `chromium`, which .ci/tools installs; where it is missing the test says so."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ops.cli import run
from tests.ops.recordings import demo_log

BROWSER = shutil.which("chromium")
FRAME = """<body style="margin:0">
<iframe src="page.html" style="border:0; width:{width}px; height:3000px"></iframe>
<pre id="seen"></pre><script>
addEventListener("message", e => document.getElementById("seen").textContent = e.data)</script>"""
PROBE = """<script>
const seen = [...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width > 0);
const letters = seen.flatMap(s => [...s.querySelectorAll("text")])
  .map(t => t.getBoundingClientRect().height).filter(h => h > 0);
parent.postMessage(JSON.stringify({
  width: document.documentElement.scrollWidth, room: innerWidth, pictures: seen.length,
  letters: Math.min(...letters), paper: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.querySelector("svg:not([hidden]) text")).fill}), "*")</script>"""


def dom(page: Path, folder: Path, *options: str) -> str:
    """The document as the browser has it once all is loaded."""
    if BROWSER is None:
        why = "the report's test needs a browser: apt-get install chromium"
        if os.environ.get("CI") or os.environ.get("ATOLL_CI"):
            pytest.fail(f"{why}, which CI must have")
        pytest.skip(why)
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", *options,
        "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(document: str, fact: str) -> str:
    """The text of the element that shows a fact."""
    (inside,) = re.findall(rf'data-fact="{re.escape(fact)}"[^>]*>([^<]*)<', document)
    return html.unescape(inside)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the recorded demo, beside its log."""
    folder = tmp_path_factory.mktemp("report")
    target = folder / "page.html"
    assert run(["report", str(demo_log(folder)), "-o", str(target)]) == 0
    return target


def test_the_numbers_on_the_page_are_the_audits(tmp_path: Path, capsys, page: Path) -> None:
    run(["audit", str(page.with_name("demo.atoll")), "--json", "--explain"])
    audit = json.loads(capsys.readouterr().out)
    document = dom(page, tmp_path)
    (embedded,) = re.findall(r'id="facts">(.*?)</script>', document, re.DOTALL)
    found = json.loads(embedded)["audit"]
    assert {key: found[key] for key in audit} == audit
    assert shown(document, "audit.ok") == "audit holds" and audit["ok"]
    assert shown(document, "audit.log_digest") == audit["log_digest"]
    assert shown(document, "audit.model_digest") == audit["model_digest"]
    assert shown(document, "headline.version") == str(audit["versions"])
    assert shown(document, "headline.sites") == str(len(audit["sites"]))
    share = 100 * audit["blocks_reclaimed"] / audit["blocks_granted"]
    assert shown(document, "headline.reclaimed_share") == f"{share:.3g} %"
    for one in audit["sites"]:
        assert shown(document, f"sites.{one['site']}.merged") == str(one["merged"])
    assert f"{audit['events']:,} events" in document and not audit["void"]
    assert shown(document, "audit.num_void") == "No event is void."


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phone_and_desktop_in_light_and_dark(
    tmp_path: Path, page: Path, width: int, scheme: str
) -> None:
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text())  # or no probe would run
    (tmp_path / "page.html").write_text(text.replace("</body>", PROBE + "</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    dark = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    document = dom(frame, tmp_path, dark, "--window-size=1400,3000")
    (said,) = re.findall(r'<pre id="seen">(.+?)</pre>', document)
    seen = json.loads(html.unescape(said))
    assert seen["width"] <= seen["room"] == width
    assert seen["pictures"] == 7  # of each pair, one
    assert seen["letters"] >= 8  # pixels high
    paper = [int(part) for part in re.findall(r"\d+", seen["paper"])]
    ink = [int(part) for part in re.findall(r"\d+", seen["ink"])]
    assert (sum(paper) > sum(ink)) == (scheme == "light")
    assert abs(sum(paper) - sum(ink)) > 300  # of 765: letters stand out
