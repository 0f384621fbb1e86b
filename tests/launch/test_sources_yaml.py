"""Compose files and manifests: what they start, where, and with which variables."""

# ruff: noqa: E501, ISC004
from __future__ import annotations

from pathlib import Path

import pytest

from rankbind.finding import Level
from rankbind.launch import sources
from rankbind.launch.command import Command


def commands(text: str, file: str = "a.yaml") -> tuple[Command, ...]:
    return sources.commands(file, text).commands


def service(text: str) -> Command:
    (found,) = commands("services: {s: {" + text + "}}")
    return found


def environment(command: Command) -> dict[str, str]:
    return {name: ("" if word.certain else "?") + word.text for name, word in command.environment.items()}


def texts(command: Command) -> list[str]:
    return [("" if word.certain else "?") + word.text for word in command.words]


KINDS = {
    ("a.toml", ""): "topology",
    ("a.yaml", "axes: {dp: 2}"): "topology",
    ("a.json", '{"axes": {"dp": 2}}'): "topology",
    ("a.yaml", "services: {a: {image: b}}"): "compose",
    ("a.yml", "x: 1"): None,
    ("a.yaml", "kind: Pod\napiVersion: v1"): "kubernetes",
    ("a.yaml", "# nothing\n---\nkind: Pod\napiVersion: v1"): "kubernetes",
    ("a.yaml", "services: ["): None,
    ("a.sh", "x"): "shell",
    ("a", "#!/bin/sh\n"): "shell",
    ("a", "#!/usr/bin/env bash\n"): "shell",
    ("a", "#!/usr/bin/python3\n"): None,
    ("a.job", "#!/bin/bash\n#SBATCH -N 2\n"): "shell",
    ("a.txt", ""): None,
    ("a.sh", "axes = 1"): "shell",
    # Standard input, and names that say nothing: the text tells.
    ("<stdin>", "apiVersion: v1\nkind: Pod"): "kubernetes",
    ("<stdin>", "# rendered\n---\nkind: Pod\napiVersion: v1"): "kubernetes",
    ("/dev/fd/63", "services: {a: {image: b}}"): "compose",
    ("<stdin>", "version: '3'\nservices: [\n"): "compose",
    ("<stdin>", "apiVersion: v1\nkind: Pod\nspec: [\n"): "kubernetes",
    ("<stdin>", '{"kind": "Pod", "apiVersion": "v1"}'): "kubernetes",
    ("<stdin>", "axes: {dp: 2}"): "topology",
    ("<stdin>", "[axes]\ndp = 2\n"): "topology",
    ("noext", "axes = { dp = 2 }\n"): "topology",
    ("<stdin>", "vllm serve m --port 8000"): "shell",
    ("<stdin>", "\n# two\nexport A=1\nvllm serve m \\\n  --port $A &\nwait\n"): "shell",
    ("noext", "A=1\n[ -n $A ] && x\n[[ -n $A ]] && x\n"): "shell",
    ("serve.sh.j2", "x a"): "shell",
    ("<stdin>", "cat > a.toml <<E\n[axes]\ndp = 2\nE\nx\n"): "shell",
    ("<stdin>", "kubectl apply -f - <<E\napiVersion: v1\nkind: Pod\nE\nx\n"): "shell",
    ("<stdin>", "python3 -c '\na = 1\n'\nx\n"): "shell",
    ("<stdin>", "A=(\n[0]=a\n)\nx\n"): "shell",
    ("<stdin>", "{ x; }\n"): "shell",
    ("<stdin>", "[axes\ndp = 2\n"): None,
    ("<stdin>", "axes = { dp = \n"): None,
    ("<stdin>", "[axes]\ndp = x\n"): None,
    ("<stdin>", "[[resource]]\n"): None,
    ("<stdin>", "#!/usr/bin/python3\nx\n"): None,
    ("<stdin>", "x $(\n"): None,
    ("<stdin>", "[" * 3000): None,
    ("<stdin>", "a = " + "[" * 3000): None,
}


