"""RB604: a device has one rank."""

from __future__ import annotations

import pytest

from rankbind.finding import Level

from ..support.findings import codes, finding, underlined

AXES = "[axes]\npp = 2\ntp = 4\n"


def weights(device: str, more: str = "", owner: str = "{}") -> str:
    return f"{AXES}{more}[resources.weights]\nowner = {owner}\ndevice = {device}\n"


@pytest.mark.parametrize(
    "text",
    [
        weights("'gpu {local_rank}'"),
        weights("'gpu {local_rank}'", "[hosts]\ncount = 2\n"),
        weights("'gpu {tp}'", "[hosts]\ncount = 2\n"),
        weights("['gpu {2 * local_rank}', 'gpu {2 * local_rank + 1}']"),
        weights("'gpu 0'", owner="{ rank = 0 }"),
        # Several processes of one rank may share its device.
        weights("'gpu {rank}'") + "[resources.draft]\nowner = {}\ndevice = 'gpu {rank}'\nprocess = 'draft worker'\n",
        weights("'gpu 0'\nshared = 'inherited'"),
    ],
)
def test_silent(text: str) -> None:
    assert codes(text) == []


def test_two_ranks_on_one_device() -> None:
    """SGLang counts --gpu-id-step for the ranks of a node, not for its stages."""
    text = weights("'gpu {2 * local_rank % 8}'")
    found = finding(text, "RB604")
    assert codes(text) == ["RB604"]
    assert found.level is Level.ERROR
    assert found.message == "weights: ranks 0, 4 take gpu 0 on host 0; neither the owner nor the address tells pp apart"
    assert [(row["endpoint"], row["host"], row["ranks"]) for row in found.facts["collisions"]] == [
        ("gpu 0", "0", [0, 4]),
        ("gpu 2", "0", [1, 5]),
        ("gpu 4", "0", [2, 6]),
        ("gpu 6", "0", [3, 7]),
    ]
    assert underlined(found, text) == ["'gpu {2 * local_rank % 8}'", "{}"]
    assert found.labels[0].text == "taken here"
    assert found.fix == "give each rank of a host a device of its own: {local_rank} tells them apart"


def test_two_resources() -> None:
    text = weights("'gpu {local_rank}'") + "[resources.encoder]\nowner = { rank = 7 }\ndevice = 'gpu 3'\n"
    found = finding(text, "RB604")
    assert found.message == "weights of rank 3 and encoder of rank 7 both take gpu 3 on host 0"
    assert found.facts["resources"] == ["weights", "encoder"]
    assert found.fix == "give the two different devices"


def test_the_same_number_on_two_hosts_is_two_devices() -> None:
    text = weights("'gpu {rank % 3}'", "[hosts]\ncount = 2\n")
    rows = finding(text, "RB604").facts["collisions"]
    assert [(row["endpoint"], row["host"], row["ranks"]) for row in rows] == [
        ("gpu 0", "0", [0, 3]),
        ("gpu 1", "1", [4, 7]),
    ]


def test_a_rank_that_is_placed_twice_is_another_matter() -> None:
    """RB602 tells it."""
    for hosts in ("a = '0-7'\nb = '0'", "a = '0-7, 0'"):
        assert codes(weights("'gpu {rank}'", f"[hosts.ranks]\n{hosts}\n")) == ["RB602"]
