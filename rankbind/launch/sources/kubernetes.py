"""Kubernetes manifests: a command for each container of each pod that a workload makes.

A pod is a network namespace of its own, unless it takes that of its node (``hostNetwork``). Which node that is, is the
scheduler's choice where nobody says it: pods are put together wherever nothing keeps them apart. The nodes of one job
(a group of a LeaderWorkerSet, a StatefulSet, a JobSet, an indexed Job) are kept apart by what they ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from rankbind.launch.command import Publication
from rankbind.launch.sources.found import Found, Place, Shared
from rankbind.launch.sources.nodes import Tree, walk
from rankbind.launch.sources.placed import LONGEST, Text, joined
from rankbind.launch.sources.starters import contained

MOST_PODS = 4096
NODE = "node"
"""The node that pods of the host's network run on, where nobody says which."""

_HOSTNAME = "kubernetes.io/hostname"
_REFERENCE = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_.-][\w.-]*)\)")
_LABEL = re.compile(r"metadata\.(?:labels|annotations)\['(?P<key>[^']+)'\]\Z")
_DEEPEST_LIST = 4


def read(trees: Sequence[Tree], found: Found) -> None:
    """The commands of the documents of a manifest."""
    cluster = _Cluster()
    for tree in trees:
        _Manifest(tree, found, cluster).object(tree.root, 0)


@dataclass(frozen=True, slots=True)
class _Pod:
    """One pod of a workload.

    Attributes:
        workload: what made it, for telling workloads apart.
        name: as it will be called; `named`: whether that is what it will be called.
        template: the node that holds ``metadata`` and ``spec``.
        index: of the pod in its job; None where the pods have none.
        known: variables that its controller sets.
        labels: labels that its controller sets.
        alone: no other pod of its workload is on its node.
        job: the job that it is one of the nodes of, no two of which are on one node; None: of none.
    """

    workload: str
    name: str
    named: bool
    template: Any
    index: int | None = None
    known: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    job: str | None = None


@dataclass(slots=True)
class _Node:
    """A node that somebody may have been put on."""

    ports: set[int] = field(default_factory=set)
    labels: list[dict[str, str]] = field(default_factory=list)
    terms: list[_Term] = field(default_factory=list)
    workloads: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Term:
    """An anti-affinity: no pod with all these labels on the same node."""

    labels: Mapping[str, frozenset[str]]

    def keeps_from(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) in values for key, values in self.labels.items())


@dataclass(slots=True)
class _Cluster:
    """What has been placed so far, over all documents of a file."""

    nodes: list[_Node] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    first: dict[tuple[str, int, int | None], int] = field(default_factory=dict)
    pods: int = 0


