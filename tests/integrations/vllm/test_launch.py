from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rankbind_vllm.launch import ENGINE, arguments, layout, model
from rankbind_vllm.launch.releases import Release

from rankbind import check, config
from rankbind.check import Plan
from rankbind.check.suggest import suggest
from rankbind.errors import LaunchError
from rankbind.finding import Finding
from rankbind.launch.command import Command, typed
from rankbind.launch.draft import Draft
from rankbind.launch.engine import Engine
from rankbind.launch.reading import Input, judge, subjects

MOE = "deepseek-ai/DeepSeek-V3"
DENSE = "meta-llama/Llama-2-7b-hf"
EVENTS = "--kv-events-config"
NIXL = "--kv-transfer-config " + shlex.quote('{"kv_connector":"NixlConnector","kv_role":"kv_both"}')


def command(text: str, host: str | None = None) -> Command:
    found = typed(shlex.split(text))
    return replace(found, host=host)


def launched(text: str) -> Command:
    """The command with these variables and options; a word with a $ in it is one that only the run time knows."""
    words = shlex.split(text)
    variables = [word for word in words if word.startswith("VLLM_")]
    found = typed([*variables, "vllm", "serve", MOE, *(word for word in words if word not in variables)])
    return replace(
        found,
        words=tuple(replace(word, certain="$" not in word.text) for word in found.words),
        environment={name: replace(word, certain="$" not in word.text) for name, word in found.environment.items()},
    )


def read(*commands: str | Command, version: str | None = None) -> list[Draft]:
    """What commands start; each draft is the file that it writes."""
    given = [command(each) if isinstance(each, str) else each for each in commands]
    drafts = list(ENGINE.read(given, version))
    for draft in drafts:
        job = draft.declaration().job
        assert config.parse(draft.to_toml()).job == job
        moved = [move for knob in draft.knobs for move in knob.moves]
        assert len(moved) == len(set(moved)), "an address that two knobs move"
        assert set(moved) <= {(each.name, address.role) for each in job.resources for address in each.addresses}
    return drafts


def one(*commands: str | Command, version: str | None = None) -> Draft:
    [draft] = read(*commands, version=version)
    return draft


def findings(draft: Draft) -> list[Finding]:
    return [*draft.findings, *check.run(draft.declaration())]


def failing(draft: Draft) -> list[str]:
    return sorted(finding.code for finding in findings(draft) if finding.fails)


def bound(draft: Draft, name: str, role: str = "bind") -> list[str]:
    plan = Plan(draft.declaration())
    return [b.text for b in plan.bindings if b.resource.name == name and b.address.role == role]


def hosts(draft: Draft) -> dict[str, list[int]]:
    return {host.name: list(host.ranks) for host in draft.declaration().job.topology.hosts}


def axes(draft: Draft) -> dict[str, int]:
    return dict(draft.declaration().job.topology.axes)


def events(**keys: object) -> str:
    return f"{EVENTS} {shlex.quote(json.dumps({'enable_kv_cache_events': True, 'publisher': 'zmq', **keys}))}"


# ---- which commands


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m",
        "/opt/venv/bin/vllm serve m",
        "python -m vllm.entrypoints.openai.api_server --model m",
        "python3.12 -u -m vllm.entrypoints.openai.api_server",
        "python3 -m vllm.entrypoints.cli.main serve m",
        "python /src/vllm/entrypoints/openai/api_server.py --model m",
        "python3 /opt/venv/bin/vllm serve m",
    ],
)
def test_commands_that_start_it(text: str) -> None:
    assert ENGINE.starts(shlex.split(text))
    assert not one(text).refused


@pytest.mark.parametrize(
    "text",
    [
        "vllm",
        "vllm bench serve",
        "vllm chat",
        "python -m vllm.entrypoints.cli.main bench",
        "python serve.py",
        "echo vllm serve",
        "",
    ],
)
def test_commands_that_do_not(text: str) -> None:
    assert not ENGINE.starts(shlex.split(text))


def test_is_an_engine() -> None:
    assert isinstance(ENGINE, Engine)
    assert ENGINE.versions[0] == "0.11.0"
    assert ENGINE.versions[-1] == "0.33.0"


def test_needs_neither_the_engine_nor_torch() -> None:
    code = (
        "import sys\n"
        "from rankbind.launch.command import typed\n"
        "from rankbind_vllm.launch import ENGINE\n"
        "ENGINE.read([typed(['vllm', 'serve', 'm'])], None)[0].declaration()\n"
        "print(sorted({'vllm', 'torch', 'zmq', 'click', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- options


@pytest.mark.parametrize(
    "text",
    [
        "-tp 2",
        "-tp=2",
        "--tensor_parallel_size 2",
        "--tensor_parallel_size=2",
        "--tensor-parallel 2",
        "-tp 4 --tensor-parallel-size 2",
    ],
)
def test_spellings_of_a_size(text: str) -> None:
    assert axes(one(f"vllm serve {DENSE} {text}")) == {"dp": 1, "pp": 1, "pcp": 1, "tp": 2}


@pytest.mark.parametrize(
    "text", ["--tp 2", "--pp 2", "--dp 2", "-tp2", "--data-parallel 2", "--tp-size 2", "-tp two", "-tp"]
)
def test_refused_words(text: str) -> None:
    draft = one(f"vllm serve {DENSE} {text}")
    assert draft.refused
    assert {finding.code for finding in draft.findings} == {"RB605"}
    assert len(draft.findings) == 1
    # It is the word itself that is pointed at.
    span = draft.findings[0].labels[0].span
    line = draft.commands[0].text or ""
    assert line[span.column - 1 :][: span.length] in text.split()


def test_an_ambiguous_abbreviation_names_what_it_could_be() -> None:
    draft = one(f"vllm serve {DENSE} --data-parallel 2", version="0.11.0")
    assert "--data-parallel-size" in (draft.findings[0].fix or "")


def test_what_should_have_been_written() -> None:
    assert "-tp" in (one(f"vllm serve {DENSE} --tp 2").findings[0].fix or "")


def test_an_option_of_another_release_is_listed() -> None:
    draft = one(f"vllm serve {DENSE} --override-pooler-config x")
    assert not draft.refused
    assert [(finding.code, finding.fails) for finding in draft.findings] == [("RB608", False)]
    assert [word.text for word, _ in draft.ignored] == ["--override-pooler-config"]
    assert "--override-pooler-config" in draft.to_toml()


def test_an_option_that_nobody_knows_is_listed_unless_the_release_was_named() -> None:
    assert not one(f"vllm serve {DENSE} --zzz-unheard-of 3").refused
    assert one(f"vllm serve {DENSE} --zzz-unheard-of 3", version="0.33.0").refused


def test_the_release_is_that_of_the_image() -> None:
    pulled = replace(command(f"vllm serve {DENSE} -n 2"), image="vllm/vllm-openai:v0.11.0")
    draft = one(pulled)
    assert draft.engine == "vLLM 0.11.0"
    assert draft.refused


@pytest.mark.parametrize("tag", ["0.12", "nightly", "latest", "v0.99.0"])
def test_the_release_is_said_where_the_image_does_not_tell_it(tag: str) -> None:
    text = f"vllm serve {MOE} -tp 8 -dp 2 -dpl 1 -dpa 10.0.0.1"
    nodes = [command(text, "a"), command(f"{text} -dpr 1 --headless", "b")]
    draft = one(*(replace(node, image=f"vllm/vllm-openai:{tag}") for node in nodes))
    [note] = [finding for finding in draft.findings if not finding.message.startswith("the model")]
    assert (note.code, note.fails) == ("RB609", False)
    assert draft.engine == f"vLLM {ENGINE.versions[-1]}"
    assert ENGINE.versions[-1] in note.message
    assert "--engine-version vllm=" in (note.fix or "")
    named = one(*(replace(node, image=f"vllm/vllm-openai:{tag}") for node in nodes), version="0.33.0")
    assert named.findings == []


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: llm}
spec:
  containers:
    - name: server
      image: IMAGE
      args: ["--model", "meta-llama/Llama-2-7b-hf", "--port", "9000", "--tensor-parallel-size", "2"]
