"""SGLang's launch commands, taken apart and stated."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rankbind_sglang.launch import ENGINE
from rankbind_sglang.launch.arguments import start_of, table
from rankbind_sglang.launch.deployment import address_of
from rankbind_sglang.launch.kv_events import shifted
from rankbind_sglang.launch.rules import VERSIONS, rules_of

from rankbind import config
from rankbind.check.plan import Plan
from rankbind.endpoint import Endpoint
from rankbind.finding import Finding, Level
from rankbind.launch.command import Command, Word, typed
from rankbind.launch.draft import Draft
from rankbind.launch.engine import Engine, find
from rankbind.launch.reading import judge, of_draft
from rankbind.source import Span

KV = """--kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557"}'"""
REPLAYED = KV.replace("}", ',"replay_endpoint":"tcp://*:5558"}')
SERVER = "python -m sglang.launch_server --model-path m"


def command(text: str, environment: Mapping[str, str] | None = None, **more: Any) -> Command:
    read = typed(shlex.split(text), environment)
    return Command(read.words, read.environment, text=read.text, **more)


def drafts(*texts: str | Command, version: str | None = None) -> list[Draft]:
    found = list(ENGINE.read([command(text) if isinstance(text, str) else text for text in texts], version))
    for draft in found:
        assert config.parse(draft.to_toml()).job == draft.declaration().job
    return found


def draft_of(*texts: str | Command, version: str | None = None) -> Draft:
    (draft,) = drafts(*texts, version=version)
    return draft


def judged(*texts: str | Command, version: str | None = None) -> list[Finding]:
    """What is wrong with one deployment, notes apart."""
    return [finding for finding in of_draft(draft_of(*texts, version=version)).checked() if finding.fails]


def codes(findings: Sequence[Finding]) -> list[str]:
    return sorted(finding.code for finding in findings)


def bound(draft: Draft, name: str, role: str = "bind") -> list[str]:
    return [b.text for b in Plan(draft.declaration()).bindings if b.resource.name == name and b.address.role == role]


def names(draft: Draft) -> set[str]:
    return {resource.name for resource in draft.declaration().job.resources}


def test_it_is_an_engine() -> None:
    assert isinstance(ENGINE, Engine)
    assert find("sglang") is ENGINE
    assert ENGINE.versions == VERSIONS == table().versions


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("python -m sglang.launch_server --model m", "--model"),
        ("python3.12 -m sglang.launch_server --model m", "--model"),
        ("/opt/venv/bin/python3 -u -m sglang.launch_server --model m", "--model"),
        ("python -msglang.launch_server --model m", "--model"),
        ("sglang serve m", "m"),
        ("/usr/local/bin/sglang serve --model-type llm m", "--model-type"),
        ("python -m sglang.cli.main serve m", "m"),
        ("python /opt/sglang/launch_server.py --model m", "--model"),
    ],
)
def test_starts(text: str, first: str) -> None:
    words = shlex.split(text)
    assert ENGINE.starts(words)
    at = start_of(words)
    assert at is not None
    assert words[at] == first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python",
        "python -m sglang.bench_serving --model m",
        "python -m sglang_router.launch_router",
        "python serve.py sglang.launch_server",
        "sglang",
        "sglang version",
        "sglang generate m",
        "sglang serve --model-type diffusion m",
        "sglang serve --model-type=diffusion m",
        "vllm serve m",
    ],
)
def test_starts_nothing(text: str) -> None:
    assert not ENGINE.starts(shlex.split(text))


# Cases that are launch commands


def test_c13_the_launch_of_pr_29044() -> None:
    findings = judged(f"{SERVER} --tp-size 4 --pp-size 2 {KV}", version="0.5.14")
    assert codes(findings) == ["RB102", "RB201"]
    (clash,) = [finding for finding in findings if finding.code == "RB201"]
    (row,) = clash.facts["collisions"]
    assert (row["endpoint"], row["host"], row["ranks"]) == ("tcp://*:5557", "0", [0, 4])
    assert clash.fix == "upgrade to SGLang 0.5.15 or later, or install rankbind-sglang, which gates it"
    # The place is that of the option, not of a file that nobody wrote.
    assert clash.labels[0].span.file == "<command>"


def test_c14_the_same_with_the_newest_release() -> None:
    assert judged(f"{SERVER} --tp-size 4 --pp-size 2 {KV}") == []


def test_c15_an_abbreviation_that_is_refused() -> None:
    (finding,) = judged(f"{SERVER} --tp 8 --pp 2", version="0.5.23")
    assert finding.code == "RB605"
    assert finding.facts["flag"] == "--pp"
    assert set(finding.facts["ambiguous"]) == {"--pp-size", "--pp-max-micro-batch-size", "--pp-async-batch-depth"}
    assert finding.fix == "write --pp-size"


def test_c18_stages_that_no_node_starts() -> None:
    both = [
        f"{SERVER} --tp-size 2 --pp-size 3 --nnodes 2 --node-rank {node} --dist-init-addr 192.0.2.10:20000"
        for node in (0, 1)
    ]
    for texts in (both, both[:1], both[1:]):
        (finding,) = judged(*texts, version="0.5.23")
        assert finding.code == "RB601"
        assert finding.facts["placement"] == "missing"
        assert {at["pp"] for at in finding.facts["coordinates"]} == {2}


@pytest.mark.parametrize(
    ("version", "options", "expected"),
    [
        # C02, C03: tp 8 pp 2 with 4 attention groups on two hosts: no port meets, and each stream is there twice.
        (
            "0.5.14",
            f"--tp 8 --pp-size 2 --dp 4 --enable-dp-attention --nnodes 2 --dist-init-addr 10.0.0.1:5000 {KV}",
            ["RB102", "RB211"],
        ),
        (
            "0.5.15",
            f"--tp 8 --pp-size 2 --dp 4 --enable-dp-attention --nnodes 2 --dist-init-addr 10.0.0.1:5000 {KV}",
            [],
        ),
        # C04: context parallelism, which the first releases forget.
        ("0.5.10", f"--tp 8 --attn-cp-size 2 {KV}", ["RB102", "RB201"]),
        ("0.5.12", f"--tp 8 --attn-cp-size 2 {KV}", []),
        # C05: replicas that all count from 0.
        ("0.5.14", f"--tp 2 --dp 2 {KV}", ["RB201", "RB210"]),
        ("0.5.15", f"--tp 2 --dp 2 {KV}", []),
        # C07: ipc, and two replicas.
        ("0.5.23", """--dp 2 --kv-events-config '{"publisher":"zmq","endpoint":"ipc:///tmp/e.sock"}'""", ["RB607"]),
        ("0.5.23", """--kv-events-config '{"publisher":"zmq","endpoint":"ipc:///tmp/e.sock"}'""", []),
        # C15: one host is advertised for two.
        (
            "0.5.23",
            f"--tp 8 --dp 8 --enable-dp-attention --nnodes 2 --dist-init-addr 10.0.0.1:5000 {KV}",
            ["RB210", "RB211"],
        ),
        # C16: a wildcard that is connected to.
        ("0.5.12", """--kv-events-config '{"publisher":"zmq","endpoint":"tcp://0.0.0.0:7777"}'""", ["RB210"]),
        ("0.5.13", """--kv-events-config '{"publisher":"zmq","endpoint":"tcp://0.0.0.0:7777"}'""", []),
        # C22: events that run into the replay port.
        (
            "0.5.23",
            f"--tp 2 --dp 2 {REPLAYED}",
            ["RB201"],
        ),
        # C56, C57: one rendezvous for all replicas.
        ("0.5.23", "--tp 8 --dp 2 --dist-init-addr 10.0.0.1:20000", ["RB201"]),
        ("0.5.14", "--tp 8 --dp 2 --nccl-port 20000", ["RB201"]),
        # C59: derived ports that are none.
        ("0.5.12", "--tp 8 --dp 8 --enable-dp-attention --dist-init-addr 10.0.0.1:65533", ["RB203"]),
        # C60: a gRPC port that nobody asked for.
        ("0.5.14", "--tp 8 --port 65438", ["RB606"]),
        ("0.5.16", "--tp 8 --port 65438", []),
        # C136: ports past the last.
        ("0.5.23", """--tp 4 --dp 4 --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:65534"}'""", ["RB203"]),
    ],
)
def test_reported_launches(version: str, options: str, expected: list[str]) -> None:
    assert sorted(set(codes(judged(f"{SERVER} {options}", version=version)))) == expected


