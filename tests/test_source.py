"""Where every key and value of a TOML, YAML or JSON text stands, and where one that cannot be read goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rankbind.source import Document, KeyPath, SourceError, Span, parse, read

ENDINGS = ["toml", "yaml", "json"]


def at(document: Document, span: Span) -> str:
    """The text that a span covers."""
    return document.line(span.line)[span.column - 1 : span.column - 1 + span.length]


def key(document: Document, *path: str | int) -> str:
    assert path in document.keys
    return at(document, document.key(*path))


def value(document: Document, *path: str | int) -> str:
    assert path in document.values
    return at(document, document.value(*path))


def refused(text: str, file: str) -> tuple[int, int, str]:
    with pytest.raises(SourceError) as caught:
        parse(text, file)
    span = caught.value.span
    return span.line, span.column, str(caught.value)


# ---- TOML


def test_toml_keys_and_values() -> None:
    document = parse(
        "\n".join(
            [
                "# a comment",
                "[axes] # another",
                "  tp = 4",
                "[resources . 'kv-events']",
                'a.b."c d" = "x" # dotted',
                'bind = [ "tcp://*:1", # first',
                '  "tcp://*:2" ]',
                "connect = { to = 'h', axes = { dp = 2 } }",
            ]
        ),
        "f.toml",
    )
    assert document.key("axes") == Span("f.toml", 2, 2, 4)
    assert document.key("axes", "tp") == Span("f.toml", 3, 3, 2)
    assert document.value("axes", "tp") == Span("f.toml", 3, 8, 1)
    at_kv: KeyPath = ("resources", "kv-events")
    assert key(document, *at_kv) == "'kv-events'"
    assert key(document, *at_kv, "a", "b", "c d") == '"c d"'
    assert value(document, *at_kv, "a", "b", "c d") == '"x"'
    assert key(document, *at_kv, "a") == "a"
    assert document.value(*at_kv, "bind", 0) == Span("f.toml", 6, 10, 11)
    assert document.value(*at_kv, "bind", 1) == Span("f.toml", 7, 3, 11)
    # A value of several lines is told by the first.
    assert value(document, *at_kv, "bind") == '[ "tcp://*:1", # first'
    assert value(document, *at_kv, "connect", "axes", "dp") == "2"
    assert key(document, *at_kv, "connect", "axes", "dp") == "dp"
    assert document.at((*at_kv, "bind", 1)) == "tcp://*:2"


def test_toml_arrays_of_tables() -> None:
    document = parse("[[a.b]]\nx = 1\n[[a.b]]\nx = 2\n[a.b.c]\ny = 3\n[[a.b.d]]\nz = 4\n", "f.toml")
    assert document.data == {"a": {"b": [{"x": 1}, {"x": 2, "c": {"y": 3}, "d": [{"z": 4}]}]}}
    assert document.value("a", "b", 0, "x").line == 2
    assert document.value("a", "b", 1, "x").line == 4
    assert document.value("a", "b", 1, "c", "y").line == 6
    assert document.value("a", "b", 1, "d", 0, "z").line == 8


def test_toml_tables_may_come_in_any_order() -> None:
    document = parse("[a.b]\nx = 1\n[a]\ny = 2\n", "f.toml")
    assert (document.value("a", "b", "x").line, document.value("a", "y").line) == (2, 4)


@pytest.mark.parametrize(
    ("text", "line", "column", "length"),
    [
        ('x = """a b"""', 1, 5, 9),
        ('x = """\na b\n"""', 1, 5, 3),
        ("x = '''a''''", 1, 5, 8),
        ("x = [ # c\n1,\n]", 1, 5, 5),
        ("x = 1979-05-27T07:32:00Z # c", 1, 5, 20),
        ("x = +1_000.5e3", 1, 5, 10),
        ("x = 0xFF", 1, 5, 4),
        ("\tx\t=\ttrue", 1, 6, 4),
        ("'é' = 'ü'  ", 1, 7, 3),
        ("y='ʎ😀é'\nx = 1", 2, 5, 1),
        ("y = 1\r\nx = 2\r\n", 2, 5, 1),
        ('x = """a\r\nb"""', 1, 5, 4),
    ],
)
def test_toml_spans_count_characters(text: str, line: int, column: int, length: int) -> None:
    document = parse(text, "f.toml")
    name = "x" if "x" in document.data else "é"
    assert document.value(name) == Span("f.toml", line, column, length)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a = 1\nb = ", 2, 5, "Invalid value"),
        ("a = 1\nb", 2, 2, "Expected '='"),
        ("a = [1, 2", 1, 10, "Unclosed array"),
        ('a = "é{', 1, 8, "Unterminated string"),
        ('a = "x\x01"', 1, 7, "Illegal character"),
        ("a = 1\n[t]\nb = 2\na = 3\nb = 4\n", 5, 1, "key 'b' is given twice (first in line 3)"),
        ("[a]\n[b]\n[a]\n", 3, 2, "key 'a' is given twice (first in line 1)"),
        ("a = { b = 1, b = 2 }", 1, 14, "key 'b' is given twice (first in line 1)"),
        ("a.b = 1\na = 2", 2, 1, "key 'a' is given twice (first in line 1)"),
        ("a = 2026-02-30", 1, 5, "Invalid date"),
        ('a = "\\ud800"', 1, 12, "not a Unicode scalar"),
        ("b = 1\na = " + "9" * 5000, 2, 5, "beyond 64 bits"),
        ("a = 9223372036854775808", 1, 5, "beyond 64 bits"),
        ("a = [1]\n[[a]]", 2, 4, "immutable"),
    ],
)
def test_toml_errors(text: str, line: int, column: int, message: str) -> None:
    found = refused(text, "f.toml")
    assert found[:2] == (line, column)
    assert message in found[2]
    assert "(at " not in found[2]


# ---- YAML


def test_yaml_keys_and_values() -> None:
    document = parse(
        "\n".join(
            [
                "# a comment",
                "axes: {tp: 4, 'pp': 2}",
                "resources:",
                "  kv-events:  # the publisher",
                '    bind: ["tcp://*:1", tcp://*:2]',
                "    name:",
                "    - é",
                "    - 'ü: x'",
                "    text: |",
                "      two",
                "      lines",
                '    "quoted key": plain value # c',
            ]
        ),
        "f.yaml",
    )
    assert document.key("axes", "pp") == Span("f.yaml", 2, 15, 4)
    assert value(document, "axes", "tp") == "4"
    kv: KeyPath = ("resources", "kv-events")
    assert value(document, *kv, "bind", 0) == '"tcp://*:1"'
    assert value(document, *kv, "bind", 1) == "tcp://*:2"
    assert document.value(*kv, "name", 1) == Span("f.yaml", 8, 7, 6)
    assert value(document, *kv, "text") == "|"
    assert value(document, *kv, "quoted key") == "plain value"
    assert key(document, *kv, "quoted key") == '"quoted key"'
    assert document.at((*kv, "text")) == "two\nlines\n"


def test_yaml_breaks_lines_where_an_editor_does() -> None:
    """YAML 1.1 also ends a line at U+2028 and U+0085; editors, and our reports, do not."""
    document = parse("a: 1\n# x\u2028b: 2\nc: {d: 1}\x85e: 3\n", "f.yaml")
    assert document.value("c", "d") == Span("f.yaml", 3, 8, 1)
    assert document.value("e").line == 3


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: 2\na: 3", 3, 1, "key 'a' is given twice (first in line 1)"),
        ("a: {x: 1, x: 2}", 1, 11, "given twice"),
        ("a: &b 1\nc: *b", 2, 4, "aliases are not supported"),
        ("a: &b [*b]", 1, 8, "aliases are not supported"),
        ("a: *b", 1, 4, "aliases are not supported"),
        ("1: 2", 1, 1, "keys must be text"),
        ("a:\n  yes: 2", 2, 3, "keys must be text"),
        ("? [a]\n: 1", 1, 3, "keys must be text"),
        ("<<: {a: 1}", 1, 1, "keys must be text"),
        ("a: 1\n---\nb: 2", 2, 1, "expected a single document in the stream, but found another document"),
        ("a:\n\tb: 1", 2, 1, "found character '\\t' that cannot start any token"),
        ("a: [1,\n b: 2", 2, 6, "expected ',' or ']'"),
        ("a: b: c", 1, 5, "mapping values are not allowed here"),
        ("a: \x00", 1, 4, "special characters are not allowed"),
        ('a: "\\ud800"', 1, 4, "lone surrogate"),
        ("x: 1\na: 2026-02-30", 2, 4, "no YAML timestamp"),
        ('a: !!int ""', 1, 4, "no YAML int"),
        ("a: !!bool foo", 1, 4, "no YAML bool"),
        ('a: !!float ""', 1, 4, "no YAML float"),
        ("a: !!timestamp foo", 1, 4, "no YAML timestamp"),
        ("a: " + "9" * 5000, 1, 4, "no YAML int"),
        ("a: 99999999999999999999", 1, 4, "beyond 64 bits"),
        ("a: !!python/object:os.system x", 1, 4, "not supported"),
        ("a: !!set {x}", 1, 4, "not supported"),
        ("a: !!binary aGk=", 1, 4, "not supported"),
        ("- 1", 1, 1, "expected keys and values at the top"),
        ("just text", 1, 1, "expected keys and values at the top"),
    ],
)
def test_yaml_errors(text: str, line: int, column: int, message: str) -> None:
    found = refused(text, "f.yaml")
    assert found[:2] == (line, column)
    assert message in found[2]


# ---- JSON


def test_json_keys_and_values() -> None:
    document = parse('{\n\t"a\\u00e9": {"b": [1, {"c": null}]},\r\n "ü": "x\\ty", "last": -1.5e3 }', "f.json")
    assert document.data == {"aé": {"b": [1, {"c": None}]}, "ü": "x\ty", "last": -1500.0}
    assert document.key("aé") == Span("f.json", 2, 2, 9)
    assert value(document, "aé", "b", 1, "c") == "null"
    assert document.value("aé", "b", 1, "c") == Span("f.json", 2, 29, 4)
    assert value(document, "ü") == '"x\\ty"'
    assert document.value("last") == Span("f.json", 3, 23, 6)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "Expecting value"),
        ('{"a": 1,\n "a": 2}', 2, 2, "key 'a' is given twice (first in line 1)"),
        ('{"a": {"\\u0062": 1, "b": 2}}', 1, 21, "given twice"),
        ('{"s": "NaN",\n"b": NaN}', 2, 6, "NaN is no JSON number"),
        ('{"s": "a\\"NaN", "b": -Infinity}', 1, 22, "-Infinity is no JSON number"),
        ('{"a": 1,}', 1, 9, "Expecting property name"),
        ("// c\n{}", 1, 1, "Expecting value"),
        ('{"a": "\t"}', 1, 8, "Invalid control character"),
        ('{"a": "\\ud800"}', 1, 7, "lone surrogate"),
        ('{"\\ud800": 1}', 1, 2, "lone surrogate"),
        ('{"é": "9999", "a": ' + "9" * 5000 + "}", 1, 20, "beyond 64 bits"),
        ('{"a": -9223372036854775809}', 1, 7, "beyond 64 bits"),
        ("[1]", 1, 1, "expected keys and values at the top"),
        ("{", 1, 2, "Expecting property name"),
    ],
)
def test_json_errors(text: str, line: int, column: int, message: str) -> None:
    found = refused(text, "f.json")
    assert found[:2] == (line, column)
    assert message in found[2]


# ---- all three


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("bracket", ["[", "{", "[{"])
def test_deep_nesting_is_refused_at_once(ending: str, bracket: str) -> None:
    text = {"toml": "a = 1\nb = ", "yaml": "a: 1\nb: ", "json": '{"a": 1,\n"b": '}[ending]
    line, column, message = refused(text + bracket * 100_000, f"f.{ending}")
    assert (line, message) == (2, "nested too deeply to be read")
    assert column > 100


@pytest.mark.parametrize("ending", ENDINGS)
def test_deep_nesting_over_many_lines(ending: str) -> None:
    text = {"toml": "a = ", "yaml": "a: ", "json": '{"a": '}[ending]
    line, _, message = refused(text + "[\n" * 2000, f"f.{ending}")
    assert message == "nested too deeply to be read" or message.startswith("not YAML")
    assert line >= 1


@pytest.mark.parametrize("ending", ["toml", "yaml"])
def test_an_empty_text_is_no_keys(ending: str) -> None:
    document = parse("", f"f.{ending}")
    assert document.data == {}
    assert document.key("axes") == Span(f"f.{ending}", 1, 1)


@pytest.mark.parametrize(("ending", "kind"), [("toml", "toml"), ("YML", "yaml"), ("Json", "json"), ("conf", "toml")])
def test_the_ending_says_what_it_is(ending: str, kind: str) -> None:
    text = {"toml": "a = 1", "yaml": "a: 1", "json": '{"a": 1}'}[kind]
    assert parse(text, f"f.{ending}").data == {"a": 1}


def test_a_text_with_half_a_character() -> None:
    assert refused("a = 1\nb = '\ud800'", "f.toml") == (2, 6, "not Unicode text: a lone surrogate")


def test_what_is_not_in_the_text_is_told_by_what_holds_it() -> None:
    document = parse("[a]\nb = 1\n", "f.toml")
    assert document.key("a", "x", "y") == document.key("a")
    assert document.value("a", "b", 0) == document.value("a", "b")
    assert document.key("z") == Span("f.toml", 1, 1)
    assert document.at(("a", "b", 0)) is None
    assert document.at(("a", "b")) == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_inside_a_text(ending: str) -> None:
    text = {
        "toml": "x = '''é{a}'''\ny = \"\\u00e9{a}\"\n",
        "yaml": 'x: é{a}\ny: "\\u00e9{a}"\n',
        "json": '{"x": "é{a}",\n"y": "\\u00e9{a}"}',
    }[ending]
    document = parse(text, f"f.{ending}")
    assert at(document, document.inside(("x",), 2, 1)) == "a"
    assert at(document, document.inside(("x",), 0, 4)) == "é{a}"
    # Behind an escape it is the whole value.
    assert document.inside(("y",), 2, 1) == document.value("y")


def test_a_byte_order_mark_counts_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read(file).value("a") == Span(str(file), 1, 5)


@pytest.mark.parametrize(
    ("raw", "line", "column"),
    [(b"a = '\xff'", 1, 6), ("é = 1\n# ü".encode() + b"\xc3", 2, 4), (b"\xfe\xff", 1, 1)],
)
def test_not_utf_8(tmp_path: Path, raw: bytes, line: int, column: int) -> None:
    file = tmp_path / "f.toml"
    file.write_bytes(raw)
    with pytest.raises(SourceError, match="not UTF-8 text") as caught:
        read(file)
    assert (caught.value.span.line, caught.value.span.column) == (line, column)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read(tmp_path / "f.toml")


# ---- whatever is written, every leaf is found where it stands

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=6)
BREAKS = frozenset("\n\x85\u2028\u2029")
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\x85\ufeff\ufffe\uffff"), max_size=12
)
LEAVES = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans(), TEXTS)
DATA = st.dictionaries(
    NAMES,
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


def toml_value(found: Any) -> str:
    if isinstance(found, dict):
        return "{ " + ", ".join(f"{toml_value(name)} = {toml_value(inner)}" for name, inner in found.items()) + " }"
    if isinstance(found, list):
        return "[ # c\n" + "".join(f"  {toml_value(inner)},\n" for inner in found) + "]"
    return json.dumps(found, ensure_ascii=False).replace("\x7f", "\\u007f")


def dumped(data: dict[str, Any], ending: str) -> str:
    if ending == "json":
        return json.dumps(data, indent=1, ensure_ascii=False)
    if ending == "yaml":
        return yaml.safe_dump(data, allow_unicode=True, sort_keys=False, width=1 << 30)
    tables = {name: inner for name, inner in data.items() if isinstance(inner, dict)}
    lines = [f"{toml_value(name)} = {toml_value(inner)}" for name, inner in data.items() if name not in tables]
    for name, inner in tables.items():
        lines += [f"[ {toml_value(name)} ]", *(f"{toml_value(key)} = {toml_value(x)}" for key, x in inner.items())]
    return "\n".join(lines)


def leaves(found: Any, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    if isinstance(found, dict):
        return [leaf for name, inner in found.items() for leaf in leaves(inner, (*path, name))]
    if isinstance(found, list):
        return [leaf for index, inner in enumerate(found) for leaf in leaves(inner, (*path, index))]
    return [(path, found)]


@pytest.mark.parametrize("ending", ENDINGS)
@given(data=DATA)
def test_every_key_and_leaf_is_where_its_span_says(ending: str, data: dict[str, Any]) -> None:
    document = parse(dumped(data, ending), f"f.{ending}")
    written = yaml.safe_load if ending == "yaml" else json.loads
    assert document.data == data
    for path, expected in leaves(data):
        if not (ending == "yaml" and isinstance(expected, str) and BREAKS.intersection(expected)):
            assert written(value(document, *path)) == expected
    for path in document.keys:
        if isinstance(path[-1], str):
            assert written(key(document, *path)) == path[-1]


def test_a_number_that_the_grammar_of_positions_does_not_know() -> None:
    document = parse('{"a": -1e+300, "b": {"c": 2}}', "f.json")

    assert document.data == {"a": -1e300, "b": {"c": 2}}
    assert document.value("a").line == 1


@pytest.mark.parametrize(
    "text", ["axes = {tp = 2}", "axes:\n  tp: 2\n", '{"axes": {"tp": 2}}', "# a remark\n[axes]\ntp=2"]
)
def test_a_name_that_tells_nothing(text: str) -> None:
    assert parse(text, "<stdin>").data == {"axes": {"tp": 2}}
