"""What the sources were at another revision: the same that the audit of a checkout of it would read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rankbind.audit.change import ChangeError, before
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source, collect


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@b")
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    git("init", "--quiet", "--initial-branch", "main")
    return root


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def make(files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)


def commit(files: dict[str, str | bytes]) -> str:
    make(files)
    git("add", "--all")
    git("commit", "--quiet", "--message", "x", "--allow-empty")
    return git("rev-parse", "HEAD")


def at(revision: str, *paths: str, settings: Settings | None = None) -> list[Source]:
    chosen, given = settings or Settings(), [*map(Path, paths)]
    return before(revision, given, chosen, collect(given, chosen)[0])[0]


FILES: dict[str, str | bytes] = {
    "engine/__init__.py": "",
    "engine/a.py": "a = 1\n",
    "engine/srt/b.py": "b = 'ä'\n",
    "engine/test/c.py": "c = 1\n",
    "engine/.hidden/d.py": "d = 1\n",
    "engine/__pycache__/e.py": "e = 1\n",
    "engine/readme.md": "x",
    "scripts/f.py": "f = 1\n",
    "engine/a b\n日本.py": "g = 1\n",
    "pyproject.toml": "",
}


@pytest.mark.parametrize(
    "paths", [["."], ["engine"], ["engine/srt"], ["engine/a.py", "scripts"], ["engine", "./engine"]]
)
@pytest.mark.parametrize("exclude", [(), ("test",), ("engine/srt/*.py",)])
def test_it_is_what_was_there(paths: list[str], exclude: tuple[str, ...]) -> None:
    settings = Settings(exclude=exclude)
    old = commit(FILES)
    expected = collect([*map(Path, paths)], settings)[0]
    commit({"engine/a.py": "a = 2\n", "engine/srt/b.py": "new", "engine/new.py": "", "scripts/f.py": b"\xff"})
    git("rm", "--quiet", "engine/test/c.py", "engine/a b\n日本.py")
    Path("engine/__init__.py").write_text("changed", encoding="utf-8")

    assert at(old, *paths, settings=settings) == expected


def test_from_a_folder_below_and_by_another_way_to_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = commit(FILES)
    (repository.parent / "link").symlink_to(repository)
    monkeypatch.chdir(repository / "engine")

    assert [source.name for source in at(old, "srt", "../scripts")] == ["../scripts/f.py", "srt/b.py"]
    assert at(old, "../../link/engine/srt") == collect([Path("../../link/engine/srt")], Settings())[0]
    assert at(old, f"{repository}/engine/srt")[0].module == "engine.srt.b"


def test_any_name_of_a_revision() -> None:
    commit({"a.py": "1"})
    git("tag", "--annotate", "v1", "--message", "x")
    commit({"a.py": "2"})

    assert [at(name, "a.py")[0].data for name in ("v1", "HEAD~1", "main", "HEAD", "HEAD^{tree}")] == [
        b"1",
        b"1",
        b"2",
        b"2",
        b"2",
    ]


def test_nothing_is_there_before_the_first_commit() -> None:
    make({"a.py": "1"})

    assert at("HEAD", "a.py") == []


def test_what_is_new_was_not_there() -> None:
    old = commit({"a.py": "1"})
    make({"new/b.py": "2"})

    assert at(old, "new") == []


def test_links_to_files_of_the_repository() -> None:
    make({"shared/x.py": "1", "engine/y.py": "2"})
    for link, target in {
        "engine/x.py": "../shared/x.py",
        "engine/again.py": "y.py",
        "engine/gone.py": "nowhere.py",
        "engine/out.py": "/etc/passwd",
        "engine/loop.py": "loop.py",
    }.items():
        Path(link).symlink_to(target)
    old = commit({})

    assert [(source.name, source.data) for source in at(old, "engine")] == [
        ("engine/x.py", b"1"),
        ("engine/y.py", b"2"),
    ]


def test_what_could_not_be_read_then_is_said_as_now() -> None:
    old = commit({"a.py": b"\xff", "b.py": "1"})
    make({"a.py": "1"})

    sources, findings = before(old, [Path()], Settings(), collect([Path()], Settings())[0])
    assert [source.name for source in sources] == ["b.py"]
    assert [(each.code, each.message) for each in findings] == [("RB901", "cannot read a.py: not UTF-8 text in line 1")]


def test_a_submodule_is_taken_for_unchanged(repository: Path) -> None:
    other = repository.parent / "other"
    other.mkdir()
    for arguments in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "-m", "x"]):
        git("-C", str(other), *arguments)
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "third")
    old = commit({"a.py": "1"})
    make({"third/b.py": "2", "a.py": "2"})

    assert [(source.name, source.data) for source in at(old, ".")] == [("a.py", b"1"), ("third/b.py", b"2")]


def test_line_ends_that_git_changes() -> None:
    commit({".gitattributes": "*.py text eol=crlf\n"})
    old = commit({"a.py": "a = 1\r\nb = 2\r\n"})
    git("rm", "--quiet", "--cached", "a.py")
    git("checkout", "--quiet", old, "--", "a.py")

    assert at(old, "a.py")[0].data == b"a = 1\nb = 2\n"


def test_a_repository_of_another_hash(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = repository.parent / "sha256"
    other.mkdir()
    monkeypatch.chdir(other)
    git("init", "--quiet", "--object-format=sha256")
    old = commit({"a.py": "1", "b.py": "1"})
    make({"a.py": "2"})

    assert [source.data for source in at(old, ".")] == [b"1", b"1"]


def test_inside_a_hook_it_is_still_the_repository_of_the_path(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = commit({"a.py": "1"})
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    monkeypatch.setenv("GIT_WORK_TREE", "/nowhere")

    assert at(old, "a.py")[0].data == b"1"


class TestErrors:
    def test_no_such_revision(self, repository: Path) -> None:
        commit({"a.py": "1"})

        for revision in ("nope", "--all", "-x", "HEAD:a.py", "", "HEAD~9", "a..b"):
            with pytest.raises(ChangeError, match=f"^there is no revision {revision} in {repository}$"):
                at(revision, "a.py")

    def test_no_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        make({"a.py": "1"})

        with pytest.raises(ChangeError, match=f"^{tmp_path} is in no git repository$"):
            at("HEAD", "a.py")

    def test_a_path_outside(self, tmp_path: Path, repository: Path) -> None:
        commit({"a.py": "1"})
        make({"../b.py": "2"})

        with pytest.raises(ChangeError, match=f"^../b.py is outside the repository at {repository}$"):
            at("HEAD", "a.py", "../b.py")

    def test_git_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        commit({"a.py": "1"})
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(ChangeError, match=r"^git is not installed, or not on PATH$"):
            at("HEAD", "a.py")

    def test_a_clone_that_has_not_got_everything(self, repository: Path) -> None:
        commit({"a.py": "1"})
        name = git("rev-parse", "HEAD:a.py")
        Path(f".git/objects/{name[:2]}/{name[2:]}").unlink()
        make({"a.py": "2"})

        with pytest.raises(ChangeError, match=f"^git has not got {name} "):
            at("HEAD", "a.py")

    def test_paths_that_are_not_there_are_said_elsewhere(self) -> None:
        assert at("HEAD", "gone.py") == []