CLEAN = [
    "",
    "--tp-size 8 --host 0.0.0.0 --enable-metrics",
    f"--tp 8 --host 0.0.0.0 {KV}",
    f"--tp 8 --dp 8 --enable-dp-attention --host 0.0.0.0 --enable-metrics --page-size 64 {KV}",
    "--tp 2 --dp 4 --host ::",
    "--tp 16 --pp-size 2 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000 --host 0.0.0.0",
    (
        "--tp 16 --dp 16 --enable-dp-attention --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000 --host 0.0.0.0 "
        "--disaggregation-mode prefill --ep-size 16 --moe-a2a-backend deepep --enable-metrics"
    ),
    "--tp 16 --dp 16 --enable-dp-attention --nnodes 2 --dist-init-addr [fd00::1]:5000 --disaggregation-mode decode",
    "--disaggregation-mode prefill --disaggregation-bootstrap-port 9000",
    "--tp 4 --language-only",
    "--tp 4 --grpc-mode --port 8000",
    "--tp 4 --base-gpu-id 4 --nccl-port 20000",
    "--tp 8 --nnodes 2 --dist-init-addr head.example:5000",
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", CLEAN)
def test_sane_launches_are_clean(version: str, options: str) -> None:
    """At most it is said, once, who asks nobody who it is."""
    findings = of_draft(draft_of(f"{SERVER} {options}", version=version)).checked()
    exposed = any(option in options for option in ("--host", "kv-events"))
    assumed = "--node-rank" in options
    expected = [("RB609", Level.NOTE)] * assumed + [("RB301", Level.NOTE)] * exposed
    assert [(finding.code, finding.level) for finding in findings] == expected


@pytest.mark.parametrize(
    ("options", "anywhere", "public", "said"),
    [
        ("", [], [], ""),
        ("--nccl-port 20000", [], [], ""),
        ("--host 0.0.0.0", ["http"], [], "take 127.0.0.1 or an address"),
        ("--host 0.0.0.0 --ssl-certfile c --ssl-keyfile k", ["http"], [], "add --api-key"),
        ("--host :: --api-key k", [], [], ""),
        ("--host :: --admin-api-key k", [], [], ""),
        ("--host 0.0.0.0 --api-key k --encoder-only", ["http"], [], "take 127.0.0.1"),
        ("--host 0.0.0.0 --grpc-mode", ["grpc", "http"], [], "take 127.0.0.1"),
        (KV, ["kv-events"], [], "let a firewall"),
        (KV.replace("*", "10.0.0.1"), [], [], ""),
        (
            f"--tp 2 --dp 2 {REPLAYED.replace('5558', '5600')} --load-publish-endpoint auto",
            ["kv-events", "load-events"],
            [],
            "let a firewall",
        ),
        ("--host 0.0.0.0 --disaggregation-mode prefill --api-key k", ["pd-bootstrap"], [], "take"),
        ("--host 8.8.8.8", [], ["http"], "private network"),
        ("--host 8.8.8.8 --api-key k", [], [], ""),
        (
            "--tp 2 --dp 2 --enable-dp-attention --nnodes 2 --dist-init-addr 8.8.8.8:5000",
            [],
            ["tokenizer", "detokenizer", "scheduler-input", "load-collector", "scheduler-input-dp", "dp-handshake"],
            "private network",
        ),
    ],
)
def test_who_asks_nobody(options: str, anywhere: list[str], public: list[str], said: str) -> None:
    findings = {finding.code: finding for finding in of_draft(draft_of(f"{SERVER} {options}")).checked()}
    open_to = {code: findings[code].facts["resources"] if code in findings else [] for code in ("RB301", "RB302")}
    assert open_to == {"RB301": anywhere, "RB302": public}
    shown = findings.get("RB302" if public else "RB301")
    assert said in (shown.fix or "" if shown else "")


# Knobs


MOVABLE: list[tuple[str, str, dict[str, str]]] = [
    *(("0.5.23", options, {}) for options in CLEAN),
    ("0.5.12", "--tp 2 --dp 2 --enable-dp-attention --port 65400", {}),
    ("0.5.23", "--tp 2 --dp 2 --enable-dp-attention --port 65400 --nccl-port 20000", {}),
    ("0.5.23", f"--tp 2 --dp 2 {REPLAYED.replace('5558', '5600')} --load-publish-endpoint auto", {}),
    ("0.5.23", f"--tp 2 --dp 2 {REPLAYED.replace('5558', '5600')} --load-publish-endpoint tcp://*:5700", {}),
    ("0.5.23", KV.replace("*", "10.0.0.1"), {"SGLANG_DP_RANK": "3"}),
    ("0.5.23", REPLAYED, {"SGLANG_DP_RANK": "3"}),
    ("0.5.23", "--disaggregation-mode prefill", {}),
    ("0.5.23", "--tp 2 --language-only", {}),
    ("0.5.23", "--tp 2 --gated-launch-port 7000", {}),
    ("0.5.23", "--remote-instance-weight-loader-start-seed-via-transfer-engine", {}),
    ("0.5.23", "--decoupled-spec-role verifier --decoupled-spec-bind-endpoint tcp://*:7100", {}),
    ("0.5.23", "--moe-a2a-backend nixl", {}),
    (
        "0.5.23",
        "--tp 4 --elastic-ep-backend mooncake --enable-elastic-expert-backup --nnodes 2 --dist-init-addr 10.0.0.1:5000",
        {"SGLANG_TCP_STORE_PORT": "29700"},
    ),
    ("0.5.23", "", {"DUMPER_SERVER_PORT": "9000"}),
    ("0.5.23", "", {"SGLANG_GRPC_PORT": "9000"}),
    ("0.5.23", "--grpc-port 9000", {}),
    ("0.5.14", "", {"SGLANG_ENABLE_GRPC": "1"}),
    ("0.5.14", "", {"SGLANG_ENABLE_GRPC": "1", "SGLANG_GRPC_PORT": "9000"}),
    ("0.5.14", "--grpc-mode --grpc-http-sidecar-port 9000", {}),
    ("0.5.23", "--grpc-mode", {}),
    *(
        (version, f"--tp 4 --dp 4 --enable-dp-attention {options}", {"SGLANG_RUST_SERVER": "1"})
        for version in ("0.5.19", "0.5.23")
        for options in ("--grpc-port 9000", "--nnodes 2 --dist-init-addr 10.0.0.1:5000")
    ),
]


def ports_of(draft: Draft) -> dict[tuple[str, str, str, int], int]:
    """By resource, role, role with its number and rank: the ports of what somebody has to choose one for."""
    found: dict[tuple[str, str, str, int], int] = {}
    for b in Plan(draft.declaration()).bindings:
        if b.endpoint and b.endpoint.transport == "tcp" and not b.endpoint.kernel_picks:
            alike = [address for address in b.resource.addresses if address.role == b.address.role]
            at = 1 + next(at for at, address in enumerate(alike) if address is b.address)
            found[b.resource.name, b.address.role, f"{b.address.role} {at}", b.rank] = b.endpoint.first
    return found


@pytest.mark.parametrize(("version", "options", "environment"), MOVABLE)
def test_what_turns_moves_what_it_says(version: str, options: str, environment: dict[str, str]) -> None:
    """Each knob is turned in the command, and that is read again."""
    text = f"{SERVER} {options}"
    draft = draft_of(command(text, environment), version=version)
    before = ports_of(draft)
    moved: list[tuple[str, str, str, int]] = []
    for knob in draft.knobs:
        assert knob.value > 0
        old, new = f":{knob.value}", str(knob.value - 20)
        variables = environment | {knob.flag: new} if knob.flag.isupper() else environment
        if knob.flag.startswith("-"):
            turned = text.replace(old, f":{new}") if old in text else f"{text} {knob.flag} {new}"
        else:
            turned = text
        after = ports_of(draft_of(command(turned, variables), version=version))
        ours = [key for key in before if {key[:2], (key[0], key[2])} & knob.moves]
        assert after == before | {key: before[key] - 20 for key in ours}, knob
        moved += ours
        assert bool(knob.span) == (old in text or f" {knob.value}" in text or knob.flag in environment)
    assert sorted(moved) == sorted(before)


def test_what_nothing_moves_one_for_one() -> None:
    """The loads are packed behind the events; behind the replays, as long as these are there."""
    text = f"{SERVER} --tp 2 --dp 2 {REPLAYED.replace('5558', '5559')} --load-publish-endpoint auto"
    draft = draft_of(text)
    assert bound(draft, "load-events") == ["tcp://*:5561", "tcp://*:5562"]
    assert bound(draft_of(text.replace("*:5559", "*:5569")), "load-events") == ["tcp://*:5559", "tcp://*:5560"]
    assert "load-events" not in {resource for knob in draft.knobs for resource, _ in knob.moves}


def test_nodes_with_commands_of_their_own_have_a_port_of_their_own() -> None:
    commands = [command(f"{NODES} {node} --base-gpu-id {8 * node}", host="a") for node in (0, 1)]
    (draft,) = drafts(*commands)
    assert [(knob.flag, knob.value) for knob in draft.knobs] == [
        ("--port", 30000),
        ("--port of node 1", 30000),
        ("--dist-init-addr port", 5000),
    ]
    verdict = judge([of_draft(draft)], suggest=True)
    assert verdict.suggestion
    assert verdict.suggestion.lines(["it"]) == ("it: --port of node 1 30000 (the default) -> 30001",)


# Options


def test_what_is_refused_is_placed_and_named() -> None:
    draft = draft_of(f"{SERVER} --tp-size two")
    (finding,) = draft.findings
    assert draft.refused
    assert finding.code == "RB605"
    assert "--tp-size" in finding.message
    assert finding.labels[0].span.column == len(f"{SERVER} --tp-size ") + 1


def test_underscores() -> None:
    (finding,) = judged(f"{SERVER} --tp_size 8")
    assert (finding.code, finding.fix) == ("RB605", "write --tp-size")


def test_an_option_of_another_release() -> None:
    """Where nobody has said which release it is, that is a remark, and says which ones have it."""
    text = f"{SERVER} --ds-heavy-token-num 3 --tp 2"
    draft = draft_of(text)
    (finding,) = draft.findings
    assert (finding.code, finding.level) == ("RB608", Level.NOTE)
    assert "0.5.9 to 0.5.10" in finding.message
    assert finding.fix == "say which release it is: --engine-version sglang=0.5.10"
    assert [word.text for word, _ in draft.ignored] == ["--ds-heavy-token-num", "3"]
    assert "# --ds-heavy-token-num is not looked at" in draft.to_toml()
    assert draft.declaration().job.topology.size == 2
    assert draft_of(text, version="0.5.10").findings == []
    named = draft_of(text, version="0.5.23")
    assert named.refused
    assert codes(named.findings) == ["RB605"]
    assert codes(judged(f"{SERVER} --no-release-has-this")) == []


def test_the_release_of_an_image() -> None:
    image = command(f"{SERVER} --attn-dp-size 2 --tp 2", image="lmsysorg/sglang:v0.5.14-cu129")
    draft = draft_of(image)
    assert draft.engine == "SGLang 0.5.14"
    assert codes(draft.findings) == ["RB605"]
    # An explicit release is stronger.
    assert not draft_of(image, version="0.5.22").refused


def test_a_stray_word() -> None:
    (finding,) = judged(f"{SERVER} stray")
    assert finding.code == "RB605"
    assert "'stray'" in finding.message


@pytest.mark.parametrize("option", ["--ds-heavy-token-num", "--tp-sizes"])
def test_a_release_that_is_not_known_yet(option: str) -> None:
    """It is read as the newest, may have options that nobody here knows, and near ones may be no mistake."""
    draft = draft_of(f"{SERVER} {option} 3 --tp 2", version="0.6.0")
    assert not draft.refused
    release, unknown = draft.findings
    assert (release.code, release.message) == ("RB609", "SGLang 0.6.0 is not known: 0.5.23 is assumed")
    assert (unknown.code, unknown.level, unknown.fix) == ("RB608", Level.NOTE, None)
    assert draft.declaration().job.topology.size == 2
    for known in ("0.5.23", "v0.5.23", "0.5.23.post1"):
        assert draft_of(f"{SERVER} {option} 3 --tp 2", version=known).refused


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_spellings_of_one_size(version: str) -> None:
    for spelled in ("--tp 8", "--tp-size 8", "--tp=8", "--tensor-parallel-size 8", "--tensor-p 8"):
        assert draft_of(f"{SERVER} {spelled}", version=version).declaration().job.topology.sizes["tp"] == 8


@pytest.mark.parametrize(
    ("version", "options", "sizes"),
    [
        ("0.5.21", "--tp 8 --dp 4 --enable-dp-attention", {"dp": 1, "attn_dp": 4}),
        ("0.5.22", "--tp 8 --dp 4 --enable-dp-attention", {"dp": 1, "attn_dp": 4}),
        ("0.5.22", "--tp 8 --attn-dp-size 4", {"dp": 1, "attn_dp": 4}),
        ("0.5.23", "--tp 8 --attn-dp-size 4 --enable-dp-attention", {"dp": 1, "attn_dp": 4}),
        ("0.5.23", "--tp 8 --dp 1 --enable-dp-attention", {"dp": 1, "attn_dp": 1}),
        ("0.5.14", "--tp 8 --dp 1 --enable-dp-attention", {"dp": 1, "attn_dp": 1}),
        ("0.5.23", "--tp 8 --dp 4", {"dp": 4, "attn_dp": 1}),
        ("0.5.17", "--tp 8 --dwdp-size 8", {"dp": 1, "attn_dp": 8, "moe_ep": 8}),
        ("0.5.23", "--tp 8 --dwdp-size 8", {"dp": 1, "attn_dp": 8, "moe_ep": 8}),
        ("0.5.14", "--tp 8 --moe-a2a-backend deepep", {"moe_ep": 8}),
        ("0.5.23", "--tp 8 --dcp-size 2", {"dcp": 2, "dcp_outer": 4}),
    ],
)
def test_sizes(version: str, options: str, sizes: dict[str, int]) -> None:
    found = draft_of(f"{SERVER} {options}", version=version).declaration().job.topology.sizes
    assert found == found | sizes


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("0.5.23", "--tp 3 --nnodes 2 --dist-init-addr 10.0.0.1:5000"),
        ("0.5.23", "--dp 2 --nnodes 2 --tp 2 --dist-init-addr 10.0.0.1:5000"),
        ("0.5.14", "--dp 2 --nnodes 2 --tp 2 --dist-init-addr 10.0.0.1:5000"),
        ("0.5.23", "--tp 8 --dp 3 --enable-dp-attention"),
        ("0.5.23", "--tp 8 --attn-dp-size 2 --dp 2"),
        ("0.5.23", "--tp 8 --attn-cp-size 3"),
        ("0.5.14", "--tp 4 --dp 4 --attn-cp-size 4"),
        ("0.5.23", "--tp 8 --moe-dp-size 2 --attn-cp-size 4"),
        ("0.5.23", "--tp 8 --moe-dp-size 2 --attn-cp-size 2 --ep 2"),
        ("0.5.23", "--tp 8 --moe-dp-size 2 --attn-cp-size 2 --ep 4 --pp-size 2"),
        ("0.5.23", "--tp 8 --dcp-size 3"),
        ("0.5.23", "--tp 8 --dwdp-size 4"),
        ("0.5.23", "--tp 0"),
        ("0.5.23", "--base-gpu-id -1"),
        ("0.5.23", "--gpu-id-step 0"),
        ("0.5.23", "--grpc-port 30000"),
        ("0.5.23", "--grpc-port 70000"),
        ("0.5.23", "--grpc-port 40000 --api-key secret"),
        ("0.5.23", "--load-publish-endpoint auto"),
        ("0.5.19", "--pp-size 2 --speculative-algorithm EAGLE"),
        ("0.5.23", "--pp-size 2 --speculative-algorithm EAGLE"),
        ("0.5.23", "--tp 2000000"),
    ],
)
def test_sizes_that_are_refused(version: str, options: str) -> None:
    draft = draft_of(f"{SERVER} {options}", version=version)
    assert draft.refused
    assert set(codes(draft.findings)) == {"RB606"}


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ("--tp 8 --nnodes 2", "--dist-init-addr"),
        ("--tp 8 --dp 2 --enable-dp-attention --nnodes 2", "--dist-init-addr"),
        ("--tp 8 --nnodes 2 --node-rank 2 --dist-init-addr 10.0.0.1:5000", "--node-rank"),
        ("--tp 8 --dist-init-addr 10.0.0.1", "--dist-init-addr"),
        ("--tp 8 --dist-init-addr ::1:5000", "--dist-init-addr"),
        ("--tp 8 --nnodes 2 --dist-init-addr 127.0.0.1:5000", "--dist-init-addr"),
        ("--tp 8 --ep 3", "--ep-size"),
        ("--tp 8 --dcp-size 4 --attn-dp-size 4", "--dcp-size"),
        ("--kv-events-config '{'", "--kv-events-config"),
        ("--kv-events-config '[]'", "--kv-events-config"),
        ("""--kv-events-config '{"publisher":"kafka"}'""", "--kv-events-config"),
        ("""--kv-events-config '{"publisher":"zmq","bind":"perhaps"}'""", "--kv-events-config"),
    ],
)
def test_sizes_that_nobody_looks_at(options: str, flag: str) -> None:
    draft = draft_of(f"{SERVER} {options}")
    assert not draft.refused
    assert ("RB607", flag) in [(finding.code, finding.facts.get("flag")) for finding in draft.findings]


