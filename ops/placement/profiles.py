"""The profiles of known centres: sites files with what their public documentation says, no more."""

from __future__ import annotations

from pathlib import Path

from ops.placement.script import Ask, render
from ops.placement.shapes import Shape
from ops.placement.sites import Site, SitesInvalid, load

FOLDER = Path(__file__).parent.parent / "sites"
RENDERED = FOLDER / "rendered"


def names() -> list[str]:
    """The centres that have one."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def text(centre: str) -> str:
    """The profile as a file. Raises SitesInvalid, naming those there are."""
    if centre not in names():
        raise SitesInvalid(
            f"there is no profile of {centre}; there are {', '.join(names())}, and "
            "docs/add-your-site.md says how to write one"
        )
    return (FOLDER / f"{centre}.toml").read_text()


def profile(centre: str, **values: str) -> Site:
    """The centre's site with some of what it needs filled in; fields first. Raises SitesInvalid."""
    text(centre)
    site = load(FOLDER / f"{centre}.toml").named(centre)
    fields = {name: value for name, value in values.items() if name in Site.model_fields}
    others = {name: value for name, value in values.items() if name not in fields}
    return Site.model_validate(
        {**site.model_dump(exclude_unset=True), **fields, "values": {**site.values, **others}}
    )


def example(centre: str) -> str:
    """A script as it would be, with FILL-IN in each place that the profile needs."""
    site = profile(centre)
    site = profile(centre, **{name: f"FILL-IN-{name}" for name in site.needs})
    shape: Shape = site.profile().shapes[0]
    ask = Ask("run", f"atoll-run-{centre}", shape, requeues=True)
    return render(site, ask, FOLDER, Path("LOGS"))
