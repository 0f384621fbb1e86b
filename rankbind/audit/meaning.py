"""What a piece of source means: names, attributes and calls followed to expressions over coordinates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from rankbind.audit.expression import (
    EACH,
    LONG,
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Place,
    Private,
    Size,
    Unclear,
    both,
    chosen,
    compared,
    either,
    filled,
    folded,
    holes,
    large,
    negated,
    trimmed,
    walk,
)
from rankbind.audit.program import Class, Function, Module, Program, handed_on, occurrences, uses
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import Vocabulary
from rankbind.audit.walk import (
    Binding,
    Bound,
    Changed,
    Either,
    Imported,
    Local,
    Looped,
    Names,
    Part,
    Path,
    Visit,
    spelled,
    tail,
)

_DEEPEST: Final = 48
_MOST_RETURNS: Final = 8
_MOST_CALLERS: Final = 8
_MOST_FILES: Final = 12
_PRIVATE: Final = re.compile(
    r"(?:NamedTemporaryFile|TemporaryDirectory|mkdtemp|mkstemp|mktemp|gettempprefix|uuid[0-9]?|getpid|token_hex|"
    r"token_urlsafe|urandom|time|time_ns|perf_counter|monotonic|randint|randrange|random|choice|now|utcnow|"
    r"bind_to_random_port|(?:get|find|pick)_(?:open|free|available|random)_(?:zmq_)?(?:inproc_|ipc_)?(?:port|ports|path)|"
    r"get_open_zmq_ipc_path|get_open_zmq_inproc_path|get_open_ports_list|unused_port)"
)
_OTHERS: Final = re.compile(
    r"(?:^|_)(?:req|reqs|request|obj|msg|message|info|infos|peer|remote|target|dst|src|dest|meta|metadata|entry|item|other|"
    r"payload|result|snapshot|output|batch|task|job|event|load|data|spec|plan|row|response|state|sender|receiver|[a-z])$"
)
_CONFIGURATION: Final = re.compile(
    r"(?:^|_)(?:args|config|cfg|envs|options|settings)$|(?:Args|Config|Options|Settings)$"
)
"""What holds a configuration, which every process is given."""
_STARTS: Final = re.compile(r"Process$|^spawn$|^start_processes$")
_MOST_FIELDS: Final = 40
_DEVICE: Final = re.compile(r"(?:^|_)(?:gpu|device|cuda|npu|xpu)_?(?:id|uuid|index|idx|ordinal)$|^get_device_uuid$")
"""What tells processes apart that have a device each."""
_NUMBER: Final = re.compile(r"^[a-z]$|(?:^|_)(?:i|idx|index)$")
"""Names of parameters that may well be given a rank."""
_DISTRIBUTED: Final = re.compile(r"^(?:torch_)?dist(?:ributed)?$")
_FIRST: Final = ("__init__", "__post_init__")
_ENVIRONMENT: Final[Mapping[str, Expression]] = {
    "RANK": Coordinate("rank"),
    "LOCAL_RANK": Coordinate("local_rank"),
    "NODE_RANK": Coordinate("node"),
    "GROUP_RANK": Coordinate("node"),
    "SLURM_PROCID": Coordinate("rank"),
    "SLURM_LOCALID": Coordinate("local_rank"),
    "SLURM_NODEID": Coordinate("node"),
    "OMPI_COMM_WORLD_RANK": Coordinate("rank"),
    "OMPI_COMM_WORLD_LOCAL_RANK": Coordinate("local_rank"),
    "WORLD_SIZE": Size("rank"),
}
_COMPARE: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Mod: "%",
}
Found: TypeAlias = "Function | Class | Module | ast.expr | str | None"


class Scope(NamedTuple):
    """Where a piece of source stands: the function, and the names that hold there."""

    function: Function
    names: Names


class Caller(NamedTuple):
    """A call of a function.

    Attributes:
        function: it stands in this one.
        values: the arguments, by the parameter that takes each.
        starts: whether it runs in a process of its own, which this call starts.
    """

    function: Function
    visit: Visit
    values: Mapping[Parameter, Expression]
    starts: bool = False


class Meaning:
    """Works out what source means, and remembers it."""

    def __init__(self, program: Program, vocabulary: Vocabulary) -> None:
        self.program = program
        self.vocabulary = vocabulary
        self.common: frozenset[str] = frozenset()
        """Names of methods that objects of libraries have."""
        self.evidence: dict[str, frozenset[str]] = {}
        """What `rankbind.audit.sites.evident` has found, by function."""
        self._depth = 0
        self._values: dict[tuple[int, int], Expression] = {}
        self._attributes: dict[tuple[str, str], Expression] = {}
        self._returned: dict[str, Expression | None] = {}
        self._callers: dict[str, list[Caller]] = {}
        self._handed_out: dict[str, bool] = {}
        self._completed: dict[Parameter, Expression] = {}
        self._lines: dict[str, dict[str, list[Function]]] = {}
        self._open: set[Any] = set()

    # What is reached.

    def condition(self, path: Path, function: Function) -> Expression:
        """The condition under which a statement of `function` is reached, from where the function is entered."""
        if path.value is None:
            if path.alternatives:
                path.value = either(*(self.condition(one, function) for one in path.alternatives))
            elif path.parent is None or path.test is None:
                path.value = TRUE
            else:
                before = self.condition(path.parent, function)
                test = self.bound(path.test, function)
                path.value = trimmed(both(before, test if path.holds else negated(test)))
        found: Expression = path.value
        return found

    # What a name or an expression is.

    def bound(self, bound: Bound, function: Function) -> Expression:
        """The value of an expression, with the names that held where it stands."""
        key = (id(bound.node), id(bound.names))
        found = self._values.get(key)
        if found is None:
            if self._depth > _DEEPEST or key in self._open:
                return self.unknown(_text(bound.node))
            self._open.add(key)
            self._depth += 1
            try:
                found = self._evaluate(bound.node, Scope(function, bound.names))
            finally:
                self._depth -= 1
                self._open.discard(key)
            found = self._values[key] = folded(found, bound.node)
        return found

    def evaluate(self, node: ast.expr, scope: Scope) -> Expression:
        """The value of an expression in a scope."""
        return self.bound(Bound(node, scope.names), scope.function)

    def unknown(self, name: str, at: Place | None = None) -> Expression:
        """What stands for something that cannot be followed."""
        tail = name.rpartition(".")[2].partition("(")[0]
        if _DEVICE.search(tail):
            return Private(tail, at)
        return Unclear(name, at) if self.vocabulary.role(tail) else Given(name, at)

    def _evaluate(self, node: ast.expr, scope: Scope) -> Expression:
        at = Place(scope.function.module.source.name, node)
        match node:
            case ast.Constant(value):
                return Constant(value, at)
            case ast.Name():
                return _placed(self._name(node, scope), at)
            case ast.Attribute():
                return _placed(self._attribute(node, scope), at)
            case ast.Call():
                return _placed(self._call(node, scope), at)
            case ast.BoolOp(ast.And(), values):
                return both(*(self.evaluate(value, scope) for value in values))
            case ast.BoolOp(ast.Or(), values):
                return either(*(self.evaluate(value, scope) for value in values))
            case ast.UnaryOp(ast.Not(), value):
                return negated(self.evaluate(value, scope))
            case ast.UnaryOp(ast.USub(), value):
                inner = self.evaluate(value, scope)
                if isinstance(inner, Constant) and isinstance(inner.value, (int, float)):
                    return Constant(-inner.value, at)
                return Apply("-", (inner,), at)
            case ast.Compare(left, operators, rights):
                return self._compare(left, operators, rights, scope, at)
            case ast.BinOp(left, operator, right):
                return self._arithmetic(left, operator, right, scope, at)
            case ast.IfExp(test, then, otherwise):
                return chosen(self.evaluate(test, scope), self.evaluate(then, scope), self.evaluate(otherwise, scope))
            case ast.JoinedStr(values):
                return Apply("text", tuple(self.evaluate(value, scope) for value in values), at)
            case ast.FormattedValue(value):
                return self.evaluate(value, scope)
            case ast.Tuple(items) | ast.List(items) | ast.Set(items):
                return Apply("tuple", tuple(self.evaluate(item, scope) for item in items), at)
            case ast.Dict(_, values):
                return Apply("tuple", tuple(self.evaluate(value, scope) for value in values), at)
            case ast.Subscript(value, index):
                return self._item(node, value, index, scope)
            case ast.NamedExpr(_, value) | ast.Await(value) | ast.Starred(value):
                return self.evaluate(value, scope)
        return Unclear(_text(node), at) if self._names_ranks(node) else self.unknown(_text(node), at)

    def _names_ranks(self, node: ast.AST) -> bool:
        return any(
            self.vocabulary.coordinate(name) is not None
            for part in ast.walk(node)
            if (name := part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else "")
        )

    def _name(self, node: ast.Name, scope: Scope) -> Expression:
        name, function = node.id, scope.function
        binding = scope.names.get(name)
        if binding is not None:
            found = self.binding(binding, function)
            if isinstance(found, (Given, Unclear)) and not isinstance(binding, Looped):
                return self.vocabulary.coordinate(name) or self.vocabulary.size(name) or found
            return found
        if name in function.parameters:
            if function.bound and name == function.parameters[0]:
                return Given(name)
            return Parameter(function.key, name)
        if function.parent is not None:
            return self._name(node, Scope(function.parent, function.parent.walk.names))
        if not isinstance(function.node, ast.Module):
            found_at = self.program.refer(function.module, name)
            if isinstance(found_at, ast.expr):
                return self.evaluate(found_at, Scope(function.module.body, {}))
        elif (
            isinstance(value := function.module.names.get(name), ast.expr)
            and not isinstance(value, ast.Name)
            and not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value))
        ):
            return self.evaluate(value, Scope(function.module.body, {}))
        return (
            self.vocabulary.coordinate(name)
            or self.vocabulary.size(name)
            or self.vocabulary.weak(name)
            or self.unknown(name)
        )

    def binding(self, binding: Binding, function: Function) -> Expression:
        """The value of a name."""
        match binding:
            case Bound():
                return self.bound(binding, function)
            case Part(whole, index, name):
                found = self.bound(whole, function)
                if isinstance(found, Apply) and found.operator == "tuple" and index < len(found.arguments):
                    return found.arguments[index]
                if isinstance(found, Private):
                    return found
                return self.vocabulary.coordinate(name) or self.vocabulary.size(name) or self.unknown(name)
            case Either(test, then, otherwise):
                # Kept, since either side may be made of the same ones again: a chain of n ifs is a tree of 2^n.
                key = (id(binding), 0)
                chosen_before = self._values.get(key)
                if chosen_before is None:
                    chosen_before = self._values[key] = folded(
                        chosen(
                            self.bound(test, function), self.binding(then, function), self.binding(otherwise, function)
                        )
                    )
                return chosen_before
            case Changed(before, item):
                return Apply("changed", (self.binding(before, function), self.bound(item, function)))
            case Looped(name, over):
                if self.vocabulary.coordinate(name) is not None or name.lstrip("_") in {"rank", "r"}:
                    return Unclear(name)
                if over is not None and isinstance(self.bound(over, function), Private):
                    return Private(name)
                return Given(f"{EACH}{name}")
            case Imported(dotted):
                found_at = self.program.imported(function.module, dotted)
                if isinstance(found_at, ast.expr):
                    return self.evaluate(found_at, Scope(function.module.body, {}))
                return Given(dotted.rpartition(":")[2])
            case Local(node):
                return Given(node.name)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Expression:
        name = node.attr
        dotted = spelled(node)
        if dotted is not None and (binding := scope.names.get(dotted)) is not None:
            return self.binding(binding, scope.function)
        group = self.group(node.value, scope)
        if group is not None and (member := self.vocabulary.member(group, name)) is not None:
            return member
        whose = tail(node.value)
        named = self.vocabulary.coordinate(name)
        if named is not None:
            return Unclear(_text(node)) if self.foreign(whose) else named
        size = self.vocabulary.size(name)
        if size is not None:
            return size
        owner = self.type_of(node.value, scope)
        if _CONFIGURATION.search(whose) and (owner is None or not self._worked_out(owner)):
            return self.unknown(f"{whose}.{name}")
        if owner is not None:
            return filled(self.attribute(owner, name), self._made_with(node.value, scope))
        outer = self._refer(node.value, scope)
        if isinstance(outer, Module):
            inner = self.program.refer(outer, name)
            if isinstance(inner, ast.expr):
                return self.evaluate(inner, Scope(outer.body, {}))
        elif isinstance(outer, Class):
            return self.attribute(outer, name)
        weak = self.vocabulary.weak(name)
        if weak is not None:
            return weak
        base = self.evaluate(node.value, scope)
        if isinstance(base, Private):
            return base
        return self.unknown(_text(node))

    @staticmethod
    def _worked_out(owner: Class) -> bool:
        """Whether a configuration is one of a part, worked out from another: not what a user hands to the whole."""
        return owner.is_dataclass and len(owner.fields) < _MOST_FIELDS

    @staticmethod
    def foreign(name: str) -> bool:
        """Whether a variable of this name is about another process, or may be: a request, a peer, an item of a list."""
        if name in {"self", "cls", "ps"} or "parallel" in name or "rank" in name:
            return False
        return _OTHERS.search(name.lower()) is not None

    def group(self, node: ast.expr, scope: Scope) -> str | None:
        """The axis along which the process group runs that an expression is; None for anything else."""
        match node:
            case ast.Name(name):
                binding = scope.names.get(name)
                if isinstance(binding, Bound) and not isinstance(binding.node, ast.Constant):
                    found = self.group(binding.node, Scope(scope.function, binding.names))
                    if found is not None:
                        return found
                return self.vocabulary.group(name)
            case ast.Attribute(value, name):
                found = self.vocabulary.group(name)
                if found is None and name in {"cpu_group", "device_group", "process_group", "group"}:
                    return self.group(value, scope)
                return found
            case ast.Call(ast.Attribute(value, "get_group"), [ast.Constant(str(name))]):
                return self.vocabulary.axis(name) or name
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), _):
                return self.vocabulary.group(name)
            case ast.Subscript(value, ast.Constant(str(name))) if "mesh" in tail(value).lower():
                return self.vocabulary.axis(name) or name
            case ast.Attribute(value, _):
                return None
        return None

    def attribute(self, owner: Class, name: str) -> Expression:
        """The value of an attribute of an object of a class, as its methods assign it."""
        key = (owner.key, name)
        found = self._attributes.get(key)
        if found is not None:
            return found
        if _CONFIGURATION.search(owner.name) and not self._worked_out(owner):
            return self.unknown(name)
        if key in self._open or self._depth > _DEEPEST:
            return self.unknown(name)
        self._open.add(key)
        self._depth += 1
        try:
            found = self._attributes[key] = folded(self._stored(owner, name), name)
        finally:
            self._depth -= 1
            self._open.discard(key)
        return found

    def _stored(self, owner: Class, name: str) -> Expression:
        family = self.program.bases(owner)
        assigned = self._assigned(family, name)
        if assigned is None:
            heirs = self.program.heirs(owner)
            more = {one.key: one for heir in heirs for one in self.program.bases(heir)}
            assigned = self._assigned([one for key, one in more.items() if key not in {c.key for c in family}], name)
        if isinstance(assigned, Constant) and assigned.value is None:
            assigned = self._from_outside(owner, name) or assigned
        if assigned is None:
            return self.vocabulary.weak(name) or self.unknown(name)
        return assigned

    def _from_outside(self, owner: Class, name: str) -> Expression | None:
        """What others assign to an attribute of an object that they hold, if they agree."""
        needle = f".{name} = ".encode()
        values: dict[Expression, None] = {}
        sources = [source for source in self.program.mentioning(name) if needle in source.data]
        for source in self._knowing(owner, sources)[:_MOST_FILES]:
            if (module := self.program.module(source)) is None:
                continue
            for function in self._around(module, name):
                for visit, bound in function.walk.stores:
                    target = visit.node
                    if (
                        isinstance(target, ast.Attribute)
                        and target.attr == name
                        and tail(target.value) != "self"
                        and self.type_of(target.value, Scope(function, visit.names)) is owner
                    ):
                        values[self.completed(self.bound(bound, function))] = None
        found = [value for value in values if not (isinstance(value, Constant) and not value.value)]
        return found[0] if len(found) == 1 else None

    def _assigned(self, family: Sequence[Class], name: str) -> Expression | None:
        values: list[tuple[Expression, Expression]] = []
        unset: list[Function] = []
        last: Function | None = None
        for one in family:
            method = one.methods.get(name)
            if method is not None:
                if any(item.endswith(("property", "cached_property")) for item in method.decorators):
                    return self.returned(method) or self.unknown(name)
                return Given(name)
            for storing in sorted(one.stores.get(name, ()), key=lambda method: method.name not in _FIRST):
                for visit, bound in storing.walk.stores:
                    target = visit.node
                    if (
                        isinstance(target, ast.Attribute)
                        and target.attr == name
                        and isinstance(target.value, ast.Name)
                        and storing.parameters[:1] == (target.value.id,)
                    ):
                        if values and visit.caught:
                            # What holds where something failed, a group that is not there, is for one process.
                            continue
                        value = self.bound(bound, storing)
                        if isinstance(value, Constant) and not value.value:
                            unset.append(storing)
                            if values:
                                continue
                        else:
                            last = storing
                        values.append((self.condition(visit.path, storing), value))
        for one in family:
            field = one.fields.get(name)
            if field is None:
                continue
            if not values and one.is_dataclass:
                return Parameter(one.key, name)
            if field.value is not None and not values:
                return self.evaluate(field.value, Scope(one.module.body, {}))
        if not values:
            return None
        found = values[0][1]
        for condition, value in values[1:]:
            found = (
                value
                if isinstance(found, Constant) and not found.value and condition == TRUE
                else chosen(condition, value, found)
            )
        if len(values) == 1 and values[0][0] != TRUE and isinstance(found, Constant) and found.value is True:
            found = values[0][0]
        if last is not None and any(method is not last for method in unset):
            # It is set at some time and not at another, which is for no rank in particular.
            found = chosen(Given(f"{name} is set"), found, Constant(None))
        return Unclear(LONG) if large(found) else found

    def _item(self, node: ast.Subscript, value: ast.expr, index: ast.expr, scope: Scope) -> Expression:
        if tail(value) == "environ":
            return _variable(self.evaluate(index, scope))
        if isinstance(index, ast.Constant) and isinstance(index.value, str):
            named = self.vocabulary.coordinate(index.value) or self.vocabulary.weak(index.value)
            if named is not None:
                return Unclear(_text(node)) if self.foreign(tail(value)) else named
        if isinstance(value, ast.Name) and _collects(scope.function, value.id) and value.id not in scope.names:
            # Whatever a caller gives that is not in sight.
            return Unclear(_text(node))
        outer = self.evaluate(value, scope)
        if isinstance(outer, Apply) and outer.operator == "tuple" and not isinstance(index, ast.Slice):
            place = self.evaluate(index, scope)
            if (
                isinstance(place, Constant)
                and isinstance(place.value, int)
                and -len(outer.arguments) <= place.value < len(outer.arguments)
            ):
                return outer.arguments[place.value]
        if isinstance(outer, (Private, Unclear)):
            return outer
        if isinstance(index, ast.Slice):
            return outer if isinstance(outer, Given) else Unclear(_text(node))
        inner = self.evaluate(index, scope)
        if isinstance(outer, Given) and isinstance(inner, (Constant, Given)):
            return Given(_text(node))
        return Apply("[]", (outer, inner))

    def _compare(
        self, left: ast.expr, operators: list[ast.cmpop], rights: list[ast.expr], scope: Scope, at: Place
    ) -> Expression:
        found: list[Expression] = []
        first = self.evaluate(left, scope)
        for operator, right in zip(operators, rights, strict=True):
            second = self.evaluate(right, scope)
            if (
                isinstance(first, Unclear)
                and first.text == LONG
                and isinstance(second, Constant)
                and second.value is None
            ):
                # Whether something is there yet is a matter of time, not of ranks.
                first = Given(_text(left))
            found.append(compared(_COMPARE[type(operator)], first, second, at))
            first = second
        return both(*found)

    def _arithmetic(
        self, left: ast.expr, operator: ast.operator, right: ast.expr, scope: Scope, at: Place
    ) -> Expression:
        sign = _ARITHMETIC.get(type(operator))
        first, second = self.evaluate(left, scope), self.evaluate(right, scope)
        if sign is None:
            return Apply(type(operator).__name__, (first, second), at)
        if sign == "%" and (
            isinstance(left, ast.JoinedStr) or (isinstance(first, Constant) and isinstance(first.value, str))
        ):
            parts = second.arguments if isinstance(second, Apply) and second.operator == "tuple" else (second,)
            return Apply("text", (first, *parts), at)
        if isinstance(first, Constant) and isinstance(second, Constant):
            a, b = first.value, second.value
            if isinstance(a, int) and isinstance(b, int) and (b or sign in "+-*"):
                return (
                    Constant({"+": a + b, "-": a - b, "*": a * b}.get(sign, a // b if b and sign == "//" else None), at)
                    if sign in {"+", "-", "*", "//"}
                    else Constant(a % b if sign == "%" else a / b, at)
                )
        return Apply(sign, (first, second), at)

    # Calls.

    def _call(self, node: ast.Call, scope: Scope) -> Expression:
        name = tail(node.func)
        found = self._about_ranks(node, name, scope)
        if found is not None:
            return found
        if _PRIVATE.fullmatch(name):
            return Private(_text(node.func))
        if name == "is_initialized" or (
            name == "is_available"
            and isinstance(node.func, ast.Attribute)
            and _DISTRIBUTED.search(tail(node.func.value))
        ):
            # Where there is no group, there is one process, which cannot meet another.
            return TRUE
        found = self._builtin(node, name, scope)
        if found is not None:
            return found
        callee = self.callee(node, scope)
        if isinstance(callee, Function):
            returned = self.returned(callee)
            if returned is not None:
                values = self.arguments(node, callee, scope)
                if callee.owner is not None and isinstance(node.func, ast.Attribute):
                    values = {**self._made_with(node.func.value, scope), **values}
                return _looked_up(filled(returned, values))
        weak = self.vocabulary.weak(name) if not node.args else None
        if weak is not None:
            return weak
        arguments = tuple(
            self.evaluate(argument, scope) for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        )
        base: tuple[Expression, ...] = ()
        if isinstance(node.func, ast.Attribute) and self.type_of(node.func.value, scope) is None:
            owner = self.evaluate(node.func.value, scope)
            if isinstance(owner, Private):
                return owner
            if not isinstance(owner, Given):
                base = (owner,)
        told = self.unknown(_text(node.func))
        if isinstance(told, Private):
            return told
        if isinstance(told, Unclear):
            return Unclear(_text(node))
        everything = (*base, *arguments)
        if any(isinstance(argument, Given) and argument.text in {"self", "cls"} for argument in arguments):
            # An object that may know its rank is asked by something that is not in sight.
            return Unclear(_text(node))
        if all(isinstance(part, (Given, Constant, Size)) for argument in everything for part in walk(argument)):
            return Given(_text(node)) if isinstance(told, Given) and not large(Apply("", everything)) else told
        return Apply(_text(node.func), everything)

    def _about_ranks(self, node: ast.Call, name: str, scope: Scope) -> Expression | None:
        """What a call means that asks for a rank, a size or a variable of the environment."""
        if name in {"get_rank", "get_world_size", "get_local_rank", "get_group_rank"}:
            axis = self._asked_group(node, name, scope)
            if axis is not None:
                told = Size(axis) if name == "get_world_size" else Coordinate(axis)
                if (
                    not node.args
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Call)
                    and self.group(node.func.value, scope) is None
                ):
                    # Whether what a call hands out counts every rank there is cannot be told.
                    return Apply("if", (Unclear(f"all ranks are in {_text(node.func.value)}"), told, Constant(-1)))
                return told
            return Unclear(_text(node))
        if name in {"getenv", "get", "pop"} and node.args:
            whose = node.func.value if isinstance(node.func, ast.Attribute) else None
            if name == "getenv" or (whose is not None and tail(whose) == "environ"):
                return _variable(self.evaluate(node.args[0], scope))
            if isinstance(whose, ast.Name) and _collects(scope.function, whose.id) and whose.id not in scope.names:
                return Unclear(_text(node))
        if isinstance(node.func, ast.Attribute):
            group = self.group(node.func.value, scope)
            if group is not None and (member := self.vocabulary.member(group, name)) is not None:
                return member
        if name in {"is_pipeline_first_stage", "is_pipeline_last_stage"}:
            return self.vocabulary.weak(name)
        if not name.startswith(("get_", "_get_")) and not isinstance(node.func, ast.Attribute):
            return None
        return self.vocabulary.coordinate(name) or self.vocabulary.size(name)

    def _asked_group(self, node: ast.Call, name: str, scope: Scope) -> str | None:
        """The axis that ``get_rank(group)`` and its like are about."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not given:
            if isinstance(node.func, ast.Attribute):
                whose = node.func.value
                found = self.group(whose, scope)
                if found is not None:
                    return found
                if tail(whose).endswith(("dist", "distributed")):
                    return "rank"
                return "local_rank" if name == "get_local_rank" and "mesh" not in tail(whose) else None
            return {"get_rank": "rank", "get_world_size": "rank", "get_local_rank": "local_rank"}.get(name)
        first = given[0]
        if isinstance(first, ast.Constant):
            if first.value is None:
                return "rank"
            return self.vocabulary.axis(str(first.value)) or str(first.value)
        return self.group(first, scope)

    def _builtin(self, node: ast.Call, name: str, scope: Scope) -> Expression | None:
        values = node.args
        if isinstance(node.func, ast.Name):
            match name, values:
                case "bool", [value]:
                    return self.evaluate(value, scope)
                case (("int" | "str"), [value, *_]):
                    inner = self.evaluate(value, scope)
                    return inner if isinstance(inner, (Coordinate, Size, Private, Unclear)) else Apply(name, (inner,))
                case (("max" | "min"), [_, _, *_]):
                    return Apply(name, tuple(self.evaluate(value, scope) for value in values))
                case "all", [ast.List(items) | ast.Tuple(items)]:
                    return both(*(self.evaluate(item, scope) for item in items))
                case "any", [ast.List(items) | ast.Tuple(items)]:
                    return either(*(self.evaluate(item, scope) for item in items))
                case "getattr", [owner, ast.Constant(str(attribute)), *_]:
                    return self.evaluate(ast.copy_location(ast.Attribute(owner, attribute, ast.Load()), node), scope)
                case (("isinstance" | "hasattr" | "callable" | "len" | "type" | "id" | "hash"), _):
                    return Given(_text(node))
        if isinstance(node.func, ast.Attribute) and name == "format":
            if any(keyword.arg is None for keyword in node.keywords):
                # What is filled in, and whether a rank is among it, cannot be told.
                return Unclear(_text(node))
            parts = (self.evaluate(value, scope) for value in (*values, *(key.value for key in node.keywords)))
            return Apply("text", (self.evaluate(node.func.value, scope), *parts))
        return None

    def returned(self, function: Function) -> Expression | None:
        """What a function returns, over its parameters; None where that is not one expression."""
        if function.key in self._returned:
            return self._returned[function.key]
        if self._depth > _DEEPEST:
            return None
        self._returned[function.key] = None
        returns = function.walk.returns
        if not returns or len(returns) > _MOST_RETURNS or _yields(function):
            return None
        found: Expression | None = None
        for visit in reversed(returns):
            assert isinstance(visit.node, ast.expr)
            value = self.evaluate(visit.node, Scope(function, visit.names))
            found = value if found is None else chosen(self.condition(visit.path, function), value, found)
        if len(returns) == 1:
            reached = self.condition(returns[0].path, function)
            if reached != TRUE and isinstance(found, Constant) and found.value is True:
                found = reached
        if found is not None and (large(found) or isinstance(found, (Given, Unclear))):
            found = None
        self._returned[function.key] = found
        return found

    def _made_with(self, node: ast.expr, scope: Scope) -> Mapping[Parameter, Expression]:
        """The arguments that an object was made with, where the expression for it leads to the call that made it."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._kept_with(node.attr, scope)
        if isinstance(node, ast.Name):
            binding = scope.names.get(node.id)
            if not isinstance(binding, Bound):
                return {}
            node, scope = binding.node, Scope(scope.function, binding.names)
        if not isinstance(node, ast.Call):
            return {}
        made = self._refer(node.func, scope)
        return self.arguments(node, made, scope) if isinstance(made, Class) else {}

    def _kept_with(self, name: str, scope: Scope) -> Mapping[Parameter, Expression]:
        """The same of an object that is kept in an attribute, where one place puts it there."""
        owner = scope.function.owner
        if owner is None:
            return {}
        stored = [
            (method, bound)
            for method in owner.stores.get(name, ())
            for visit, bound in method.walk.stores
            if isinstance(visit.node, ast.Attribute) and visit.node.attr == name and isinstance(bound.node, ast.Call)
        ]
        if len(stored) != 1:
            return {}
        method, bound = stored[0]
        return self._made_with(bound.node, Scope(method, bound.names))

    def is_socket(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is something that ``context.socket(...)`` or ``socket.socket(...)`` made."""
        match node:
            case ast.Call(called, _):
                return tail(called) in {"socket", "Socket"}
            case ast.Name(name):
                binding = scope.names.get(name)
                return isinstance(binding, Bound) and self.is_socket(binding.node, Scope(scope.function, binding.names))
            case ast.Attribute(value, name):
                binding = scope.names.get(spelled(node) or "")
                if isinstance(binding, Bound):
                    return self.is_socket(binding.node, Scope(scope.function, binding.names))
                owner = self.type_of(value, scope)
                for one in [] if owner is None else self.program.bases(owner):
                    for method in one.stores.get(name, ()):
                        for visit, bound in method.walk.stores:
                            if (
                                isinstance(visit.node, ast.Attribute)
                                and visit.node.attr == name
                                and self.is_socket(bound.node, Scope(method, bound.names))
                            ):
                                return True
        return False

    def callee(self, node: ast.Call, scope: Scope) -> Function | Class | None:
        """What a call calls."""
        found = self._refer(node.func, scope)
        return found if isinstance(found, (Function, Class)) else None

    def _refer(self, node: ast.expr, scope: Scope) -> Found:
        """What a name or a dotted name refers to."""
        function = scope.function
        match node:
            case ast.Name(name):
                binding = scope.names.get(name)
                if isinstance(binding, Local):
                    return function.module.by_node.get(binding.node)
                if isinstance(binding, Imported):
                    return self.program.imported(function.module, binding.dotted)
                if isinstance(binding, Bound) and isinstance(binding.node, (ast.Name, ast.Attribute)):
                    return self._refer(binding.node, Scope(function, binding.names))
                if binding is not None or name in function.parameters:
                    if name == "cls" and function.owner is not None:
                        return function.owner
                    return None
                if function.parent is not None:
                    return self._refer(node, Scope(function.parent, function.parent.walk.names))
                return self.program.refer(function.module, name)
            case ast.Attribute(ast.Call(ast.Name("super"), _), name) if function.owner is not None:
                bases = self.program.bases(function.owner)[1:]
                return next((base.methods[name] for base in bases if name in base.methods), None)
            case ast.Attribute(value, name):
                owner = self.type_of(value, scope)
                if owner is not None:
                    found = self.program.method(owner, name)
                    if found is None:
                        found = next(
                            (heir.methods[name] for heir in self.program.heirs(owner) if name in heir.methods), None
                        )
                    return found
                outer = self._refer(value, scope)
                if isinstance(outer, Module):
                    inner = self.program.refer(outer, name)
                    if inner is None and (source := self.program.named(f"{outer.source.module}.{name}")):
                        return self.program.module(source)
                    return inner
                if isinstance(outer, Class):
                    return self.program.method(outer, name)
                if isinstance(outer, str):
                    source = self.program.named(f"{outer}.{name}")
                    return self.program.module(source) if source else f"{outer}.{name}"
        return None

    def type_of(self, node: ast.expr, scope: Scope, steps: int = 6) -> Class | None:
        """The class of the object that an expression is, where it can be told."""
        if not steps:
            return None
        function = scope.function
        match node:
            case ast.Name(name):
                binding = scope.names.get(name)
                if isinstance(binding, Bound):
                    return self.type_of(binding.node, Scope(function, binding.names), steps - 1)
                if binding is not None:
                    return None
                if name in function.parameters:
                    parameter = function.parameter(name)
                    if parameter is not None and parameter.annotation is not None:
                        return self.annotated(function.module, parameter.annotation)
                    if function.bound and name == function.parameters[0] and "classmethod" not in function.decorators:
                        return function.owner
                    return None
                if function.parent is not None:
                    return self.type_of(node, Scope(function.parent, function.parent.walk.names), steps - 1)
            case ast.Attribute(value, name):
                owner = self.type_of(value, scope, steps - 1)
                return None if owner is None else self._field_type(owner, name, steps)
            case ast.Call(called):
                found = self._refer(called, scope)
                if isinstance(found, Class):
                    return found
                if (
                    isinstance(found, Function)
                    and not isinstance(found.node, ast.Module)
                    and found.node.returns is not None
                ):
                    return self.annotated(found.module, found.node.returns)
            case ast.Await(value):
                return self.type_of(value, scope, steps - 1)
        return None

    def _field_type(self, owner: Class, name: str, steps: int) -> Class | None:
        key = ("type", owner.key, name)
        if key in self._open:
            return None
        self._open.add(key)
        try:
            return self._type_of_field(owner, name, steps)
        finally:
            self._open.discard(key)

    def _type_of_field(self, owner: Class, name: str, steps: int) -> Class | None:
        for one in self.program.bases(owner):
            field = one.fields.get(name)
            if isinstance(field, ast.AnnAssign):
                return self.annotated(one.module, field.annotation)
            for method in one.stores.get(name, ()):
                for visit, bound in method.walk.stores:
                    target = visit.node
                    if isinstance(target, ast.Attribute) and target.attr == name and tail(target.value) == "self":
                        found = self.type_of(bound.node, Scope(method, bound.names), steps - 1)
                        if found is not None:
                            return found
        return None

    def annotated(self, module: Module, node: ast.expr) -> Class | None:
        """The class that an annotation names, be it optional."""
        match node:
            case ast.Constant(str(written)):
                try:
                    return self.annotated(module, ast.parse(written, mode="eval").body)
                except (SyntaxError, ValueError):
                    return None
            case ast.BinOp(left, ast.BitOr(), right):
                return self.annotated(module, left) or self.annotated(module, right)
            case ast.Subscript(outer, inner):
                if tail(outer) in {"Optional", "Annotated", "Final", "ClassVar"}:
                    return self.annotated(module, inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
                return None
            case ast.Name() | ast.Attribute():
                found = self.program.resolve(module, node)
                return found if isinstance(found, Class) else None
        return None

    # Who calls a function, with what.

    def arguments(self, node: ast.Call, callee: Function | Class, scope: Scope) -> dict[Parameter, Expression]:
        """What each parameter of a function (or field of a data class) is in a call of it."""
        return self._matched(node.args, node.keywords, callee, scope)

    def _matched(
        self, given: Sequence[ast.expr], keywords: Sequence[ast.keyword], callee: Function | Class, scope: Scope
    ) -> dict[Parameter, Expression]:
        found: dict[Parameter, Expression] = {}
        if isinstance(callee, Class):
            for method in ("__init__", "__new__"):
                made = self.program.method(callee, method)
                if made is not None:
                    return self._matched(given, keywords, made, scope)
            fields = [
                (one, name)
                for one in reversed(self.program.bases(callee))
                if one.is_dataclass
                for name, field in one.fields.items()
                if isinstance(field, ast.AnnAssign)
            ]
            names = [Parameter(one.key, name) for one, name in fields]
            defaults = {
                Parameter(one.key, name): Bound(value, {})
                for one, name in fields
                if (value := one.fields[name].value) is not None
            }
            module = callee.module
        else:
            skipped = 1 if callee.bound else 0
            names = [Parameter(callee.key, name) for name in callee.parameters[skipped:]]
            defaults = {
                Parameter(callee.key, name): Bound(default, {})
                for name in callee.parameters
                if (default := callee.default(name)) is not None
            }
            module = callee.module
        starred = False
        for place, argument in enumerate(given):
            if isinstance(argument, ast.Starred):
                starred = True
                break
            if place < len(names):
                found[names[place]] = self.evaluate(argument, scope)
        by_name = {one.name: one for one in names}
        for keyword in keywords:
            if keyword.arg is None:
                starred = True
            elif keyword.arg in by_name:
                found[by_name[keyword.arg]] = self.evaluate(keyword.value, scope)
        for one in names:
            passed = found.get(one)
            named = self.vocabulary.coordinate(one.name)
            if passed is None and not starred and one in defaults:
                found[one] = self.bound(defaults[one], module.body)
            elif named is not None and (passed is None or isinstance(passed, (Unclear, Given))):
                found[one] = named
        return found

    def callers(self, function: Function) -> list[Caller]:
        """Every call of a function that can be told to be one, threads and processes that start it included."""
        found = self._callers.get(function.key)
        if found is None:
            self._callers[function.key] = []
            found = self._callers[function.key] = list(self._called(function))
        return found

    def constructions(self, owner: Class) -> list[Caller]:
        """Every place where an object of a class, or of one made from it, is made."""
        key = f"new {owner.key}"
        found = self._callers.get(key)
        if found is None:
            self._callers[key] = []
            found = []
            for one in (owner, *self.program.heirs(owner)):
                if one is owner or not {"__init__", "__post_init__"} & set(one.methods):
                    found += self._calls_of(one.name, one)
            for heir in self.program.heirs(owner):
                # An heir that hands on to the constructor: whoever makes the heir makes this.
                constructor = heir.methods.get("__init__")
                own = owner.methods.get("__init__")
                if constructor is not None and own is not None:
                    for visit in constructor.walk.calls:
                        assert isinstance(visit.node, ast.Call)
                        if tail(visit.node.func) == "__init__":
                            scope = Scope(constructor, visit.names)
                            if self.callee(visit.node, scope) is own:
                                found.append(Caller(constructor, visit, self.arguments(visit.node, own, scope)))
            self._callers[key] = found
        return found

    def handed_out(self, owner: Class) -> bool:
        """Whether a class is put somewhere from where it may be called: a registry, a variable, an argument."""
        if owner.key not in self._handed_out:
            self._handed_out[owner.key] = any(
                handed_on(source.data, owner.name.encode())
                for source in self._knowing(owner, self.program.mentioning(owner.name))
            )
        return self._handed_out[owner.key]

    def _called(self, function: Function) -> Iterable[Caller]:
        if function.name == "<module>":
            return []
        if function.bound and function.name in {"__init__", "__post_init__", "__new__"}:
            assert function.owner is not None
            return self.constructions(function.owner)
        return self._calls_of(function.name, function)

    def _calls_of(self, name: str, wanted: Function | Class) -> list[Caller]:
        home = wanted.module.source
        if isinstance(wanted, Function) and wanted.parent is not None:
            sources = [home]
        else:
            sources = self.program.mentioning(name)
            if isinstance(wanted, Class) or wanted.owner is None:
                sources = self._knowing(wanted, sources)
            sources = [source for source in sources if source is home or uses(source.data, name.encode())]
        lone = True
        if isinstance(wanted, Function) and wanted.owner is not None and wanted.parent is None:
            # A name of one word is likely that of a method of a library, too.
            lone = "_" in name.strip("_") and name not in self.common
            lone = lone and sum(source.data.count(b"def " + name.encode() + b"(") for source in sources) == 1
            if not lone:
                kin = {wanted.owner.name, *(heir.name for heir in self.program.heirs(wanted.owner))}
                known = {source.name for one in kin for source in self.program.mentioning(one)}
                sources = [one for one in sources if one is home or one.name in known]
        if len(sources) > _MOST_FILES * 4:
            sources = [source for source in sources if source is home]
        found: list[Caller] = []
        for source in sources:
            module = self.program.module(source)
            if module is None:
                continue
            for function in self._around(module, name):
                found += self._calls_in(function, name, wanted, lone)
                if len(found) > _MOST_CALLERS * 8:
                    return found
        return found

    def _knowing(self, wanted: Function | Class, sources: Sequence[Source]) -> list[Source]:
        """Those of `sources` that may import a function or a class: they name its module, or the package around it."""
        home = wanted.module.source
        parts = [part for part in home.module.split(".")[-2:] if part]
        if not parts:
            return list(sources)
        known = {source.name for part in parts for source in self.program.mentioning(part)}
        return [source for source in sources if source is home or source.name in known]

    def _around(self, module: Module, name: str) -> list[Function]:
        """The functions of a module in whose source a name occurs, innermost only."""
        known = self._lines.setdefault(module.source.name, {})
        if name not in known:
            lines = {module.line_of(place) for place in occurrences(module.source.data, name.encode())}
            inner: dict[str, Function] = {}
            for line in lines:
                best = module.body
                for function in module.functions[1:]:
                    node = function.node
                    assert not isinstance(node, ast.Module)
                    if node.lineno <= line <= (node.end_lineno or node.lineno) and (
                        best is module.body or node.lineno >= getattr(best.node, "lineno", 0)
                    ):
                        best = function
                inner[f"{best.key}{best.name}"] = best
            known[name] = sorted(inner.values(), key=lambda function: getattr(function.node, "lineno", 0))
        return known[name]

    def _calls_in(self, function: Function, name: str, wanted: Function | Class, lone: bool) -> list[Caller]:
        found: list[Caller] = []
        for visit in function.walk.calls:
            node = visit.node
            assert isinstance(node, ast.Call)
            scope = Scope(function, visit.names)
            if tail(node.func) == name:
                if self._is(node.func, wanted, scope, lone):
                    values = self.arguments(node, wanted, scope)
                    if isinstance(wanted, Function) and wanted.bound and isinstance(node.func, ast.Attribute):
                        values = {**self._made_with(node.func.value, scope), **values}
                    found.append(Caller(function, visit, values))
                continue
            if isinstance(wanted, Class) and tail(node.func) == "cls" and function.owner is wanted:
                found.append(Caller(function, visit, self.arguments(node, wanted, scope)))
                continue
            handed = next(
                (
                    argument
                    for argument in (*node.args, *(keyword.value for keyword in node.keywords))
                    if isinstance(argument, (ast.Name, ast.Attribute)) and tail(argument) == name
                ),
                None,
            )
            if handed is not None and isinstance(wanted, Function) and self._is(handed, wanted, scope, lone):
                starts = _STARTS.search(tail(node.func)) is not None
                found.append(Caller(function, visit, self._handed(node, handed, wanted, scope), starts))
        return found

    def _is(self, node: ast.expr, wanted: Function | Class, scope: Scope, lone: bool) -> bool:
        found = self._refer(node, scope)
        if found is wanted:
            return True
        if isinstance(wanted, Class):
            return isinstance(node, ast.Name) and node.id == "cls" and scope.function.owner is wanted
        if found is None:
            return lone and wanted.owner is not None and isinstance(node, ast.Attribute)
        if (
            isinstance(found, Function)
            and wanted.owner is not None
            and found.owner is not None
            and found.name == wanted.name
        ):
            return wanted.owner in self.program.heirs(found.owner)
        return False

    def _handed(self, node: ast.Call, handed: ast.expr, wanted: Function, scope: Scope) -> dict[Parameter, Expression]:
        """The arguments of a function that a thread, a process, a pool or a partial call is given."""
        if any(keyword.arg == "target" for keyword in node.keywords):
            given: Sequence[ast.expr] = ()
            keywords: list[ast.keyword] = []
            for keyword in node.keywords:
                if keyword.arg == "args" and isinstance(keyword.value, (ast.Tuple, ast.List)):
                    given = keyword.value.elts
                elif keyword.arg == "kwargs" and isinstance(keyword.value, ast.Dict):
                    keywords = [
                        ast.keyword(key.value, value)
                        for key, value in zip(keyword.value.keys, keyword.value.values, strict=True)
                        if isinstance(key, ast.Constant) and isinstance(key.value, str)
                    ]
            return self._matched(given, keywords, wanted, scope)
        if tail(node.func) in {"partial", "submit", "create_task", "run_in_executor", "apply_async", "call_soon"}:
            after = node.args[node.args.index(handed) + 1 :] if handed in node.args else []
            return self._matched(after, node.keywords, wanted, scope)
        return {}

    def completed(self, expression: Expression, steps: int = 5) -> Expression:
        """`expression` with every parameter replaced by what callers give for it, or by what its name means."""
        values = {hole: self._value_of(hole, steps) for hole in holes(expression)}
        found = filled(expression, values)
        return Unclear(LONG) if large(found) else found

    def _value_of(self, hole: Parameter, steps: int) -> Expression:
        named = self.vocabulary.coordinate(hole.name) or self.vocabulary.size(hole.name)
        if named is not None:
            return named
        found = self._completed.get(hole)
        if found is not None:
            return found
        fallback = self.vocabulary.weak(hole.name) or self.unknown(hole.name)
        if isinstance(fallback, Given) and (_NUMBER.search(hole.name) or self._of_each_rank(hole)):
            fallback = Unclear(hole.name)
        if not steps:
            return fallback
        self._completed[hole] = fallback
        given: dict[Expression, None] = {}
        callers = self._givers(hole)
        for caller in callers[: _MOST_CALLERS + 1]:
            value = caller.values.get(hole)
            if value is not None:
                given[self.completed(value, steps - 1)] = None
        values = list(given)
        if self.vocabulary.weak(hole.name) is not None:
            # Who says outright that it is rank 0 is alone, and says nothing about the ranks that there are elsewhere.
            values = [value for value in values if not isinstance(value, Constant)] or values
        if len(values) == 1:
            found = values[0]
        elif 1 < len(values) <= 4 and len(callers) <= _MOST_CALLERS:
            found = values[-1]
            sort = Unclear if self._of_each_rank(hole) else Given
            for place, value in enumerate(values[:-1]):
                found = chosen(sort(f"{hole.name} of call {place + 1}"), value, found)
        else:
            found = fallback
        self._completed[hole] = found
        return found

    def _of_each_rank(self, hole: Parameter) -> bool:
        """Whether a parameter is a field of what each rank has one of its own: beside the field is a rank."""
        file, _, _ = hole.function.rpartition(":")
        source = self.program.by_name(file)
        module = self.program.module(source) if source else None
        return module is not None and any(
            isinstance(found, Class)
            and found.key == hole.function
            and _CONFIGURATION.search(found.name) is None
            and any(self.vocabulary.coordinate(name) is not None for name in found.fields)
            for found in module.names.values()
        )

    def _givers(self, hole: Parameter) -> list[Caller]:
        file, _, _ = hole.function.rpartition(":")
        source = self.program.by_name(file)
        module = self.program.module(source) if source else None
        if module is None:
            return []
        for function in module.functions:
            if function.key == hole.function and hole.name in function.parameters:
                return self.callers(function)
        for found in module.names.values():
            if isinstance(found, Class) and found.key == hole.function:
                return self.constructions(found)
        return []


def _yields(function: Function) -> bool:
    return b"yield" in function.text and any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function.node)
    )


