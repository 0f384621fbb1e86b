"""The program that is audited: its modules, parsed when something in them is asked for, and what names refer to."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rankbind.audit.sources import Source
from rankbind.audit.walk import Walk, tail, walk

_WORDS: Final = bytes(c if chr(c).isalnum() or chr(c) == "_" or c > 127 else 32 for c in range(256))
_LINE: Final = re.compile(rb"\r\n|\r|\n")
_STORED: Final = re.compile(rb"\bself\.(\w+)(?=,|[^=\n(]*=(?!=))")
_OF_INTEREST: Final = (
    b"rank",
    b"parallel_index",
    b"process_index",
    b"bind(",
    b"tcp://",
    b"ipc://",
    b"tempfile",
    b"uuid",
)
_SMALL: Final = 4 << 20
_MOST_STEPS: Final = 6
"""Re-exports that are followed from one module to the next."""


@dataclass(slots=True, eq=False)
class Function:
    """A function, a method, or the statements of a module itself.

    Attributes:
        owner: the class that it is a method of.
        parent: the function that it is defined in.
    """

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    name: str
    owner: Class | None = None
    parent: Function | None = None
    _walk: Walk | None = None

    @property
    def key(self) -> str:
        """Names it among all functions of the program."""
        return f"{self.module.source.name}:{getattr(self.node, 'lineno', 0)}"

    @property
    def qualified(self) -> str:
        """``Class.method``, ``function``, ``outer.inner``; ``<module>`` for the statements of a module."""
        outer = self.parent.qualified if self.parent and self.parent.name != "<module>" else ""
        before = outer or (self.owner.name if self.owner else "")
        return f"{before}.{self.name}" if before else self.name

    @property
    def text(self) -> bytes:
        """Its source, decorators left out."""
        if isinstance(self.node, ast.Module):
            return self.module.source.data
        return self.module.lines(self.node.lineno, self.node.end_lineno or self.node.lineno)

    @property
    def walk(self) -> Walk:
        """What it does."""
        if self._walk is None:
            self._walk = walk(self.node.body)
        return self._walk

    @property
    def decorators(self) -> tuple[str, ...]:
        """Its decorators as they are written, without arguments."""
        if isinstance(self.node, ast.Module):
            return ()
        return tuple(
            ast.unparse(item.func if isinstance(item, ast.Call) else item) for item in self.node.decorator_list
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its positional parameters, then of those by keyword."""
        if isinstance(self.node, ast.Module):
            return ()
        found = self.node.args
        return tuple(argument.arg for argument in (*found.posonlyargs, *found.args, *found.kwonlyargs))

    def parameter(self, name: str) -> ast.arg | None:
        """The parameter of that name."""
        if isinstance(self.node, ast.Module):
            return None
        found = self.node.args
        return next((one for one in (*found.posonlyargs, *found.args, *found.kwonlyargs) if one.arg == name), None)

    def default(self, name: str) -> ast.expr | None:
        """What a parameter is when a caller leaves it out."""
        if isinstance(self.node, ast.Module):
            return None
        found = self.node.args
        positional = [*found.posonlyargs, *found.args]
        for argument, default in zip(reversed(positional), reversed(found.defaults), strict=False):
            if argument.arg == name:
                return default
        for argument, keyword in zip(found.kwonlyargs, found.kw_defaults, strict=True):
            if argument.arg == name:
                return keyword
        return None

    @property
    def bound(self) -> bool:
        """Whether its first parameter is the object or the class."""
        return self.owner is not None and self.parent is None and "staticmethod" not in self.decorators


@dataclass(slots=True, eq=False)
class Class:
    """A class."""

    module: Module
    node: ast.ClassDef
    methods: dict[str, Function] = field(default_factory=dict)
    fields: dict[str, ast.AnnAssign | ast.Assign] = field(default_factory=dict)
    _stores: dict[str, list[Function]] | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.node.name

    @property
    def key(self) -> str:
        """Names it among all classes of the program."""
        return f"{self.module.source.name}:{self.node.lineno}"

    @property
    def is_dataclass(self) -> bool:
        """Whether its fields are the parameters of its constructor."""
        marked = any("dataclass" in ast.unparse(item) for item in self.node.decorator_list)
        bases = {ast.unparse(base) for base in self.node.bases}
        return marked or any(base.endswith(("BaseModel", "Struct", "NamedTuple")) for base in bases)

    @property
    def stores(self) -> Mapping[str, Sequence[Function]]:
        """The methods that assign each attribute of the object, as far as the text tells: a few too many."""
        if self._stores is None:
            self._stores = {}
            for method in self.methods.values():
                for name in dict.fromkeys(_STORED.findall(method.text)):
                    self._stores.setdefault(name.decode(), []).append(method)
        return self._stores


