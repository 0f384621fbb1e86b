"""The baseline: what is known again after which edits, and what its file looks like."""

from __future__ import annotations

import stat
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from rankbind.audit.baseline import Baseline, Fingerprint, Places, read, subtract, write
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source
from rankbind.errors import ConfigError
from rankbind.finding import Finding, Label
from rankbind.source import Span

from ..support import audits

pytestmark = pytest.mark.usefixtures("folder")

CODE = """
class Scheduler:
    def __init__(self, rank):
        if rank == 0:
            self.socket.bind(endpoint)

    def start(self):
        self.socket.bind(endpoint)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def places(text: str, name: str = "x.py") -> tuple[Places, tuple[Finding, ...]]:
    sources = [Source(name, "", text.encode())]
    found = audits.run(sources, Settings())
    return Places(sources, found), found.findings


def known(text: str, name: str = "x.py") -> Counter[Fingerprint]:
    there, findings = places(text, name)
    return Counter(map(there.fingerprint, findings))


def new(text: str, before: Counter[Fingerprint], name: str = "x.py") -> tuple[int, int]:
    """How many findings are new, and how many of before are left over."""
    there, findings = places(text, name)
    kept, left = subtract(findings, there, before, lambda file: file != name)
    return len(kept), left.total()


@pytest.mark.parametrize(
    "text",
    [
        CODE,
        "\n\n\nimport x\n" + CODE,
        CODE.replace("bind(endpoint)\n", "bind(endpoint)  # the one\n"),
        CODE.replace("bind(endpoint)", "bind( endpoint)").replace("( ", "("),
        CODE.replace("rank == 0", "rank == 1"),
        CODE.replace("\n", "\r\n"),
        CODE + "\n\ndef other(): ...\n",
    ],
)
def test_an_edit_elsewhere_brings_nothing_back(text: str) -> None:
    assert new(text, known(CODE)) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        CODE.replace("bind(endpoint)\n\n", "bind(other)\n\n"),
        CODE.replace("bind(endpoint)\n\n", "bind(endpoint, 'pp')\n            self.b.bind(endpoint)\n\n"),
    ],
)
def test_an_edit_of_the_line_does(text: str) -> None:
    assert new(text, known(CODE)) == (1, 1)


def test_what_is_found_more_often_than_it_is_known_is_new() -> None:
    twice = CODE + "        self.socket.bind(endpoint)\n"

    assert new(twice, known(CODE)) == (1, 0)
    assert new(CODE, known(twice)) == (0, 1)


def test_another_axis_is_another_finding() -> None:
    there, (finding, _) = places(CODE)
    worse = Finding(finding.code, finding.message, labels=finding.labels, facts={"axes": ["dp", "pp"]})

    assert there.fingerprint(finding) != there.fingerprint(worse)


def test_the_order_of_the_axes_and_the_other_facts_are_no_matter() -> None:
    there, (finding, _) = places(CODE)
    one, other = (
        Finding("RB701", "", labels=finding.labels, facts={"axes": axes, "ranks": axes}) for axes in ("ab", ["b", "a"])
    )

    assert there.fingerprint(one).axes == ()
    assert there.fingerprint(other).axes == ("a", "b")


def test_the_function_is_what_the_analysis_says_it_is() -> None:
    there, (finding, _) = places(CODE)
    told = Finding("RB701", "", labels=finding.labels, facts={"function": "Base.start"})

    assert there.fingerprint(told).function == "Base.start"


def test_a_file_that_was_renamed_is_known_again() -> None:
    assert new(CODE, known(CODE, "old.py")) == (0, 0)


def test_a_file_that_was_copied_is_not() -> None:
    there, findings = places(CODE)

    assert len(subtract(findings, there, known(CODE, "old.py"), lambda file: False)[0]) == 2


class TestFunction:
    """Where the analysis does not say in which function a finding stands, the indentation does."""

    @staticmethod
    def function(text: str) -> str:
        number = next(number for number, line in enumerate(text.split("\n"), start=1) if "HERE" in line)
        sources = [Source("x.py", "", text.encode())]
        there = Places(sources, audits.run([], Settings()))
        return there.fingerprint(Finding("RB704", "", labels=(Label(Span("x.py", number, 1)),))).function

    @pytest.mark.parametrize(
        ("text", "function"),
        [
            ("HERE\n", ""),
            ("def f():\n    HERE\n", "f"),
            ("async def f(\n    a,\n    b,\n) -> None:\n    HERE\n", "f"),
            ("class A:\n    x = 1\n\n    def f(self):\n        if a:\n            HERE\n", "A.f"),
            ("def f():\n    def g():\n        pass\n    HERE\n", "f"),
            ("def f():\n    if a:\n        def g():\n            pass\n    with b:\n        HERE\n", "f"),
            ("def f():\n    pass\nHERE\n", ""),
            ("class A:\n    def f(self):\n# aside\n        HERE\n", "A.f"),
            ("def f():\n    x = [\n        1,\n    ]\n    HERE\n", "f"),
        ],
    )
    def test_it_is_the_one_around(self, text: str, function: str) -> None:
        assert self.function(text) == function


class TestFile:
    def test_it_can_be_read_in_a_diff(self) -> None:
        write(
            Baseline(
                Path("audit.json"),
                Counter(
                    {
                        Fingerprint("RB702", "b.py", "f", "x()", ()): 2,
                        Fingerprint("RB701", "a.py", "C.f", 'bind("日本")', ("pp", "tp")): 1,
                    }
                ),
            )
        )

        assert Path("audit.json").read_text(encoding="ascii") == (
            "{\n"
            '  "version": 1,\n'
            '  "findings": [\n'
            '    {"code": "RB701", "file": "a.py", "function": "C.f", "line": "bind(\\"\\u65e5\\u672c\\")", '
            '"axes": ["pp", "tp"], "count": 1},\n'
            '    {"code": "RB702", "file": "b.py", "function": "f", "line": "x()", "axes": [], "count": 2}\n'
            "  ]\n}\n"
        )

    @pytest.mark.parametrize("known", [{}, {Fingerprint("RB701", "\udcff.py", "f", "\ud800", ("pp",)): 3}])
    def test_what_is_written_is_read(self, known: dict[Fingerprint, int]) -> None:
        write(Baseline(Path("audit.json"), known))

        assert read(Path("audit.json")).known == known

    def test_its_files_are_named_from_its_folder(self) -> None:
        baseline = Baseline(Path("ci/audit.json"), {})

        assert baseline.shown("engine/x.py") == baseline.shown(str(Path.cwd() / "engine/x.py")) == "../engine/x.py"

    def test_it_keeps_its_mode_and_stays_a_link(self) -> None:
        Path("real.json").touch()
        Path("real.json").chmod(0o640)
        Path("audit.json").symlink_to("real.json")
        write(Baseline(Path("audit.json"), {}))

        assert Path("audit.json").is_symlink()
        assert read(Path("real.json")).known == {}
        assert stat.S_IMODE(Path("real.json").stat().st_mode) == 0o640
        assert sorted(path.name for path in Path().iterdir()) == ["audit.json", "real.json"]

    def test_a_new_one_has_the_mode_that_files_have(self) -> None:
        Path("other").touch()
        write(Baseline(Path("audit.json"), {}))

        assert Path("audit.json").stat().st_mode == Path("other").stat().st_mode

    def test_what_is_stale(self) -> None:
        Path("here.py").touch()
        entries = {name: Fingerprint("RB701", f"{name}.py", "f", "x", ()) for name in ("here", "seen", "gone")}
        Path("seen.py").touch()
        left = Counter(dict.fromkeys(entries.values(), 1))

        stale = Baseline(Path("audit.json"), left).stale(left, ["seen.py"])
        assert sorted(each.file for each in stale) == ["gone.py", "seen.py"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "audit.json:1:1: RB901: not JSON: Expecting value"),
            ('{\n  "version": 1,\n<<<<<<< ours\n', "audit.json:3:1: RB901: not JSON: Expecting property name"),
            ("[]", "audit.json:1:1: RB901: audit.json is no baseline of `rankbind audit`"),
            ('{"version": 1}', "audit.json:1:1: RB901: audit.json is no baseline"),
            ('{"version": true, "findings": []}', "audit.json:1:1: RB901: audit.json is no baseline"),
            ('{"version": 2, "findings": []}', "audit.json:1:1: RB901: audit.json is of version 2, and this rankbind"),
            ('{"version": 1, "findings": [3]}', "audit.json:1:1: RB901: audit.json: entry 1 of its findings"),
            ('{"version": 1, "findings": [{"code": "RB701"}]}', "audit.json:1:1: RB901: audit.json: entry 1"),
            ("[" * 100_000, "audit.json:1:1: RB901: cannot read audit.json: "),
        ],
    )
    def test_what_is_no_baseline(self, text: str, message: str) -> None:
        Path("audit.json").write_text(text, encoding="utf-8")

        with pytest.raises(ConfigError) as raised:
            read(Path("audit.json"))
        assert str(raised.value).startswith(message)
        assert len(cast("tuple[Finding, ...]", raised.value.findings)) == 1

    @pytest.mark.parametrize("change", [{"count": 0}, {"count": "1"}, {"axes": "pp"}, {"line": None}, {"more": 1}])
    def test_an_entry_that_we_do_not_write(self, change: dict[str, object]) -> None:
        import json

        entry = {"code": "RB701", "file": "x.py", "function": "f", "line": "x", "axes": [], "count": 1, **change}
        Path("audit.json").write_text(json.dumps({"version": 1, "findings": [entry]}), encoding="utf-8")

        with pytest.raises(ConfigError, match="entry 1 of its findings is not one that rankbind writes"):
            read(Path("audit.json"))

    def test_it_is_not_there(self) -> None:
        with pytest.raises(ConfigError, match=r"there is no audit.json: --write-baseline makes it"):
            read(Path("audit.json"))