@pytest.mark.parametrize(("file", "text"), KINDS)
def test_what_a_file_is(file: str, text: str) -> None:
    assert sources.kind_of(file, text) == KINDS[file, text]


# Compose

COMMANDS = {
    "command: x 'a b' c\\ d": ["x", "a b", "c d"],
    "command: [x, 1, true]": ["x", "1", "true"],
    "command: 'x ${A:-1} $B ${C} ${D-} $$E $${F} ${G:+h} ${I:-${J:-2}}'": ["x", "1", "?$B", "?${C}", "$E", "${F}", "2"],
    "command: ['x', 'a${U}b', '${U:-c d}']": ["x", "?a${U}b", "c d"],
    "entrypoint: [x, -a], command: b c": ["x", "-a", "b", "c"],
    "entrypoint: x": ["x"],
    "command: ['', x]": ["", "x"],
    "command: sh -c 'x $$A $$((1 + 1))', environment: {A: b}": ["x", "b", "2"],
    "command: sh -c 'x $A', environment: {A: b}": ["x", "?$A"],
    "entrypoint: sh -c, command: ['exec x ${U:-a}']": ["x", "a"],
}


@pytest.mark.parametrize("text", COMMANDS)
def test_words_of_a_service(text: str) -> None:
    assert texts(service(text)) == COMMANDS[text]


def test_a_command_over_lines_goes_on_behind_a_backslash() -> None:
    (found,) = commands("services:\n  s:\n    command: |\n      x \\\n        --a 'b' \\\n        c\n")

    assert texts(found) == ["x", "--a", "b", "c"]
    assert [(word.span.line, word.span.column) for word in found.words] == [(4, 7), (5, 9), (5, 13), (6, 9)]


def test_an_image_has_an_entrypoint_unless_it_is_replaced() -> None:
    assert service("image: i").words == ()
    assert service("image: i").bare is not None
    assert service("image: i, command: x").bare is not None
    assert service("image: i, entrypoint: x").bare is None
    assert service("build: ., command: x").bare is not None
    assert service("image: i, command: env A=1 x").bare is None
    assert service("image: i, command: sh -c x").bare is None


def test_the_environment_of_a_service() -> None:
    assert environment(service("command: x, environment: {A: 1, B: '${U:-2}', C: $U, D: }")) == {
        "A": "1",
        "B": "2",
        "C": "?$U",
    }
    assert environment(service("command: x, environment: [A=1, B=, 'C=a=b', D]")) == {"A": "1", "B": "", "C": "a=b"}


def test_files_of_variables_are_read_where_they_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "compose.yaml"
    (tmp_path / "in" / "a.env").write_text("A=1\n# no\nexport B='x y' # no\nC=$A-2\nD=\n")
    (tmp_path / "in" / "b.env").write_text("D=4\n")
    (tmp_path / "in" / ".env").write_text("TAG=v2\n")
    (tmp_path / "out.env").write_text("E=1\n")
    file.write_text(
        "services: {s: {image: 'i:${TAG}', command: x, env_file: [a.env, b.env, ../out.env], environment: {A: 2, TAG: }}}"
    )
    found = sources.commands(str(file), file.read_text())

    assert environment(found.commands[0]) == {"A": "2", "B": "x y", "C": "1-2", "D": "4", "TAG": "v2"}
    assert found.commands[0].environment["B"].span.file == str(tmp_path / "in" / "a.env")
    assert found.commands[0].image == "i:v2"
    assert [finding.code for finding in found.findings] == ["RB609"]