class _Manifest:
    def __init__(self, tree: Tree, found: Found, cluster: _Cluster) -> None:
        self.tree, self.found, self.cluster = tree, found, cluster
        self.shared = Shared(found)
        self.texts: dict[int, Text | None] = {}

    def object(self, node: Any, depth: int) -> None:
        """One object, or a list of them."""
        kind = self.tree.string(node, "kind") or ""
        if kind.endswith("List") and depth < _DEEPEST_LIST:
            for item in self.tree.items(self.tree.get(node, "items")):
                self.object(item, depth + 1)
            return
        if not isinstance(node, yaml.MappingNode):
            return
        for pod in self.pods(kind, node):
            self.cluster.pods += 1
            if self.cluster.pods > MOST_PODS:
                at = self.tree.get(node, "spec")
                self.found.note(
                    f"more pods than rankbind writes out: the first {MOST_PODS} are looked at",
                    self.tree.span(node if at is None else self.tree.entries(node)["spec"][0]),
                )
                return
            self.pod(pod)

    # From workloads to pods

    def pods(self, kind: str, node: Any) -> Iterator[_Pod]:
        tree = self.tree
        name = tree.string(node, "metadata", "name") or tree.string(node, "metadata", "generateName") or kind.lower()
        name = name.rstrip("-")
        workload = f"{kind}/{tree.string(node, 'metadata', 'namespace') or ''}/{name}"
        spec = tree.get(node, "spec")
        if kind == "Pod":
            yield _Pod(workload, name, True, node)
        elif kind == "CronJob":
            yield from self.job(workload, name, tree.get(spec, "jobTemplate", "spec"))
        elif kind == "Job":
            yield from self.job(workload, name, spec)
        elif kind == "JobSet":
            for replicated in tree.items(tree.get(spec, "replicatedJobs")):
                role = tree.string(replicated, "name") or "job"
                for index in range(self.count(replicated, "replicas")):
                    known = {"JOBSET_NAME": name, "REPLICATED_JOB_NAME": role, "JOB_INDEX": str(index)}
                    labels = {f"jobset.sigs.k8s.io/{label}": value for label, value in (
                        ("jobset-name", name), ("replicatedjob-name", role), ("job-index", str(index)),
                    )}  # fmt: skip
                    job = f"{name}-{role}-{index}"
                    yield from self.job(
                        f"{workload}/{role}", job, tree.get(replicated, "template", "spec"), known, labels, workload
                    )
        elif kind == "LeaderWorkerSet":
            yield from self.groups(workload, name, node, spec)
        elif tree.get(spec, "template", "spec", "containers") is not None:
            template = tree.get(spec, "template")
            ordered = kind == "StatefulSet"
            first = tree.number(spec, "ordinals", "start") or 0 if ordered else 0
            for index in range(1 if kind == "DaemonSet" else self.count(spec, "replicas")):
                own = f"{name}-{first + index}"
                labels = {"apps.kubernetes.io/pod-index": str(first + index), "statefulset.kubernetes.io/pod-name": own}
                yield _Pod(
                    workload, own, ordered, template, first + index if ordered else None, {}, labels if ordered else {},
                    kind == "DaemonSet", workload if ordered else None,
                )  # fmt: skip

    def count(self, node: Any, key: str) -> int:
        value = self.tree.number(node, key)
        # One more than is looked at, so that it is noticed.
        return 1 if value is None else min(value, MOST_PODS + 1)

    def job(
        self,
        workload: str,
        name: str,
        spec: Any,
        known: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        whole: str | None = None,
    ) -> Iterator[_Pod]:
        """A Job; `whole`: what it is a part of."""
        template = self.tree.get(spec, "template")
        indexed = self.tree.string(spec, "completionMode") == "Indexed" or known is not None
        count = min(
            self.count(spec, "parallelism"), max(self.count(spec, "completions"), self.count(spec, "parallelism"))
        )
        for index in range(count):
            own = {"JOB_COMPLETION_INDEX": str(index)} if indexed else {}
            own_labels = {"batch.kubernetes.io/job-completion-index": str(index)} if indexed else {}
            yield _Pod(
                workload, f"{name}-{index}", indexed, template, index if indexed else None,
                {**(known or {}), **own}, {**(labels or {}), **own_labels},
                False, whole or (workload if indexed else None),
            )  # fmt: skip

    def groups(self, workload: str, name: str, node: Any, spec: Any) -> Iterator[_Pod]:
        """A LeaderWorkerSet."""
        tree = self.tree
        inner = tree.get(spec, "leaderWorkerTemplate")
        worker = tree.get(inner, "workerTemplate")
        leader = tree.get(inner, "leaderTemplate") or worker
        size = self.count(inner, "size")
        namespace = tree.string(node, "metadata", "namespace") or "default"
        for group in range(self.count(spec, "replicas")):
            for index in range(size):
                known = {
                    "LWS_LEADER_ADDRESS": f"{name}-{group}.{name}.{namespace}",
                    "LWS_GROUP_SIZE": str(size),
                    "LWS_WORKER_INDEX": str(index),
                }
                prefix = "leaderworkerset.sigs.k8s.io"
                labels = {
                    f"{prefix}/name": name,
                    f"{prefix}/group-index": str(group),
                    f"{prefix}/worker-index": str(index),
                }
                own = f"{name}-{group}" if index == 0 else f"{name}-{group}-{index}"
                yield _Pod(
                    workload,
                    own,
                    True,
                    leader if index == 0 else worker,
                    index,
                    known,
                    labels,
                    job=f"{workload}/{group}",
                )

    # From pods to commands

    def pod(self, pod: _Pod) -> None:
        tree = self.tree
        spec = tree.get(pod.template, "spec")
        containers = [
            *(
                item
                for item in tree.items(tree.get(spec, "initContainers"))
                if tree.string(item, "restartPolicy") == "Always"
            ),
            *tree.items(tree.get(spec, "containers")),
        ]
        labels = {
            key.text: tree.string(value) or ""
            for key, value in walk(tree, tree.get(pod.template, "metadata", "labels"))
        }
        labels |= pod.labels
        of_host = tree.true(spec, "hostNetwork")
        ports = [
            (
                port,
                tree.number(entry, "containerPort") or port,
                tree.get(entry, "hostPort") or tree.get(entry, "containerPort"),
                tree.string(entry, "hostIP") or "",
            )
            for container in containers
            for entry in tree.items(tree.get(container, "ports"))
            if (tree.string(entry, "protocol") or "TCP").upper() == "TCP"
            and (port := tree.number(entry, "hostPort") or (tree.number(entry, "containerPort") if of_host else None))
            and port < 65536
        ]
        node = self.node(pod, spec, labels, {port for port, *_ in ports}) if of_host or ports else None
        host = node if of_host else self.named(pod)
        published = [Publication(address, port, target, node, tree.span(at)) for port, target, at, address in ports]
        for container in containers:
            self.found.step()
            self.container(
                pod, spec, container, host, node, labels, () if of_host else tuple(published), len(containers) > 1
            )

    def named(self, pod: _Pod) -> str:
        """The name of a pod's own namespace; that of another workload's pod is another."""
        owner = self.cluster.names.setdefault(pod.name, pod.workload)
        return pod.name if owner == pod.workload else f"{pod.workload.replace('//', '/')}:{pod.name}"

    def node(self, pod: _Pod, spec: Any, labels: dict[str, str], ports: set[int]) -> str:
        """The node that a pod runs on: the one it names, or the first on which it may be."""
        named = (
            self.tree.string(spec, "nodeName")
            or self.tree.string(spec, "nodeSelector", _HOSTNAME)
            or self.required(spec)
        )
        if named:
            return named
        terms = [*self.terms(spec, labels)]
        spread = any(
            self.tree.string(entry, "topologyKey") == _HOSTNAME
            and self.tree.string(entry, "whenUnsatisfiable") != "ScheduleAnyway"
            for entry in self.tree.items(self.tree.get(spec, "topologySpreadConstraints"))
        )
        nodes = self.cluster.nodes
        # Where one pod of a kind could not go, the next one cannot either: one of its job, or its like in another.
        first, template = self.cluster.first, id(pod.template)
        alike = (pod.job or pod.workload, template, None), (pod.workload, template, pod.index)
        for at in range(max(first.get(kind, 0) for kind in alike), len(nodes) + 1):
            if at == len(nodes):
                nodes.append(_Node())
            there = nodes[at]
            apart = (
                bool(there.ports & ports)
                or pod.job in there.jobs
                or (pod.workload in there.workloads and (spread or pod.alone))
            )
            apart |= any(term.keeps_from(others) for term in terms for others in there.labels)
            apart |= any(term.keeps_from(labels) for term in there.terms)
            if not apart:
                break
        there.ports |= ports
        there.labels.append(labels)
        there.terms += terms
        first |= dict.fromkeys(alike, at)
        there.workloads.add(pod.workload)
        if pod.job is not None:
            there.jobs.add(pod.job)
        return NODE if at == 0 else f"{NODE}-{at}"

    def required(self, spec: Any) -> str | None:
        """The one node that an affinity leaves."""
        tree = self.tree
        path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        selectors = tree.items(tree.get(spec, *path))
        for expression in tree.items(tree.get(selectors[0], "matchExpressions")) if len(selectors) == 1 else ():
            values = tree.items(tree.get(expression, "values"))
            if (
                tree.string(expression, "key") == _HOSTNAME
                and tree.string(expression, "operator") == "In"
                and len(values) == 1
            ):
                return tree.string(values[0])
        return None

    def terms(self, spec: Any, labels: Mapping[str, str]) -> Iterator[_Term]:
        """What a pod requires not to be on its node."""
        tree = self.tree
        path = ("affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        for term in tree.items(tree.get(spec, *path)):
            if tree.string(term, "topologyKey") != _HOSTNAME:
                continue
            selector = tree.get(term, "labelSelector")
            wanted = {
                key.text: frozenset({tree.string(value) or ""})
                for key, value in walk(tree, tree.get(selector, "matchLabels"))
            }
            for expression in tree.items(tree.get(selector, "matchExpressions")):
                key, operator = tree.string(expression, "key") or "", tree.string(expression, "operator")
                values = frozenset(tree.string(value) or "" for value in tree.items(tree.get(expression, "values")))
                if operator == "In":
                    wanted[key] = values
                elif operator == "Exists":
                    wanted[key] = frozenset({labels.get(key, "")})
            if wanted:
                yield _Term(wanted)

    def container(
        self,
        pod: _Pod,
        spec: Any,
        container: Any,
        host: str | None,
        node: str | None,
        labels: Mapping[str, str],
        published: tuple[Publication, ...],
        several: bool,
    ) -> None:
        tree = self.tree
        at = self.text(tree.get(container, "name")) or self.text(tree.get(container, "image"))
        if at is None:
            return
        environment: dict[str, Text] = {}
        of_host = tree.true(spec, "hostNetwork")
        environment["HOSTNAME"] = at.saying(host or NODE, sure=pod.named and not of_host and host == pod.name)
        environment |= {name: at.saying(value) for name, value in pod.known.items()}
        for entry in tree.items(tree.get(container, "env")):
            name = tree.string(entry, "name")
            value = tree.get(entry, "value")
            if name is None:
                continue
            if (source := tree.get(entry, "valueFrom")) is not None:
                environment[name] = self.referred(pod, spec, source, host, node, labels)
            else:
                text = self.text(value)
                environment[name] = self.expanded(text, environment) if text else at.saying("")
        command, arguments = self.words(container, "command", environment), self.words(container, "args", environment)
        image = self.text(tree.get(container, "image"))
        place = Place(
            host=host,
            node=pod.index,
            image=image.text if image else None,
            name=f"{pod.name}/{tree.string(container, 'name') or 'container'}" if several else pod.name,
            bare=image.span if image and not command else None,
            published=published,
        )
        contained(self.shared, [*command, *arguments], environment, place, 0)

    def text(self, node: Any) -> Text | None:
        if node is None:
            return None
        if id(node) not in self.texts:
            self.texts[id(node)] = self.tree.text(node)
        return self.texts[id(node)]

    def words(self, container: Any, key: str, environment: Mapping[str, Text]) -> list[Text]:
        node = self.tree.get(container, key)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.found.unreadable(f"{key} should be a list", self.tree.span(node))
            return []
        texts = [self.text(item) for item in self.tree.items(node)]
        return [self.expanded(text, environment) for text in texts if text is not None]

    @staticmethod
    def expanded(text: Text, environment: Mapping[str, Text]) -> Text:
        """``$(NAME)`` of what is set; the rest stays as it is."""
        if "$" not in text.text or len(text.text) > LONGEST:
            return text
        parts: list[Text] = []
        run = 0
        unknown = 0
        for found in _REFERENCE.finditer(text.text):
            name = found["name"]
            if name is not None and name not in environment:
                continue
            if run < found.start():
                parts.append(text.part(run, found.start()))
            if name is None:
                parts.append(text.part(found.start(), found.start() + 1))
            else:
                written, value = text.part(*found.span()), environment[name]
                unknown += value.opaque
                parts.append(written.unknown() if value.opaque else value.moved(written))
            run = found.end()
        if not run:
            return text
        if run < len(text.text):
            parts.append(text.part(run, len(text.text)))
        return replace(joined(parts, text), opaque=len(parts) == unknown == 1)

    def referred(
        self, pod: _Pod, spec: Any, source: Any, host: str | None, node: str | None, labels: Mapping[str, str]
    ) -> Text:
        """The value of a variable that is taken from somewhere."""
        tree = self.tree
        field_node = tree.get(source, "fieldRef", "fieldPath")
        at = self.text(field_node)
        if at is None:
            span = tree.span(source)
            first = source.start_mark.index
            written = tree.document.line(span.line)[span.column - 1 :]
            return Text(
                tree.document, written, [first] * len(written), [first + 1] * len(written), first, source.end_mark.index
            ).unknown()
        label = _LABEL.match(at.text)
        if label:
            value = labels.get(label["key"])
            return at.unknown() if value is None else at.saying(value)
        if at.text == "metadata.name":
            return at.saying(pod.name, sure=pod.named)
        if at.text == "metadata.namespace":
            namespace = tree.string(tree.root, "metadata", "namespace")
            return at.saying(namespace or "default", sure=namespace is not None)
        if at.text == "spec.nodeName":
            named = tree.string(spec, "nodeName")
            return at.saying(named) if named else at.unknown() if node is None else at.saying(node, sure=False)
        if at.text in ("status.podIP", "status.hostIP", "status.podIPs", "status.hostIPs"):
            # The name of what has the address stands for it.
            where = host if "pod" in at.text else node
            return at.unknown() if where is None else at.saying(where, sure=False)
        return at.unknown()
