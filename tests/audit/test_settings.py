"""``[tool.rankbind.audit]``: where it is looked for, what it means, and what is said of what is wrong in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from rankbind.audit.settings import PROFILES, Settings, find, load
from rankbind.errors import ConfigError
from rankbind.finding import Finding

pytestmark = pytest.mark.usefixtures("folder")

ALL = """
[project]
name = "engine"

[tool.rankbind.audit]
axes = { my_stage = "pp", "*.replica" = "dp" }
order = ["dp", "pp", "tp"]
profile = "sglang"
creations = { MyBus = "endpoint", open_bus = 0, other = "1" }
exclude = ["test", "*_pb2.py"]
ignore = ["rb402"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(table: str, name: str = "pyproject.toml") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table, encoding="utf-8")
    return path


def refused(path: Path) -> list[tuple[str, str, str | None]]:
    with pytest.raises(ConfigError) as raised:
        load(path)
    findings = cast("tuple[Finding, ...]", raised.value.findings)
    return [(f"{each.labels[0].span} {each.code}", each.message, each.fix) for each in findings]


def test_everything() -> None:
    assert load(write(ALL)) == Settings(
        axes={"my_stage": "pp", "*.replica": "dp"},
        order=("dp", "pp", "tp"),
        profile="sglang",
        creations={"MyBus": "endpoint", "open_bus": "0", "other": "1"},
        exclude=("test", "*_pb2.py"),
        ignore=("RB402",),
    )


def test_nothing() -> None:
    assert load(write("[tool.rankbind.audit]\n")) == Settings()
    assert find(Path("engine")) == Settings()


def test_one_of_a_list_may_stand_alone() -> None:
    assert load(write('tool.rankbind.audit.exclude = "test"\n')).exclude == ("test",)


class TestFind:
    def test_the_nearest_above_that_has_the_table(self) -> None:
        write('[tool.rankbind.audit]\nprofile = "vllm"\n')
        write('[project]\nname = "rankbind-plugin"\n', "a/pyproject.toml")
        write('[tool.rankbind]\naudit = { profile = "torch" }\n', "a/b/c/pyproject.toml")
        Path("a/b/c/d").mkdir()

        assert find(Path("a/b")).profile == "vllm"
        assert find(Path("a/b/c/d/x.py")).profile == "torch"
        assert find(Path("a/b/c")).profile == "torch"

    def test_a_package_that_is_no_path_has_those_of_the_working_directory(self) -> None:
        write('[tool.rankbind.audit]\nprofile = "vllm"\n')

        assert find(Path("engine")).profile == "vllm"

    def test_a_file_of_somebody_else_that_is_no_toml_is_no_matter_of_ours(self) -> None:
        write("[project\nrankbind\n")

        assert find(Path()) == Settings()

    def test_one_that_means_us_is(self) -> None:
        write("[tool.rankbind.audit]\nprofile = \n")

        with pytest.raises(ConfigError, match=r"^pyproject.toml:2:11: RB901: not TOML: Invalid value$"):
            find(Path())

    def test_without_the_table_pydantic_is_not_imported(self) -> None:
        write('[project]\nname = "engine"\ndependencies = ["rankbind"]\n')
        script = "import sys; from rankbind.audit.settings import find; from pathlib import Path; find(Path()); "
        script += "print('pydantic' in sys.modules)"

        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        assert found.stdout == "False\n"


WRONG = [
    ('prifile = "x"', "2:1 RB902", "unknown key 'prifile'", "did you mean profile?"),
    (
        'profile = "sglnag"',
        "2:11 RB903",
        "profile should be 'torch', 'sglang', 'vllm' or 'megatron', not \"sglnag\"",
        None,
    ),
    ("exclude = 3", "2:11 RB903", "exclude should be text, not 3", None),
    ('exclude = ["a", 3]', "2:17 RB903", "exclude.1 should be text, not 3", None),
    ('exclude = [" ."]', "2:12 RB903", "' .' would leave out everything", None),
    ("axes = { a = 1 }", "2:14 RB903", "axes.a should be text, not 1", None),
    ('axes = { a = "p p" }', "2:14 RB903", "'p p' is no name of an axis", None),
    ('axes = { "" = "pp" }', "2:10 RB903", "an empty name is the coordinate of no axis", None),
    ('axes = "pp"', "2:8 RB903", 'axes should be keys and values, not "pp"', None),
    ('order = ["pp", "tp", "pp"]', "2:22 RB903", "'pp' is given twice", None),
    ('order = ["pp", "1"]', "2:16 RB903", "'1' is no name of an axis", None),
    ("creations = { f = -1 }", "2:19 RB903", "creations.f", None),
    ("creations = { f = true }", "2:19 RB903", "creations.f", None),
    ('creations = { f = "a b" }', "2:19 RB903", "'a b' is neither the name of an argument nor its place", None),
    ('ignore = ["RB401", "RB499"]', "2:20 RB903", "there is no code 'RB499'", "did you mean RB4"),
    ('ignore = "RB901"', "2:10 RB903", "RB901 cannot be ignored: a file with it is not audited at all", None),
]


@pytest.mark.parametrize(("line", "where", "message", "fix"), WRONG)
def test_what_is_wrong_is_said_with_its_place(line: str, where: str, message: str, fix: str | None) -> None:
    ((place, told, help_), *rest) = refused(write(f"[tool.rankbind.audit]\n{line}\n"))

    assert rest == []
    assert place == f"pyproject.toml:{where}"
    assert told.startswith(message)
    assert (help_ or "").startswith(fix or "")


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = refused(write("[tool.rankbind.audit]\nprofile = 1\nexclud = []\naxes = { a = 2, b = 3 }\n"))

    assert [place for place, _, _ in found] == [
        "pyproject.toml:2:11 RB903",
        "pyproject.toml:3:1 RB902",
        "pyproject.toml:4:14 RB903",
        "pyproject.toml:4:21 RB903",
    ]


@pytest.mark.parametrize("value", ["3", '"x"', "[]", "true"])
def test_the_table_is_no_table(value: str) -> None:
    ((place, message, _),) = refused(write(f"[tool.rankbind]\naudit = {value}\n"))

    assert place == "pyproject.toml:2:9 RB903"
    assert message.startswith("tool.rankbind.audit should be ")


class TestNamedFile:
    def test_another_name(self) -> None:
        assert load(write('[tool.rankbind.audit]\nprofile = "torch"\n', "audit.cfg")).profile == "torch"

    def test_it_has_no_table(self) -> None:
        assert refused(write("", "other.toml")) == [
            ("other.toml:1:1 RB903", "there is no [tool.rankbind.audit] in other.toml", None)
        ]

    def test_it_is_not_there(self) -> None:
        assert refused(Path("gone.toml")) == [
            ("gone.toml:1:1 RB901", "cannot read gone.toml: No such file or directory", None)
        ]

    def test_it_is_a_folder(self) -> None:
        assert refused(Path())[0][1] == "cannot read .: Is a directory"

    def test_it_is_no_text(self) -> None:
        Path("x.toml").write_bytes(b"a = '\xff'\n")

        assert refused(Path("x.toml")) == [("x.toml:1:6 RB901", "not UTF-8 text", None)]


def test_the_profiles_of_the_table_are_those_there_are() -> None:
    assert [load(write(f'[tool.rankbind.audit]\nprofile = "{name}"\n')).profile for name in PROFILES] == [*PROFILES]
