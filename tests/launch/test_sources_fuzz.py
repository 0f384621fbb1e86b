"""Nothing that stands in a file makes reading it fail: what is wrong is a finding, with a place that is there."""

# ruff: noqa: E501, RUF001, SIM905
from __future__ import annotations

import json
import os
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankbind.launch import sources

FILES = Path(__file__).parent / "files"
SAMPLES = sorted(path for path in FILES.iterdir() if path.suffix != ".env")
NAMES = ("a.sh", "a.sbatch", "compose.yaml", "pod.yaml", "pod.json", "x")
SHELL = (
    "$ ${ } $( ) $(( )) ` ' \" \\ \n ; & && | || ( ) { } {a,b} {1..3} < <<E E <<< > # #! ! [ ] [[ ]] (( )) = += "
    "a=( ) a b c 0 1 9 if then else elif fi for i in do done while until case esac x) ;; function f() { : :- :+ ## %% / "
    "srun -N 2 -n bash -c eval set -- shift docker run -p 1:2 ssh h env exec mpirun -np read mapfile -t seq echo "
    "$i $1 $@ ${a[@]} ${#a[@]} ${!a[@]} ${i:-1} ${i%%x} scontrol show hostnames |head -n1 \t \r\n é 𝒳 \0"
).split(" ")
YAML = (
    "services: x: - [ ] { } , : & * &a *a <<: | > |- >2 ' \" \\ # ! !!str !!int ? --- ... \n \n\x20\x20 \n\x20\x20\x20\x20 \t command: "
    "entrypoint: environment: ports: image: deploy: replicas: 3 kind: Pod Deployment List items: spec: template: containers: "
    "args: env: name: value: valueFrom: metadata: hostNetwork: true $(A) ${A:-b} $$ 1:2 a=b null ~ é \x85 \u2028"
).split(" ")


def look(name: str, text: str) -> None:
    """Read it, and see that what comes of it can be used."""
    kind = sources.kind_of(name, text)
    found = sources.commands(name, text)
    lines = text.split("\n")
    assert kind is not None or found.findings
    for finding in found.findings:
        assert finding.code in ("RB901", "RB609")
        assert finding.message
        assert "\n" not in finding.message
        json.dumps(dict(finding.facts))
        assert finding.labels
        for label in finding.labels:
            assert label.span.file == name
            assert 1 <= label.span.line <= len(lines)
            assert 1 <= label.span.column <= len(lines[label.span.line - 1]) + 1
            assert label.span.length >= 1
    for command in found.commands:
        for word in (*command.words, *command.environment.values()):
            word.text.encode()
            assert 1 <= word.span.line <= len(lines)
            assert 1 <= word.span.column <= len(lines[word.span.line - 1]) + 1