def test_ranks_that_there_are_not() -> None:
    draft = draft_of(f"{SERVER} --tp 3 --pp-size 2 --nnodes 3 --dist-init-addr 10.0.0.1:5000")
    (finding,) = draft.findings
    assert finding.facts["node"] == 2
    assert finding.facts["coordinates"] == [{"pp": 2, "tp": tp} for tp in range(3)]
    assert [host.ranks for host in draft.declaration().job.topology.hosts] == [(0, 1, 2), (3, 4, 5), ()]


def told(text: str, environment: Mapping[str, str] | None = None, **more: Any) -> Command:
    """A command in a file, in which what has a $ in it is known at run time alone."""
    words = [Word(word, Span("run.sh", 1, at + 1), "$" not in word) for at, word in enumerate(shlex.split(text))]
    known = {name: Word(value, Span("run.sh", 1, 1), "$" not in value) for name, value in (environment or {}).items()}
    return Command(tuple(words), known, **more)


def notes(draft: Draft) -> list[str]:
    """What cannot be told, and what is assumed."""
    assert {(finding.code, finding.level) for finding in draft.findings} <= {("RB609", Level.NOTE)}
    return [f"{finding.message} | {'; '.join(finding.details)}" for finding in draft.findings]


def test_a_port_that_only_the_run_time_knows() -> None:
    draft = draft_of(told(f"{SERVER} --port $PORT"))
    assert notes(draft) == [
        "--port cannot be told: $PORT is known at run time alone | --port $PORT: taken for a port that nobody else has"
    ]
    assert [word.text for word, _ in draft.ignored] == ["$PORT"]
    assert bound(draft, "http") == ["tcp://127.0.0.1:0"]
    assert "known at run time alone: --port $PORT" in draft.to_toml()
    two = drafts(*(told(f"{SERVER} --port ${name} --base-gpu-id ${name}") for name in "AB"))
    found = judge([of_draft(draft) for draft in two]).findings
    assert {finding.code for findings in found for finding in findings} == {"RB609"}
    # What is counted from it is not known either.
    attention = draft_of(told(f"{SERVER} --tp 2 --dp 2 --enable-dp-attention --port $PORT {KV}"))
    assert set(bound(attention, "tokenizer")) == {"tcp://127.0.0.1:0"}
    assert "start-up-check" not in names(attention)
    assert not any(finding.fails for finding in of_draft(attention).checked())