"""
COMPOSE = """\
services:
  llm:
    image: IMAGE
    command: --model meta-llama/Llama-2-7b-hf --port 9000 --tensor-parallel-size 2
"""


@pytest.mark.parametrize("text", [POD, COMPOSE], ids=["pod", "compose"])
@pytest.mark.parametrize("tag", [*(f"v{version}" for version in ENGINE.versions), "nightly"])
def test_arguments_of_a_container(text: str, tag: str) -> None:
    """The image starts the server: its module, or `vllm serve`, which does not take --model in every release."""
    file = Input("llm.yaml", text.replace("IMAGE", f"vllm/vllm-openai:{tag}"))
    [subject] = subjects([file])
    assert subject.draft is not None
    assert not subject.draft.refused
    assert subject.draft.engine == f"vLLM {tag[1:] if tag[0] == 'v' else ENGINE.versions[-1]}"
    assert bound(subject.draft, "http") == ["tcp://*:9000"]
    assert axes(subject.draft)["tp"] == 2
    assert [finding.code for finding in subject.checked()] == ["RB609"] * (tag == "nightly") + ["RB301"]


def test_booleans_have_a_negative_form_and_the_last_one_wins() -> None:
    moe = one("vllm serve m -dp 2 --enable-expert-parallel")
    dense = one("vllm serve m -dp 2 --enable-expert-parallel --no-enable-expert-parallel")
    assert "ep" in moe.declaration().job.topology.sizes
    assert "ep" not in dense.declaration().job.topology.sizes


def test_dotted_keys() -> None:
    draft = one(f"vllm serve {DENSE} {EVENTS}.enable_kv_cache_events true {EVENTS}.endpoint=tcp://*:6000")
    assert bound(draft, "kv-events") == ["tcp://*:6000"]
    assert failing(draft) == []


def test_dotted_keys_under_an_underscored_name() -> None:
    draft = one(f"vllm serve {DENSE} --kv_events_config.enable_kv_cache_events true")
    assert bound(draft, "kv-events") == ["tcp://*:5557"]


def test_dotted_keys_replace_the_json() -> None:
    draft = one(f"vllm serve {DENSE} {events()} {EVENTS}.endpoint tcp://*:6000")
    assert bound(draft, "kv-events") == []
    [finding] = [finding for finding in draft.findings if finding.fails]
    assert finding.code == "RB607"
    assert finding.level == "warning"
    assert len(finding.labels) == 2


def test_a_value_that_only_the_run_time_knows() -> None:
    words = list(command(f"vllm serve {MOE} -tp 16 --nnodes 2 --node-rank X --master-addr 10.0.0.1").words)
    at = next(i for i, word in enumerate(words) if word.text == "X")
    words[at] = replace(words[at], text="$RANK", certain=False)
    draft = one(Command(tuple(words)))
    assert hosts(draft) == {"0": list(range(8)), "1": list(range(8, 16))}
    assert [word.text for word, _ in draft.ignored] == ["--node-rank"]
    assert failing(draft) == []


@pytest.mark.parametrize("node", [0, 1])
def test_a_rank_that_only_the_run_time_knows_follows_from_the_node(node: int) -> None:
    text = f"vllm serve {MOE} -dp 8 -dpl 4 -dpa 10.0.0.1 -dpr X" + (" --headless" if node else "")
    given = Command(tuple(replace(word, certain=word.text != "X") for word in command(text).words), node=node)
    assert layout.resolve(arguments.read(given, Release("0.33.0"), named=True)).start == 4 * node
    draft = one(given)
    assert hosts(draft) == {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--port $P", "http"),
        ("--port=$P", "http"),
        ("-dp 4 -dpl 2 -dpa 10.0.0.1 -dpp $P", "dp-handshake"),
        ("-tp 16 -n 2 --master-addr 10.0.0.1 --master-port $P", "torch-world"),
        (f"VLLM_NIXL_SIDE_CHANNEL_PORT=$P -dp 2 {NIXL}", "nixl"),
    ],
)
def test_a_port_that_only_the_run_time_knows_is_none_in_particular(option: str, name: str) -> None:
    draft = one(launched(option))
    assert {text.rpartition(":")[2] for text in bound(draft, name)} == {"0"}
    assert failing(draft) == []
    assert not any((name, "bind") in knob.moves for knob in draft.knobs)
    assert len([finding for finding in draft.findings if "$P is known at run time" in finding.message]) == 1


@pytest.mark.parametrize(
    ("option", "name", "wanted"),
    [
        ("-tp 16 -n 2 --node-rank $R --master-addr $HEAD", "torch-world", "tcp://HEAD:29501"),
        ("-dp 4 -dpl 2 -dpa ${HEAD} -dpr $R", "dp-handshake", "tcp://HEAD:29550"),
        ("--host $IP", "http", "tcp://IP:8000"),
        (f"VLLM_NIXL_SIDE_CHANNEL_HOST='$(hostname -i)' {NIXL}", "nixl", "tcp://hostname-i:5600"),
    ],
)
def test_an_address_that_only_the_run_time_knows_is_some_address(option: str, name: str, wanted: str) -> None:
    draft = one(launched(option))
    assert set(bound(draft, name)) == {wanted}
    assert failing(draft) == []
    assert {finding.code for finding in findings(draft)} <= {"RB301", "RB609"}
    # Which node it is follows from the others.
    assert not any("$R " in finding.message for finding in draft.findings)


@pytest.mark.parametrize(
    ("text", "codes", "said"),
    [
        # The model's name decides nothing else, but whether replicas are independent: its variable's name is none.
        ("--model $MOE_MODEL --served-model-name x -dp 2", ["RB609"], "taken for dense"),
        ("$MOE_MODEL --served-model-name x -dp 2", ["RB609"], "taken for dense"),
        (f"m {EVENTS} $CFG", ["RB609"], EVENTS),
        (f"m {EVENTS}.endpoint $EP {EVENTS}.enable_kv_cache_events true", ["RB609"], EVENTS),
        (f"m {EVENTS}.endpoint=$EP {EVENTS}.enable_kv_cache_events true", ["RB609"], EVENTS),
        ("m --config $FILE", ["RB608"], "--config $FILE"),
        # An option that takes no value stays what it is.
        ("m --enable-expert-parallel $MORE", ["RB609"], "only the run time knows what $MORE adds"),
    ],
)
def test_words_that_only_the_run_time_knows(text: str, codes: list[str], said: str) -> None:
    given = typed(["vllm", "serve", *shlex.split(text)])
    draft = one(replace(given, words=tuple(replace(word, certain="$" not in word.text) for word in given.words)))
    assert not draft.refused
    assert [finding.code for finding in draft.findings] == codes
    assert said in draft.findings[0].message
    assert bound(draft, "kv-events") == []


def test_a_flag_before_a_word_that_only_the_run_time_knows_counts() -> None:
    given = typed(["vllm", "serve", "m", "-dp", "2", "--enable-expert-parallel", "$MORE"])
    draft = one(replace(given, words=tuple(replace(word, certain="$" not in word.text) for word in given.words)))
    assert "ep" in draft.declaration().job.topology.sizes


def scripted(text: str, file: str = "run.sh") -> list[Draft]:
    """What a script starts."""
    return [subject.draft for subject in subjects([Input(file, text)]) if subject.draft is not None]


@pytest.mark.parametrize("more", ["$EXTRA", '$([ "$RANK" != 0 ] && echo --headless)', "--config $FILE"])
@pytest.mark.parametrize(
    ("head", "follower"),
    [
        ("-tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1", "--node-rank 1"),
        ("-tp 8 -dp 2 -dpl 1 -dpa 10.0.0.1", "-dpr 1"),
    ],
)
def test_a_word_that_only_the_run_time_knows_may_be_headless(head: str, follower: str, more: str) -> None:
    each = [scripted(f"vllm serve {MOE} {head} {node} {more}", f"{node or 'head'}.sh") for node in ("", follower)]
    draft = one(*(started.commands[0] for [started] in each))
    assert len(draft.commands) == 2
    assert failing(draft) == []
    assert bound(draft, "http") == ["tcp://*:8000"]
    [note] = [finding for finding in draft.findings if more.split()[-1] in finding.message]
    assert note.code == ("RB608" if "config" in more else "RB609")
    assert "not set" not in note.message
    [alone] = scripted(f"vllm serve {MOE} {head} {follower} {more}")
    assert failing(alone) == []
    assert failing(one(f"vllm serve {MOE} {head}", f"vllm serve {MOE} {head} {follower}")) == ["RB607"]


def test_a_word_that_only_the_run_time_knows_may_be_an_address() -> None:
    [draft] = scripted(f"vllm serve {MOE} -tp 16 --nnodes 2 $EXTRA")
    assert failing(draft) == []
    [draft] = scripted(f"vllm serve {MOE} -tp 16 --nnodes 2 --master-addr 127.0.0.1 $EXTRA")
    assert failing(draft) == ["RB607"]
    [draft] = scripted(f"vllm serve {MOE} -dp 2 --data-parallel-hybrid-lb $EXTRA")
    assert not draft.refused


def test_a_value_that_only_the_run_time_knows_is_not_headless() -> None:
    head = "vllm serve $MODEL -tp 16 --nnodes 2 --master-addr 10.0.0.1 --node-rank"
    [draft] = scripted(f"{head} 0 &\n{head} 1 --served-model-name $NAME &")
    assert "RB607" in failing(draft)


def test_what_only_the_run_time_knows_is_said_once() -> None:
    turns = f"for i in 0 1; do vllm serve {MOE} -tp 4 -dp 2 -dpl 1 -dpr $i -dpa 10.0.0.1 $EXTRA & done"
    [draft] = scripted(turns)
    assert len(draft.commands) == 2
    assert [finding.message for finding in draft.findings].count("only the run time knows what $EXTRA adds") == 1


def test_a_size_that_only_the_run_time_knows_is_said() -> None:
    [finding] = one(launched("-tp $TP --served-model-name $NAME")).findings
    assert (finding.code, finding.fails) == ("RB609", False)
    assert "--tensor-parallel-size" in finding.message


# ---- --config


def configured(folder: Path, text: str, more: str = "", version: str | None = None) -> Draft:
    file = folder / "vllm.yaml"
    file.write_text(text)
    return one(f"vllm serve {DENSE} --port 9000 --config {file} {more}", version=version)


def test_a_config_file_is_read_first(tmp_path: Path) -> None:
    draft = configured(tmp_path, "port: 7000\ntensor_parallel_size: 4\n", "-tp 2")
    assert bound(draft, "http") == ["tcp://*:9000"]
    assert axes(draft)["tp"] == 2


def test_values_of_a_config_file_are_placed_in_it(tmp_path: Path) -> None:
    draft = configured(tmp_path, "# ours\npipeline-parallel-size: 2\n")
    span = draft.declaration().document.value("axes", "pp")
    assert (span.file, span.line) == (str(tmp_path / "vllm.yaml"), 2)


def test_shapes_in_a_config_file(tmp_path: Path) -> None:
    text = (
        "enable-expert-parallel: true\nserved-model-name: [a, b]\nkv-events-config:\n  enable_kv_cache_events: true\n"
    )
    draft = configured(tmp_path, text)
    assert bound(draft, "kv-events") == ["tcp://*:5557"]
    assert failing(draft) == []


def test_false_in_a_config_file(tmp_path: Path) -> None:
    text, more = "enable-expert-parallel: false\n", "--enable-expert-parallel"
    # What comes later wins, in either release.
    for version in ("0.27.0", "0.33.0"):
        assert not configured(tmp_path, text, more, version).refused


@pytest.mark.parametrize(
    ("text", "code", "refused"),
    [("--config x.json", "RB605", True), ("--config", "RB605", True), ("--config nowhere.yaml", "RB608", False)],
)
def test_config_files_that_cannot_be_read(text: str, code: str, refused: bool) -> None:
    draft = one(f"vllm serve {DENSE} {text}")
    assert draft.refused == refused
    assert [finding.code for finding in draft.findings] == [code]


def test_a_model_in_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yml"
    file.write_text("port: 7000\n")
    assert one(f"vllm serve --config {file}").refused
    file.write_text(f"model: {MOE}\ndata-parallel-size: 2\n")
    assert "ep" in one(f"vllm serve --config {file}").declaration().job.topology.sizes


def test_a_config_file_that_is_no_yaml(tmp_path: Path) -> None:
    assert configured(tmp_path, "port: [").refused


# ---- environment


def test_a_service_called_vllm() -> None:
    draft = one(f"VLLM_PORT=tcp://10.0.0.3:80 vllm serve {DENSE}")
    assert draft.refused
    assert "Kubernetes" in draft.findings[0].message


@pytest.mark.parametrize(
    ("variable", "version", "wanted", "codes"),
    [
        ("", "0.27.0", ["tcp://127.0.0.1:0"] * 2, []),
        ("VLLM_PORT=7000", "0.27.0", ["tcp://127.0.0.1:7000-7002"] * 2, ["RB201"]),
        # Its own servers listen before anybody looks for a port.
        ("VLLM_PORT=8000", "0.27.0", ["tcp://127.0.0.1:8001-8003"] * 2, ["RB201"]),
        ("VLLM_PORT=$P", "0.27.0", ["tcp://127.0.0.1:0"] * 2, []),
        ("VLLM_PORT=7000", "0.28.0", [], []),
    ],
)
def test_ports_from_a_base(variable: str, version: str, wanted: list[str], codes: list[str]) -> None:
    given = command(f"{variable} vllm serve {DENSE} -dp 2")
    given = replace(given, environment={k: replace(v, certain="$" not in v.text) for k, v in given.environment.items()})
    draft = one(given, version=version)
    assert bound(draft, "torch-world") == wanted
    found = [finding for finding in findings(draft) if finding.fails]
    assert [finding.code for finding in found] == codes
    # Who looks for a port takes another, unless both look at the same time.
    assert all(finding.level == "warning" for finding in found)


def test_nixl_by_environment() -> None:
    draft = one(f"VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=7000 vllm serve {MOE} -dp 2 {NIXL}")
    assert bound(draft, "nixl") == ["tcp://10.0.0.1:7000", "tcp://10.0.0.1:7001"]
    assert draft.findings == []


def test_a_port_that_is_none() -> None:
    assert one(f"VLLM_NIXL_SIDE_CHANNEL_PORT=none vllm serve {DENSE} {NIXL}").refused


def test_a_folder_too_long_for_sockets() -> None:
    assert failing(one(f"VLLM_RPC_BASE_PATH=/{'x' * 80} vllm serve {DENSE}")) == ["RB206"]


def test_replicas_by_environment() -> None:
    draft = one(f"VLLM_DP_SIZE=2 VLLM_DP_RANK=1 VLLM_DP_MASTER_PORT=13345 vllm serve {MOE}")
    assert axes(draft)["dp"] == 2
    assert bound(draft, "dp-group") == ["tcp://127.0.0.1:13345"]
    assert failing(draft) == []
    assert one(f"VLLM_DP_SIZE=2 vllm serve {DENSE}").refused


# ---- the model


def test_a_model_on_disk(tmp_path: Path) -> None:
    for name, text, wanted in (
        ("a", {"num_local_experts": 8}, True),
        ("b", {"text_config": {"n_routed_experts": 256}}, True),
        ("c", {"num_experts": 0}, False),
        ("mixtral-8x7b", {"hidden_size": 8}, False),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(text))
        assert model.is_moe(str(tmp_path / name)) is wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("deepseek-ai/DeepSeek-V3", True),
        ("mistralai/Mixtral-8x7B-v0.1", True),
        ("Qwen/Qwen3-235B-A22B", True),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", False),
        ("meta-llama/Llama-3.1-8B", False),
        ("Qwen/Qwen3-0.6B", False),
        ("m", None),
    ],
)
def test_a_model_by_its_name(name: str, wanted: bool | None) -> None:
    assert model.is_moe(name) is wanted


def test_an_unknown_model_is_a_note_and_only_with_replicas() -> None:
    assert one("vllm serve m").findings == []
    [finding] = one("vllm serve m -dp 2").findings
    assert not finding.fails


# ---- several commands


def test_two_servers_are_two_deployments() -> None:
    drafts = read(f"vllm serve {DENSE}", f"vllm serve {DENSE} --port 8001")
    assert [bound(draft, "http") for draft in drafts] == [["tcp://*:8000"], ["tcp://*:8001"]]


def test_nodes_of_one_job() -> None:
    draft = one(
        command(f"vllm serve {MOE} -tp 16 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless", "b"),
        command(f"vllm serve {MOE} -tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1", "a"),
    )
    assert hosts(draft) == {"a": list(range(8)), "b": list(range(8, 16))}
    assert bound(draft, "http") == ["tcp://*:8000"]
    assert bound(draft, "torch-world") == ["tcp://10.0.0.1:29501"]
    assert failing(draft) == []


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve {MOE} -tp 16 --nnodes 2 --master-addr 10.0.0.1",
        f"vllm serve {MOE} -tp 16 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless",
        f"vllm serve {MOE} -tp 8 -dp 2 -dpl 1 -dpa 10.0.0.1",
        f"vllm serve {MOE} -tp 8 -dp 2 -dpn 1 -dpa 10.0.0.1",
    ],
)
def test_one_command_stands_for_all(text: str) -> None:
    for host in (None, "pod"):
        draft = one(command(text, host))
        assert sorted(map(len, hosts(draft).values())) == [8, 8]
        assert failing(draft) == []
        assert "one command of 2" in draft.findings[-1].message


def test_a_follower_without_headless() -> None:
    draft = one(
        f"vllm serve {MOE} -tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1",
        f"vllm serve {MOE} -tp 16 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1",
    )
    assert failing(draft) == ["RB607"]
    assert "--headless" in draft.findings[0].message


WIDE = f"vllm serve {MOE} -tp 2 -dp 4 -dpl 2 -dpa 10.0.0.1"


@pytest.mark.parametrize(
    ("head", "follower", "said"),
    [
        ("", "-dpr 2", "without --headless"),
        ("", "-dph -dpr 2", "without --headless"),
        ("-dph", "-dpr 2 --headless", "with --headless"),
        ("-dpr 0", "-dpr 2 --headless", "with --headless"),
        ("", "-dpr 2 --headless", None),
        ("-dph", "-dph -dpr 2", None),
        ("-dpr 0", "-dpr 2", None),
    ],
)
def test_nodes_in_different_load_balancing_modes(head: str, follower: str, said: str | None) -> None:
    """The head looks whether the engine cores of others were started as its own mode has it."""
    files = [Input(f"{name}.sh", f"{WIDE} {more}\n") for name, more in (("head", head), ("follower", follower))]
    [draft] = [subject.draft for subject in subjects(files) if subject.draft is not None]
    assert failing(draft) == ([] if said is None else ["RB607"])
    if said is not None:
        [error] = [finding for finding in draft.findings if finding.fails]
        assert said in error.message
        assert {label.span.file for label in error.labels} == {"head.sh", "follower.sh"}


def test_a_replica_that_serves_for_itself_under_a_head_that_serves_for_all() -> None:
    text = f"vllm serve {MOE} -tp 8 -dp 2 -dpl 1 -dpa 10.0.0.1"
    assert failing(one(text, f"{text} -dpr 1")) == ["RB607"]
    # Up to 0.27.0 a start rank of 0 is none, so that the first node serves for all.
    assert failing(one(f"{text} -dpr 0", f"{text} -dpr 1", version="0.27.1")) == ["RB607"]
    assert failing(one(f"{text} -dpr 0", f"{text} -dpr 1", version="0.28.0")) == []


APART = f"vllm serve {MOE} -tp 4 --nnodes 2 --master-addr 10.0.0.1"
EXTERNAL = f"vllm serve {MOE} -tp 2 -dp 2 -dpa 10.0.0.1 --data-parallel-rank"


def test_what_a_script_starts_side_by_side_is_on_one_host() -> None:
    [draft] = scripted(f"{EXTERNAL} 0 &\n{EXTERNAL} 1 &\n")
    assert hosts(draft) == {"0": [0, 1, 2, 3]}
    assert failing(draft) == ["RB201", "RB604"]
    apart = f"CUDA_VISIBLE_DEVICES=0,1 {EXTERNAL} 0 &\nCUDA_VISIBLE_DEVICES=2,3 {EXTERNAL} 1 --port 8001 &\n"
    [draft] = scripted(apart)
    assert hosts(draft) == {"0": [0, 1, 2, 3]}
    assert failing(draft) == []


def test_node_ranks_that_a_script_starts_side_by_side_are_on_one_host() -> None:
    text = f"vllm serve {MOE} -tp 4 --nnodes 2 --node-rank"
    [draft] = scripted(f"CUDA_VISIBLE_DEVICES=0,1 {text} 0 &\nCUDA_VISIBLE_DEVICES=2,3 {text} 1 --headless &\n")
    assert hosts(draft) == {"0": [0, 1, 2, 3]}
    assert failing(draft) == []


@pytest.mark.parametrize(
    "text",
    [
        f"{EXTERNAL} 0\n{EXTERNAL} 1\n",
        f"if [ $RANK = 0 ]; then {EXTERNAL} 0 & else {EXTERNAL} 1 & fi\nwait\n",
        f"ssh a {EXTERNAL} 0 &\nssh b {EXTERNAL} 1 &\n",
        f"VLLM_HOST_IP=10.0.0.1 {EXTERNAL} 0 &\nVLLM_HOST_IP=10.0.0.2 {EXTERNAL} 1 &\n",
        f"{WIDE} &\n{WIDE} -dpr 2 --headless &\nwait\n",
        f"{APART} &\n{APART} --node-rank 1 --headless &\n",
    ],
)
def test_what_does_not_run_side_by_side_in_a_script_is_for_several_hosts(text: str) -> None:
    [draft] = scripted(text)
    assert len(hosts(draft)) == 2
    assert failing(draft) == []


def test_replicas_that_meet_at_home_share_it_whichever_files_start_them() -> None:
    text = f"vllm serve {MOE} -dp 3 --data-parallel-rank"
    files = [Input("a.sh", f"{text} 0 &\n{text} 1 &\n"), Input("b.sh", f"{text} 2 &\n")]
    [draft] = [subject.draft for subject in subjects(files) if subject.draft is not None]
    assert hosts(draft) == {"0": [0, 1, 2]}


def test_ranks_in_files_of_their_own_are_on_hosts_of_their_own() -> None:
    files = [Input(f"{rank}.sh", f"{EXTERNAL} {rank} &\n") for rank in (0, 1)]
    [subject] = subjects(files)
    assert subject.draft is not None
    assert len(hosts(subject.draft)) == 2
    assert failing(subject.draft) == []


def test_servers_that_a_script_starts_one_after_the_other_are_on_one_host() -> None:
    found = subjects([Input("seq.sh", "vllm serve a\nvllm serve b\n")])
    assert [list(hosts(subject.draft)) for subject in found if subject.draft] == [["0"], ["0"]]
    assert not any(finding.fails for each in judge(found).findings for finding in each)
    found = subjects([Input("seq.sh", "vllm serve a &\nvllm serve b\n")])
    assert "RB501" in [finding.code for each in judge(found).findings for finding in each]


@pytest.mark.parametrize("start", [2, 4, 5, 6])
def test_start_ranks(start: int) -> None:
    """Replicas started twice, by nobody, or past the last."""
    draft = one(
        f"vllm serve {MOE} -dp 8 -dpl 4 -dpa 10.0.0.1",
        f"vllm serve {MOE} -dp 8 -dpl 4 -dpa 10.0.0.1 -dpr {start} --headless",
    )
    wanted = {2: ["RB601", "RB602"], 4: [], 5: ["RB601", "RB607"], 6: ["RB601", "RB607"]}
    assert failing(draft) == wanted[start]


def test_processes_of_one_host() -> None:
    alike = [f"vllm serve {MOE} -dp 2 -dpn {rank}" for rank in (0, 1)]
    assert failing(one(*alike)) == ["RB201", "RB604"]
    apart = [f"CUDA_VISIBLE_DEVICES={rank} {text} --port {8000 + rank}" for rank, text in enumerate(alike)]
    draft = one(*apart)
    assert failing(draft) == []
    assert bound(draft, "gpu", "device") == ["gpu 0", "gpu 1"]


def test_one_process_of_several_on_its_host_is_not_blamed_for_the_others() -> None:
    draft = one(f"vllm serve {MOE} -dp 4 -dpn 1 --port 8001 {events()}")
    assert hosts(draft) == {"0": [0, 1, 2, 3]}
    assert bound(draft, "http") == ["tcp://*:8001"]
    assert failing(draft) == []


def test_gpus_that_are_named() -> None:
    draft = one(f"CUDA_VISIBLE_DEVICES=4,5,6,7 vllm serve {DENSE} -tp 4")
    assert bound(draft, "gpu", "device") == ["gpu 4", "gpu 5", "gpu 6", "gpu 7"]
    draft = one(f"CUDA_VISIBLE_DEVICES=1,0 vllm serve {DENSE} -tp 2")
    assert [*bound(draft, "gpu-1", "device"), *bound(draft, "gpu-0", "device")] == ["gpu 1", "gpu 0"]
    assert failing(draft) == []


def test_a_rendezvous_that_is_elsewhere_for_each() -> None:
    assert failing(one(f"vllm serve {MOE} -tp 16 --nnodes 2")) == ["RB607"]
    spread = [command(f"vllm serve {MOE} -dp 2 -dpn {rank}", f"h{rank}") for rank in (0, 1)]
    # Loopback addresses of two hosts are no common address: these are two jobs, each with a replica that never comes.
    assert len(read(*spread)) == 2


def test_a_dense_replica_on_several_nodes() -> None:
    text = f"vllm serve {DENSE} -tp 4 -dp 2 --nnodes 4 --master-addr 10.0.0.1"
    assert failing(one(text)) == ["RB607"]
    assert failing(one(text.replace(DENSE, MOE))) == []
    fits = f"vllm serve {DENSE} -tp 4 -dp 2 --nnodes 2 --master-addr 10.0.0.1"
    assert failing(one(fits)) == []
    assert failing(one(fits, version="0.27.0")) == ["RB607"]


def test_a_head_without_engines_is_only_noted() -> None:
    draft = one(
        command(f"vllm serve {MOE} -dp 2 -dpl 0 -dpa 10.0.0.1", "head"),
        command(f"vllm serve {MOE} -dp 2 -dpl 2 -dpr 0 -dpa 10.0.0.1 --headless", "gpus"),
    )
    assert failing(draft) == []
    assert any("runs no worker" in finding.message for finding in draft.findings)


def test_nodes_that_disagree() -> None:
    draft = one(
        f"vllm serve {MOE} -tp 4 -pp 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1",
        f"vllm serve {MOE} -tp 2 -pp 4 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless",
    )
    assert "RB607" in failing(draft)


@pytest.mark.parametrize(
    "text",
    [
        "-dp 2 -dpn 2",
        "-dp 2 -dpl 3",
        "-dp 2 -dpn 0 -dpl 2",
        "-dp 2 -dpe",
        "-dp 2 -dpn 0 -dph",
        "-dp 4 -dph",
        "-tp 4 -dcp 3",
        "-tp 4 -pcp 2 -dcp 4",
        "-n 2 -r 2",
        "-tp 4 -n 3",
        "-tp 2 -n 2 --distributed-executor-backend ray",
        "--headless -asc 2",
        "-dp 4 -dpm",
        "-dp 4 -dpl 4 -dpm --uds /run/v",
        "-tp 0",
        "-tp 3 -dp 4 -dpl 2 -n 3",
        "-tp 99999 -dp 99999",
        "-dp 4 -dpl -1",
        "--host http://0.0.0.0",
    ],
)
def test_sizes_that_are_refused(text: str) -> None:
    draft = one(f"vllm serve {MOE} {text}")
    assert draft.refused
    assert {finding.code for finding in draft.findings} == {"RB606"}


def test_context_parallel_views() -> None:
    topology = one(f"vllm serve {MOE} -tp 4 -pcp 2 -dcp 8").declaration().job.topology
    # Decode ranks run through pcp first.
    assert [topology.coordinates(rank)["dcp"] for rank in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]
    topology = one(f"vllm serve {MOE} -tp 4 -pcp 2 -dcp 2").declaration().job.topology
    assert [topology.coordinates(rank)["dcp"] for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


# ---- listeners


def test_servers() -> None:
    assert bound(one(f"vllm serve {DENSE} --uds /run/v.sock"), "http") == ["ipc:///run/v.sock"]
    draft = one(f"vllm serve {DENSE} --host ::1 --port 9000 --grpc-port 9001")
    assert bound(draft, "http") == ["tcp://[::1]:9000"]
    assert bound(draft, "grpc") == ["tcp://[::1]:9001"]
    assert failing(draft) == []


def test_supervised_servers_of_two_nodes() -> None:
    draft = one(f"vllm serve {MOE} -dp 4 -dpl 2 -dpm -n 2 --master-addr 10.0.0.1 --port 7000")
    assert bound(draft, "http") + bound(draft, "http-2") == [f"tcp://*:{port}" for port in (7000, 7001, 7000, 7001)]
    assert bound(draft, "http-supervisor") == ["tcp://*:9256"] * 2
    assert failing(draft) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("-dp 4 -dpl 2", "internal"),
        ("-dp 4 -dpl 2 -dpr 2", "hybrid"),
        ("-dp 4 -dpl 2 -dph", "hybrid"),
        ("-dp 4 -dpl 2 -dpr 2 --headless", "internal"),
        ("-dp 4 -dpl 1 -dpr 2", "external"),
        ("-dp 4 -dpl 4 -dph", "internal"),
        ("-dp 4 -dpn 2", "external"),
        ("-dp 4 -dpe -n 4 -r 2", "external"),
    ],
)
def test_who_spreads_the_requests(text: str, wanted: str) -> None:
    words = command(f"vllm serve {MOE} {text}")
    node = layout.resolve(arguments.read(words, Release("0.33.0"), named=True))
    assert not node.arguments.refused
    assert node.balancing == wanted
    assert node.start == (2 if any(flag in text for flag in ("-dpr", "-dpn", "-r")) else 0)


def test_the_handshake_is_dialled_by_all_engines() -> None:
    draft = one(f"vllm serve {MOE} -dp 4 -dpl 2 -dpa 10.0.0.1 -dpp 29999")
    plan = Plan(draft.declaration())
    assert bound(draft, "dp-handshake") == ["tcp://10.0.0.1:29999"]
    assert [d.rank for d in plan.dialled if d.resource.name == "dp-handshake"] == [0, 1, 2, 3]


def test_side_channels_without_a_term() -> None:
    # Each worker of 0.11.0 listens, and the stages share their ports; from 0.11.1 on it is one for each engine.
    text = f"vllm serve {DENSE} -tp 2 -pp 2 {NIXL}"
    assert failing(one(text, version="0.11.0")) == ["RB201"]
    assert failing(one(text, version="0.11.1")) == []
    assert bound(one(text, version="0.11.0"), "nixl") == [
        f"tcp://localhost:{port}" for port in (5600, 5601, 5600, 5601)
    ]


def test_connectors_in_a_multi_connector() -> None:
    both = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}
    both["kv_connector_extra_config"] = {"connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}]}
    draft = one(f"vllm serve {DENSE} --kv-transfer-config {shlex.quote(json.dumps(both))}")
    assert bound(draft, "nixl") == ["tcp://localhost:5600"]


def transfer(connector: str, role: str = "kv_both", **extra: object) -> str:
    config = {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra}
    return f"--kv-transfer-config {shlex.quote(json.dumps(config))}"


def test_moriio_adds_replica_and_tp() -> None:
    draft = one(f"vllm serve {MOE} -tp 2 -dp 2 {transfer('MoRIIOConnector', http_port=8000)}")
    assert bound(draft, "moriio-handshake") == [f"tcp://*:{port}" for port in (6301, 6302, 6302, 6303)]
    assert set(failing(draft)) == {"RB201"}
    assert failing(one(f"vllm serve {MOE} -dp 2 {transfer('MoRIIOConnector', handshake_port=7000)}")) == []


def test_mooncake_bootstrap() -> None:
    kept = transfer("MooncakeConnector", "kv_producer")
    draft = one(f"VLLM_MOONCAKE_BOOTSTRAP_PORT=9998 vllm serve {MOE} -tp 2 -pp 2 {kept}")
    assert bound(draft, "mooncake-bootstrap") == ["tcp://0.0.0.0:9998"]
    assert failing(draft) == []
    assert failing(one(f"vllm serve {MOE} -tp 2 -pcp 2 {kept}")) == ["RB201"]
    assert bound(one(f"vllm serve {MOE} {transfer('MooncakeConnector', 'kv_consumer')}"), "mooncake-bootstrap") == []
    elsewhere = transfer("MooncakeConnector", bootstrap_server_address="10.0.0.9:8998")
    assert bound(one(f"vllm serve {MOE} {elsewhere}"), "mooncake-bootstrap") == []
    processes = [f"CUDA_VISIBLE_DEVICES={r} vllm serve {MOE} -dp 2 -dpn {r} --port {8000 + r} {kept}" for r in (0, 1)]
    assert failing(one(*processes)) == ["RB201"]


@pytest.mark.parametrize(
    ("version", "text", "ranks"),
    [
        ("0.15.1", "-tp 2 -pcp 2", []),
        ("0.23.0", "-tp 2 -pcp 2", [0]),
        ("0.24.0", "-tp 2 -pcp 2", [0, 2]),
        ("0.23.0", "-tp 16 -n 2 --master-addr 10.0.0.1", [0, 8]),
        ("0.24.0", "-tp 16 -n 2 --master-addr 10.0.0.1", [0]),
        ("0.23.0", "-dp 4 -dpl 2 -dpa 10.0.0.1", [0]),
        ("0.23.0", "-dp 4 -dpl 2 -dph -dpa 10.0.0.1", [0, 2]),
        ("0.23.0", "-dp 2 -dpl 2 -dpm", [0, 1]),
    ],
)
def test_who_starts_the_bootstrap_server(version: str, text: str, ranks: list[int]) -> None:
    draft = one(f"vllm serve {MOE} {text} {transfer('MooncakeConnector')}", version=version)
    bindings = Plan(draft.declaration()).bindings
    assert [b.rank for b in bindings if b.resource.name == "mooncake-bootstrap"] == ranks


def test_tiers_and_encoder_caches() -> None:
    tier = transfer("OffloadingConnector", secondary_tiers=[{"type": "p2p"}])
    assert bound(one(f"vllm serve {MOE} -dp 2 {tier}"), "p2p-tier") == ["tcp://localhost:5710", "tcp://localhost:5711"]
    producer = {"ec_connector": "ECCPUConnector", "ec_role": "ec_producer"}
    text = f"--ec-transfer-config {shlex.quote(json.dumps(producer))}"
    assert bound(one(f"vllm serve {MOE} {text}"), "ec") == ["tcp://localhost:5601"]
    # One port, whichever the replica.
    assert failing(one(f"vllm serve {MOE} -dp 2 {text}")) == ["RB201"]


def test_two_side_channels_that_meet() -> None:
    producer = shlex.quote(json.dumps({"ec_connector": "ECCPUConnector", "ec_role": "ec_both"}))
    draft = one(f"vllm serve {MOE} -dp 2 {NIXL} --ec-transfer-config {producer}")
    assert set(failing(draft)) == {"RB201"}


# ---- KV events


def test_replicas_publish_at_ports_of_their_own() -> None:
    draft = one(f"vllm serve {MOE} -dp 2 -tp 2 {events(replay_endpoint='tcp://*:6557')}")
    assert bound(draft, "kv-events") == ["tcp://*:5557", "tcp://*:5558"]
    assert bound(draft, "kv-events", "replay") == ["tcp://*:6557", "tcp://*:6558"]
    assert failing(draft) == []


def test_a_replay_port_too_near() -> None:
    assert failing(one(f"vllm serve {MOE} -dp 2 {events(replay_endpoint='tcp://*:5558')}")) == ["RB201"]


def test_ports_past_the_last() -> None:
    assert failing(one(f"vllm serve {MOE} -dp 4 {events(endpoint='tcp://*:65533')}")) == ["RB203"]


def test_the_any_address_connects() -> None:
    """Case c17."""
    text = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://0.0.0.0:5557"}'
    draft = one(f"vllm serve m --data-parallel-size 2 {EVENTS} '{text}'", version="0.33.0")
    assert failing(draft) == ["RB210"]
    [finding] = [finding for finding in findings(draft) if finding.code == "RB210"]
    assert finding.facts["resource"] == "kv-events"
    assert finding.facts["bound"] == []
    assert "tcp://*:5557" in draft.remedies["kv-events", "RB210"]


def test_default_ports_of_two_servers() -> None:
    """The half of case c16 that is vLLM's."""
    text = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}'
    draft = one(f"vllm serve m --port 8000 {EVENTS} '{text}'", version="0.33.0")
    assert bound(draft, "kv-events") == ["tcp://*:5557"]
    assert failing(draft) == []