Definition: TypeAlias = "Function | Class | Module | ast.expr"


@dataclass(slots=True, eq=False)
class Module:
    """A parsed file."""

    source: Source
    tree: ast.Module
    body: Function = field(init=False)
    functions: list[Function] = field(default_factory=list)
    names: dict[str, Function | Class | ast.expr | str] = field(default_factory=dict)
    by_node: dict[ast.AST, Function] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _places: tuple[list[int], list[tuple[int, Function]]] | None = None

    @property
    def places(self) -> tuple[list[int], list[tuple[int, Function]]]:
        """The lines in which functions start, in order; and of each of these the last line, with the function."""
        if self._places is None:
            inner = sorted(
                (
                    (one.node.lineno, one.node.end_lineno or one.node.lineno, one)
                    for one in self.functions
                    if not isinstance(one.node, ast.Module)
                ),
                key=lambda place: place[0],
            )
            self._places = [first for first, _, _ in inner], [(last, one) for _, last, one in inner]
        return self._places

    def lines(self, first: int, last: int) -> bytes:
        """The lines `first` to `last`, counted from 1, both included."""
        if not self._starts:
            self._starts = [0, *(found.end() for found in _LINE.finditer(self.source.data)), len(self.source.data)]
        return self.source.data[self._starts[first - 1] : self._starts[min(last, len(self._starts) - 1)]]

    def line_of(self, offset: int) -> int:
        """The line of a byte, counted from 1."""
        self.lines(1, 1)
        return bisect_right(self._starts, offset)

    def __post_init__(self) -> None:
        self.body = Function(self, self.tree, "<module>")
        self.functions.append(self.body)
        self._define(self.tree.body)

    def _define(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.names[node.name] = self._function(node, None, None)
                case ast.ClassDef():
                    self.names[node.name] = self._class(node)
                case ast.Import(aliases):
                    for alias in aliases:
                        bound = alias.asname or alias.name.partition(".")[0]
                        self.names[bound] = alias.name if alias.asname else bound
                case ast.ImportFrom():
                    for alias in node.names:
                        dotted = f"{'.' * node.level}{node.module or ''}:{alias.name}"
                        self.names.setdefault(alias.asname or alias.name, dotted)
                case ast.Assign([ast.Name(name)], value):
                    self.names[name] = value
                case ast.AnnAssign(target=ast.Name(name), value=value) if value is not None:
                    self.names[name] = value
                case ast.If():
                    self._define(node.body)
                    self._define(node.orelse)
                case ast.Try():
                    self._define(node.body)
                    for handler in node.handlers:
                        self._define([item for item in handler.body if isinstance(item, ast.FunctionDef)])

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: Class | None, parent: Function | None
    ) -> Function:
        made = Function(self, node, node.name, owner, parent)
        self.functions.append(made)
        self.by_node[node] = made
        if made.text.count(b"def ") > 1:
            for inner in _inner(node.body):
                self._function(inner, owner, made)
        return made

    def _class(self, node: ast.ClassDef) -> Class:
        made = Class(self, node)
        for item in node.body:
            match item:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    made.methods.setdefault(item.name, self._function(item, made, None))
                case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                    made.fields[name] = item
                case ast.ClassDef():
                    self._class(item)
        return made