@pytest.mark.parametrize("version", ["0.5.12", "0.5.16", "0.5.23"])
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("--grpc-port $G", {}),
        ("--grpc-port 30000 --port $P", {}),
        ("--port $P", {"SGLANG_ENABLE_GRPC": "1"}),
        ("", {"SGLANG_ENABLE_GRPC": "1", "SGLANG_GRPC_PORT": "$G"}),
        ("--port $P --tp 4 --dp 2 --enable-dp-attention", {"SGLANG_RUST_SERVER": "1"}),
        ("--port $P --tp 4 --dp 2", {"SGLANG_RUST_SERVER": "1"}),
        ("--port $P --tp 4 --dp 4 --enable-dp-attention --nnodes 2 --dist-init-addr a:$Q", {}),
        ("--nccl-port $N --dp 2", {}),
        ("--nccl-port $N --dp 2 --enable-dp-attention --tp 2", {}),
        ("--disaggregation-mode prefill --disaggregation-bootstrap-port $B", {}),
        ("--dist-init-addr $H", {}),
        (KV, {"SGLANG_DP_RANK": "$R"}),
        ("", {"DUMPER_SERVER_PORT": "$R"}),
        ("--base-gpu-id ${G}", {}),
        ("$EXTRA_ARGS", {}),
        ("--tp $TP --dp 2 --enable-dp-attention", {}),
        ("--tp $TP --nnodes 2 --dist-init-addr a:5000", {}),
        ("--nnodes $N --tp 8 --node-rank $R --dist-init-addr a:5000", {}),
        ("--nnodes $N --tp 8 --node-rank 1 --dist-init-addr a:5000", {}),
    ],
)
def test_what_only_the_run_time_knows_is_one_note(version: str, options: str, environment: dict[str, str]) -> None:
    if ("--grpc" in options or "SGLANG_DP_RANK" in environment) and version == "0.5.12":
        pytest.skip("this release does not look at it")
    draft = draft_of(told(f"{SERVER} {options}", environment), version=version)
    findings = of_draft(draft).checked()
    assert [finding.code for finding in findings if "run time" in finding.message] == ["RB609"]
    assert [(finding.code, finding.message) for finding in findings if finding.fails] == []
    assert not draft.refused