def test_a_publisher_that_connects_outside_is_noted() -> None:
    draft = one(f"vllm serve {DENSE} {events(endpoint='tcp://router.example:5557')}")
    [finding] = draft.findings
    assert (finding.code, finding.fails) == ("RB215", False)
    assert failing(draft) == []
    assert failing(one(f"vllm serve {DENSE} {events(endpoint='tcp://127.0.0.1:5557')}")) == ["RB215"]


def test_a_publisher_that_connects_to_its_own_job() -> None:
    text = f"vllm serve {MOE} -tp 16 --nnodes 2 --master-addr 10.0.0.1 {events(endpoint='tcp://10.0.0.1:5557')}"
    assert failing(one(text)) == ["RB210"]


def test_ipv6_needs_a_socket_that_has_it() -> None:
    assert failing(one(f"vllm serve {DENSE} {events(endpoint='tcp://[::]:5557')}")) == ["RB209"]


def test_ipc_is_for_one_replica() -> None:
    assert failing(one(f"vllm serve {MOE} {events(endpoint='ipc:///run/kv')}")) == []
    assert one(f"vllm serve {MOE} -dp 2 {events(endpoint='ipc:///run/kv')}").refused


def test_a_follower_that_publishes_nothing() -> None:
    draft = one(
        f"vllm serve {MOE} -dp 4 -dpl 2 -dpa 10.0.0.1 {events()}",
        f"vllm serve {MOE} -dp 4 -dpl 2 -dpa 10.0.0.1 -dpr 2 --headless",
    )
    assert failing(draft) == ["RB101"]