def test_namespaces_of_services() -> None:
    found = commands(
        "services:\n"
        "  own: {command: x, ports: ['1:2'], scale: 2}\n"
        "  host: {command: x, network_mode: host, ports: ['1:2'], deploy: {replicas: 2}}\n"
        "  other: {command: x, network_mode: 'service:one'}\n"
        "  again: {command: x, network_mode: 'service:other'}\n"
        "  one: {command: x}\n"
        "  container: {command: x, network_mode: 'container:c'}\n"
    )

    assert [(command.name, command.host, len(command.published)) for command in found] == [
        ("own-1", "own-1", 1),
        ("own-2", "own-2", 1),
        ("host-1", None, 0),
        ("host-2", None, 0),
        ("other", "one", 0),
        ("again", "one", 0),
        ("one", "one", 0),
        ("container", "c", 0),
    ]


def test_merge_keys_come_after_what_a_mapping_says_itself_and_in_their_order() -> None:
    text = "x: &x {command: x 1, scale: 3}\ny: &y {command: x 2, image: i}\nservices: {s: {<<: [*y, *x], scale: 1}}"
    (found,) = commands(text)

    assert (texts(found), found.image, found.words[0].span.line) == (["x", "2"], "i", 2)


def test_a_service_that_extends_another_is_remarked() -> None:
    found = sources.commands("a.yaml", "services: {s: {extends: {service: t}, command: x}}")

    assert [(finding.code, finding.level) for finding in found.findings] == [("RB609", Level.NOTE)]


# Kubernetes


def pod(
    spec: str, container: str = "name: c, image: i, command: [x]", kind: str = "Pod", more: str = ""
) -> tuple[Command, ...]:
    inner = f"{{{spec}{', ' if spec else ''}containers: [{{{container}}}]}}"
    body = (
        inner
        if kind == "Pod"
        else f"{{{more}{', ' if more else ''}template: {{metadata: {{labels: {{a: b}}}}, spec: {inner}}}}}"
    )
    return commands(f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: p}}\nspec: {body}\n")


def test_arguments_alone_are_for_the_entrypoint_of_the_image() -> None:
    (found,) = pod("", "name: c, image: i, args: [a]")
    assert (texts(found), found.bare is not None) == (["a"], True)
    (found,) = pod("", "name: c, image: i, command: [x], args: [a]")
    assert (texts(found), found.bare) == (["x", "a"], None)
    (found,) = pod("", "name: c, image: i")
    assert (found.words, found.image) == ((), "i")


def test_references_to_variables() -> None:
    env = "[{name: A, value: 1}, {name: B, value: $(A)-$(A)}, {name: C, value: $(D)}, {name: D, value: $$(A)}, {name: E}, {name: F, valueFrom: {configMapKeyRef: {name: m, key: k}}}]"
    (found,) = pod(
        "", f"name: c, image: i, env: {env}, command: [x, $(B), $(C), $(D), $(Z), $$(A), a$(E)b, $(F), $(F)/a]"
    )

    assert texts(found)[1:] == ["1-1", "$(D)", "$(A)", "$(Z)", "$(A)", "ab", "?$(F)", "?$(F)/a"]


