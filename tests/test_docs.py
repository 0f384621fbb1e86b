"""What the documentation says of the file and the command is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from rankbind import check, config
from rankbind.cli import cli

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = (DOCS / "topology-file.md").read_text(encoding="utf-8")


MODELS = [found for found in vars(config).values() if isinstance(found, type) and issubclass(found, BaseModel)]
KEYS = sorted({field.alias or name for model in MODELS for name, field in model.model_fields.items()})


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_the_file_is_described(key: str) -> None:
    assert re.search(rf"`{key}`|\[{key}[\].]|`{{ group = ..., {key}|`{{ {key} = ...", REFERENCE)


def test_the_example_is_clean() -> None:
    (example, *_) = re.findall(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)

    assert check.run(config.parse(example)) == ()


@pytest.mark.parametrize(
    "option",
    [
        option
        for command in cli.commands.values()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    ],
)
def test_every_option_of_the_command_is_described(option: str) -> None:
    assert option in (DOCS / "cli.md").read_text(encoding="utf-8")


def test_links_between_pages_lead_somewhere() -> None:
    for page in [DOCS / "topology-file.md", DOCS / "cli.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