def test_visible_devices_that_only_the_run_time_knows() -> None:
    draft_of(told(SERVER, {"CUDA_VISIBLE_DEVICES": "${GPU}"}))


def test_sizes_that_only_the_run_time_knows() -> None:
    draft = draft_of(told(f"{SERVER} --tp $TP --pp-size 2"))
    assert notes(draft) == ["--tp-size cannot be told: $TP is known at run time alone | --tp-size $TP: taken for 1"]
    assert draft.declaration().job.topology.size == 2
    assert notes(draft_of(told(f"{SERVER} $MORE"))) == [
        "only the run time knows what $MORE adds | $MORE: taken for no option"
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("$KV", []),
        ('{"publisher":"$P"}', []),
        ('{"publisher":"zmq","endpoint":"tcp://*:$P"}', ["tcp://*:0"]),
        ('{"publisher":"zmq","endpoint":"tcp://*:${P}","replay_endpoint":"tcp://*:6000"}', ["tcp://*:0"]),
        ('{"publisher":"zmq","endpoint":"tcp://*:5557","topic":"kv@$POD_IP@m"}', ["tcp://*:5557", "tcp://*:5558"]),
        ('{"publisher":"zmq","endpoint":"tcp://${POD_IP}:5557"}', []),
        ('{"publisher":"zmq","endpoint":"tcp://$POD_IP:$P"}', []),
    ],
)
def test_kv_events_that_only_the_run_time_knows(config: str, expected: list[str]) -> None:
    for options in ("--load-publish-endpoint auto", ""):
        text = f"{SERVER} --dp 2 --kv-events-config {shlex.quote(config)} {options}"
        draft = draft_of(told(text))
        found = of_draft(draft).checked()
        (note,) = [finding for finding in found if finding.code == "RB609"]
        assert "--kv-events-config" in note.message
        assert not [(each.code, each.message) for each in found if each.fails]
        if "kv-events" in names(draft):
            assert sorted(set(bound(draft, "kv-events"))) == expected
        else:
            assert not expected


def test_what_is_said_of_a_long_word_is_what_is_unknown_of_it() -> None:
    text = """'{"publisher":"zmq","endpoint":"tcp://*:$P"}'"""
    (note,) = notes(draft_of(told(f"{SERVER} --kv-events-config {text}")))
    assert note.startswith("--kv-events-config cannot be told: $P is known at run time alone | --kv-events-config $P: ")


def test_a_config_file_that_only_the_run_time_knows() -> None:
    (note,) = notes(draft_of(told(f"{SERVER} --config $FILE")))
    assert note.startswith("--config cannot be told: $FILE is known at run time alone")


def test_nodes_do_not_disagree_about_what_nobody_knows() -> None:
    texts = [f"{NODES} {node} --nccl-port {port}" for node, port in ((0, "$PORT"), (1, "5001"))]
    assert len(notes(draft_of(*map(told, texts)))) == 1


@pytest.mark.parametrize(
    ("options", "code", "fix"),
    [
        (KV.replace("5557", "30000"), "RB201", "take another port for --port, or for the other of the two"),
        ("--nccl-port 30000", "RB201", "take another port for --port, or for the other of the two"),
        (f"--nccl-port 5557 {KV}", "RB201", "take another port for --nccl-port, or for the other of the two"),
        ("--port 99999", "RB203", "lower --port: ports end at 65535"),
    ],
)
def test_what_one_server_is_told_of_its_own_ports(options: str, code: str, fix: str) -> None:
    (finding,) = judged(f"{SERVER} {options}")
    assert (finding.code, finding.fix) == (code, fix)


def test_nodes_whose_shell_knows_who_they_are() -> None:
    draft = draft_of(
        told(
            f"{SERVER} --host $POD_IP --nnodes 2 --node-rank $RANK --dist-init-addr ${{HEAD}}:5000 --tp 2 --dp 2 "
            "--enable-dp-attention"
        )
    )
    assert draft.findings == []
    assert bound(draft, "tokenizer") == ["tcp://$HEAD:5001"]
    assert not any(finding.fails for finding in of_draft(draft).checked())


@pytest.mark.parametrize(
    ("tag", "release", "said"),
    [
        ("v0.5.14-cu129", "0.5.14", None),
        ("v0.5.8-cu126", "0.5.9", "SGLang 0.5.8 (image lmsysorg/sglang:v0.5.8-cu126) is older than what can be read"),
        ("v0.99.0", "0.5.23", "SGLang 0.99.0 (image lmsysorg/sglang:v0.99.0) is not known: 0.5.23 is assumed"),
        ("latest", "0.5.23", "the image lmsysorg/sglang:latest does not tell its release of SGLang: 0.5.23 is assumed"),
        ("0.5", "0.5.23", "the image lmsysorg/sglang:0.5 does not tell its release of SGLang: 0.5.23 is assumed"),
    ],
)
def test_an_image_that_does_not_tell_its_release(tag: str, release: str, said: str | None) -> None:
    draft = draft_of(command(SERVER, image=f"lmsysorg/sglang:{tag}"))
    assert draft.engine == f"SGLang {release}"
    assert len(notes(draft)) == (said is not None)
    for finding in draft.findings:
        assert said is not None
        assert finding.message.startswith(said)
        assert "--engine-version sglang=" in str(finding.fix)
    assert draft_of(command(SERVER, image=f"lmsysorg/sglang:{tag}"), version="0.5.14").findings == []


def test_a_node_that_is_started_twice() -> None:
    """Nobody who reads of two sockets at one address gets from there to the rank that is wrong."""
    texts = [f"{NODES} 0", f"{NODES} 0".replace("--nnodes", "--host 127.0.0.1 --nnodes")]
    apart = [command(text, name=name) for name, text in zip("ab", texts, strict=True)]
    (finding,) = judged(*apart)
    assert finding.code == "RB607"
    assert finding.message.startswith("several commands say --node-rank 0 of the launch at 10.0.0.1:5000, and none st")
    assert (finding.facts["twice"], finding.facts["missing"]) == ([0], [1])
    assert finding.fix == "give each node a --node-rank of its own"
    assert len(draft_of(*apart).commands) == 2
    # A script's shell has put it in before srun starts the tasks.
    text = f"{NODES} 0".replace("10.0.0.1", "$HEAD")
    (finding,) = judged(*(told(text, host=f"node {at}") for at in (0, 1)))
    assert finding.code == "RB607"
    assert str(finding.fix).startswith("quote the variable, srun bash -c '... --node-rank $SLURM_PROCID'")
    # Pods have a $HEAD each.
    assert len(drafts(*(told(text, host=f"node {at}", image="lmsysorg/sglang:v0.5.23") for at in (0, 1)))) == 2