HOSTS = {
    ("Pod", "", ""): ["p"],
    ("Pod", "hostNetwork: true", ""): ["node"],
    ("Pod", "hostNetwork: true, nodeName: n", ""): ["n"],
    ("Pod", "hostNetwork: true, nodeSelector: {kubernetes.io/hostname: n}", ""): ["n"],
    (
        "Pod",
        "hostNetwork: true, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        "[{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n]}]}]}}}",
        "",
    ): ["n"],
    ("Deployment", "", "replicas: 2"): ["p-0", "p-1"],
    ("Deployment", "hostNetwork: true", "replicas: 2"): ["node", "node"],
    ("ReplicaSet", "hostNetwork: true, nodeName: n", "replicas: 2"): ["n", "n"],
    ("StatefulSet", "", "replicas: 2, ordinals: {start: 5}"): ["p-5", "p-6"],
    # Nodes of one job: none is on the node of another, unless somebody puts it there.
    ("StatefulSet", "hostNetwork: true", "replicas: 3"): ["node", "node-1", "node-2"],
    ("StatefulSet", "hostNetwork: true, nodeName: n", "replicas: 2"): ["n", "n"],
    ("StatefulSet", "hostNetwork: true, nodeSelector: {kubernetes.io/hostname: n}", "replicas: 2"): ["n", "n"],
    ("Job", "hostNetwork: true", "parallelism: 2, completions: 2, completionMode: Indexed"): ["node", "node-1"],
    ("Job", "hostNetwork: true", "parallelism: 2"): ["node", "node"],
    ("Deployment", "", "replicas: 0"): [],
    ("DaemonSet", "hostNetwork: true", ""): ["node"],
    (
        "Deployment",
        "hostNetwork: true, affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        "[{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: b}}}]}}",
        "replicas: 3",
    ): ["node", "node-1", "node-2"],
    (
        "Deployment",
        "hostNetwork: true, affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        "[{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: other}}}]}}",
        "replicas: 2",
    ): ["node", "node"],
    (
        "Deployment",
        "hostNetwork: true, affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: "
        "[{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: b}}}}]}}",
        "replicas: 2",
    ): ["node", "node"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "more"), HOSTS)
def test_where_pods_run(kind: str, spec: str, more: str) -> None:
    assert [command.host for command in pod(spec, kind=kind, more=more)] == HOSTS[kind, spec, more]


def of_the_host(kind: str, name: str, spec: str) -> str:
    return f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


TEMPLATE = "{spec: {hostNetwork: true, containers: [{name: c, command: [x]}]}}"
PORTS = TEMPLATE.replace("name: c", "name: c, ports: [{containerPort: 80}]")


@pytest.mark.parametrize(
    ("kind", "spec", "hosts"),
    [
        (
            "LeaderWorkerSet",
            f"{{leaderWorkerTemplate: {{size: 3, workerTemplate: {TEMPLATE}}}}}",
            ["node", "node-1", "node-2"],
        ),
        # Groups are to each other what replicas are.
        (
            "LeaderWorkerSet",
            f"{{replicas: 2, leaderWorkerTemplate: {{size: 2, leaderTemplate: {TEMPLATE}, workerTemplate: {TEMPLATE}}}}}",
            ["node", "node-1", "node", "node-1"],
        ),
        (
            "LeaderWorkerSet",
            f"{{replicas: 2, leaderWorkerTemplate: {{size: 2, workerTemplate: {PORTS}}}}}",
            ["node", "node-1", "node-2", "node-3"],
        ),
        (
            "JobSet",
            "{replicatedJobs: ["
            f"{{name: a, replicas: 2, template: {{spec: {{parallelism: 2, template: {TEMPLATE}}}}}}},"
            f"{{name: b, template: {{spec: {{template: {TEMPLATE}}}}}}}]}}",
            ["node", "node-1", "node-2", "node-3", "node-4"],
        ),
    ],
)
def test_nodes_of_one_job_are_hosts_of_their_own(kind: str, spec: str, hosts: list[str]) -> None:
    assert [command.host for command in commands(of_the_host(kind, "s", spec))] == hosts


def test_another_workload_may_come_to_the_nodes_of_a_job() -> None:
    text = of_the_host("StatefulSet", "s", f"{{replicas: 2, template: {TEMPLATE}}}")
    text += "---\n" + of_the_host("StatefulSet", "t", f"{{replicas: 3, template: {TEMPLATE}}}")

    assert [command.host for command in commands(text)] == ["node", "node-1", "node", "node-1", "node-2"]


@pytest.mark.parametrize("more", ["", ", nodeName: p-0", ", nodeSelector: {kubernetes.io/hostname: p-0}"])
def test_a_pod_of_the_hosts_network_has_the_name_of_its_node(more: str) -> None:
    script = "name: c, command: [sh, -c, 'x ${HOSTNAME##*-}']"

    assert [texts(command) for command in pod("", script, "StatefulSet")] == [["x", "0"]]
    assert [texts(command) for command in pod(f"hostNetwork: true{more}", script, "StatefulSet")] == [
        ["x", "?${HOSTNAME##*-}"]
    ]


def test_pods_that_declare_one_port_of_the_node_are_kept_apart() -> None:
    container = "name: c, image: i, command: [x], ports: [{containerPort: 80}]"
    assert [command.host for command in pod("hostNetwork: true", container, "Deployment", "replicas: 2")] == [
        "node",
        "node-1",
    ]

    container = "name: c, image: i, command: [x], ports: [{containerPort: 80, hostPort: 81}]"
    found = pod("", container, "Deployment", "replicas: 2")
    assert [command.host for command in found] == ["p-0", "p-1"]
    assert [[(port.port, port.target, port.host) for port in command.published] for command in found] == [
        [(81, 80, "node")],
        [(81, 80, "node-1")],
    ]


def test_pods_of_other_workloads_come_to_the_first_node_that_takes_them() -> None:
    text = "---\n".join(
        f"kind: Pod\napiVersion: v1\nmetadata: {{name: {name}}}\n"
        f"spec: {{hostNetwork: true, containers: [{{name: c, command: [x], ports: [{{containerPort: {port}}}]}}]}}\n"
        for name, port in (("a", 80), ("b", 80), ("c", 81))
    )

    assert [(command.name, command.host) for command in commands(text)] == [
        ("a", "node"),
        ("b", "node-1"),
        ("c", "node"),
    ]


def test_pods_of_one_name_are_two_namespaces() -> None:
    text = "---\n".join(
        f"kind: {kind}\napiVersion: v1\nmetadata: {{name: a}}\nspec: {{template: {{spec: {{containers: [{{name: c, command: [x]}}]}}}}}}\n"
        for kind in ("Deployment", "StatefulSet")
    )

    one, other = commands(text)
    assert one.host == "a-0"
    assert other.host not in (None, "a-0")


def test_containers_of_a_pod_share_its_namespace_and_those_that_end_are_left_out() -> None:
    text = (
        "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec:\n  initContainers:\n"
        "    - {name: first, command: [x, no]}\n    - {name: side, restartPolicy: Always, command: [x, side]}\n"
        "  containers:\n    - {name: main, command: [x, main]}\n"
    )

    assert [(command.name, command.host, command.texts) for command in commands(text)] == [
        ("p/side", "p", ("x", "side")),
        ("p/main", "p", ("x", "main")),
    ]


def test_what_a_pod_is_told_of_itself() -> None:
    fields = (
        "metadata.name",
        "metadata.namespace",
        "status.podIP",
        "spec.nodeName",
        "metadata.uid",
        "metadata.labels['a']",
        "metadata.labels['z']",
    )
    env = ", ".join(
        f'{{name: V{at}, valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}}}' for at, path in enumerate(fields)
    )

    def told(kind: str, spec: str = "") -> list[str]:
        (found,) = pod(spec, f"name: c, image: i, command: [x], env: [{env}]", kind)
        return [value for name, value in environment(found).items() if name.startswith("V")]

    assert told("StatefulSet") == [
        "p-0",
        "?default",
        "?p-0",
        "?spec.nodeName",
        "?metadata.uid",
        "b",
        "?metadata.labels['z']",
    ]
    assert told("Deployment", "hostNetwork: true, nodeName: n")[:4] == ["?p-0", "?default", "?n", "n"]


def test_copies_beyond_all_measure_are_cut_with_a_note() -> None:
    found = sources.commands(
        "a.yaml",
        "kind: Deployment\nspec: {replicas: 99999, template: {spec: {containers: [{name: a, args: [x], image: i}]}}}",
    )

    assert len(found.commands) == 4096
    assert [(finding.code, finding.level, finding.labels[0].span.line) for finding in found.findings] == [
        ("RB609", Level.NOTE, 2)
    ]


# What cannot be read