def _variable(name: Expression) -> Expression:
    """A variable of the environment."""
    if isinstance(name, Constant):
        return _ENVIRONMENT.get(str(name.value)) or Given(f"${name.value}")
    return Apply(_VARIABLE, (name,)) if isinstance(name, Parameter) else Given("a variable of the environment")


_VARIABLE: Final = "os.environ"


def _looked_up(expression: Expression) -> Expression:
    """`expression`, in which the variables of the environment whose names have become known are what they are."""
    match expression:
        case Apply("os.environ", (Constant() as name,)):
            return _variable(name)
        case Apply(operator, arguments, at) if any(
            isinstance(part, Apply) and part.operator == _VARIABLE for part in walk(expression)
        ):
            known = tuple(map(_looked_up, arguments))
            if operator in {"int", "str"} and isinstance(known[0], (Coordinate, Size)):
                return known[0]
            return chosen(*known) if operator == "if" else Apply(operator, known, at)
    return expression


def _collects(function: Function, name: str) -> bool:
    """Whether a name is that of the parameter which takes any keyword."""
    node = function.node
    return not isinstance(node, ast.Module) and node.args.kwarg is not None and node.args.kwarg.arg == name


def _placed(expression: Expression, at: Place) -> Expression:
    """The expression, said to stand at a place, unless it is known to stand at one."""
    match expression:
        case Coordinate(axis, local, None):
            return Coordinate(axis, local, at)
        case Apply(operator, arguments, None) if operator not in {"and", "or", "not", "if"}:
            return Apply(operator, arguments, at)
    return expression


def _text(node: ast.AST) -> str:
    """The source of an expression, cut short."""
    found = ast.unparse(node)
    return found if len(found) <= 120 else found[:117] + "..."
