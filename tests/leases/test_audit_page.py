"""docs/audit.md names tests that exist, and every rule."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = ("docs/audit.md", "docs/comparison.md")


def names_of_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"def (test_\w+)", path.read_text()))
    return found


def test_the_pages_name_tests_that_exist() -> None:
    known = names_of_tests()
    for page in PAGES:
        named = re.findall(r"`(test_\w+?)(_…|)`", (ROOT / page).read_text())
        assert named, page
        for name, cut_off in named:
            fits = name in known or (cut_off and any(one.startswith(name) for one in known))
            assert fits, f"{page}: {name}"


def test_the_page_of_the_audit_speaks_of_every_rule() -> None:
    text = (ROOT / "docs/audit.md").read_text()
    assert [n for n in range(1, 21) if not re.search(rf"\bR{n}\b", text)] == []
    assert [n for n in range(1, 9) if not re.search(rf"\bP{n}\b", text)] == []