def _inner(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions defined directly in the statements of a function."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif not isinstance(node, ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _inner(getattr(node, name, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _inner(handler.body)


class Program:
    """All files that are audited."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.broken: dict[str, tuple[str, int, int]] = {}
        """Files that are no Python, with what is wrong, the line and the column."""
        self._by_module = {source.module: source for source in sources if source.module}
        self._modules: dict[str, Module | None] = {}
        self._by_name = {source.name: source for source in sources}
        self._index: dict[bytes, list[int]] | None = None
        self._heirs: dict[str, list[Class]] = {}
        self._worth: dict[str, bool] = {}
        self._sealed = 0
        self.small = sum(len(source.data) for source in sources) <= _SMALL
        """Whether there is so little that every file may be parsed, be it only to see whether it can be."""

    @property
    def index(self) -> Mapping[bytes, Sequence[int]]:
        """The places among the sources of the files in which each word occurs, comments and texts included."""
        if self._index is None:
            self._index = {}
            for place, source in enumerate(self.sources):
                for word in set(source.data.translate(_WORDS).split()):
                    found = self._index.get(word)
                    if found is None:
                        self._index[word] = [place]
                    else:
                        found.append(place)
        return self._index

    def mentioning(self, *words: str) -> list[Source]:
        """The files in which all of `words` occur."""
        found = [self.index.get(word.encode(), ()) for word in words]
        shortest = min(found, key=len)
        rest = [frozenset(places) for places in found if places is not shortest]
        return [self.sources[place] for place in shortest if all(place in places for places in rest)]

    def mentions(self, word: str) -> bool:
        """Whether a word occurs anywhere."""
        return word.encode() in self.index

    def by_name(self, name: str) -> Source | None:
        """The file that is called so."""
        return self._by_name.get(name)

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Meanwhile no further file is parsed: what is in them is not known."""
        self._sealed += 1
        try:
            yield
        finally:
            self._sealed -= 1

    def module(self, source: Source) -> Module | None:
        """A file, parsed; None where it cannot be."""
        if source.name not in self._modules:
            if self._sealed:
                return None
            self._modules[source.name] = self._parse(source)
        return self._modules[source.name]

    def worth(self, source: Source) -> bool:
        """Whether what a file defines may be about ranks or addresses. If not, what it gives is a fact like others."""
        found = self._worth.get(source.name)
        if found is None:
            found = self._worth[source.name] = self.small or any(word in source.data for word in _OF_INTEREST)
        return found or source.name in self._modules

    def parsed(self, source: Source) -> bool:
        """Whether `module` has been asked for a file."""
        return source.name in self._modules

    def _parse(self, source: Source) -> Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Module(source, ast.parse(source.data))
        except SyntaxError as error:
            self.broken[source.name] = (error.msg or "invalid syntax", error.lineno or 1, error.offset or 1)
        except ValueError as error:
            self.broken[source.name] = (str(error), 1, 1)
        except (RecursionError, MemoryError):
            self.broken[source.name] = ("its expressions are nested too deeply to be read", 1, 1)
        return None

    def named(self, dotted: str) -> Source | None:
        """The file of a module."""
        return self._by_module.get(dotted)

    def refer(
        self, module: Module, name: str, steps: int = _MOST_STEPS
    ) -> Function | Class | Module | ast.expr | str | None:
        """What a name at the top of a module refers to: its definition, or the dotted name where that is elsewhere."""
        found = module.names.get(name)
        return self.imported(module, found, steps) if isinstance(found, str) else found

    def imported(
        self, module: Module, dotted: str, steps: int = _MOST_STEPS
    ) -> Function | Class | Module | ast.expr | str | None:
        """What an import refers to.

        Args:
            dotted: ``package.module`` or ``package.module:name``, with leading dots where it is relative.
        """
        path, _, name = dotted.partition(":")
        if path.startswith("."):
            path = _absolute(module.source, path)
        source = self.named(path)
        if source is not None and not self.worth(source):
            source = None
        if not name:
            parsed = self.module(source) if source else None
            return parsed or path
        if source is not None and (parsed := self.module(source)) is not None and name in parsed.names and steps:
            return self.refer(parsed, name, steps - 1)
        inner = self.named(f"{path}.{name}")
        if inner is not None:
            return self.module(inner) or f"{path}.{name}"
        return f"{path}.{name}"

    def bases(self, found: Class) -> list[Class]:
        """The classes a class is made from, itself first."""
        known: dict[str, Class] = {}
        waiting = [found]
        while waiting:
            one = waiting.pop(0)
            if one.key in known:
                continue
            known[one.key] = one
            for base in one.node.bases:
                inner = self.resolve(one.module, base)
                if isinstance(inner, Class):
                    waiting.append(inner)
        return list(known.values())

    def resolve(self, module: Module, node: ast.expr) -> Function | Class | Module | ast.expr | str | None:
        """What a name or a dotted name at the top of a module refers to."""
        match node:
            case ast.Name(name):
                return self.refer(module, name)
            case ast.Attribute(value, name):
                outer = self.resolve(module, value)
                if isinstance(outer, Module):
                    inner = self.refer(outer, name)
                    if inner is None and (source := self.named(f"{outer.source.module}.{name}")):
                        return self.module(source)
                    return inner
                if isinstance(outer, Class):
                    return self.method(outer, name)
                if isinstance(outer, str):
                    source = self.named(f"{outer}.{name}")
                    return self.module(source) if source else f"{outer}.{name}"
            case ast.Subscript(value, _):
                return self.resolve(module, value)
            case ast.Constant(str() as written):
                try:
                    return self.resolve(module, ast.parse(written, mode="eval").body)
                except (SyntaxError, ValueError):
                    return None
        return None

    def method(self, found: Class, name: str) -> Function | None:
        """A method of a class or of those that it is made from."""
        return next((one.methods[name] for one in self.bases(found) if name in one.methods), None)

    def heirs(self, found: Class) -> list[Class]:
        """The classes that are made from a class, directly or not."""
        if found.key in self._heirs:
            return self._heirs[found.key]
        known: dict[str, Class] = {}
        waiting = [found]
        while waiting and len(known) < 40:
            one = waiting.pop()
            for source in self.mentioning(one.name):
                if not inherits(source.data, one.name.encode()) or (module := self.module(source)) is None:
                    continue
                for other in module.names.values():
                    if (
                        isinstance(other, Class)
                        and other.key not in known
                        and any(
                            tail(base) == one.name and self.resolve(module, base) is one for base in other.node.bases
                        )
                    ):
                        known[other.key] = other
                        waiting.append(other)
        self._heirs[found.key] = list(known.values())
        return self._heirs[found.key]


def depth(source: Source) -> int:
    """How deep the tree of a file is; 0 where it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            level: list[ast.AST] = [ast.parse(source.data)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    deep = 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        deep += 1
    return deep


def occurrences(data: bytes, word: bytes) -> Iterator[int]:
    """Where a word stands in a file. (A search for bytes is many times quicker than one for a pattern.)"""
    place = data.find(word)
    while place >= 0:
        end = place + len(word)
        if not _part_of_word(data[place - 1 : place]) and not _part_of_word(data[end : end + 1]):
            yield place
        place = data.find(word, end)


def _part_of_word(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"


def uses(data: bytes, word: bytes) -> bool:
    """Whether a function or a class of this name is called or handed on in a file, by the looks of it."""
    for place in occurrences(data, word):
        after = data[place + len(word) : place + len(word) + 2].lstrip()[:1]
        if after in b"(,)]\n" and not data[max(place - 8, 0) : place].rstrip().endswith((b"def", b"class", b"import")):
            return True
    return False


def handed_on(data: bytes, word: bytes) -> bool:
    """Whether a name is used as a value in a file, by the looks of it: put into a container, assigned, handed on."""
    for place in occurrences(data, word):
        start, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
        line, before = data[start:end], data[max(place - 400, 0) : place].rstrip()
        after = data[place + len(word) : place + len(word) + 40].lstrip(b" \t")[:1]
        if after not in _AFTER_VALUE or _NO_VALUE.search(line):
            continue
        if before.endswith((b"return", b"=", b'":', b"':")):
            return True
        if before.endswith((b"(", b",", b"[", b"{")):
            opened = max(before.rfind(b"("), before.rfind(b"["), before.rfind(b"{"))
            head = before[before.rfind(b"\n", 0, opened) + 1 : opened]
            subscript = before[opened : opened + 1] == b"[" and _part_of_word(head[-1:])
            if not subscript and not _NO_VALUE.search(head):
                return True
    return False


def inherits(data: bytes, word: bytes) -> bool:
    """Whether a class is made from one of this name in a file, by the looks of it."""
    for place in occurrences(data, word):
        before = data[max(place - 400, 0) : place]
        head = before.rfind(b"class ")
        if head >= 0 and b"(" in before[head:] and b":" not in before[head:]:
            return True
    return False


_AFTER_VALUE: Final = frozenset([b",", b")", b"]", b"}", b"\n", b"\r", b"#", b""])
_NO_VALUE: Final = re.compile(rb"\b(?:import|class|def|except|isinstance|issubclass|cast|TypeVar|Union|__all__)\b|->")


def _absolute(source: Source, path: str) -> str:
    up = len(path) - len(path.lstrip("."))
    package = source.module.split(".")
    if not source.name.endswith("__init__.py"):
        package = package[:-1]
    package = package[: len(package) - (up - 1)] if up > 1 else package
    rest = path.lstrip(".")
    return ".".join([*package, rest] if rest else package)
