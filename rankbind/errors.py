"""What rankbind raises. Everything derives from `RankbindError`; nothing else of ours reaches a caller."""

from __future__ import annotations


class RankbindError(Exception):
    """Base of every error rankbind raises on purpose."""


class TopologyError(RankbindError, ValueError):
    """Axes, views or hosts that do not describe one set of ranks; `axis` names the culprit where there is one."""

    def __init__(self, message: str, axis: str | None = None) -> None:
        super().__init__(message)
        self.axis = axis


class ScopeError(RankbindError, ValueError):
    """A group or an owner that the topology does not have."""


class UnknownAxisError(ScopeError):
    """A name that is no axis of the topology. `axis` is the name, `known` the names there are."""

    def __init__(self, message: str, axis: str = "", known: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.axis = axis
        self.known = known


class TextError(RankbindError, ValueError):
    """A text that cannot be read. `column` counts characters from 0 to the offending one, `width` how many."""

    def __init__(self, message: str, column: int = 0, width: int = 1) -> None:
        super().__init__(message)
        self.column = column
        self.width = width


class TemplateError(TextError):
    """A template that does not parse, or that has no value for some rank (a division by zero)."""


class EndpointError(TextError):
    """An address that is neither tcp, ipc nor inproc as libzmq spells them."""


class IdentityError(RankbindError, RuntimeError):
    """The process does not know its rank, or two sources contradict each other about it."""


class ConfigError(RankbindError, ValueError):
    """A topology file that cannot be used; `findings` says what is wrong with it, and where."""

    def __init__(self, message: str, findings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings
