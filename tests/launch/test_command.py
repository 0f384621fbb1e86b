"""Command lines and the places of their words."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.launch.command import ENVIRONMENT, TYPED, shown, typed


def test_words_stand_where_they_are_written() -> None:
    command = typed(["vllm", "serve", "m", "--kv-events-config", '{"endpoint": "tcp://*:5557"}'])

    assert command.text == """vllm serve m --kv-events-config '{"endpoint": "tcp://*:5557"}'"""
    assert [(word.span.column, word.span.length) for word in command.words] == [
        (1, 4),
        (6, 5),
        (12, 1),
        (14, 18),
        (33, 30),
    ]
    assert {word.span.file for word in command.words} == {TYPED}


@pytest.mark.parametrize("front", [[], ["env"]])
def test_assignments_in_front_are_the_environment(front: list[str]) -> None:
    command = typed([*front, "A=1", "B=x y", "python", "C=3"], {"A": "0", "D": "4"})

    assert command.texts == ("python", "C=3")
    assert {name: word.text for name, word in command.environment.items()} == {"A": "1", "B": "x y", "D": "4"}
    assert command.environment["D"].span.file == ENVIRONMENT
    assert command.variable("B") == "x y"
    assert command.variable("none") is None
    at = command.environment["A"].span
    assert (command.text or "")[at.column - 1 : at.column - 1 + at.length] == "A=1"


def test_a_word_with_an_equals_sign_is_not_always_an_assignment() -> None:
    assert typed(["--port=1", "x"]).texts == ("--port=1", "x")
    assert typed(["env"]).texts == ()


@given(st.lists(st.text(min_size=1), min_size=1))
def test_the_text_is_the_command(words: list[str]) -> None:
    command = typed(["run", *words])

    text = command.text or ""
    assert "\n" not in text
    for word in command.words:
        shown = text[word.span.column - 1 : word.span.column - 1 + word.span.length]
        assert shown == shlex.quote(word.text).replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["vllm", "serve", "m", "--api-key", "a b", "c", "--port", "1"], "vllm serve m --api-key ***** * --port 1"),
        (["vllm", "serve", "--api-k=abc", "--tokenizer", "t"], "vllm serve --api-k=*** --tokenizer t"),
        (["VLLM_API_KEY=abc", "A=1", "vllm", "serve"], "VLLM_API_KEY=*** A=1 vllm serve"),
        (["x", "--ssl-keyfile-password", "p", "--max-num-batched-tokens", "8"],
         "x --ssl-keyfile-password * --max-num-batched-tokens 8"),
    ],
)  # fmt: skip
def test_secrets_are_crossed_out_in_their_place(words: list[str], text: str) -> None:
    command = typed(words, {"HF_TOKEN": "exported"})

    assert shown(command) == text
    assert len(text) == len(command.text or "")