def test_one_node_of_several_is_said_to_stand_for_all() -> None:
    assert notes(draft_of(f"{NODES} 1")) == ["one command of 2 is given; the others are taken to be like it | "]
    assert draft_of(f"{NODES} 0", f"{NODES} 1").findings == []


def test_events_that_nobody_publishes() -> None:
    for text in ('{"endpoint":"tcp://*:5557"}', "{}"):
        (finding,) = judged(f"{SERVER} --kv-events-config '{text}'")
        assert (finding.code, finding.level) == ("RB607", Level.WARNING)
        assert finding.message.startswith("KV events are recorded and nobody publishes them")
        assert finding.fix == '"publisher": "zmq" in --kv-events-config'
    # Whoever names no publisher on purpose is left alone.
    assert judged(f"""{SERVER} --kv-events-config '{{"publisher":"null"}}'""") == []


def test_positional_model_and_kind_of_model() -> None:
    assert judged("sglang serve m --model-type llm --tp 2") == []
    assert codes(judged("sglang serve m --tp 2", version="0.5.15")) == ["RB605", "RB605"]


# --config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_config_file(folder: Path) -> None:
    (folder / "serve.yaml").write_text(
        "model-path: m\ntp-size: 4\npp-size: 2\nenable-metrics: true\ntrust-remote-code: false\n"
        "kv-events-config:\n  publisher: zmq\n  endpoint: tcp://*:5557\n"
    )
    draft = draft_of("sglang serve --config serve.yaml --pp-size 1")
    assert draft.findings == []
    sizes = draft.declaration().job.topology.sizes
    # What is typed is stronger.
    assert (sizes["tp"], sizes["pp"]) == (4, 1)
    assert {"kv-events", "scheduler-metrics"} <= names(draft)
    # The place of a value is in the file.
    document = draft.declaration().document
    assert document.key("axes", "tp") == Span("serve.yaml", 2, 1, 7)


def test_tables_in_a_config_file_before_0_5_14(folder: Path) -> None:
    """They arrive as Python writes them, which is no JSON."""
    (folder / "serve.yaml").write_text("model-path: m\nkv-events-config: {publisher: zmq}\n")
    assert codes(judged("sglang serve --config serve.yaml", version="0.5.13")) == ["RB607"]
    assert judged("sglang serve --config serve.yaml", version="0.5.14") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--config none.yaml", "No such file"),
        ("--config serve.json", ".yaml or .yml"),
        ("--config wrong.yaml", "not YAML"),
        ("--config", "needs a file"),
        ("--config serve.yaml --config serve.yaml", "twice"),
        ("--config odd.yaml", "no plain option"),
    ],
)
def test_config_files_that_are_refused(folder: Path, options: str, said: str) -> None:
    (folder / "serve.yaml").write_text("model-path: m\n")
    (folder / "wrong.yaml").write_text("a: [\n")
    (folder / "odd.yaml").write_text("model-path: m\nno-enable-tf32-matmul: true\n")
    draft = draft_of(f"sglang serve --model-path m {options}")
    assert draft.refused
    assert any(finding.code == "RB605" and said in finding.message for finding in draft.findings), draft.findings


def test_aliases_in_a_config_file(folder: Path) -> None:
    """Any option is a key; only from 0.5.23 on is a switch known by all its spellings."""
    (folder / "serve.yaml").write_text("model: m\ntensor-parallel-size: 4\n")
    for version in ("0.5.14", "0.5.23"):
        draft = draft_of("sglang serve --model-path m --config serve.yaml", version=version)
        assert draft.declaration().job.topology.sizes["tp"] == 4


def test_a_config_that_is_taken_and_not_read(folder: Path) -> None:
    (folder / "serve.yaml").write_text("tp-size: 4\n")
    draft = draft_of(f"{SERVER} --config=serve.yaml")
    assert draft.declaration().job.topology.sizes["tp"] == 1
    assert [(finding.code, finding.level) for finding in draft.findings] == [("RB605", Level.WARNING)]


# Variables


def with_variables(text: str, version: str = "0.5.23", **variables: str) -> Draft:
    return draft_of(command(text, variables), version=version)


def test_a_variable_moves_the_publisher_and_not_what_is_advertised() -> None:
    draft = with_variables(f"{SERVER} {KV}", SGLANG_DP_RANK="3")
    assert bound(draft, "kv-events") == ["tcp://*:5560"]
    findings = [finding for finding in of_draft(draft).checked() if finding.fails]
    assert codes(findings) == ["RB210", "RB211"]
    assert {finding.fix for finding in findings} == {
        "unset SGLANG_DP_RANK: it moves the port, and not what /server_info says"
    }
    # Before the port counted replicas, and where a controller says the rank, it does nothing.
    assert bound(with_variables(f"{SERVER} {KV}", "0.5.14", SGLANG_DP_RANK="3"), "kv-events") == ["tcp://*:5557"]
    two = with_variables(f"{SERVER} --dp 2 {KV}", SGLANG_DP_RANK="3")
    assert bound(two, "kv-events") == ["tcp://*:5557", "tcp://*:5558"]


def test_grpc() -> None:
    assert "grpc" not in names(draft_of(SERVER, version="0.5.14"))
    assert bound(with_variables(SERVER, "0.5.14", SGLANG_ENABLE_GRPC="1"), "grpc") == ["tcp://127.0.0.1:40000"]
    both = {"SGLANG_ENABLE_GRPC": "true", "SGLANG_GRPC_PORT": "5000"}
    assert bound(with_variables(SERVER, "0.5.14", **both), "grpc") == ["tcp://127.0.0.1:5000"]
    assert bound(with_variables(SERVER, SGLANG_GRPC_PORT="5000"), "grpc") == ["tcp://127.0.0.1:5000"]
    assert bound(with_variables(f"{SERVER} --grpc-port 6000", SGLANG_GRPC_PORT="5000"), "grpc") == [
        "tcp://127.0.0.1:6000"
    ]
    nodes = f"{SERVER} --grpc-port 6000 --tp 4 --nnodes 2 --dist-init-addr 10.0.0.1:5000"
    assert len(bound(draft_of(nodes), "grpc")) == 2
    assert len(bound(draft_of(nodes, version="0.5.20"), "grpc")) == 1


def test_the_rust_server_counts_along_its_node() -> None:
    text = f"{SERVER} --tp 8 --dp 4 --enable-dp-attention --nnodes 2 --dist-init-addr 10.0.0.1:5000"
    ports = {"0.5.23": [30000, 30001] * 2, "0.5.19": [30000, 30001, 30002, 30003]}
    for version, expected in ports.items():
        draft = with_variables(text, version, SGLANG_RUST_SERVER="1")
        assert bound(draft, "rust-http") == [f"tcp://127.0.0.1:{port}" for port in expected]
        assert not {"http", "health", "scheduler-input-dp"} & names(draft)
    assert "rust-http" not in names(with_variables(text, "0.5.16", SGLANG_RUST_SERVER="1"))


def test_a_rendezvous_from_outside() -> None:
    draft = with_variables(f"{SERVER} --tp 2 --dp 2", SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE="env://")
    assert "torch-rendezvous" not in names(draft)
    attention = f"{SERVER} --tp 2 --dp 2 --enable-dp-attention"
    for version, first in (("0.5.23", 30234), ("0.5.15", 30233)):
        draft = with_variables(attention, version, SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE="env://")
        assert bound(draft, "start-up-check", "probe")[0] == f"tcp://*:{first}"


