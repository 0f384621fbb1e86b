"""What is in the files of tests/launch/files, spelled out.

A command is a line: ``[name] @host #node <image> (bare) published environment | words``; a question mark stands before
what is not certain. Of the environment, what SLURM sets is left out here: test_sources_slurm.py has it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rankbind.launch import sources
from rankbind.launch.command import Command, Word

FILES = Path(__file__).parent / "files"
# Commands of the samples that start no engine.
HELPERS = ("wait", "cd", "sleep", "curl", "tee", "cat")

EXPECTED = {
    "anchors.yaml": [
        "[first/engine] @first <vllm/vllm-openai:v0.11.0> (bare) HOSTNAME=first | --model m",
        "[first/second] @first <vllm/vllm-openai:v0.11.0> (bare) HOSTNAME=first | --model n --port 8001",
    ],
    "arguments.sh": [
        "[line 9] | python3 -m sglang.launch_server --model-path /models/m --tp-size 8 --host 192.0.2.10 --enable-metrics --kv-events-config '{\"publisher\":\"zmq\"}' --dist-init-addr 192.0.2.10:5000 ?'$@'",  # noqa: E501
    ],
    "by-node.sbatch": [
        "[line 7] @node0 #0 | vllm serve org/m --data-parallel-size 3 --data-parallel-size-local 1 --data-parallel-address ?'$head_ip' --data-parallel-rpc-port 13345",  # noqa: E501
        "[line 10] @node1 #1 | vllm serve org/m --headless --data-parallel-size 3 --data-parallel-size-local 1 --data-parallel-start-rank 1 --data-parallel-address ?'$head_ip' --data-parallel-rpc-port 13345",  # noqa: E501
        "[line 10] @node2 #2 | vllm serve org/m --headless --data-parallel-size 3 --data-parallel-size-local 1 --data-parallel-start-rank 2 --data-parallel-address ?'$head_ip' --data-parallel-rpc-port 13345",  # noqa: E501
    ],
    "compose-host.yml": [
        "[sglang-1] <lmsysorg/sglang:v0.5.14-cu129> SGLANG_LOG_MS=1 PORT=30000 | python3 -m sglang.launch_server --model-path /models/m --host 0.0.0.0 --port 30000 --tp-size 2",  # noqa: E501
        "[sglang-2] <lmsysorg/sglang:v0.5.14-cu129> SGLANG_LOG_MS=1 PORT=30000 | python3 -m sglang.launch_server --model-path /models/m --host 0.0.0.0 --port 30000 --tp-size 2",  # noqa: E501
        "[shell] <lmsysorg/sglang:v0.5.14-cu129> PORT=31000 | python3 -m sglang.launch_server --model-path /models/m --port 31000",  # noqa: E501
    ],
    "compose-multinode.yaml": [
        "[head] @head <lmsysorg/sglang:latest> (bare) SGLANG_PORT=1234 QUOTED='a b' | python3 -m sglang.launch_server --nnodes 2 --dist-init-addr head:5000 --node-rank 0",  # noqa: E501
        "[worker] @worker <lmsysorg/sglang:latest> (bare) SGLANG_PORT=1234 QUOTED='a b' | python3 -m sglang.launch_server --nnodes=2 --dist-init-addr=head:5000 --node-rank=1",  # noqa: E501
    ],
    "compose-vllm.yaml": [
        '[one] @one <vllm/vllm-openai:v0.11.0> (bare) :8000->8000 HF_HUB_OFFLINE=1 VLLM_PORT=\'\' | --model org/m --port 8000 --kv-events-config \'{"enable_kv_cache_events":true,"endpoint":"tcp://*:5557"}\'',  # noqa: E501
        "[two] @two <vllm/vllm-openai:v0.11.0> (bare) 127.0.0.1:8000->8000 :9000->9000 :9001->9001 HF_HUB_OFFLINE=1 VLLM_PORT='' VLLM_HOST_IP=192.0.2.50 | --model org/m --port 8000",  # noqa: E501
        "[router] @one <example/router> | python -m router --port 8080",
    ],
    "deployments.yaml": [
        "[inside-0] @inside-0 <lmsysorg/sglang:v0.5.14> HOSTNAME=?inside-0 | python3 -m sglang.launch_server --model-path m --port 30000",  # noqa: E501
        "[inside-1] @inside-1 <lmsysorg/sglang:v0.5.14> HOSTNAME=?inside-1 | python3 -m sglang.launch_server --model-path m --port 30000",  # noqa: E501
        "[on-node-0] @node <lmsysorg/sglang:v0.5.14> HOSTNAME=?node | python3 -m sglang.launch_server --port 30000",
        "[on-node-1] @node <lmsysorg/sglang:v0.5.14> HOSTNAME=?node | python3 -m sglang.launch_server --port 30000",
        "[with-port-0] @node <lmsysorg/sglang:v0.5.14> HOSTNAME=?node | python3 -m sglang.launch_server --port 31000",
        "[with-port-1] @node-1 <lmsysorg/sglang:v0.5.14> HOSTNAME=?node-1 | python3 -m sglang.launch_server --port 31000",  # noqa: E501
        "[spread-0] @node <lmsysorg/sglang:v0.5.14> HOSTNAME=?node | python3 -m sglang.launch_server --port 32000",
        "[spread-1] @node-1 <lmsysorg/sglang:v0.5.14> HOSTNAME=?node-1 | python3 -m sglang.launch_server --port 32000",
        "[everywhere-0] @everywhere-0 <example/exporter> (bare) :9401->9400@node HOSTNAME=?everywhere-0 | --port 9400",
    ],
    "docker-run.sh": [
        "[prefill] <vllm/vllm-openai:v0.11.0> (bare) VLLM_HOST_IP=192.0.2.30 | --model org/m --port 8100",
        "[decode] @decode <vllm/vllm-openai:v0.11.0> (bare) :8200->8000 127.0.0.1:5557->5557 | --model org/m",
        "[line 8] <lmsysorg/sglang:v0.5.14> (bare) | python3 -m sglang.launch_server --model-path org/m --port 30000",
        "[line 9] @the container of docker-run.sh:9 <lmsysorg/sglang:v0.5.14> | python3 -m sglang.launch_server --model-path org/m",  # noqa: E501
        "[line 10] | vllm serve other --port 8101",
    ],
    "functions.sh": [
        "[line 5] | python -m sglang.launch_server --served-model-name small --port 30000 --tp-size 1",
        "[line 5] | python -m sglang.launch_server --served-model-name large --port 31000 --tp-size 4 --dp-size 2",
    ],
    "generated.sh": [
        "[line 6] | vllm serve in-tmux --port 8001",
        "[line 7] | vllm serve in-bash --port 8002",
        "[line 8] | vllm serve looped --port 8010",
        "[line 8] | vllm serve looped --port 8012",
        "[line 8] | vllm serve looped --port 8020",
    ],
    "jobs.yaml": [
        "[indexed-0] @indexed-0 #0 <vllm/vllm-openai:v0.20.0> HOSTNAME=indexed-0 JOB_COMPLETION_INDEX=0 | vllm serve m --data-parallel-rank 0",  # noqa: E501
        "[indexed-1] @indexed-1 #1 <vllm/vllm-openai:v0.20.0> HOSTNAME=indexed-1 JOB_COMPLETION_INDEX=1 | vllm serve m --data-parallel-rank 1",  # noqa: E501
        "[nightly-0] @nightly-0 <vllm/vllm-openai:v0.20.0> (bare) HOSTNAME=?nightly-0 | --model m",
    ],
    "jobset.yaml": [
        "[set-nodes-0-0] @node #0 <lmsysorg/sglang:v0.5.20> HOSTNAME=?node JOBSET_NAME=set REPLICATED_JOB_NAME=nodes JOB_INDEX=0 JOB_COMPLETION_INDEX=0 | python3 -m sglang.launch_server --nnodes 2 --node-rank 0 --dist-init-addr set-nodes-0-0.set:5000",  # noqa: E501
        "[set-nodes-0-1] @node-1 #1 <lmsysorg/sglang:v0.5.20> HOSTNAME=?node-1 JOBSET_NAME=set REPLICATED_JOB_NAME=nodes JOB_INDEX=0 JOB_COMPLETION_INDEX=1 | python3 -m sglang.launch_server --nnodes 2 --node-rank 1 --dist-init-addr set-nodes-0-0.set:5000",  # noqa: E501
    ],
    "lws.yaml": [
        "[vllm-0] @vllm-0 #0 <vllm/vllm-openai:v0.33.0> HOSTNAME=vllm-0 LWS_LEADER_ADDRESS=vllm-0.vllm.lab LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=0 | vllm serve org/m --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 0 --master-addr vllm-0.vllm.lab",  # noqa: E501
        "[vllm-0-1] @vllm-0-1 #1 <vllm/vllm-openai:v0.33.0> HOSTNAME=vllm-0-1 LWS_LEADER_ADDRESS=vllm-0.vllm.lab LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 | vllm serve org/m --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 1 --master-addr vllm-0.vllm.lab --headless",  # noqa: E501
        "[vllm-1] @vllm-1 #0 <vllm/vllm-openai:v0.33.0> HOSTNAME=vllm-1 LWS_LEADER_ADDRESS=vllm-1.vllm.lab LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=0 | vllm serve org/m --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 0 --master-addr vllm-1.vllm.lab",  # noqa: E501
        "[vllm-1-1] @vllm-1-1 #1 <vllm/vllm-openai:v0.33.0> HOSTNAME=vllm-1-1 LWS_LEADER_ADDRESS=vllm-1.vllm.lab LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 | vllm serve org/m --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 1 --master-addr vllm-1.vllm.lab --headless",  # noqa: E501
    ],
    "mpi.sh": [
        "[line 3] @192.0.2.1 #0 NCCL_DEBUG=INFO OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 | python -m sglang.launch_server --nnodes 2 --node-rank 0 --dist-init-addr 192.0.2.1:5000",  # noqa: E501
        "[line 3] @192.0.2.2 #1 NCCL_DEBUG=INFO OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 | python -m sglang.launch_server --nnodes 2 --node-rank 1 --dist-init-addr 192.0.2.1:5000",  # noqa: E501
    ],
    "one-of-two.sh": [
        "[line 12] | vllm serve org/m --nnodes 2 --node-rank 0 --master-addr 192.0.2.20",
        "[line 14] | vllm serve org/m --nnodes 2 --node-rank ?'$NODE_RANK' --master-addr 192.0.2.20 --headless ?'$MODE'",  # noqa: E501
    ],
    "pinned.sh": [
        "[line 5] HF_HUB_OFFLINE=1 NCCL_DEBUG=INFO | python -u -m sglang.launch_server --tp 4",
        "[line 7] HF_HUB_OFFLINE=1 | vllm serve m",
        "[line 8] HF_HUB_OFFLINE=1 | vllm serve m2",
        "[line 9] HF_HUB_OFFLINE=1 | vllm serve m3",
    ],
    "pod.json": [
        "[json] @json <vllm/vllm-openai:v0.11.0> HOSTNAME=json | vllm serve m/n --port 8000",
    ],
    "pod.yaml": [
        "[serve/engine] @gpu-7 <vllm/vllm-openai:v0.11.0> (bare) HOSTNAME=?gpu-7 PORT=8000 NAMESPACE=lab VLLM_HOST_IP=?gpu-7 HF_TOKEN=?'secretKeyRef: {name: hub, key: token}' | --model=org/m --port=8000 '--served-model-name=lab/$(UNSET)' '--chat-template=$(PORT)'",  # noqa: E501
        "[serve/sidecar] @gpu-7 <example/router> HOSTNAME=?gpu-7 PORT=8001 | router --port 8001",
    ],
    "replicas-c-loop.sh": [
        "[line 8] CUDA_VISIBLE_DEVICES=0 VLLM_NIXL_SIDE_CHANNEL_PORT=5600 | vllm serve /models/m --port 8000 --tensor-parallel-size 1",  # noqa: E501
        "[line 8] CUDA_VISIBLE_DEVICES=1 VLLM_NIXL_SIDE_CHANNEL_PORT=5601 | vllm serve /models/m --port 8010 --tensor-parallel-size 1",  # noqa: E501
        "[line 8] CUDA_VISIBLE_DEVICES=2 VLLM_NIXL_SIDE_CHANNEL_PORT=5602 | vllm serve /models/m --port 8020 --tensor-parallel-size 1",  # noqa: E501
        "[line 8] CUDA_VISIBLE_DEVICES=3 VLLM_NIXL_SIDE_CHANNEL_PORT=5603 | vllm serve /models/m --port 8030 --tensor-parallel-size 1",  # noqa: E501
    ],
    "ssh-hosts.sh": [
        "[line 6] @192.0.2.1 | python -m sglang.launch_server --nnodes 2 --node-rank 0 --dist-init-addr 192.0.2.1:5000 --tp-size 16",  # noqa: E501
        "[line 6] @192.0.2.2 | python -m sglang.launch_server --nnodes 2 --node-rank 1 --dist-init-addr 192.0.2.1:5000 --tp-size 16",  # noqa: E501
    ],
    "statefulset.yaml": [
        "[sglang-0] @sglang-0 #0 <lmsysorg/sglang:v0.5.23> HOSTNAME=sglang-0 POD_NAME=sglang-0 POD_INDEX=0 TIER=gold | python3 -m sglang.launch_server --model-path /models/m --tp-size 16 --nnodes 2 --node-rank 0 --dist-init-addr sglang-0.sglang:5000 --enable-metrics --served-model-name sglang-0-gold",  # noqa: E501
        "[sglang-1] @sglang-1 #1 <lmsysorg/sglang:v0.5.23> HOSTNAME=sglang-1 POD_NAME=sglang-1 POD_INDEX=1 TIER=gold | python3 -m sglang.launch_server --model-path /models/m --tp-size 16 --nnodes 2 --node-rank 1 --dist-init-addr sglang-0.sglang:5000 --served-model-name sglang-1-gold",  # noqa: E501
    ],
    "tasks.sbatch": [
        "[line 4] @node0 #0 CUDA_VISIBLE_DEVICES=0 | vllm serve m --port 8000 --data-parallel-rank 0",
        "[line 4] @node0 #0 CUDA_VISIBLE_DEVICES=1 | vllm serve m --port 8001 --data-parallel-rank 1",
        "[line 4] @node1 #1 CUDA_VISIBLE_DEVICES=0 | vllm serve m --port 8000 --data-parallel-rank 2",
        "[line 4] @node1 #1 CUDA_VISIBLE_DEVICES=1 | vllm serve m --port 8001 --data-parallel-rank 3",
        "[line 5] | vllm serve unknown",
    ],
    "two-nodes.sbatch": [
        "[line 11] @node0 #0 <lmsysorg/sglang:v0.5.14> MASTER_ADDR=?node0 MASTER_PORT=5000 | python -m sglang.launch_server --model-path /models/m --tp-size 16 --nnodes 2 --node-rank 0 --dist-init-addr ?node0:5000",  # noqa: E501
        "[line 11] @node1 #1 <lmsysorg/sglang:v0.5.14> MASTER_ADDR=?node0 MASTER_PORT=5000 | python -m sglang.launch_server --model-path /models/m --tp-size 16 --nnodes 2 --node-rank 1 --dist-init-addr ?node0:5000",  # noqa: E501
    ],
    "two-servers.sh": [
        '[line 12] SGLANG_LOG_MS=1 CUDA_VISIBLE_DEVICES=0,1 | python -m sglang.launch_server --model-path /models/m --tp-size 2 --port 30000 --kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557"}\'',  # noqa: E501
        '[line 12] SGLANG_LOG_MS=1 CUDA_VISIBLE_DEVICES=4,5 | python -m sglang.launch_server --model-path /models/m --tp-size 2 --port 31000 --kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5558"}\'',  # noqa: E501
    ],
    "unknown.sh": [
        "[line 4] | python -m sglang.launch_server --host ?'$ADDR' --dist-init-addr ?'$HEAD:5000' --node-rank ?'$RANK' ?'$EXTRA' --port 30000",  # noqa: E501
        "[line 7] | vllm serve m --data-parallel-address ?'$host'",
    ],
    "while.sh": [
        "[line 4] | sglang serve --model-path m0 --port 30000",
        "[line 4] | sglang serve --model-path m1 --port 30001",
        "[line 4] | sglang serve --model-path m2 --port 30002",
        "[line 9] | vllm serve forever --port 8000",
    ],
    "wrong-shell.sbatch": [
        "[line 6] @node0 #0 | python -m sglang.launch_server --tp-size 16 --nnodes 2 --node-rank 0 --dist-init-addr 192.0.2.40:5000",  # noqa: E501
        "[line 6] @node1 #1 | python -m sglang.launch_server --tp-size 16 --nnodes 2 --node-rank 0 --dist-init-addr 192.0.2.40:5000",  # noqa: E501
    ],
}

KINDS = {".sh": "shell", ".sbatch": "shell"}
NOTED = {"compose-multinode.yaml": [(4, 28)], "tasks.sbatch": [(5, 1)]}


def shown(found: Word) -> str:
    return ("" if found.certain else "?") + shlex.quote(found.text)


def line(found: Command) -> str:
    parts = [f"[{found.name}]", f"@{found.host}" if found.host else "", "" if found.node is None else f"#{found.node}"]
    parts += [f"<{found.image}>" if found.image else "", "(bare)" if found.bare else ""]
    for port in found.published:
        host = "" if port.host is None else f"@{port.host}"
        parts.append(f"{port.address}:{port.port}->{port.target}{host}")
    parts += [f"{name}={shown(value)}" for name, value in found.environment.items() if not name.startswith("SLURM_")]
    return " ".join([*filter(None, parts), "|", *map(shown, found.words)])


def read(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, sources.Found]:
    monkeypatch.chdir(FILES)
    text = Path(name).read_text(encoding="utf-8")
    return text, sources.commands(name, text)


def test_every_sample_is_spelled_out() -> None:
    assert {path.name for path in FILES.iterdir()} - {"sglang.env"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_commands_of_a_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = read(name, monkeypatch)

    assert [line(command) for command in found.commands if command.texts[0] not in HELPERS] == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_remarked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = read(name, monkeypatch)

    spans = [finding.labels[0].span for finding in found.findings]
    assert [(span.line, span.column) for span in spans] == NOTED.get(name, [])
    assert {finding.code for finding in found.findings} <= {"RB609"}
    assert not any(finding.fails for finding in found.findings)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_file_is(name: str) -> None:
    text = (FILES / name).read_text(encoding="utf-8")
    kind = KINDS.get(Path(name).suffix, "compose" if name.startswith("compose") else "kubernetes")

    assert sources.kind_of(name, text) == kind


@pytest.mark.parametrize("name", EXPECTED)
def test_words_stand_where_they_are_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, found = read(name, monkeypatch)
    lines = text.splitlines()

    for command in found.commands:
        for word in command.words:
            span = word.span
            written = lines[span.line - 1][span.column - 1 :][: span.length]
            assert span.file == name
            assert written
            assert not written[0].isspace()
            plain = written.removeprefix('"').removesuffix('"').removeprefix("'").removesuffix("'")
            if not set(plain) & set("$\\'"):
                assert plain == word.text


WRITTEN = {
    "two-servers.sh": [
        (0, 4, 13, '"$MODEL"'),
        (1, 8, 15, '"$port"'),
        (1, 10, 16, """'{"publisher": "zmq", "endpoint": "tcp://*:'$((EVENTS + i))'"}'"""),
    ],
    "arguments.sh": [(0, 3, 3, "--model-path"), (0, 8, 4, "192.0.2.10"), (0, 11, 8, r"{\"publisher\":\"zmq\"}")],
    "ssh-hosts.sh": [(1, 6, 6, "$rank"), (3, 8, 6, "192.0.2.1:5000")],
    "two-nodes.sbatch": [(0, 8, 13, "$SLURM_NNODES"), (1, 12, 14, "$MASTER_ADDR:$MASTER_PORT")],
    "compose-vllm.yaml": [
        (0, 5, 12, """'{"enable_kv_cache_events":true,"endpoint":"tcp://*:5557"}'"""),
        (1, 3, 20, '"8000"'),
    ],
    "compose-host.yml": [(0, 8, 15, "${PORT:-30000}"), (2, 6, 27, '"$$PORT"'), (2, 0, 26, "python3")],
    "pod.yaml": [(0, 2, 20, "--served-model-name=$(NAMESPACE)/$(UNSET)"), (1, 2, 39, "$PORT")],
    "pod.json": [(0, 2, 7, '"m\\u002fn"')],
    "statefulset.yaml": [(0, 10, 38, "${RANK}"), (0, 13, 39, "$EXTRA")],
    "jobset.yaml": [(1, 6, 30, "$JOB_COMPLETION_INDEX")],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_word_is_shown_as_it_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, found = read(name, monkeypatch)
    lines = text.splitlines()

    for command, word, line, written in WRITTEN[name]:
        span = found.commands[command].words[word].span
        assert span.line == line
        assert lines[span.line - 1][span.column - 1 :][: span.length] == written
