"""The decorator: one object in each group, made on the owner at first use; everyone else gets `otherwise`.

    @singleton_per(group=("pp", "attn_tp"))
    def kv_events(endpoint: str) -> Publisher: ...

    kv_events("tcp://*:5557")      # the one Publisher, or None where this process does not own it
    kv_events.owned                # the predicate, for every other site
    kv_events.release()            # from here on it may be made again

From the top: what is declared, then the forms it takes: functions, coroutines, with-blocks, methods, classes. How a
thing is made once stands in `once`, who owns it in `scope`, who this process is in `identity`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import MethodType
from typing import IO, TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from rankbind import once
from rankbind.court import AcrossHosts, Court, OnHost, spans_hosts
from rankbind.errors import IdentityError, ScopeError, TopologyError, UnknownAxisError
from rankbind.identity import Identity, acted_on, current, identity
from rankbind.once import COLD, Args, Kwargs, Once, OnceAwaited, OnceNow
from rankbind.scope import Gate, Scope
from rankbind.site import call_site
from rankbind.tenure import Takeover, Tenure
from rankbind.topology import nearest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from contextlib import _AsyncGeneratorContextManager as _MadeAsyncContext
    from contextlib import _GeneratorContextManager as _MadeContext

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
D = TypeVar("D")
R = TypeVar("R")
F = TypeVar("F", bound=IO[Any])


class Declaration(Generic[D]):
    """Who owns, said once. It decorates any number of things, and answers for sites that make nothing.

    Attributes:
        owner_said: a `Scope`, or the name of a resource of the topology file.
        otherwise: what the others get: a value, or a factory without arguments.
        where: ``file:line`` of the declaration.
        on_takeover, lease: as `singleton_per` takes them.
    """

    def __init__(
        self,
        owner_said: Scope | str,
        otherwise: Any,
        name: str | None,
        where: str,
        on_takeover: Callable[[Takeover], object] | None = None,
        lease: float | None = None,
    ) -> None:
        self.owner_said, self.otherwise, self.name, self.where = owner_said, otherwise, name, where
        self.on_takeover, self.lease = on_takeover, lease
        self._decided: tuple[weakref.ref[Identity], bool] | None = None
        self._tenures: weakref.WeakKeyDictionary[Identity, Tenure] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        said = self.owner_said
        return f"singleton_per({f'{said!r}' if isinstance(said, str) else f'group={said.group}, rank={said.rank!r}'})"

    @property
    def owned(self) -> bool:
        """Whether this process is the owner. It raises rather than be False for want of knowledge.

        With ``rank="any"`` asking is taking part: this process owns from now on if nobody does.
        """
        return self.decide(identity(), self.label(repr(self)))

    @property
    def owner(self) -> int:
        """The world rank that owns in the group of this process."""
        return self.owner_rank(identity(), self.label(repr(self)))

    def release(self) -> None:
        """Give up what ``owned`` took, and stand by no longer. What is made under the declaration keeps its claim."""
        who = current()
        tenure = None if who is None else self._tenures.get(who)
        if tenure is not None and tenure.of_this_process:
            tenure.end()

    # Overlaps are meant: the first that fits is the form that the target takes at run time, too.
    @overload
    def __call__(self, target: type[T]) -> type[T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: classmethod[Any, P, T]) -> _Unbinding[P, T | D]: ...
    @overload
    def __call__(self, target: staticmethod[P, T]) -> _Unbinding[P, T | D]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, F]) -> Singleton[P, F | D]: ...
    @overload
    def __call__(self, target: Callable[P, AsyncIterator[T]]) -> AsyncSingleton[P, T | D]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, Coroutine[Any, Any, T]]) -> AsyncSingleton[P, T | D]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, Iterator[T]]) -> Singleton[P, T | D]: ...
    @overload
    def __call__(self, target: Callable[P, _MadeContext[T]]) -> SingletonContext[P, T | D]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, _MadeAsyncContext[T]]) -> AsyncSingletonContext[P, T | D]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, T]) -> Singleton[P, T | D]: ...
    def __call__(self, target: Any) -> Any:
        """Decorate a function, a coroutine function, a generator, a context manager, a method or a class."""
        if isinstance(target, type):
            return _gated(self, target)
        function, binds = target, "instance"
        if isinstance(target, staticmethod | classmethod):
            function, binds = target.__func__, "class" if isinstance(target, classmethod) else "nothing"
        if isinstance(function, Once) or not callable(function):
            raise TypeError(f"singleton_per decorates a function or a class, and only once, not {target!r}")
        label = self.label(getattr(function, "__qualname__", repr(function)))
        form: _Form = _form(function)(self, function, label)
        form._binds = binds
        return form

    def label(self, name: str) -> str:
        """What errors call it."""
        return f"{self.name or name} (declared at {self.where})"

    def decide(self, who: Identity, label: str, *, stand_by: bool = True) -> bool:
        """Whether `who` owns. Asked once for each identity, unless that is elected.

        Args:
            stand_by: where it is elected, and somebody else owns: wait for it in the background.

        Raises:
            ScopeError, TopologyError: the topology has no such group, or nobody said what decides.
            IdentityError: the resource stands in a topology file, and there is none; or it is elected, and what the
                election needs is not known.
            ClaimError: it is elected, and whether somebody owns it cannot be found out.
        """
        before = self._decided
        if before is not None and before[0]() is who:
            return before[1]
        with _explained(label, who):
            gate = self._gate(who)
            owned = gate.is_owner(who.topology, who.coordinates)
            tenure = self.tenure(who) if _elects(gate) else None
        acted_on(who, label)
        if tenure is not None:
            return tenure.contest(stand_by=stand_by)
        self._decided = weakref.ref(who), owned
        return owned

    def tenure(self, who: Identity) -> Tenure | None:
        """What `who` has of this resource; None where nothing is claimed, because it has no name or `who` is played.

        Raises:
            IdentityError: it is elected, and cannot be: `who` has no deployment, or nobody said where its ranks run.
        """
        found = self._tenures.get(who)
        if found is not None and found.of_this_process:
            return found
        name = self.owner_said if isinstance(self.owner_said, str) else self.name
        gate = self._gate(who)
        if _elects(gate) and who.deployment is None:
            raise IdentityError(
                f'{name} belongs to whoever claims it first (rank="any"), and {who} claims nothing: give `use` a '
                "deployment"
            )
        if name is None or who.deployment is None:
            return None
        court: Court = OnHost(who, name, gate, self.where)
        if isinstance(gate, Scope) and _elects(gate) and spans_hosts(who, name, gate):
            court = AcrossHosts(who, name, gate, self.where, self.lease)
        if found is not None:
            self._tenures.pop(who, None)
        return self._tenures.setdefault(who, Tenure(who, court, _elects(gate), self.on_takeover))

    def owner_rank(self, who: Identity, label: str) -> int:
        """The world rank that owns for `who`. Raises as `decide`."""
        with _explained(label, who):
            gate = self._gate(who)
            tenure = self.tenure(who) if _elects(gate) else None
            if tenure is not None and tenure.claim is not None and who.rank is not None:
                return who.rank
            if tenure is not None:
                raise ScopeError("whoever claimed it first owns it, and it is not this process: see `rankbind status`")
            if isinstance(gate, Gate):
                raise ScopeError(f"a hand-written gate ({gate}) has no groups, so no one owner for each process")
            owner = gate.owner_of(who.topology, who.coordinates)
        acted_on(who, label)
        return owner

    def _gate(self, who: Identity) -> Scope | Gate:
        gate: Scope | Gate
        if isinstance(self.owner_said, Scope):
            gate = self.owner_said
        elif who.job is None:
            raise IdentityError(
                f"the owner of {self.owner_said!r} stands in a topology file, and there is none ({who}): "
                'call rankbind.init("topology.toml") or set RANKBIND_TOPOLOGY'
            )
        else:
            known = {resource.name: resource.owner for resource in who.job.resources}
            if self.owner_said not in known:
                near = nearest(self.owner_said, known)
                hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known) or 'none'}"
                raise ScopeError(f"the topology file has no resource {self.owner_said!r}; {hint}")
            gate = known[self.owner_said]
        return gate


def _elects(gate: Scope | Gate) -> bool:
    return isinstance(gate, Scope) and gate.rank == "any"


@overload
def singleton_per(
    resource: str | None = None,
    /,
    *,
    group: str | Sequence[str] | None = None,
    rank: int | Literal["any"] | None = None,
    name: str | None = None,
    on_takeover: Callable[[Takeover], object] | None = None,
    lease: float | None = None,
) -> Declaration[None]: ...
@overload
def singleton_per(
    resource: str | None = None,
    /,
    *,
    group: str | Sequence[str] | None = None,
    rank: int | Literal["any"] | None = None,
    otherwise: Callable[[], U],
    name: str | None = None,
    on_takeover: Callable[[Takeover], object] | None = None,
    lease: float | None = None,
) -> Declaration[U]: ...
@overload
def singleton_per(
    resource: str | None = None,
    /,
    *,
    group: str | Sequence[str] | None = None,
    rank: int | Literal["any"] | None = None,
    otherwise: U,
    name: str | None = None,
    on_takeover: Callable[[Takeover], object] | None = None,
    lease: float | None = None,
) -> Declaration[U]: ...
def singleton_per(
    resource: str | None = None,
    /,
    *,
    group: str | Sequence[str] | None = None,
    rank: int | Literal["any"] | None = None,
    otherwise: Any = None,
    name: str | None = None,
    on_takeover: Callable[[Takeover], object] | None = None,
    lease: float | None = None,
) -> Declaration[Any]:
    """Declare that what is decorated exists once in each group: ``singleton_per(group="pp", rank=0)``.

    Args:
        resource: instead of `group` and `rank`: a resource of the topology file that `init` was given.
        group, rank: as `Scope` takes them; rank is 0 if left out.
        otherwise: what everyone but the owner gets. A callable is called, without arguments, once for each object that
            there would have been; to give a callable itself, wrap it: ``otherwise=lambda: fallback``.
        name: what it is claimed as, on every host, and what errors call it. Left out, errors call it by the function's
            name and nothing is claimed, so two processes that say they are the owner are not found out. A `resource` is
            claimed by its name. See `rankbind.claim`.
        on_takeover: with ``rank="any"``: called when this process, having stood by, comes to own, and everything it
            was asked for meanwhile has been made. In a thread of rankbind's.
        lease: with ``rank="any"`` and a group that spans hosts: seconds after which an owner that is not heard of is
            taken for dead. It may be alive and not know yet, so consumers must compare the token of its claim. On one
            host the kernel knows who lives, and nothing expires.

    Raises:
        ScopeError: the group names an axis twice, or the rank is no integer. Whether the topology has such a group is
            said at first use, when it is known.
        TypeError: an election without a name for it.
    """
    if not isinstance(resource, str | None):
        raise TypeError('write @singleton_per(group=...) or @singleton_per("resource"), with the parentheses')
    if (resource is None) == (group is None) or (resource is not None and rank is not None):
        raise TypeError("singleton_per needs group=... (and rank=...), or the name of a resource of the topology file")
    if inspect.iscoroutinefunction(otherwise):
        raise TypeError("otherwise is a value or a plain function, not a coroutine function")
    owner = resource if resource is not None else Scope(group or (), 0 if rank is None else rank)
    if rank == "any" and name is None:
        raise TypeError('rank="any" needs name="...": it is what all that may own it claim it as')
    if isinstance(owner, Scope) and rank != "any" and (on_takeover is not None or lease is not None):
        raise TypeError('on_takeover and lease go with rank="any": another rank is never taken over')
    if inspect.iscoroutinefunction(on_takeover):
        raise TypeError("on_takeover is a plain function: it is called in a thread of rankbind's")
    if lease is not None and not lease > 0:
        raise ValueError(f"a lease lasts some seconds, not {lease!r}")
    return Declaration(owner, otherwise, name, call_site(), on_takeover, lease)


class _Form(Once):
    """What all forms share: the predicate, and methods, which have one object for each instance (or class).

    The instance keeps the form bound to it, as it keeps what functools.cached_property makes; so it needs no hash, and
    what was made goes when it goes.
    """

    _binds = "nothing"
    _class: type | None = None

    def __repr__(self) -> str:
        return f"<singleton {self.label}>"

    def __reduce__(self) -> Any:
        return (type(None), ()) if self._of is not None else self.__qualname__  # type: ignore[attr-defined]

    @property
    def owned(self) -> bool:
        """Whether this process is the owner: the predicate for every other site."""
        return self._rule.decide(identity(), self.label)

    @property
    def owner(self) -> int:
        """The world rank that owns in the group of this process."""
        return self._rule.owner_rank(identity(), self.label)

    def __set_name__(self, owner: type, name: str) -> None:
        self._class = owner if self._binds == "instance" else None

    if not TYPE_CHECKING:

        def __get__(self, instance, owner=None):
            if instance is None or self._binds != "instance":
                return MethodType(self._bound(owner), owner) if self._binds == "class" else self
            try:
                form = instance.__dict__[self._slot]
                if form._of() is instance:
                    return MethodType(form, instance)
            except (AttributeError, KeyError, TypeError):  # no __dict__, a first call, a copy's
                pass
            return MethodType(self._bound(instance), instance)

    def _bound(self, of: Any) -> _Form:
        try:
            kept: Mapping[str, Any] = vars(of)
        except TypeError:
            raise TypeError(f'{self.label} keeps what it makes in its instance: add "__dict__" to __slots__') from None
        form: _Form | None = kept.get(self._slot)
        if form is not None and form._of is not None and form._of() is of:
            return form
        with self._mutex:
            form = kept.get(self._slot)
            if form is None or form._of is None or form._of() is not of:
                form = _BOUND[type(self)](self._rule, self._function, self.label, of)
                if isinstance(kept, dict):
                    kept[self._slot] = form
                else:
                    type.__setattr__(of, self._slot, form)
            return form

    def _redirect(self, args: Args) -> _Form | None:
        """The form bound to the first of `args`, where a method was called as ``Class.method(instance)``."""
        if self._of is not None or not args:
            return None
        if self._class is not None:
            return self._bound(args[0]) if isinstance(args[0], self._class) else None
        # From Python 3.13 on, a @classmethod around this does not ask __get__: it passes the class as an argument.
        name = getattr(self, "__name__", "")
        outer = (vars(base).get(name) for base in args[0].__mro__) if isinstance(args[0], type) else ()
        return self._bound(args[0]) if any(getattr(found, "__func__", None) is self for found in outer) else None


class Singleton(_Form, OnceNow, Generic[P, R]):
    """A decorated function or generator: calling it gives the one object, or `otherwise`."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The one object, made at the first call. Equal arguments give the same one, others are an error."""
        if not (args or kwargs):
            fast = self.fast
            if fast is not COLD:
                return fast  # type: ignore[no-any-return]
        made_with, named, value = self.settled
        try:
            if made_with is None or (args == made_with and kwargs == named):
                return value  # type: ignore[no-any-return]
        except Exception:  # arguments whose == raises, as arrays' do
            pass
        form: Any = self._redirect(args)
        return self.obtain(args, kwargs)[2] if form is None else form(*args, **kwargs)  # type: ignore[no-any-return]

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Singleton[P, R]: ...
        @overload
        def __get__(self: Singleton[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Singleton[Q, R]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class AsyncSingleton(_Form, OnceAwaited, Generic[P, R]):
    """A decorated coroutine function or async generator: awaiting it gives the one object, or `otherwise`."""

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The one object, made at the first call. Equal arguments give the same one, others are an error."""
        if not (args or kwargs):
            fast = self.fast
            if fast is not COLD:
                return fast  # type: ignore[no-any-return]
        made_with, named, value = self.settled
        try:
            if made_with is None or (args == made_with and kwargs == named):
                return value  # type: ignore[no-any-return]
        except Exception:  # as in Singleton
            pass
        form: Any = self._redirect(args)
        return (await self.obtain(args, kwargs))[2] if form is None else await form(*args, **kwargs)  # type: ignore[no-any-return]

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> AsyncSingleton[P, R]: ...
        @overload
        def __get__(
            self: AsyncSingleton[Concatenate[S, Q], R], instance: S, owner: Any = None
        ) -> AsyncSingleton[Q, R]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class SingletonContext(_Form, OnceNow, Generic[P, R]):
    """A decorated ``@contextmanager``: with-blocks share the one object, and the last to leave tears it down.

    Of those that may own (``rank="any"``) a with-block asks once, when it is entered.
    """

    _stands_by = False

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[R, bool | None]:
        """A with-block around the one object. The teardown sees the exception of the last block to leave, if any."""
        form: Any = self._redirect(args)
        return self._block(args, kwargs) if form is None else form(*args, **kwargs)

    @contextlib.contextmanager
    def _block(self, args: Args, kwargs: Kwargs) -> Iterator[Any]:
        who, record, value = self.obtain(args, kwargs)
        while record is not None and not self._join(who, record):
            who, record, value = self.obtain(args, kwargs)
        try:
            yield value
        except BaseException as error:
            if record is None or not self._close(who, record, error, leaving=True):
                raise
        else:
            if record is not None:
                self._close(who, record, leaving=True)


class AsyncSingletonContext(_Form, OnceAwaited, Generic[P, R]):
    """As `SingletonContext`, for ``@asynccontextmanager``."""

    _stands_by = False

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[R, bool | None]:
        """An async with-block around the one object."""
        form: Any = self._redirect(args)
        return self._block(args, kwargs) if form is None else form(*args, **kwargs)

    @contextlib.asynccontextmanager
    async def _block(self, args: Args, kwargs: Kwargs) -> AsyncIterator[Any]:
        who, record, value = await self.obtain(args, kwargs)
        while record is not None and not self._join(who, record):
            who, record, value = await self.obtain(args, kwargs)
        try:
            yield value
        except BaseException as error:
            if record is None or not await self._close(who, record, error, leaving=True):
                raise
        else:
            if record is not None:
                await self._close(who, record, leaving=True)


def _form(function: Any) -> type[_Form]:
    if once.is_context(function):
        return SingletonContext
    if once.is_async_context(function):
        return AsyncSingletonContext
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return AsyncSingleton
    return Singleton


# A bound form is called through types.MethodType, which passes the instance (and keeps it alive meanwhile).


class _BoundSingleton(Singleton[..., Any]):
    def __call__(self, _of: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not (args or kwargs):
            fast = self.fast
            if fast is not COLD:
                return fast
        return super().__call__(*args, **kwargs)


class _Bound:
    def __call__(self, _of: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


_BOUND: dict[type, Callable[..., _Form]] = {
    form: type(f"_Bound{form.__name__}", (_Bound, form), {})
    for form in (AsyncSingleton, SingletonContext, AsyncSingletonContext)
}
_BOUND[Singleton] = _BoundSingleton


class _FromForm:
    """An attribute of a decorated class that its form answers, unless the class has one of that name itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, cls: Any, _meta: Any = None) -> Any:
        return self if cls is None else getattr(_Gated._form(cls), self._name)


class _Gated(type):
    """Mixed into the metaclass of a decorated class: constructing goes by the declaration; the rest is untouched.

    A subclass constructs one object of its own, under the same declaration. Unpickling and copying do not construct.
    """

    owned, owner, claim, release = _FromForm("owned"), _FromForm("owner"), _FromForm("claim"), _FromForm("release")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _Gated._form(cls)(*args, **kwargs)

    def _form(cls) -> Singleton[..., Any]:
        form: Singleton[..., Any] | None = vars(cls).get("_rankbind_form")
        if form is None:
            nearest: Singleton[..., Any] = cls._rankbind_form  # type: ignore[attr-defined]
            with nearest._mutex:
                form = vars(cls).get("_rankbind_form")
                if form is None:
                    form = _constructor(nearest._rule, cls)
                    type.__setattr__(cls, "_rankbind_form", form)
        return form


def _constructor(declaration: Any, cls: Any) -> Singleton[..., Any]:
    @functools.wraps(cls, updated=())
    def construct(*args: Any, **kwargs: Any) -> Any:
        return super(_Gated, cls).__call__(*args, **kwargs)

    maker = cls.__new__ if cls.__init__ is object.__init__ else cls.__init__
    with contextlib.suppress(ValueError, TypeError):  # some builtins have no signature: equal arguments suffice there
        signature = inspect.signature(maker)
        vars(construct)["__signature__"] = signature.replace(parameters=list(signature.parameters.values())[1:])
    return Singleton(declaration, construct, declaration.label(cls.__qualname__))


def _gated(declaration: Declaration[Any], cls: type) -> type:
    """`cls` under its own name, with a metaclass that asks `declaration` before it constructs."""
    meta = type(f"Gated{type(cls).__name__}", (_Gated, type(cls)), {})
    space: dict[str, Any] = {"__slots__": ()}
    space |= {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    if generic := getattr(cls, "__parameters__", ()):
        space["__orig_bases__"] = (cls[generic],)  # type: ignore[index]
    gated: type = meta(cls.__name__, (cls,), space)
    type.__setattr__(gated, "_rankbind_form", _constructor(declaration, gated))
    return gated


@contextlib.contextmanager
def _explained(label: str, who: Identity) -> Iterator[None]:
    """Put the name and place of the declaration before an error, and behind it what to do where that is known."""
    try:
        yield
    except (ScopeError, TopologyError, IdentityError) as error:
        hint = ""
        if isinstance(error, UnknownAxisError) and not who.declared:
            hint = (
                f". The axes are not declared: all that is known comes from {who.source}. Declare them with "
                "rankbind.init(axes={...}), RANKBIND_AXES or a topology file"
            )
        elif isinstance(error, TopologyError) and not who.topology.hosts:
            hint = ". The hosts are not known: say hosts=... in rankbind.init, or RANKBIND_HOSTS"
        error.args = (f"{label}: {error}{hint}",)
        raise


if TYPE_CHECKING:

    class _Unbinding(Protocol[P, R]):
        """A static or class method: bound to no instance."""

        def __get__(self, instance: Any, owner: Any = None) -> Singleton[P, R]: ...