def test_loads_over_a_port() -> None:
    attention = f"{SERVER} --tp 2 --dp 2 --enable-dp-attention"
    assert "load-collector" not in names(draft_of(attention))
    assert bound(with_variables(attention, SGLANG_LOAD_SNAPSHOT_USE_ZMQ="1"), "load-collector") == [
        "tcp://127.0.0.1:30239"
    ]


def test_ports_of_elastic_experts() -> None:
    text = (
        f"{SERVER} --tp 4 --elastic-ep-backend mooncake --enable-elastic-expert-backup "
        "--nnodes 2 --dist-init-addr 10.0.0.1:5000"
    )
    draft = with_variables(text, SGLANG_BACKUP_PORT_BASE="11000", SGLANG_TCP_STORE_PORT="29700")
    assert bound(draft, "expert-backup") == [f"tcp://local-ip:{port}" for port in (11000, 11002, 11001, 11003)]
    assert bound(draft, "expert-store") == ["tcp://*:29700"]
    assert bound(draft_of(f"{SERVER} --moe-a2a-backend nixl"), "expert-store") == ["tcp://*:29600"]


def test_the_plugin_gates_what_the_release_does_not() -> None:
    text = f"{SERVER} --tp 4 --pp-size 2 --dp 2 {KV}"
    active = with_variables(text, "0.5.14", RANKBIND_SGLANG="on")
    assert [finding for finding in of_draft(active).checked() if finding.fails] == []
    assert bound(active, "kv-events") == ["tcp://*:5557", "tcp://*:5558"]
    off = with_variables(text, "0.5.14", RANKBIND_SGLANG="off")
    assert "RB201" in codes(of_draft(off).checked())
    # It exists from 0.5.12 on.
    before = with_variables(text, "0.5.11", RANKBIND_SGLANG="on")
    assert "RB201" in codes(of_draft(before).checked())


# Devices


@pytest.mark.parametrize(
    ("text", "environment", "devices"),
    [
        ("--tp 2", {}, ["gpu 0", "gpu 1"]),
        ("--tp 2 --base-gpu-id 4", {}, ["gpu 4", "gpu 5"]),
        ("--tp 2 --dp 2", {}, ["gpu 0", "gpu 1", "gpu 2", "gpu 3"]),
        ("--tp 2 --dp 2 --gpu-id-step 2", {}, ["gpu 0", "gpu 2", "gpu 4", "gpu 6"]),
        ("--tp 2", {"CUDA_VISIBLE_DEVICES": "2,3"}, ["gpu 2", "gpu 3"]),
        ("--tp 2", {"CUDA_VISIBLE_DEVICES": "5,2"}, ["gpu 0 of 5,2", "gpu 1 of 5,2"]),
        ("--tp 2 --device cpu", {}, []),
    ],
)
def test_devices(text: str, environment: dict[str, str], devices: list[str]) -> None:
    draft = draft_of(command(f"{SERVER} {text}", environment))
    assert bound(draft, "gpu", "device") == devices


def test_devices_of_a_container_are_its_own() -> None:
    both = [command(f"{SERVER} --port {port}", image="sglang:v0.5.23", name=f"s{port}") for port in (30000, 31000)]
    assert [bound(draft, "gpu", "device") for draft in drafts(*both)] == [["gpu 0 of s30000"], ["gpu 0 of s31000"]]


# Several commands


NODES = f"{SERVER} --tp 16 --dp 4 --enable-dp-attention --nnodes 2 --dist-init-addr 10.0.0.1:5000 --node-rank"


def test_nodes_of_one_launch() -> None:
    commands = [command(f"{NODES} {node}", host=f"node{node}", name=f"w{node}") for node in (1, 0)]
    draft = draft_of(*commands)
    topology = draft.declaration().job.topology
    assert [(host.name, host.ranks[0], len(host.ranks)) for host in topology.hosts] == [
        ("node0", 0, 8),
        ("node1", 8, 8),
    ]
    assert draft.declaration().job.facts.addresses == {"node0": ("10.0.0.1",)}
    assert len(draft.commands) == 2
    assert draft.to_toml().count("--node-rank") == 2


def test_one_node_stands_for_all() -> None:
    for node in (0, 1):
        topology = draft_of(f"{NODES} {node}").declaration().job.topology
        assert [(host.name, len(host.ranks)) for host in topology.hosts] == [("0", 8), ("1", 8)]
    # What runs it may know which one it is, where the command does not say.
    draft = draft_of(command(NODES.removesuffix(" --node-rank"), host="a", node=1))
    assert [host.name for host in draft.declaration().job.topology.hosts] == ["0", "a"]


def test_two_launches_are_two() -> None:
    assert len(drafts(SERVER, f"{SERVER} --port 31000")) == 2
    # The same node twice is a second launch.
    assert len(drafts(f"{NODES} 0", f"{NODES} 1", f"{NODES} 0")) == 2
    other = NODES.replace("10.0.0.1", "10.0.0.9")
    assert [len(draft.commands) for draft in drafts(f"{NODES} 0", f"{other} 1", f"{NODES} 1", f"{other} 0")] == [2, 2]


def test_nodes_on_one_host_get_in_each_others_way() -> None:
    findings = judged(*(command(f"{NODES} {node} --base-gpu-id {8 * node}", host="a") for node in (0, 1)))
    assert {"RB201"} == set(codes(findings))
    (finding,) = findings
    assert set(finding.facts["resources"]) == {"http", "health"}


def test_nodes_that_disagree() -> None:
    (finding,) = draft_of(f"{NODES} 0", f"{NODES} 1 --attn-cp-size 2").findings
    assert finding.code == "RB607"
    assert finding.facts["flag"] == "--attn-cp-size"
    assert finding.facts["values"] == ["1", "2"]


def test_two_servers_on_one_host() -> None:
    """C62, C63: the same command twice, and HTTP on a port that another derives."""
    attention = f"{SERVER} --tp 2 --dp 2 --enable-dp-attention"
    for one, other in ((attention, attention), (attention, f"{SERVER} --port 30235 --base-gpu-id 2")):
        found = judge([of_draft(draft) for draft in drafts(one, other)]).findings
        assert any(finding.code in ("RB501", "RB503") for findings in found for finding in findings)
    apart = judge([of_draft(draft) for draft in drafts(SERVER, f"{SERVER} --port 31000 --base-gpu-id 1")]).findings
    assert not [finding for findings in apart for finding in findings if finding.fails]


# What listens besides


