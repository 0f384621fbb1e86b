"""For mkdocs: the pages of the findings, which live in the package, as a section of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PAGES = Path(__file__).parent / "findings"


def on_config(config: Any) -> Any:
    """Give every finding its place in the navigation."""
    for section in config.nav:
        if "Findings" in section:
            section["Findings"] = [
                {page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "): f"findings/{page.name}"}
                for page in sorted(_PAGES.glob("RB*.md"))
            ]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the words that mark an example for the tests into its title."""
    return re.sub(r"^```(\w+) (bad|good)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
