"""What makes something that one process can have: the calls, which argument is the address, when they make nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rankbind.audit.expression import FALSE, TRUE, Apply, Constant, Expression, Private, both
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Function
from rankbind.audit.walk import Bound, Visit


@dataclass(frozen=True, slots=True)
class Argument:
    """Where an argument is: its position, or its keyword."""

    keyword: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One sort of creation.

    Attributes:
        kind: what is made, for a person.
        verb: what a rank does with the address.
        address: the arguments that are its address; none for all of them.
        when: the argument that says whether anything is made at all.
        receiver: what the object, class or module must be called whose function it is.
        required: keywords without which it is something else.
        shared: whether the address may be one that several hosts see, as a path is.
        library: whether it is a function of an engine, for the sources of a plug-in: where the function itself is in
            sight, what it does says more.
    """

    kind: str
    verb: str
    address: tuple[Argument, ...] = ()
    when: Argument | None = None
    receiver: str = ""
    required: tuple[str, ...] = ()
    shared: bool = False
    library: bool = False


_HOST, _PORT = Argument("host", 1), Argument("port", 2)
_SERVER: Final = (Argument("server_address", 0),)
ROWS: Final[Mapping[str, tuple[Row, ...]]] = {
    "bind": (Row("socket", "bind", (Argument("addr", 0),)),),
    # vllm.utils; sglang.srt.utils
    "make_zmq_socket": (Row("socket", "bind", (Argument("path", 1),), when=Argument("bind", 3), library=True),),
    "zmq_socket_ctx": (Row("socket", "bind", (Argument("path", 0),), when=Argument("bind", 2), library=True),),
    "get_zmq_socket": (Row("socket", "bind", (Argument("endpoint", 2),), when=Argument("bind", 3), library=True),),
    "start_http_server": (Row("metrics server", "listen on", (Argument("port", 0), Argument("addr", 1))),),
    "start_wsgi_server": (Row("metrics server", "listen on", (Argument("port", 0), Argument("addr", 1))),),
    "run": (
        Row("HTTP server", "listen on", (Argument("host"), Argument("port"), Argument("uds")), receiver="uvicorn"),
    ),
    "Config": (
        Row("HTTP server", "listen on", (Argument("host"), Argument("port"), Argument("uds")), receiver="uvicorn"),
    ),
    "HTTPServer": (Row("HTTP server", "listen on", _SERVER),),
    "ThreadingHTTPServer": (Row("HTTP server", "listen on", _SERVER),),
    "TCPServer": (Row("TCP server", "listen on", _SERVER),),
    "ThreadingTCPServer": (Row("TCP server", "listen on", _SERVER),),
    "UnixStreamServer": (Row("unix socket server", "listen on", _SERVER),),
    "make_server": (Row("HTTP server", "listen on", (Argument("host", 0), Argument("port", 1))),),
    "TCPSite": (Row("HTTP server", "listen on", (_HOST, _PORT)),),
    "run_app": (Row("HTTP server", "listen on", (Argument("host"), Argument("port")), receiver="web"),),
    "start_server": (Row("TCP server", "listen on", (_HOST, _PORT), receiver="asyncio"),),
    "start_unix_server": (Row("unix socket server", "listen on", (Argument("path", 1),), receiver="asyncio"),),
    "create_server": (
        Row("TCP server", "listen on", (Argument("address", 0),), receiver="socket"),
        Row("TCP server", "listen on", (_HOST, _PORT), receiver="loop"),
    ),
    "add_insecure_port": (Row("gRPC server", "listen on", (Argument("address", 0),)),),
    "add_secure_port": (Row("gRPC server", "listen on", (Argument("address", 0),)),),
    "Listener": (Row("listener", "listen on", (Argument("address", 0),)),),
    "TCPStore": (
        Row(
            "TCPStore server",
            "listen on",
            (Argument("host_name", 0), Argument("port", 1)),
            when=Argument("is_master", 3),
        ),
    ),
    "create": (Row("publisher", "publish at", receiver="PublisherFactory"),),
    "SharedMemory": (Row("shared memory", "create", (Argument("name", 0),), when=Argument("create", 1)),),
    "connect": (Row("database", "open", (Argument("database", 0),), receiver="sqlite3", shared=True),),
    "setFilename": (Row("profiler database", "write", (Argument("name", 0),), shared=True),),
    "export_chrome_trace": (Row("trace file", "write", (Argument("path", 0),), shared=True),),
    "export_memory_timeline": (Row("trace file", "write", (Argument("path", 0),), shared=True),),
    "export_stacks": (Row("trace file", "write", (Argument("path", 0),), shared=True),),
    "_dump_snapshot": (Row("memory snapshot", "write", (Argument("filename", 0),), shared=True),),
    "FileLock": (Row("lock file", "take", (Argument("lock_file", 0),), required=("timeout=0",), shared=True),),
    "open": (Row("file", "write", (Argument("file", 0),), shared=True),),
}
WORDS: Final = tuple(word for word in ROWS if word not in {"run", "create", "Config", "open", "connect"})
"""Words of which a file has one if it makes anything, but for those that are everywhere."""