# As many more as test_fuzz.py is asked for.
MORE = max(1, int(os.environ.get("RANKBIND_FUZZ", "200")) // 200)
LOOSE = settings(max_examples=60 * MORE, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@LOOSE
@given(name=st.sampled_from(NAMES), text=st.text(max_size=200))
@example(name="compose.yaml", text="\ufeffservices: {a: {command: b}}")
@example(name="a.sh", text="\ud800")
@example(name="pod.json", text='{"kind": "Pod", "spec": {"containers": [{"name": "\\ud800", "args": ["\\ud800"]}]}}')
def test_any_text(name: str, text: str) -> None:
    look(name, text)


@LOOSE
@given(parts=st.lists(st.sampled_from(SHELL), max_size=40), glue=st.sampled_from(["", " ", "\n"]))
def test_shell_of_its_own_words(parts: list[str], glue: str) -> None:
    look("a.sbatch", "#SBATCH -N 2\n" + glue.join(parts))


@LOOSE
@given(parts=st.lists(st.sampled_from(YAML), max_size=40), glue=st.sampled_from(["", " ", "\n"]))
def test_yaml_of_its_own_words(parts: list[str], glue: str) -> None:
    look("a.yaml", "services:\n  a:\n    command: b\n    x: " + glue.join(parts))
    look("a.yaml", "kind: Pod\nspec:\n" + glue.join(parts))


@LOOSE
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [part.strip(":") for part in YAML if part.endswith(":")] + ["network_mode", "env_file", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=25,
    ),
    kind=st.sampled_from(
        ["Pod", "Deployment", "StatefulSet", "JobSet", "LeaderWorkerSet", "Job", "List", "CronJob", 1, None]
    ),
)
def test_shapes_that_nobody_meant(value: object, kind: object) -> None:
    look(
        "a.json", json.dumps({"services": {"a": value, "b": {"command": value, "ports": value, "environment": value}}})
    )
    template = {
        "spec": value,
        "template": {"spec": {"containers": value}},
        "containers": [value, {"args": value, "env": value}],
    }
    look("a.json", json.dumps({"kind": kind, "metadata": value, "items": value, "spec": template}))
    look("a.json", json.dumps({"kind": kind, "apiVersion": "v1", "spec": value}))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_samples_that_were_spoiled(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    random = Random(path.name)
    for _ in range(8 * MORE):
        first = random.randrange(len(text))
        kind = random.randrange(3)
        if kind == 0:
            spoiled = text[:first] + text[first + random.randrange(1, 30) :]
        elif kind == 1:
            spoiled = text[:first] + random.choice(SHELL + YAML) + text[first:]
        else:
            spoiled = text[:first]
        look(path.name, spoiled)


LONG = {
    "laughs.yaml": "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 60)) + "services:\n  s: {<<: *a59, command: c}\n",
    "lists.yaml": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 60)) + "services:\n  s: {command: *a59}\n",
    "itself.yaml": "services: &s\n  <<: *s\n  a: &a\n    <<: *a\n    command: &c [*c]\n    environment: *a\n",
    "list-itself.yaml": "&l\nkind: List\nitems: [*l, *l, *l]\n",
    "services.yaml": "services:\n  a: {network_mode: 'service:b', command: x}\n  b: {network_mode: 'service:a', command: x}\n",
    "replicas.yaml": "services:\n  a: {command: x, scale: 999999999}\n",
    "pods.yaml": "kind: Deployment\nspec: {replicas: 999999999, template: {spec: {containers: [{name: a, args: [x]}]}}}\n",
    "groups.yaml": "kind: LeaderWorkerSet\nspec: {replicas: 99999999, leaderWorkerTemplate: {size: 99999999, workerTemplate: {spec: {hostNetwork: true, containers: [{name: a, args: [x]}]}}}}\n",
    "jobs.yaml": "kind: JobSet\nspec: {replicatedJobs: [{replicas: 99999999, template: {spec: {parallelism: 9999999, template: {spec: {containers: [{name: a, args: [x]}]}}}}}]}\n",
    "brackets.yaml": "services: " + "[" * 5000,
    "dashes.yaml": "services:\n" + "- " * 5000,
    "deep.yaml": "\n".join("  " * n + "a:" for n in range(1500)) + "\nservices: {}",
    "quotes.yaml": "services: {a: {command: \"" + "a\\\"" * 20000 + "\"}}",
    "huge.yaml": "# " + "x" * 2_000_000,
    "doubling.sh": "A=xxxxxxxx\n" + "A=$A$A$A$A\n" * 40 + "cmd $A\n",
    "many-words.sh": "A='a b c d e f g h'\n" + "A=\"$A $A $A $A\"\n" * 40 + "cmd $A\n",
    "arrays.sh": "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'cmd "${A[@]}"\n',
    "loops.sh": "".join(f"for a{n} in {{1..1000}}; do " for n in range(5)) + "cmd $a1; " + "done; " * 5,
    "ranges.sh": "for i in {1..99999999999}; do cmd $i; done; for i in $(seq 1 999999999); do cmd $i; done; cmd {1..4000}{1..4000}{1..4000}\n",
    "power.sh": "cmd $((9**9**9**9)) $((1<<99999999)) $((2**62*2**62)) $((99999999999999999999999999999999))\n",
    "for-ever.sh": "i=0; while [ $i -lt 999999999 ]; do i=$((i+1)); cmd $i; done; for ((;;)); do cmd; done; while :; do i=$((i+1)); done\n",
    "recursion.sh": "f() { g; f; }\ng() { f; cmd; }\nf\n",
    "fork.sh": ":(){ :|:& };:\n",
    "shells.sh": "bash -c " * 400 + "x\n",
    "parentheses.sh": "(" * 3000 + "cmd" + ")" * 3000 + "\n",
    "substitutions.sh": "cmd " + "$(echo " * 2000 + ")" * 2000 + "\n",
    "braces.sh": "cmd " + "{a," * 500 + "}" * 500 + " " + "${a:-" * 500 + "}" * 500 + "\n",
    "arithmetic.sh": "cmd $((" + "(" * 2000 + "1" + ")" * 2000 + "))\n",
    "tasks.sbatch": "#SBATCH -N 9999999\n#SBATCH -n 9999999\nsrun bash -c 'cmd $SLURM_PROCID'\nmpirun -np 9999999 cmd\n",
    "steps.sh": "for i in {1..20}; do srun -N 4000 -n 4000 cmd; done\n",
    "quotes.sh": "cmd '" + "a\n" * 20000,
    "backslashes.sh": "cmd " + "\\\n" * 20000 + "x",
    "pattern.sh": "A=" + "a" * 5000 + "\ncmd ${A##" + "*a" * 30 + "b} ${A%%" + "*a" * 30 + "b}\n[[ $A == " + "*a" * 30 + "b ]] && cmd\n",
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_what_would_take_for_ever(name: str) -> None:
    before = time.process_time()
    look(name, LONG[name])
    assert time.process_time() - before < 15