@pytest.mark.parametrize(
    ("version", "options", "name", "expected"),
    [
        ("0.5.23", "--host 0.0.0.0 --port 8000", "http", ["tcp://0.0.0.0:8000"]),
        ("0.5.23", "--host ::", "http", ["tcp://[::]:30000"]),
        ("0.5.23", "--disaggregation-mode prefill", "pd-bootstrap", ["tcp://127.0.0.1:8998"]),
        ("0.5.23", "--disaggregation-mode decode --enable-pd-role-switch", "pd-bootstrap", ["tcp://127.0.0.1:8998"]),
        ("0.5.23", "--disaggregation-mode decode", "pd-rank", ["tcp://local-ip:0"]),
        ("0.5.23", "--disaggregation-mode prefill --pp-size 2", "pp-consensus", ["tcp://local-ip:0"]),
        ("0.5.13", "--language-only", "encoder-bootstrap", ["tcp://127.0.0.1:8997"]),
        ("0.5.19", "--gated-launch-port 7000", "gated-launch", ["tcp://127.0.0.1:7000"]),
        (
            "0.5.10",
            "--remote-instance-weight-loader-start-seed-via-transfer-engine",
            "engine-info",
            ["tcp://127.0.0.1:6789"],
        ),
        (
            "0.5.23",
            "--decoupled-spec-role verifier --decoupled-spec-bind-endpoint tcp://*:7100",
            "decoupled-speculation",
            ["tcp://*:7100"],
        ),
        ("0.5.23", "--grpc-mode", "grpc", ["tcp://127.0.0.1:40000"]),
        ("0.5.23", "--smg-grpc-mode", "http", ["tcp://127.0.0.1:30001"]),
        ("0.5.14", "--grpc-mode", "grpc", ["tcp://127.0.0.1:30000"]),
        ("0.5.9", "--grpc-mode", "grpc", ["tcp://127.0.0.1:30000"]),
        ("0.5.23", "--tp 2", "torch-rendezvous", ["tcp://*:0"]),
        ("0.5.23", "--tp 2 --nccl-port 20000", "torch-rendezvous", ["tcp://*:20000"]),
        ("0.5.23", "--enable-forward-pass-metrics", "forward-pass-metrics", ["ipc://*"]),
        (
            "0.5.23",
            "--tp 2 --dp 2 --enable-forward-pass-metrics --forward-pass-metrics-ipc-name ipc:///run/f",
            "forward-pass-metrics",
            ["ipc:///run/f.0", "ipc:///run/f.1"],
        ),
    ],
)
def test_listeners(version: str, options: str, name: str, expected: list[str]) -> None:
    assert bound(draft_of(f"{SERVER} {options}", version=version), name) == expected


def test_forward_pass_metrics() -> None:
    """Without a name nobody finds them; with one, context parallelism publishes several times at it."""
    flag = f"{SERVER} --tp 8 --attn-cp-size 2 --enable-forward-pass-metrics"
    (finding,) = draft_of(flag).findings
    assert (finding.code, finding.level) == ("RB215", Level.NOTE)
    assert judged(flag) == []
    findings = judged(f"{flag} --forward-pass-metrics-ipc-name ipc:///run/fpm")
    assert codes(findings) == ["RB102", "RB202"]


EPP = KV.replace("*", "epp.default.svc.cluster.local")


@pytest.mark.parametrize(
    ("version", "options", "expected"),
    [
        # To a router that listens, by the way in which some do: nothing is wrong.
        ("0.5.12", EPP, ["RB215"]),
        ("0.5.23", EPP, ["RB215"]),
        ("0.5.23", f"--tp 2 --dp 2 {KV.replace('*', '10.0.0.9')}", ["RB215"]),
        # To the launch itself: nobody listens there.
        ("0.5.23", KV.replace("*", "127.0.0.1"), ["RB210"]),
        ("0.5.23", KV.replace("*", "localhost"), ["RB210"]),
        ("0.5.23", f"--host 10.0.0.9 {KV.replace('*', '10.0.0.9')}", ["RB210"]),
        ("0.5.23", f"--tp 2 --nnodes 2 --dist-init-addr 10.0.0.9:5000 {KV.replace('*', '10.0.0.9')}", ["RB210"]),
        ("0.5.12", KV.replace("*", "0.0.0.0"), ["RB210"]),
    ],
)
def test_publishers_that_connect(version: str, options: str, expected: list[str]) -> None:
    draft = draft_of(f"{SERVER} {options}", version=version)
    findings = [finding for finding in of_draft(draft).checked() if finding.code != "RB301"]
    assert sorted({finding.code for finding in findings}) == expected
    assert [finding for finding in findings if finding.fails] == (findings if expected == ["RB210"] else [])
    assert bound(draft, "kv-events") == []
    if expected == ["RB215"]:
        assert ("/server_info" in findings[0].message) == (version == "0.5.23")


def test_a_replay_beside_a_publisher_that_connects() -> None:
    """It is bound all the same, and told."""
    draft = draft_of(f"{SERVER} {REPLAYED.replace('*:5557', 'epp.default.svc:5557')}")
    assert bound(draft, "kv-events", "replay") == ["tcp://*:5558"]
    dialled = [str(d.endpoint) for d in Plan(draft.declaration()).dialled if d.resource.name == "kv-events"]
    assert dialled == ["tcp://127.0.0.1:5558"]
    assert not [finding for finding in of_draft(draft).checked() if finding.fails]


def test_metrics_that_are_counted_twice() -> None:
    text = f"{SERVER} --tp 8 --attn-cp-size 2 --enable-metrics"
    for version in VERSIONS:
        expected = [] if version == "0.5.23" else ["RB102"]
        assert codes(judged(text, version=version)) == expected
        assert judged(f"{text} --enable-metrics-for-all-schedulers", version=version) == []


def test_an_encoder_has_its_http_server() -> None:
    draft = draft_of(f"{SERVER} --encoder-only")
    assert {"http", "tokenizer"} & names(draft) == {"http"}
    assert [word.text for word, _ in draft.ignored] == ["--encoder-only"]


def test_prefill_on_several_nodes_registers_where_nobody_listens() -> None:
    """The bootstrap server is at --host, and asked for at the address of the rendezvous."""
    text = f"{SERVER} --tp 2 --nnodes 2 --dist-init-addr 10.0.0.1:5000 --disaggregation-mode prefill"
    findings = judged(text)
    assert codes(findings) == ["RB210", "RB211"]
    assert {finding.facts["resource"] for finding in findings} == {"pd-bootstrap"}
    assert {finding.fix for finding in findings} == {
        "add --host 0.0.0.0: ranks register at the address of --dist-init-addr"
    }
    assert judged(f"{text} --host 0.0.0.0") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("[fd00::1]:5000", ("fd00::1", 5000)),
        ("head.example:5000", ("head.example", 5000)),
        ("${HEAD}:5000", ("$HEAD", 5000)),
        ("$(hostname -i):5000", ("node-0", 5000)),
        ("fd00::1:5000", None),
        ("[fd00::1]", None),
        ("10.0.0.1", None),
        (":5000", None),
        ("10.0.0.1:port", None),
        ("a b:1", None),
    ],
)
def test_addresses(text: str, expected: tuple[str, int] | None) -> None:
    assert address_of(text) == expected


def test_endpoints_are_those_that_a_topology_file_may_hold() -> None:
    for draft in drafts(*(f"{SERVER} {options}" for options in CLEAN)):
        for b in Plan(draft.declaration()).bindings:
            assert b.endpoint is None or Endpoint.parse(b.text).transport in ("tcp", "ipc")


def test_rules_of_every_release() -> None:
    gates = {version: dict(rules_of(version).kv_gate) for version in VERSIONS}
    assert [version for version in VERSIONS if gates[version] == {"attn_tp": 0}] == ["0.5.9", "0.5.10"]
    assert [version for version in VERSIONS if "pp" in gates[version]] == list(VERSIONS[6:])
    assert rules_of("0.5.14.post1").kv_gate == rules_of("0.5.14").kv_gate


def test_transports_are_told_by_what_an_endpoint_holds() -> None:
    """Not by its scheme: a path with inproc in it is counted on from as inproc is."""
    assert shifted("ipc:///tmp/inproc.sock", 1) == "ipc:///tmp/inproc.sock_dp1"
    config = """--kv-events-config '{"publisher":"zmq","endpoint":"ipc:///tmp/inproc.sock"}'"""
    draft = draft_of(f"{SERVER} --dp 3 {config}")
    assert bound(draft, "kv-events-first") == ["ipc:///tmp/inproc.sock"]
    assert bound(draft, "kv-events-others") == ["ipc:///tmp/inproc.sock_dp1", "ipc:///tmp/inproc.sock_dp2"]
    assert draft.findings == []
