"""Where it is decided who holds a resource: by the host's kernel wherever one host can, else by the job's store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from rankbind.endpoint import Endpoint
from rankbind.errors import ClaimError, IdentityError
from rankbind.identity import Identity
from rankbind.runtime.claim import Claim, claim
from rankbind.runtime.election import Held, wait_for_claim
from rankbind.scope import Gate, Scope

if TYPE_CHECKING:
    from rankbind.runtime.store import StoreClaim


class Court(Protocol):
    """Where it is decided who holds a resource: on one host, or across hosts."""

    resource: str

    def claim(self, lost: Callable[[], None]) -> Held:
        """The claim, at once. `lost` is called if it is lost, which never happens on one host.

        Raises:
            ClaimedError: somebody else holds it; with `address` set, one of its addresses.
        """

    def wait(self, cancelled: Event, lost: Callable[[], None]) -> Held | None:
        """The claim, when it is free; None if `cancelled` is set before."""


class OnHost:
    """One host decides: a lock in its runtime directory.

    Args:
        where: ``file:line`` of what says that it exists once.
    """

    def __init__(self, who: Identity, resource: str, owner: Scope | Gate, where: str) -> None:
        self.resource = resource
        self._who, self._where = who, where
        self._group = group_of(who, resource, owner)
        self._endpoints, self._paths = _addresses(who, resource)

    def claim(self, lost: Callable[[], None]) -> Claim:
        """As `Court.claim`; the kernel never takes a lock away, so nothing is ever lost."""
        return claim(
            self.resource,
            group=self._group,
            deployment=self._who.deployment,
            endpoints=self._endpoints,
            paths=self._paths,
            rank=self._who.rank,
            coordinates=self._who.coordinates,
            declared=self._where,
        )

    def wait(self, cancelled: Event, lost: Callable[[], None]) -> Claim | None:
        """As `Court.wait`."""
        return wait_for_claim(lambda: self.claim(lost), cancelled)


class AcrossHosts:
    """The job's default store decides, and the winner then claims on its own host, too: its addresses are there.

    Args:
        lease: seconds without a sign of life after which an owner is taken for dead; None: never.
    """

    def __init__(self, who: Identity, resource: str, owner: Scope, where: str, lease: float | None) -> None:
        self.resource = resource
        self._who, self._where, self._lease = who, where, lease
        self._here = OnHost(who, resource, owner, where)
        self._group = group_of(who, resource, owner)

    def claim(self, lost: Callable[[], None]) -> ClaimAcrossHosts:
        """As `Court.claim`."""
        from rankbind.runtime.store import claim_in_store

        return self._and_here(claim_in_store(**self._terms(lost)), lost)

    def wait(self, cancelled: Event, lost: Callable[[], None]) -> ClaimAcrossHosts | None:
        """As `Court.wait`."""
        from rankbind.runtime.store import stand_by_in_store

        won = stand_by_in_store(**self._terms(lost), cancel=cancelled)
        return None if won is None else self._and_here(won, lost)

    def _terms(self, lost: Callable[[], None]) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "group": self._group,
            "deployment": self._who.deployment,
            "lease": self._lease,
            "lost": lambda _: lost(),
            "rank": self._who.rank,
            "coordinates": self._who.coordinates,
            "declared": self._where,
        }

    def _and_here(self, won: StoreClaim, lost: Callable[[], None]) -> ClaimAcrossHosts:
        try:
            here = self._here.claim(lost)
        except BaseException:
            with contextlib.suppress(ClaimError):  # the store is gone: what matters is why the host said no
                won.release()
            raise
        here.update(notes={"across hosts": f"token {won.token}"})
        return ClaimAcrossHosts(won, here)


class ClaimAcrossHosts:
    """A claim in the job's store, and one on this host for the addresses and for ``rankbind status``."""

    def __init__(self, store: StoreClaim, here: Claim) -> None:
        self._store, self._here = store, here
        self.before = store.before

    @property
    def token(self) -> int:
        """The store's: it rises from owner to owner over all hosts."""
        return self._store.token

    @property
    def held(self) -> bool:
        """Whether this process is the owner, as far as it can know: see `StoreClaim.held`."""
        return self._store.held and self._here.held

    def check(self) -> None:
        """As `StoreClaim.check`: to be called before the resource is used, where there is a lease."""
        self._store.check()

    def update(
        self, endpoints: Mapping[str, str | Endpoint] | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """As `Claim.update`, for the ranks of all hosts to read."""
        self._here.update(endpoints, notes)
        self._store.update(endpoints, notes)

    def release(self) -> None:
        """Give it up, here first: whoever follows on this host needs the addresses."""
        self._here.release()
        self._store.release()

    def __repr__(self) -> str:
        return repr(self._store)


def group_of(who: Identity, resource: str, owner: Scope | Gate) -> Mapping[str, int]:
    """What tells the group of `who` from others of its deployment, as part of the key of a claim.

    A hand-written gate has no groups: each rank that it lets through is one of its own, and what they share, an
    address, is what gets in the way.
    """
    if isinstance(owner, Scope):
        return owner.group_of(who.topology, who.coordinates)
    if who.rank is None:
        raise IdentityError(f"{resource} is owned by a hand-written gate, and the rank of this process is not known")
    return {"rank": who.rank}


def spans_hosts(who: Identity, resource: str, owner: Scope) -> bool:
    """Whether the group of `who` has members on several hosts.

    Raises:
        IdentityError: nobody said where the ranks run.
    """
    topology = who.topology
    if not topology.hosts:
        raise IdentityError(
            f"{resource} belongs to whoever claims it first, and it is not known which ranks share a host ({who}): say "
            "hosts=... in rankbind.init, RANKBIND_HOSTS, or [hosts] in the topology file"
        )
    fixed = owner.group_of(topology, who.coordinates)
    members = next(group.members for group in owner.groups(topology) if group.fixed == fixed)
    return len({topology.host_of(rank).name for rank in members}) > 1


def _addresses(who: Identity, name: str) -> tuple[dict[str, Endpoint], list[str]]:
    """What the topology file says that `who` binds for `name`: endpoints by role, and paths."""
    endpoints, paths = dict[str, Endpoint](), list[str]()
    if who.job is None or who.rank is None or name not in (each.name for each in who.job.resources):
        return endpoints, paths
    resource = who.job.resource(name)
    for role, address in resource.claimed():
        text = address.template.render(who.job.variables(who.rank))
        if address.kind == "endpoint":
            endpoints[role] = Endpoint.parse(text, ipv6=resource.ipv6, v6only=resource.v6only)
        else:
            paths.append(text)
    return endpoints, paths
