"""Every code has a page, every page is true: its bad example gives its code, its good one gives nothing bad."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankbind
from rankbind.check import codes
from rankbind.finding import Finding

from ..support.pages import checked, example

PACKAGE = Path(rankbind.__file__).parent


@pytest.mark.parametrize("code", codes.titles())
def test_the_bad_example_gives_the_code_and_nothing_unreadable(code: str, tmp_path: Path) -> None:
    found = {finding.code for finding in _findings(code, "bad", tmp_path)}

    assert code in found
    assert all(other == code for other in found if other.startswith("RB9"))


@pytest.mark.parametrize("code", codes.titles())
def test_the_bad_example_shows_one_thing_only(code: str, tmp_path: Path) -> None:
    # RB903 is about values, and shows two of them.
    assert {finding.code for finding in _findings(code, "bad", tmp_path)} == {code}


@pytest.mark.parametrize("code", codes.titles())
def test_the_good_example_is_clean(code: str, tmp_path: Path) -> None:
    results = checked(example(code, "good"), tmp_path)

    assert [result.findings for result in results] == [()] * len(results)
    assert {result.verdict for result in results} == {"clean"}


def _findings(code: str, kind: str, folder: Path) -> list[Finding]:
    return [finding for result in checked(example(code, kind), folder) for finding in result.findings]


def test_every_code_in_the_source_has_a_page_and_every_page_a_code_in_the_source() -> None:
    used = {
        code
        for folder in (PACKAGE, *PACKAGE.parent.glob("integrations/*/rankbind_*"))
        for file in folder.rglob("*.py")
        for code in re.findall(r"\"(RB\d{3})\"", file.read_text(encoding="utf-8"))
    }

    assert used == set(codes.titles())


@pytest.mark.parametrize("code", codes.titles())
def test_a_page_has_the_parts_that_a_reader_expects(code: str) -> None:
    page = codes.page(code)
    lines = page.splitlines()

    assert re.fullmatch(rf"# {code}: \S.*", lines[0])
    assert "\nWhy it matters: " in page
    assert "\nWhat to do: " in page
    assert "\nSeverity: " in page
    assert page.endswith("\n")
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 127


def test_codes_are_listed_in_order_with_their_titles() -> None:
    titles = codes.titles()

    assert list(titles) == sorted(titles)
    assert titles["RB201"] == "two owners bind one address"


def test_a_code_there_is_not() -> None:
    with pytest.raises(KeyError):
        codes.page("RB000")