@pytest.mark.parametrize(
    ("version", "keys", "published", "codes"),
    [
        ("0.11.0", {"enable_kv_cache_events": True}, 0, ["RB607"]),
        ("0.11.1", {"enable_kv_cache_events": True}, 1, []),
        ("0.11.0", {"publisher": "zmq"}, 1, []),
        ("0.11.1", {"publisher": "zmq"}, 0, []),
        ("0.11.0", {"bind": True}, 0, []),
        ("0.16.0", {"bind": True}, None, ["RB605"]),
        ("0.33.0", {"endpoint": 5}, None, ["RB605"]),
        ("0.33.0", {"publisher": "kafka"}, None, ["RB605"]),
    ],
)
def test_what_opens_a_publisher(
    version: str, keys: dict[str, object], published: int | None, codes: Sequence[str]
) -> None:
    draft = one(f"vllm serve {DENSE} {EVENTS} {shlex.quote(json.dumps(keys))}", version=version)
    assert sorted(finding.code for finding in draft.findings if finding.fails) == codes
    assert draft.refused == (published is None)
    if published is not None:
        assert len(bound(draft, "kv-events")) == published


@pytest.mark.parametrize("text", ["'{'", "'[1]'", "nothing"])
def test_json_that_is_none(text: str) -> None:
    assert one(f"vllm serve {DENSE} {EVENTS} {text}").refused