_SOCKET: Final = re.compile(
    r"sock|socket|(?:^|_)(?:pub|sub|push|pull|rep|req|router|dealer|replay|server|listener|xpub|xsub|bus)(?:_|$)",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(r"addr|endpoint|(?:^|_)(?:url|uri|path|port|name|host)(?:_|$)", re.IGNORECASE)
_PROBE: Final = re.compile(
    r"(?:^|_)(?:is|wait|check|find|get|pick|next|probe|reserve|try)_.*ports?(?:_|$)|available|(?:^|_)probe|free_port|open_port"
)
_FILE: Final = re.compile(r"trace|prof|timeline|\.rpd|\.pid|snapshot", re.IGNORECASE)

_TRACED: Final = re.compile(rf"{_FILE.pattern}|rpd", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Made:
    """A creation in the source.

    Attributes:
        gate: the condition under which the call makes something, from where its function is entered.
    """

    row: Row
    function: Function
    visit: Visit
    gate: Expression
    address: Expression

    @property
    def call(self) -> ast.Call:
        """The call."""
        assert isinstance(self.visit.node, ast.Call)
        return self.visit.node


def made(meaning: Meaning, function: Function, more: Mapping[str, str]) -> Iterator[Made]:
    """Every creation in a function.

    Args:
        more: further calls that make something, by their (dotted) name, each with the argument that is the address.
    """
    for visit in function.walk.calls:
        node = visit.node
        assert isinstance(node, ast.Call)
        tail = (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else node.func.id
            if isinstance(node.func, ast.Name)
            else ""
        )
        rows = ROWS.get(tail, ())
        own = more.get(tail) or (more.get(ast.unparse(node.func)) if more else None)
        scope = Scope(function, visit.names)
        if own is not None:
            rows = (Row(tail, "create", (Argument(own, _position(own, node, scope, meaning)),)),)
        for row in rows:
            if own is None and not _fits(row, tail, node, scope, meaning):
                continue
            gate: Expression = TRUE
            if row.when is not None:
                given = _given(node, row.when)
                gate = FALSE if given is None else meaning.evaluate(given, scope)
                if gate == FALSE:
                    continue
            if (row.library and meaning.callee(node, scope) is not None) or _attached(function, node):
                continue
            address = _address(row, tail, node, scope, meaning)
            if address is None or (isinstance(address, Constant) and address.value is None):
                continue
            if visit.tried:
                address = Private("the first that can be had")
            yield Made(row, function, visit, both(meaning.condition(visit.path, function), gate), address)
            break


def _position(own: str, node: ast.Call, scope: Scope, meaning: Meaning) -> int:
    """The position of the argument that is the address of a creation of one's own; else the first."""
    if own.isdigit():
        return int(own)
    callee = meaning.callee(node, scope)
    if isinstance(callee, Function) and own in callee.parameters:
        return callee.parameters.index(own) - callee.bound
    return 0


def _given(node: ast.Call, argument: Argument) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == argument.keyword:
            return keyword.value
    if argument.position is not None and argument.position < len(node.args):
        found = node.args[argument.position]
        return None if isinstance(found, ast.Starred) else found
    return None


def _address(row: Row, tail: str, node: ast.Call, scope: Scope, meaning: Meaning) -> Expression | None:
    if not row.address:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        found = [_given(node, argument) for argument in row.address]
        given = [item for item in found if item is not None]
        if not given:
            return None
    values = [meaning.evaluate(item, scope) for item in given]
    if len(values) == 1:
        return unported(values[0])
    return unported(Apply("tuple", tuple(values)))


def unported(address: Expression) -> Expression:
    """The address; private where the kernel chooses the port."""
    last: Expression = address
    while isinstance(last, Apply) and last.operator in {"tuple", "text"} and last.arguments:
        last = last.arguments[-1]
    if isinstance(last, Constant) and (
        (last.value == 0 and not isinstance(last.value, bool))
        or (isinstance(last.value, str) and re.search(r":(?:0|\*)$", last.value))
    ):
        return Private("a port that the kernel chooses")
    return address


def _fits(row: Row, tail: str, node: ast.Call, scope: Scope, meaning: Meaning) -> bool:
    whose = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if row.receiver and not whose.split("(")[0].endswith(row.receiver):
        return False
    if tail == "bind":
        return _binds(node, whose, scope, meaning)
    if tail == "open":
        return _writes(node, whose)
    if tail == "connect":
        # A database is made to be shared; one that a profiler writes is of one process.
        return bool(node.args) and _TRACED.search(ast.unparse(node.args[0])) is not None
    if tail == "Listener" and whose not in {"", "multiprocessing.connection", "connection"}:
        return False
    if row.required == ("timeout=0",):
        given = _given(node, Argument("timeout", 1)) or _given(node, Argument("blocking"))
        return isinstance(given, ast.Constant) and not given.value
    return True


def _attached(function: Function, node: ast.Call) -> bool:
    """Whether who comes second takes what is there, as the handler for its being there says."""
    if b"FileExistsError" not in function.text:
        return False
    return any(
        isinstance(block, ast.Try)
        and any(part is node for statement in block.body for part in ast.walk(statement))
        and any(
            handler.type is not None
            and "FileExistsError" in ast.unparse(handler.type)
            and not any(isinstance(part, ast.Raise) for part in ast.walk(handler))
            for handler in block.handlers
        )
        for block in ast.walk(function.node)
    )


def _binds(node: ast.Call, whose: str, scope: Scope, meaning: Meaning) -> bool:
    """Whether ``x.bind(y)`` binds a socket, and keeps it."""
    if len(node.args) != 1 or node.keywords or not whose:
        return False
    argument = node.args[0]
    receiver = whose.rpartition(".")[2]
    spelled = ast.unparse(argument)
    address = (
        isinstance(argument, ast.Tuple) or "://" in spelled or _ADDRESS.search(spelled.partition("(")[0]) is not None
    )
    sure = "://" in spelled or _SOCKET.search(receiver) is not None
    if not sure and not (address and re.fullmatch(r"s|self|conn|srv|l", receiver)):
        assert isinstance(node.func, ast.Attribute)
        if not meaning.is_socket(node.func.value, scope):
            return False
    if _PROBE.search(scope.function.name):
        return False
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        name = node.func.value.id
        binding = scope.names.get(name)
        if (
            isinstance(binding, Bound)
            and isinstance(binding.node, ast.Call)
            and ast.unparse(binding.node.func) in {"socket.socket", "socket"}
            and _dropped(scope.function, name)
        ):
            return False
    return True


def _dropped(function: Function, name: str) -> bool:
    """Whether a socket of a function is only bound, to see whether it can be, and given up."""
    for node in ast.walk(function.node):
        match node:
            case ast.Call(ast.Attribute(ast.Name(found), "listen" | "accept" | "recvfrom" | "recv" | "detach")) if (
                found == name
            ):
                return False
            case ast.Return(value) | ast.Yield(value) if value is not None:
                if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)):
                    inside = {
                        id(part.value)
                        for part in ast.walk(value)
                        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
                    }
                    if any(
                        isinstance(part, ast.Name) and part.id == name and id(part) not in inside
                        for part in ast.walk(value)
                    ):
                        return False
            case ast.Assign([ast.Attribute()], ast.Name(found)) if found == name:
                return False
            case ast.Call(_, arguments, keywords):
                handed = [*arguments, *(keyword.value for keyword in keywords)]
                if any(isinstance(part, ast.Name) and part.id == name for part in handed):
                    return False
    return True


def _writes(node: ast.Call, whose: str) -> bool:
    """Whether ``open(...)`` makes a file that a profiler or a trace is known by."""
    if whose not in {"", "gzip", "io"}:
        return False
    mode = _given(node, Argument("mode", 1))
    if not (isinstance(mode, ast.Constant) and isinstance(mode.value, str)):
        return False
    if "x" in mode.value:
        # Whoever comes second fails, whatever the file is for.
        return True
    if "w" not in mode.value:
        return False
    return bool(node.args) and _FILE.search(ast.unparse(node.args[0])) is not None
