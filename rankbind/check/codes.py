"""The codes of the findings and their pages. The pages are the one place that says which codes there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from rankbind.topology import nearest


@cache
def titles() -> Mapping[str, str]:
    """Every code, in order, with the title of its page: what the finding says in a few words."""
    pages = files("rankbind.check").joinpath("pages")
    codes = sorted(page.name.removesuffix(".md") for page in pages.iterdir() if page.name.endswith(".md"))
    return MappingProxyType({code: page(code).splitlines()[0].removeprefix(f"# {code}: ") for code in codes})


def page(code: str) -> str:
    """The page of `code`, in Markdown. KeyError where there is no such code."""
    try:
        return files("rankbind.check").joinpath("pages", f"{code}.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KeyError(code) from None


def meant(code: str) -> str | None:
    """The code that was meant by `code`, which there is not: one of the same family, if it has any."""
    known = titles()
    return nearest(code, [other for other in known if other[:3] == code[:3]] or known)