@pytest.mark.parametrize(
    ("file", "text", "line", "column"),
    [
        ("a.yaml", "kind: Pod\nspec: [\n", 3, 1),
        ("a.yaml", "services:\n  a: *nobody\n", 2, 6),
        ("a.yaml", 'services: {a: {command: "x \'y"}}', 1, 25),
        ("a.yaml", "services: {a: {command: {b: c}}}", 1, 25),
        ("a.yaml", "kind: Pod\napiVersion: v1\nspec: {containers: [{name: a, args: text}]}", 3, 37),
        ("a.yaml", "\tservices: a", 1, 1),
        ("a.json", '{"services": {"a": {"command": ["x"]}}', 1, 39),
        ("a.txt", "x $(", 1, 1),
        ("<stdin>", "services: [\n", 2, 1),
        ("a.yaml", "a: b", 1, 1),
    ],
)
def test_what_cannot_be_read_is_a_finding(file: str, text: str, line: int, column: int) -> None:
    found = sources.commands(file, text)

    assert [(finding.code, finding.level) for finding in found.findings] == [("RB901", Level.ERROR)]
    span = found.findings[0].labels[0].span
    assert (span.file, span.line, span.column) == (file, line, column)


HELM = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - name: c\n"


@pytest.mark.parametrize(
    ("file", "text", "line", "column"),
    [
        ("a.yaml", HELM + "      command: [x, --tp, {{ .Values.tp }}]\n", 7, 26),
        ("a.yaml", HELM + '      command: [x, --tp, "{{ .Values.tp }}"]\n', 7, 27),
        ("a.yaml", HELM + "      image: {{ image }}\n", 7, 14),
        ("a.yaml", "{{- if .Values.on }}\n" + HELM + "{{- end }}\n", 1, 1),
        ("<stdin>", "{{- if .Values.on }}\n" + HELM + "{{- end }}\n", 1, 1),
        ("pod.yaml.j2", "{% if on %}\n" + HELM + "{% endif %}\n", 1, 1),
        ("a.yml", "services:\n{% for i in a %}\n  s: {command: x}\n{% endfor %}\n", 2, 1),
        ("pod.j2", HELM + "      command: [x, '{{ tp }}']\n", 7, 21),
        ("serve.sh.j2", "x --tp {{ tp }}\n", 1, 8),
    ],
)
def test_a_template_is_to_be_rendered_first(file: str, text: str, line: int, column: int) -> None:
    found = sources.commands(file, text)

    assert sources.kind_of(file, text) in ("shell", "compose", "kubernetes")
    assert found.commands == ()
    (finding,) = found.findings
    assert (finding.code, finding.level) == ("RB901", Level.ERROR)
    assert "helm template" in finding.message
    span = finding.labels[0].span
    assert (span.line, span.column) == (line, column)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.yaml", "services: {s: {command: [x, '{{ messages }}']}}"),
        (
            "a.yaml",
            HELM + "      command:\n        - x\n        - |\n          {{ bos }}{% for m in a %}{% endfor %}\n",
        ),
        ("a.sh", "docker inspect --format '{{.State.Pid}}' c; x\n"),
        ("<stdin>", "docker inspect --format '{{.State.Pid}}' c; x\n"),
        ("<stdin>", "{ docker inspect --format '{{.State.Pid}}' c; x; }\n"),
    ],
)
def test_braces_that_are_no_template(file: str, text: str) -> None:
    found = sources.commands(file, text)

    assert found.findings == ()
    assert "x" in [command.texts[0] for command in found.commands]


def test_documents_before_the_one_that_is_wrong_are_read() -> None:
    found = sources.commands(
        "a.yaml", "kind: Pod\napiVersion: v1\nspec: {containers: [{name: c, command: [x]}]}\n---\na: [\n"
    )

    assert [command.texts for command in found.commands] == [("x",)]
    assert [finding.code for finding in found.findings] == ["RB901"]