def test_what_routers_are_told() -> None:
    def told(text: str, version: str) -> list[str]:
        plan = Plan(one(text, version=version).declaration())
        return [str(d.endpoint) for d in plan.dialled if d.resource.name == "kv-events"]

    text = f"vllm serve {MOE} -dp 2 {events()}"
    assert told(text, "0.30.0") == []
    assert told(text, "0.31.0") == ["tcp://localhost:5557", "tcp://localhost:5558"]


# ---- who is asked


@pytest.mark.parametrize(
    ("text", "code", "resources"),
    [
        ("", "RB301", ["http"]),
        ("--host 0.0.0.0", "RB301", ["http"]),
        ("--host ::", "RB301", ["http"]),
        ("--grpc-port 9001", "RB301", ["http", "grpc"]),
        ("--grpc-port 9001 --uds /run/v", None, []),
        ("--host 127.0.0.1", None, []),
        ("--host 10.0.0.1", None, []),
        ("--host 8.8.8.8", "RB302", ["http"]),
        ("--api-key k", None, []),
        ("--api-key $KEY", None, []),
        ("VLLM_API_KEY=k", None, []),
        ("VLLM_API_KEY=", "RB301", ["http"]),
        ("--ssl-ca-certs ca.pem", "RB301", ["http"]),
        ("--ssl-ca-certs ca.pem --ssl-cert-reqs 2", None, []),
        (f"--api-key k {EVENTS}.enable_kv_cache_events true", "RB301", ["kv-events"]),
        (f"--api-key k {EVENTS}.enable_kv_cache_events true {EVENTS}.endpoint ipc:///run/kv", None, []),
        ("--api-key k -dp 4 -dpl 2 -dpm", None, []),
        # What workers on other hosts listen to is at the host's own address.
        ("--api-key k -tp 16 -n 2 --master-addr 10.0.0.1", None, []),
        ("--api-key k -tp 16 -n 2 --master-addr 10.0.0.1 VLLM_HOST_IP=8.8.8.8", "RB302", ["worker-queue"]),
        ("--api-key k -dp 4 -dpl 2 -dpa 10.0.0.1", None, []),
    ],
)
def test_who_listens_and_does_not_ask(text: str, code: str | None, resources: list[str]) -> None:
    draft = one(launched(text))
    found = [finding for finding in findings(draft) if finding.family == "RB3"]
    assert [(finding.code, finding.facts["resources"]) for finding in found] == ([(code, resources)] if code else [])
    assert all((name, "RB3") in draft.remedies for name in resources)


