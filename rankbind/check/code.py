"""RB402 and RB403: what ``singleton_per(...)`` says in code, against what the topology file says.

The code is parsed and never imported, so this needs neither the engine nor a GPU.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rankbind import python
from rankbind.check.ownership import spelled
from rankbind.config import Declaration
from rankbind.errors import ScopeError
from rankbind.finding import Finding, Label, Level, ranks_text
from rankbind.resource import Resource
from rankbind.scope import Gate, Scope
from rankbind.source import Span
from rankbind.topology import nearest

_WORD: Final = "singleton_per"
_MAX_STEPS = 16
_COMPUTED: Final = "computed"

_Owner: TypeAlias = Scope | Literal["by name", "computed"]


@dataclass(frozen=True, slots=True)
class Site:
    """One ``singleton_per(...)`` in code.

    Attributes:
        name: the resource it is about; None when it cannot be told.
        said: its scope; ``by name`` when it takes the file's; ``computed`` when only running the code would tell.
        certain: whether the code gives the name as that of a resource, not merely by what it decorates or ``name=``.
        span: the call.
    """

    name: str | None
    said: _Owner
    certain: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Code:
    """What was found in a file, folder or package.

    Attributes:
        sites: every ``singleton_per``.
        findings: RB901 for what cannot be read.
    """

    sites: tuple[Site, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What one ``singleton_per(...)`` says; the fields are those of `Site`."""

    name: str | None
    owner: _Owner
    certain: bool


def said(call: ast.Call, value: Callable[[ast.expr], Any], decorated: str | None = None) -> Said:
    """Read the arguments of a ``singleton_per(...)``.

    Args:
        value: what an expression is, tuples for lists as well; None where that cannot be told.
        decorated: what the call decorates: the name, where it gives none.
    """
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if call.args:
        name = value(call.args[0])
        return Said(name if isinstance(name, str) else None, "by name", certain=True)
    named = value(given["name"]) if "name" in given else None
    name = named if isinstance(named, str) else decorated
    if "group" not in given or None in given:
        return Said(name, _COMPUTED, certain=False)
    group, rank = value(given["group"]), value(given["rank"]) if "rank" in given else 0
    names = (group,) if isinstance(group, str) else group
    if not isinstance(names, tuple) or not all(isinstance(axis, str) for axis in names) or rank is None:
        return Said(name, _COMPUTED, certain=False)
    try:
        return Said(name, Scope(names, rank), certain=False)
    except ScopeError:
        return Said(name, _COMPUTED, certain=False)


def run(declaration: Declaration, target: str) -> tuple[Finding, ...]:
    """Every disagreement between the file and the code at `target`: a .py file, a folder, or the name of a package."""
    return compare(declaration, read(target))[0]


def compare(declaration: Declaration, code: Code) -> tuple[tuple[Finding, ...], int]:
    """The findings, and how many sites were compared with a resource of the file."""
    resources = {resource.name: resource for resource in declaration.job.resources}
    by_symbol = {_symbol(name): name for name in resources}
    findings = list(code.findings)
    compared = 0
    for site in code.sites:
        if site.name is None:
            continue
        name = site.name if site.name in resources or site.certain else by_symbol.get(_symbol(site.name))
        if name is None:
            continue
        if name not in resources:
            findings.append(_unknown(site, name, declaration))
            continue
        compared += site.said != _COMPUTED
        if site.said != "by name":
            findings.extend(_compare(declaration, resources[name], site))
    return tuple(findings), compared


def read(target: str) -> Code:
    """Find every ``singleton_per`` at `target`. What cannot be read is a finding, never an error."""
    path = Path(target)
    if not path.exists():
        found = python.locate(target)
        if found is None:
            what = "no such file or folder" if os.sep in target or target.endswith(".py") else "no such file or package"
            return Code(findings=(_unreadable(target, f"cannot read the code at {target}: {what}"),))
        path = found
    files = [path]
    if path.is_dir():
        files = list(python.files(path))
        if not files:
            return Code(findings=(_unreadable(python.shown(path), f"there is no Python file in {python.shown(path)}"),))
    sites: list[Site] = []
    findings: list[Finding] = []
    for file in files:
        try:
            sites += _sites(file, needed=file is path)
        except _UnreadableError as error:
            findings.append(error.finding)
    return Code(tuple(sites), tuple(findings))


class _UnreadableError(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _unreadable(file: str, message: str, line: int = 1, column: int = 1) -> Finding:
    return Finding("RB901", message, labels=(Label(Span(file, max(line, 1), max(column, 1))),))


def _sites(path: Path, *, needed: bool) -> Iterator[Site]:
    """The sites of one file; a file of a folder that does not even hold the word need not be Python."""
    file = python.shown(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _UnreadableError(_unreadable(file, f"cannot read {file}: {error.strerror or error}")) from None
    if not needed and _WORD.encode() not in raw:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(raw, filename=file)
    except SyntaxError as error:
        message = f"not Python: {error.msg}"
        raise _UnreadableError(_unreadable(file, message, error.lineno or 1, error.offset or 1)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _UnreadableError(_unreadable(file, f"not Python: {error or 'nested too deeply'}")) from None
    lines = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    yield from _Module(file, tree, lines).sites()


class _Module:
    """One parsed file, and what its top-level names stand for."""

    def __init__(self, file: str, tree: ast.Module, lines: list[bytes]) -> None:
        self.file, self.tree, self.lines = file, tree, lines
        self.words = {_WORD}
        self.constants: dict[str, ast.expr] = {}
        assigned: dict[str, int] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.words.update(alias.asname for alias in node.names if alias.name == _WORD and alias.asname)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assigned[node.id] = assigned.get(node.id, 0) + 1
        for statement in tree.body:
            for name, value in _assignments(statement):
                if assigned[name] == 1:
                    self.constants[name] = value

    def sites(self) -> Iterator[Site]:
        names: dict[ast.AST, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.update(dict.fromkeys(node.decorator_list, node.name))
            elif isinstance(node, ast.stmt):
                names.update({value: name for name, value in _assignments(node)})
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and self._is_ours(node.func)]
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            yield self._site(call, names.get(call))

    def _is_ours(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            return function.attr == _WORD
        return isinstance(function, ast.Name) and function.id in self.words

    def _site(self, call: ast.Call, decorated: str | None) -> Site:
        found = said(call, self._value, decorated)
        return Site(found.name, found.owner, found.certain, self._span(call))

    def _value(self, node: ast.expr, steps: int = 0) -> Any:
        """What an expression is, as far as the file itself tells: literals and the file's constants; None otherwise."""
        if steps > _MAX_STEPS:
            return None
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._value(self.constants[node.id], steps + 1) if node.id in self.constants else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, steps + 1)
            return -value if type(value) is int else None
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self._value(element, steps + 1) for element in node.elts)
        return None

    def _span(self, node: ast.expr) -> Span:
        line = self.lines[node.lineno - 1]
        stop = node.end_col_offset if node.end_lineno == node.lineno else None
        start = len(line[: node.col_offset].decode(errors="replace"))
        length = len(line[node.col_offset : stop].decode(errors="replace").rstrip())
        return Span(self.file, node.lineno, start + 1, max(length, 1))


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        yield statement.targets[0].id, statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value


def _symbol(name: str) -> str:
    """A resource's name as an identifier would have it: ``kv-events`` is ``kv_events``."""
    return name.replace("-", "_").replace(".", "_").lower()


def _unknown(site: Site, name: str, declaration: Declaration) -> Finding:
    known = [resource.name for resource in declaration.job.resources]
    near = nearest(name, known)
    file = declaration.document.file
    return Finding(
        "RB403",
        f"the code names resource {name!r}, which {file} does not declare",
        labels=(
            Label(site.span, "named here"),
            *((Label(declaration.document.key("resources", near), "a resource of nearly this name"),) if near else ()),
        ),
        facts={"resource": name, "known": known},
        fix=f"did you mean {near}?"
        if near
        else f"declare [resources.{name}]; declared are {', '.join(known) or 'none'}",
    )


def _compare(declaration: Declaration, resource: Resource, site: Site) -> Iterator[Finding]:
    key = "owner" if isinstance(resource.owner, Gate) else "singleton_per"
    there = Label(declaration.document.value("resources", resource.name, key), "declared here")
    if not isinstance(site.said, Scope):
        yield Finding(
            "RB402",
            f"{resource.name}: the code computes its group or rank, so it was not compared with the file",
            Level.NOTE,
            labels=(Label(site.span, "known only when this runs"), there),
            facts={"resource": resource.name, "compared": False},
            fix=f'@singleton_per("{resource.name}") takes the owner from the file',
        )
        return
    code, file = _owners(declaration, site.said), _owners(declaration, resource.owner)
    # A gate is no scope, however it is written: what counts is whom it lets through.
    if site.said == resource.owner or (isinstance(resource.owner, Gate) and code == file):
        return
    names = ", ".join(f'"{axis}"' for axis in site.said.group)
    group = names if len(site.said.group) == 1 else f"({names})"
    details: tuple[str, ...] = ()
    if code is not None and file is not None:
        details = (
            f"owned by {_told(code)} as the code has it, by {_told(file)} as the file has it"
            if code != file
            else f"the owners are the same today, {_told(code)}: they part when another axis grows",
        )
    yield Finding(
        "RB402",
        f"{resource.name}: the code says {site.said}, the file says {_said(resource.owner)}",
        labels=(Label(site.span, f"the code says group={group}, rank={site.said.rank!r}"), there),
        facts={
            "resource": resource.name,
            "compared": True,
            "code": {"group": list(site.said.group), "rank": site.said.rank},
            "file": _facts(resource.owner),
            "code_owners": None if code is None else list(code),
            "file_owners": None if file is None else list(file),
        },
        details=details,
        fix=f'@singleton_per("{resource.name}") takes the owner from the file\n'
        f"or, if the code is right, write in the file: {spelled(site.said)}",
    )


def _owners(declaration: Declaration, owner: Scope | Gate) -> tuple[int, ...] | None:
    try:
        return owner.owners(declaration.job.topology)
    except ScopeError:
        return None


def _told(owners: tuple[int, ...]) -> str:
    return ranks_text(owners) if owners else "nobody"


def _said(owner: Scope | Gate) -> str:
    return str(owner) if isinstance(owner, Scope) else f"the gate {owner}"


def _facts(owner: Scope | Gate) -> Mapping[str, Any]:
    if isinstance(owner, Scope):
        return {"group": list(owner.group), "rank": owner.rank}
    return {"gate": {name: list(values) for name, values in owner.terms.items()}}
