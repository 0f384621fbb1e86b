"""Templates compute what Python would, understand nothing else of it, and point at the character that is wrong."""

from __future__ import annotations

import ast
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.errors import TemplateError
from rankbind.template import Template

from .support.outcome import outcome

VALUES = {"dp": 3, "tp_size": 8, "rank": 41, "_zero": 0, "Pp2": 1}
SPACE = st.sampled_from(["", "", " ", "  ", "\t"])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> str:
    kind = draw(
        st.sampled_from(["number", "name"] if not depth else ["number", "name", "minus", "pair", "pair", "group"])
    )
    if kind == "number":
        return str(draw(st.integers(0, 10**6)))
    if kind == "name":
        return draw(st.sampled_from(sorted(VALUES)))
    inner = draw(expressions(depth - 1))
    if kind == "minus":
        return f"-{draw(SPACE)}{inner}"
    if kind == "group":
        return f"({draw(SPACE)}{inner}{draw(SPACE)})"
    operator = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    return f"{inner}{draw(SPACE)}{operator}{draw(SPACE)}{draw(expressions(depth - 1))}"


def python_says(expression: str) -> int:
    return eval(expression, {"__builtins__": {}}, dict(VALUES))


@given(expressions())
def test_an_expression_has_the_value_that_python_gives_it(expression: str) -> None:
    template = Template(f"a{{{expression}}}b")
    assert set(template.names) == {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    try:
        expected = python_says(expression)
    except ZeroDivisionError:
        with pytest.raises(TemplateError, match="divides by zero") as caught:
            template.render(VALUES)
        at = caught.value.column
        assert template.text[at : at + caught.value.width] in ("//", "%")
    else:
        assert template.render(VALUES) == f"a{expected}b"


@given(
    st.lists(
        st.sampled_from([*"12", "07", *VALUES, "+", "-", "*", "/", "//", "%", "(", ")", " ", ".", "[", "**", "=="]),
        max_size=12,
    )
)
def test_it_accepts_the_arithmetic_of_python_and_nothing_more(tokens: list[str]) -> None:
    expression = "".join(tokens)
    found = outcome(lambda: Template(f"{{{expression}}}").render(VALUES), TemplateError)
    if isinstance(found, TemplateError):
        assert 1 <= found.column <= len(expression) + 1
    if "divides by zero" in str(found):
        with pytest.raises(ZeroDivisionError):
            python_says(expression.strip())
        return
    refused = isinstance(found, TemplateError)
    tree = outcome(lambda: ast.parse(expression.strip(), mode="eval"), SyntaxError)
    if isinstance(tree, SyntaxError):
        # Leading zeros are the one liberty taken: 07 is 7.
        assert refused or "07" in expression
        return
    plain = (ast.Expression, ast.BinOp, ast.Constant, ast.Name, ast.USub, ast.Load)
    plain += (ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
    ours = all(
        isinstance(node, plain) and (not isinstance(node, ast.Constant) or type(node.value) is int)
        for node in ast.walk(tree)
    )
    known = all(node.id in VALUES for node in ast.walk(tree) if isinstance(node, ast.Name))
    if known and ours:
        assert found == str(python_says(expression.strip()))
    else:
        assert refused


@given(st.text(st.sampled_from("{}{} ab1+-*/%()\n\u00e9\u0662\"'._$\\"), max_size=24))
def test_any_text_renders_or_is_an_error_inside_the_text(text: str) -> None:
    found = outcome(lambda: Template(text).render({"a": 1, "b": 2, "ab": 3}), TemplateError)
    if isinstance(found, TemplateError):
        assert 0 <= found.column <= len(text)
        assert found.width >= 1


@given(st.text(max_size=30))
def test_text_without_braces_and_with_doubled_ones_is_itself(text: str) -> None:
    assert Template(text.replace("{", "{{").replace("}", "}}")).render({}) == text


def test_braces_beside_braces() -> None:
    assert Template("{{{dp}}}").render(VALUES) == "{3}"
    assert Template("{dp}{rank}}}").render(VALUES) == "341}"
    assert Template("tcp://*:{5557 + dp}").render(VALUES) == "tcp://*:5560"
    assert Template("{ 5557\n+ dp }").render(VALUES) == "5560"


@pytest.mark.parametrize(
    ("text", "marked", "message"),
    [
        ("tcp://*:{5557 + }", "}", "expected a number or a name, found the end of the braces"),
        ("tcp://*:{}", "}", "found the end of the braces"),
        ("x{dp", "{dp", "never closed"),
        ("x}y", "}", "without '{' before it"),
        ("{dp}}", "}", "without '{' before it"),
        ("{(dp + 1}", "(dp", "never closed"),
        ("{dp + 1)}", ")", r"unexpected '\)'"),
        ("{dp rank}", "rank", "unexpected 'rank'"),
        ("{5x}", "x}", "unexpected 'x'"),
        ("{dp ** 2}", "* 2", r"found '\*'"),
        ("{dp / 2}", "/ 2", "unexpected '/'"),
        ("{+dp}", "+dp", r"found '\+'"),
        ("{dp.real}", ".real", r"unexpected '\.'"),
        ("{__import__('os')}", "('os')", r"unexpected '\('"),
        ("{dp if 1 else 2}", "if", "unexpected 'if'"),
        ("{dp:04d}", ":04d", "unexpected ':'"),
        ("{dp!r}", "!r", "unexpected '!'"),
        ("{{dp} {", "} {", "without '{' before it"),
        ("{a{b}}", "{b", "unexpected '{'"),
        ("{1234567890123456789}", "1234567890123456789", "more than 18 digits"),
        ("{\u0662}", "\u0662", "unexpected"),
    ],
)
def test_an_error_points_at_the_character(text: str, marked: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        Template(text)
    assert text[caught.value.column :].startswith(marked)


def test_an_unknown_name_is_pointed_at_with_the_nearest_one() -> None:
    template = Template("tcp://*:{5557 + atn_dp * tp}")
    with pytest.raises(TemplateError, match=r"unknown name 'atn_dp' in .*; did you mean attn_dp\?") as caught:
        template.check_names({"attn_dp": 0, "tp": 0})
    assert (caught.value.column, caught.value.width) == (16, 6)
    with pytest.raises(TemplateError, match=r"known are b, a$"):
        template.check_names({"b": 0, "a": 0})
    for known in ({"b", "a", "c"}, frozenset({"b", "a", "c"})):
        with pytest.raises(TemplateError, match=r"known are a, b, c$"):
            template.check_names(known)
    template.check_names({"atn_dp", "tp"})


def test_the_rank_on_an_axis_is_the_axis() -> None:
    with pytest.raises(TemplateError, match=r"unknown name 'tp_rank' in .*; did you mean tp\?"):
        Template("{5557 + tp_rank}").check_names({"tp", "pp", "rank", "node_rank"})


def test_a_single_slash_is_told_of_the_double_one() -> None:
    with pytest.raises(TemplateError, match=r"unexpected '/': .*; // is whole division"):
        Template("{5557 + tp / 2}")


def test_a_name_without_a_value_is_pointed_at() -> None:
    with pytest.raises(TemplateError, match=r"'local_rank' in .* has no value here") as caught:
        Template("x{1 + local_rank}").render({"rank": 1})
    assert (caught.value.column, caught.value.width) == (6, 10)


@pytest.mark.parametrize(
    "text", ["{" + "(" * 5000 + "1" + ")" * 5000 + "}", "{" + "-" * 5000 + "1}", "{1" + "+1" * 5000 + "}"]
)
def test_depth_is_bounded_before_the_stack_is(text: str) -> None:
    with pytest.raises(TemplateError, match="more than 64 terms"):
        Template(text)


def test_the_longest_expression_still_renders() -> None:
    assert len(Template("{" + "*".join(["9" * 18] * 64) + "}").render({})) == 64 * 18


def test_a_template_is_a_value() -> None:
    template = Template("tcp://*:{5557 + dp + dp}")
    for other in (pickle.loads(pickle.dumps(template)), copy.deepcopy(template), Template(template.text)):
        assert other == template
        assert hash(other) == hash(template)
        assert other.render({"dp": 1}) == "tcp://*:5559"
    assert template != Template("tcp://*:{5557+dp+dp}")
    assert template != template.text
    assert (str(template), repr(template)) == (template.text, f"Template({template.text!r})")
    assert template.names == {"dp": 16}
    for name in ("text", "names", "_parts", "anything"):
        with pytest.raises(AttributeError):
            setattr(template, name, "")
        with pytest.raises(AttributeError):
            delattr(template, name)
    with pytest.raises(TypeError):
        template.names["tp"] = 1  # type: ignore[index]
