"""Which files are audited, in which order, under which names; and what cannot be read is said in one line."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source, collect, text

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str, content: str | bytes = "x = 1\n") -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)


def names(*paths: str, settings: Settings | None = None) -> list[str]:
    sources, findings = collect([*map(Path, paths)], settings or Settings())
    assert findings == []
    return [source.name for source in sources]


def refused(*paths: str) -> list[str]:
    _, findings = collect([*map(Path, paths)], Settings())
    assert all(finding.code == "RB901" and "\n" not in finding.message for finding in findings)
    return [f"{finding.labels[0].span}: {finding.message}" for finding in findings]


def modules(*paths: str) -> dict[str, str]:
    return {source.name: source.module for source in collect([*map(Path, paths)], Settings())[0]}


class TestWhich:
    def test_the_python_files_of_a_folder_sorted(self) -> None:
        make("a/z.py", "a/b/y.py", "a/b.py", "a/readme.md", "a/x.pyi")

        assert names("a") == ["a/b.py", "a/b/y.py", "a/z.py"]

    def test_other_peoples_code_is_left_out(self) -> None:
        for name in ("__pycache__", ".hidden", "node_modules", "site-packages"):
            make(f"a/{name}/x.py")
        make("a/env/pyvenv.cfg", "a/env/lib/x.py", "a/own.py")

        assert names("a") == ["a/own.py"]

    def test_unless_it_was_named(self) -> None:
        make("lib/site-packages/x.py", ".hidden/y.py")

        assert names("lib/site-packages", ".hidden") == [".hidden/y.py", "lib/site-packages/x.py"]

    def test_the_working_directory(self) -> None:
        make("a/x.py", "y.py")

        assert names(".") == ["a/x.py", "y.py"]

    def test_a_file_is_taken_whatever_it_is_called(self) -> None:
        make("script")

        assert names("script") == ["script"]

    def test_paths_that_overlap_give_each_file_once_and_in_one_order(self) -> None:
        make("a/x.py", "a/b/y.py")

        assert names("a", "a/b", "a/x.py", "./a") == names("a/b", "a") == ["a/b/y.py", "a/x.py"]

    def test_a_file_is_preferred_to_a_link_to_it(self) -> None:
        make("a/z.py", "b/y.py")
        Path("a/a.py").symlink_to("z.py")
        Path("a/other.py").symlink_to("../b/y.py")

        assert names("a") == ["a/other.py", "a/z.py"]

    def test_links_to_folders_are_not_followed_so_that_none_is_endless(self) -> None:
        make("a/x.py")
        Path("a/again").symlink_to(".")
        Path("a/folder.py").symlink_to(".")

        assert names("a") == ["a/x.py"]

    def test_unless_the_link_was_named(self) -> None:
        make("a/x.py")
        Path("b").symlink_to("a")

        assert names("b") == ["b/x.py"]

    def test_a_package_is_found_and_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make("lib/engine_of_tests/__init__.py", content="raise SystemExit('imported')\n")
        make("lib/engine_of_tests/sub/__init__.py", "lib/engine_of_tests/sub/x.py")
        monkeypatch.syspath_prepend("lib")

        assert names("engine_of_tests.sub") == ["lib/engine_of_tests/sub/__init__.py", "lib/engine_of_tests/sub/x.py"]
        assert modules("engine_of_tests")["lib/engine_of_tests/sub/x.py"] == "engine_of_tests.sub.x"

    @pytest.mark.parametrize(
        "pattern", ["test", "a/test", "**/test", "test/", "./a/test", "te?t", "[st]est", "test/**"]
    )
    def test_what_is_excluded(self, pattern: str) -> None:
        make("a/test/x.py", "a/test/deep/z.py", "a/contest/x.py", "a/y.py")

        assert names("a", settings=Settings(exclude=(pattern,))) == ["a/contest/x.py", "a/y.py"]

    def test_a_pattern_of_files(self) -> None:
        make("a/x_pb2.py", "a/b/y_pb2.py", "a/pb2.py")

        assert names("a", settings=Settings(exclude=("*_pb2.py",))) == ["a/pb2.py"]

    def test_a_star_ends_at_a_slash_and_two_do_not(self) -> None:
        make("a/b/x.py", "a/b/c/x.py")

        assert names("a", settings=Settings(exclude=("a/*/x.py",))) == ["a/b/c/x.py"]
        assert collect([Path("a")], Settings(exclude=("a/**/x.py",)))[0] == []

    def test_what_is_named_is_not_excluded(self) -> None:
        make("a/test/x.py")

        assert names("a/test", settings=Settings(exclude=("test",))) == ["a/test/x.py"]

    @pytest.mark.parametrize("pattern", ["[", "(", "a[", "\\", "[!", "{a}", "[]]", "[\\]"])
    def test_a_pattern_is_never_an_error(self, pattern: str) -> None:
        make("a/x.py")

        assert names("a", settings=Settings(exclude=(pattern,))) == ["a/x.py"]


class TestModules:
    def test_packages(self) -> None:
        make("src/engine/__init__.py", "src/engine/__main__.py", "src/engine/a/__init__.py", "src/engine/a/x.py")

        assert modules("src/engine/a") == {
            "src/engine/a/__init__.py": "engine.a",
            "src/engine/a/x.py": "engine.a.x",
        }
        assert modules("src")["src/engine/__init__.py"] == "engine"
        assert modules("src")["src/engine/__main__.py"] == "engine.__main__"

    def test_a_folder_without_init_inside_a_package_belongs_to_it(self) -> None:
        make(
            "engine/__init__.py", "engine/srt/managers/x.py", "engine/srt/layers/__init__.py", "engine/srt/layers/y.py"
        )

        assert modules("engine/srt")["engine/srt/managers/x.py"] == "engine.srt.managers.x"
        assert modules("engine/srt/layers/y.py") == {"engine/srt/layers/y.py": "engine.srt.layers.y"}

    def test_a_namespace_above_a_package_is_believed_when_the_files_say_so(self) -> None:
        make("lib/megatron/core/__init__.py", "lib/other/core/__init__.py")
        make("lib/megatron/core/x.py", content="from megatron.core.y import z\n")

        assert modules("lib")["lib/megatron/core/x.py"] == "megatron.core.x"
        assert modules("lib")["lib/other/core/__init__.py"] == "core"

    def test_scripts_side_by_side(self) -> None:
        make("scripts/a.py", "scripts/b/c.py")

        assert modules("scripts") == {"scripts/a.py": "a", "scripts/b/c.py": "b.c"}
        assert modules("scripts/a.py") == {"scripts/a.py": "a"}

    def test_a_project_ends_the_search(self) -> None:
        make("__init__.py", "project/engine/x.py", "project/pyproject.toml")

        assert modules("project/engine") == {"project/engine/x.py": "x"}

    def test_what_is_no_name_has_none(self) -> None:
        make("a/not-a-name.py", "a/0.5.9/x.py")

        assert modules("a") == {"a/not-a-name.py": "", "a/0.5.9/x.py": ""}


class TestUnreadable:
    def test_there_is_nothing(self) -> None:
        assert refused("nothing.py") == ["nothing.py:1:1: cannot audit nothing.py: no such file or folder"]
        assert refused("no_such") == ["no_such:1:1: cannot audit no_such: no such file, folder or package"]

    def test_a_folder_without_python(self) -> None:
        make("a/readme.md")

        assert refused("a") == ["a:1:1: there is no Python file in a"]

    def test_not_utf_8_with_its_place(self) -> None:
        make("a/x.py", content="x = 1\ny = 'ä'\n".encode("latin-1"))
        make("a/y.py")

        assert refused("a") == ["a/x.py:2:6: cannot read a/x.py: not UTF-8 text in line 2"]

    def test_not_utf_8_in_its_first_line(self) -> None:
        make("x.py", content=b"# \xff\n")

        assert refused("x.py") == ["x.py:1:3: cannot read x.py: not UTF-8 text in line 1"]

    def test_huge(self) -> None:
        make("x.py", content=b"#" * (8 * 1024 * 1024 + 1))

        assert refused("x.py") == ["x.py:1:1: cannot read x.py: it is larger than 8 MiB"]

    def test_a_link_to_nothing_and_one_to_itself(self) -> None:
        Path("a").mkdir()
        Path("a/gone.py").symlink_to("nowhere.py")
        Path("a/loop.py").symlink_to("loop.py")

        assert refused("a") == [
            "a/gone.py:1:1: cannot read a/gone.py: a link to what is not there",
            "a/loop.py:1:1: cannot read a/loop.py: Too many levels of symbolic links",
        ]
        assert refused("a/gone.py") == ["a/gone.py:1:1: cannot read a/gone.py: a link to what is not there"]

    @pytest.mark.timeout(10)
    def test_pipes_sockets_and_devices_are_not_read(self) -> None:
        Path("a").mkdir()
        os.mkfifo("a/pipe.py")
        Path("a/zero.py").symlink_to("/dev/zero")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("a/socket.py")
            found = refused("a")

        assert found == [
            f"a/{name}.py:1:1: cannot read a/{name}.py: it is not a regular file" for name in ("pipe", "socket", "zero")
        ]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission(self) -> None:
        make("a/x.py", "a/b/y.py")
        Path("a/x.py").chmod(0)
        Path("a/b").chmod(0)

        assert refused("a") == [
            "a/b:1:1: cannot read a/b: Permission denied",
            "a/x.py:1:1: cannot read a/x.py: Permission denied",
        ]

    @pytest.mark.parametrize("encoding", ["no-such", "rot13", "hex", "punycode", "undefined", "idna"])
    def test_an_encoding_there_is_not(self, encoding: str) -> None:
        make("x.py", content=f"# coding: {encoding}\nx = 1\n")

        (told,) = refused("x.py")
        assert told.startswith("x.py:1:1: cannot read x.py: ")

    def test_folders_in_folders_without_end(self) -> None:
        folders = ["a" + "/a" * depth for depth in range(1200)]
        try:
            for folder in folders:
                os.mkdir(folder)  # noqa: PTH102
            make(f"{folders[-1]}/x.py")

            assert len(names("a")) == 1
        finally:
            # What pytest tidies up with is recursive.
            Path(folders[-1], "x.py").unlink(missing_ok=True)
            for folder in reversed(folders):
                os.rmdir(folder)  # noqa: PTH106


class TestText:
    @pytest.mark.parametrize(
        "data",
        [
            "x = 'ä'\n".encode(),
            b"\xef\xbb\xbf" + "x = 'ä'\n".encode(),
            "# -*- coding: latin-1 -*-\nx = 'ä'\n".encode("latin-1"),
            "#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = 'ä'\n".encode("cp1252"),
            "# coding: koi8-r\nx = 'ж'\n".encode("koi8-r"),
        ],
    )
    def test_it_is_decoded_as_python_does(self, data: bytes) -> None:
        make("x.py", content=data)
        ((source,), findings) = collect([Path("x.py")], Settings())

        scope: dict[str, str] = {}
        exec(compile(data, "x.py", "exec"), scope)
        assert findings == []
        assert scope["x"] in text(source)
        assert source.data == data

    def test_lines_end_in_one_way(self) -> None:
        assert text(Source("x.py", "x", b"a\r\nb\rc\n")) == "a\nb\nc\n"

    def test_a_declaration_in_the_third_line_is_none(self) -> None:
        assert text(Source("x.py", "x", "\n\n# coding: latin-1\nx = 'ä'\n".encode())).endswith("x = 'ä'\n")
