"""What code says against what the file says, without running the code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankbind import config
from rankbind.check import code
from rankbind.finding import Finding, Level

FILE = """
[axes]
pp = 2
tp = 4

[resources.kv-events]
singleton_per = { group = ["pp", "tp"], rank = 0 }

[resources.gated]
owner = { pp = 0, tp = 0 }
"""
DECLARED = config.parse(FILE)


def run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Finding, ...]:
    monkeypatch.chdir(tmp_path)
    Path("engine.py").write_text(text, encoding="utf-8")
    return code.run(DECLARED, "engine.py")


AGREES = [
    '@singleton_per(group=("pp", "tp"), name="kv-events")\ndef f(): ...',
    '@singleton_per(group=["tp", "pp"], rank=0, name="kv-events")\nasync def f(): ...',
    '@rankbind.singleton_per(group=("pp", "tp"), name="kv-events")\nclass F: ...',
    'from rankbind import singleton_per as once\n@once(group=("pp", "tp"), name="kv-events")\ndef f(): ...',
    'AXES = ("pp", "tp")\nRANK = 0\n@singleton_per(group=AXES, rank=RANK, name="kv-events")\ndef f(): ...',
    '@singleton_per("kv-events")\ndef f(): ...',
    'gate = singleton_per("kv-events")\nif gate.owned: ...',
    '@singleton_per(group=("pp", "tp"))\ndef kv_events(): ...',
    'kv_events = singleton_per(group=("pp", "tp"))',
    '@singleton_per(group="world", name="gated")\ndef f(): ...',
    '@singleton_per(group="tp")\ndef something_else(): ...',
    '@singleton_per(group="tp", name="not in the file")\ndef f(): ...',
    "@singleton_per(name)\ndef f(): ...",
    "@other(group='tp', name='kv-events')\ndef f(): ...",
]


@pytest.mark.parametrize("text", AGREES)
def test_code_that_agrees_or_is_about_something_else(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(text, tmp_path, monkeypatch) == ()


DISAGREES = [
    '@singleton_per(group="tp", name="kv-events")\ndef f(): ...',
    '@singleton_per(group=("pp", "tp"), rank=-1, name="kv-events")\ndef f(): ...',
    '@singleton_per(group=("pp", "tp"), rank="any", name="kv-events")\ndef f(): ...',
    '@singleton_per(group="tp")\ndef kv_events(): ...',
    '@singleton_per(group="world", name="kv-events")\ndef f(): ...',
    '@singleton_per(group="tp", name="gated")\ndef f(): ...',
    '@singleton_per(group="nonsense", name="kv-events")\ndef f(): ...',
]


@pytest.mark.parametrize("text", DISAGREES)
def test_code_that_disagrees(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = run(text, tmp_path, monkeypatch)

    assert (finding.code, finding.level) == ("RB402", Level.ERROR)
    here, there = finding.labels
    assert (here.span.file, there.span.file) == ("engine.py", "topology.toml")
    assert there.text == "declared here"


COMPUTED = [
    '@singleton_per(group=axes(), name="kv-events")\ndef f(): ...',
    '@singleton_per(group="tp", rank=last, name="kv-events")\ndef f(): ...',
    '@singleton_per(name="kv-events", **options)\ndef f(): ...',
    'A = "tp"\nA = "pp"\n@singleton_per(group=A, name="kv-events")\ndef f(): ...',
    'A = A\n@singleton_per(group=A, name="kv-events")\ndef f(): ...',
    '@singleton_per(group="tp", rank=1.5, name="kv-events")\ndef f(): ...',
]


@pytest.mark.parametrize("text", COMPUTED)
def test_what_only_running_would_tell_is_noted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = run(text, tmp_path, monkeypatch)

    assert (finding.code, finding.level) == ("RB402", Level.NOTE)


def test_a_name_that_the_file_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = run('\n@singleton_per("kv-event")\ndef f(): ...\n', tmp_path, monkeypatch)

    assert finding.code == "RB403"
    assert finding.fix == "did you mean kv-events?"
    assert (finding.labels[0].span.line, finding.labels[0].span.column, finding.labels[0].span.length) == (2, 2, 25)


def test_columns_are_characters_and_a_call_of_several_lines_is_marked_in_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = run('x = "日本"; y = singleton_per(\n    "nobody",\n)\n', tmp_path, monkeypatch)

    span = finding.labels[0].span
    assert (span.line, span.column, span.length) == (1, 15, len("singleton_per("))


def test_a_folder_is_walked_and_only_what_concerns_us_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "a/wrong.py": 'singleton_per("nobody")',
        "a/old.py": "print 'not Python 3'",
        "a/broken.py": "singleton_per(",
        "a/notes.txt": 'singleton_per("nobody")',
        "a/.hidden/x.py": 'singleton_per("nobody")',
        "a/__pycache__/x.py": 'singleton_per("nobody")',
        "a/venv/pyvenv.cfg": "",
        "a/venv/x.py": 'singleton_per("nobody")',
        "a/latin.py": "# \udcff\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")

    found = code.run(DECLARED, "a")

    assert sorted((finding.code, finding.labels[0].span.file) for finding in found) == [
        ("RB403", "a/wrong.py"),
        ("RB901", "a/broken.py"),
    ]


def test_a_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_engine" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "some_engine" / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    (package / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    (package / "events.py").write_text('singleton_per("nobody")', encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    for name in ("some_engine", "some_engine.inner", "some_engine.inner.events"):
        assert [finding.code for finding in code.run(DECLARED, name)] == ["RB403"]
    assert not any(name.startswith("some_engine") for name in sys.modules)


def test_our_own_package_is_found() -> None:
    assert code.read("rankbind").findings == ()
    assert code.read("rankbind.singleton").findings == ()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no/such/folder", "no such file or folder"),
        ("gone.py", "no such file or folder"),
        ("no_such_package", "no such file or package"),
        ("json.no_such_module", "no such file or package"),
        ("not a name", "no such file or package"),
        ("sys", "no such file or package"),
        ("empty", "there is no Python file"),
        ("broken.py", "not Python"),
        ("nul.py", "not Python"),
        ("deep.py", "not Python"),
        ("bytes.py", "not Python"),
    ],
)
def test_what_cannot_be_read(target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("broken.py").write_text("def f(:\n", encoding="utf-8")
    Path("nul.py").write_text("x = 1\0\n", encoding="utf-8")
    Path("deep.py").write_text("(" * 5000 + ")" * 5000, encoding="utf-8")
    Path("bytes.py").write_bytes(b"x = '\xff'\n")

    (finding,) = code.run(DECLARED, target)

    assert finding.code == "RB901"
    assert message in finding.message
    assert finding.labels


@pytest.mark.parametrize(("end", "lines"), [("\r\n", 3), ("\r", 3), ("\n", 3)])
def test_line_endings(end: str, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("engine.py").write_bytes(b"\xef\xbb\xbf" + f'# one{end}# two{end}singleton_per("nobody"){end}'.encode())

    (finding,) = code.run(DECLARED, "engine.py")

    assert (finding.labels[0].span.line, finding.labels[0].span.column) == (lines, 1)