def test_a_rendezvous_that_strangers_reach() -> None:
    [subject] = subjects([], command(f"vllm serve {MOE} -dp 4 -dpl 2 -dpa 8.8.4.4 --api-key k"))
    [finding] = [finding for finding in subject.checked() if finding.family == "RB3"]
    assert finding.code == "RB302"
    assert {"dp-handshake", "client-input", "torch-world", "dp-store"} <= set(finding.facts["resources"])
    assert "--data-parallel-address" in (finding.fix or "")
    assert "--api-key" not in (finding.fix or "")


# ---- knobs


def encoder(connector: str, **keys: object) -> str:
    config = {"ec_connector": connector, "ec_role": "ec_producer", **keys}
    return f"--ec-transfer-config {shlex.quote(json.dumps(config))}"


NCCL = {"kv_connector": "P2pNcclConnector", "kv_role": "kv_both", "kv_port": 7000}


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--port", "--port 7000 -dp 2"),
        ("--port", "-dp 4 -dpl 2 -dpm -n 2 --master-addr 10.0.0.1 --port 7000"),
        ("--data-parallel-supervisor-port", "-dp 2 -dpl 2 -dpm --data-parallel-supervisor-port 7000"),
        ("--grpc-port", "--grpc-port 7000"),
        ("--data-parallel-rpc-port", "-dp 4 -dpl 2 -dpa 10.0.0.1 -dpp 7000"),
        ("--master-port", "-tp 16 -n 2 --master-addr 10.0.0.1 --master-port 7000"),
        ("VLLM_DP_MASTER_PORT", "VLLM_DP_SIZE=2 VLLM_DP_RANK=0 VLLM_DP_MASTER_PORT=7000"),
        (f"{EVENTS} endpoint", f"-dp 2 {events(endpoint='tcp://*:7000')}"),
        (f"{EVENTS} replay_endpoint", f"-dp 2 {events(replay_endpoint='tcp://*:7000')}"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", f"VLLM_NIXL_SIDE_CHANNEL_PORT=7000 -dp 2 {NIXL}"),
        ("VLLM_MOONCAKE_BOOTSTRAP_PORT", f"VLLM_MOONCAKE_BOOTSTRAP_PORT=7000 {transfer('MooncakeConnector')}"),
        ("--kv-transfer-config handshake_port", f"-tp 2 {transfer('MoRIIOConnector', handshake_port=7000)}"),
        ("--kv-transfer-config notify_port", f"-tp 2 {transfer('MoRIIOConnector', notify_port='7000')}"),
        ("--kv-transfer-config kv_port", f"-tp 2 --kv-transfer-config {shlex.quote(json.dumps(NCCL))}"),
        (
            "VLLM_P2P_SIDE_CHANNEL_PORT",
            f"VLLM_P2P_SIDE_CHANNEL_PORT=7000 {transfer('OffloadingConnector', secondary_tiers=[{'type': 'p2p'}])}",
        ),
        (
            "--kv-transfer-config port",
            transfer("OffloadingConnector", secondary_tiers=[{"type": "p2p", "port": 7000}]),
        ),
        ("VLLM_EC_SIDE_CHANNEL_PORT", f"VLLM_EC_SIDE_CHANNEL_PORT=7000 {encoder('ECCPUConnector')}"),
        ("--ec-transfer-config ec_port", encoder("ECMooncakeConnector", ec_port=7000)),
    ],
)
def test_a_knob_moves_what_its_flag_moves(flag: str, text: str) -> None:
    def ports(draft: Draft) -> dict[tuple[str, str, int], int]:
        bindings = Plan(draft.declaration()).bindings
        return {(b.resource.name, b.address.role, b.rank): b.endpoint.first for b in bindings if b.endpoint}

    draft, other = (one(launched(each)) for each in (text, text.replace("7000", "7010")))
    [knob] = [knob for knob in draft.knobs if knob.flag == flag]
    assert (knob.value, knob.span is not None) == (7000, True)
    before, after = ports(draft), ports(other)
    moved = {where for where in before if before[where] != after[where]}
    assert moved
    assert {after[where] - before[where] for where in moved} == {10}
    assert {where for where in before if where[:2] in knob.moves} == moved


