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


class ClaimError(RankbindError, RuntimeError):
    """A claim that could not be made, kept or given up."""


class ClaimedError(ClaimError):
    """Somebody else holds it.

    Attributes:
        key: what was asked for.
        holder: the record of who holds it, where it could be read.
        address: the endpoint or path that is held, where it is that and not the resource.
    """

    def __init__(self, message: str, key: object = None, holder: object = None, address: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.address = address


class DirectoryError(ClaimError):
    """A runtime directory in which claims would not be safe, or that cannot be used at all."""


class PortError(RankbindError, OSError):
    """A port, or a range of them, that cannot be had. `errno` is the kernel's where it was the kernel that said no."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class HandoverError(RankbindError, RuntimeError):
    """A socket that cannot be handed over: it is gone already, it is another process's, or not what it should be."""


class DeposedError(ClaimError):
    """What was owned is another's by now, or may be.

    Attributes:
        key: what was held.
        token: with which fencing token.
        holder: the record of the new owner, where there is one and it is known.
    """

    def __init__(self, message: str, key: object = None, token: int = 0, holder: object = None) -> None:
        super().__init__(message)
        self.key = key
        self.token = token
        self.holder = holder


class StoreGoneError(ClaimError):
    """A torch.distributed Store that does not answer, in time or at all: what it holds is not known."""


class RehearsalError(RankbindError, RuntimeError):
    """A rehearsal that could not be held, or not to its end."""


class NetworkError(RehearsalError):
    """Network namespaces that cannot be made here."""


class LaunchError(RankbindError, ValueError):
    """A launch command that cannot be read: nobody knows its engine, or it is none."""