def test_knobs_at_their_defaults() -> None:
    knobs = one(f"vllm serve {MOE} -dp 4 -dpl 2 -dpa 10.0.0.1 {events()} {NIXL}").knobs
    assert [(knob.flag, knob.value, knob.span) for knob in knobs] == [
        ("--port", 8000, None),
        ("--data-parallel-rpc-port", 29550, None),
        (f"{EVENTS} endpoint", 5557, None),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", 5600, None),
    ]


@pytest.mark.parametrize("text", ["--port 0", "--uds /run/v", f"--uds /run/v {events(endpoint='tcp://*:0')}"])
def test_there_is_no_knob_where_there_is_no_port(text: str) -> None:
    assert one(f"vllm serve {MOE} {text}").knobs == []


def test_a_port_that_two_commands_say_is_one_knob() -> None:
    alike = [f"vllm serve {MOE} -dp 2 -dpn {rank} -dpa 10.0.0.1 --port PORT" for rank in (0, 1)]
    [first, *_] = one(*(text.replace("PORT", "7000") for text in alike)).knobs
    assert (first.flag, first.value, first.moves) == ("--port", 7000, {("http", "bind")})
    two = one(*(text.replace("PORT", str(port)) for text, port in zip(alike, (7000, 7001), strict=True))).knobs
    assert [(knob.value, set(knob.moves)) for knob in two if knob.flag == "--port"] == [
        (7000, {("http", "bind")}),
        (7001, {("http-2", "bind")}),
    ]


def test_a_port_that_two_commands_say_in_two_ways_is_two_knobs() -> None:
    ways = [("VLLM_P2P_SIDE_CHANNEL_PORT=7000", {"type": "p2p"}), ("", {"type": "p2p", "port": 7000})]
    alike = [
        f"{way} vllm serve {MOE} -dp 2 -dpn {rank} -dpa 10.0.0.1 "
        + transfer("OffloadingConnector", secondary_tiers=[tier])
        for rank, (way, tier) in enumerate(ways)
    ]
    knobs = {knob.flag: set(knob.moves) for knob in one(*alike).knobs}
    assert knobs["VLLM_P2P_SIDE_CHANNEL_PORT"] == {("p2p-tier", "bind")}
    assert knobs["--kv-transfer-config port"] == {("p2p-tier-2", "bind")}


def test_what_two_servers_are_told_to_move() -> None:
    pair = [f"CUDA_VISIBLE_DEVICES={gpu} vllm serve {DENSE} {events()}" for gpu in (0, 1)]
    drafts = read(*pair)
    found = suggest([Plan(draft.declaration()) for draft in drafts], ("a", "b"), [draft.knobs for draft in drafts])
    assert found.left == ()
    assert found.lines(("a", "b")) == (
        "b: --port 8000 (the default) -> 8001",
        f"b: {EVENTS} endpoint 5557 (the default) -> 5558",
    )


# ---- all releases


@pytest.mark.parametrize(
    ("version", "read_as"),
    [("v0.33.0", "0.33.0"), ("0.33.1", "0.33.0"), ("0.14.7", "0.14.1"), ("0.33.0.post1", "0.33.0")],
)
def test_a_release_that_is_not_known_is_read_as_the_one_before(version: str, read_as: str) -> None:
    assert one(f"vllm serve {DENSE}", version=version).engine == f"vLLM {read_as}"


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.33.0", True), ("v0.33.0", True), ("0.33.0.post1", True), ("0.33.1", False), ("0.40.0", False)],
)
def test_only_a_known_release_refuses_an_option(version: str, known: bool) -> None:
    draft = one(f"vllm serve {DENSE} --zzz-unheard-of 3", version=version)
    assert draft.refused is known
    assert [finding.code for finding in draft.findings] == (["RB605"] if known else ["RB609", "RB608"])


@pytest.mark.parametrize("version", ["0.10.2", "latest"])
def test_a_release_of_which_nothing_is_known(version: str) -> None:
    with pytest.raises(LaunchError, match=r"0\.11\.0"):
        read(f"vllm serve {DENSE}", version=version)


@pytest.mark.parametrize("version", ENGINE.versions)
def test_every_release(version: str) -> None:
    """Clean launches are clean, whatever the release."""
    for text in (
        f"vllm serve {DENSE} -tp 2 -pp 2 {events()}",
        f"vllm serve {MOE} -dp 4 -tp 2 {events(replay_endpoint='tcp://*:6557')} {NIXL}",
        f"vllm serve {DENSE} -dp 2 {events()}",
        f"vllm serve {MOE} -dp 4 -dpl 2 -dpa 10.0.0.1 {events()}",
        f"vllm serve {MOE} -dp 4 -dpl 2 --data-parallel-hybrid-lb -dpa 10.0.0.1",
    ):
        draft = one(text, version=version)
        assert failing(draft) == [], text
        notes = sorted(finding.code for finding in findings(draft))
        assert notes.count("RB301") == 1, text
        assert set(notes) <= {"RB215", "RB301", "RB609"}, text
