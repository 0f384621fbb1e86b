"""RB3: sockets that listen where anybody may come, and do not ask who it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from rankbind.check.dialling import own_host
from rankbind.check.endpoints import ranks_of
from rankbind.check.plan import Binding, Plan
from rankbind.endpoint import Endpoint
from rankbind.finding import Finding, Label, Level, few
from rankbind.resource import Resource

_SHOWN = 4


def findings(plan: Plan) -> Iterator[Finding]:
    """RB301 for wildcards, RB302 for public addresses: one for all of whom it is said that they do not ask."""
    open_: list[Binding] = []
    public: list[Binding] = []
    for b in plan.bindings:
        if b.resource.authenticated is not False or b.probe or b.endpoint is None:
            continue
        if b.endpoint.is_wildcard:
            open_.append(b)
        elif _is_public(b.endpoint):
            public.append(b)
    if open_:
        yield _finding(plan, "RB301", open_, "on every address of its host", "on every address of their hosts")
    if public:
        yield _finding(plan, "RB302", public, "on a public address", "on public addresses")


def _is_public(endpoint: Endpoint) -> bool:
    address = endpoint.address
    return endpoint.transport == "tcp" and isinstance(address, IPv4Address | IPv6Address) and address.is_global


def _finding(plan: Plan, code: str, found: Sequence[Binding], one: str, several: str) -> Finding:
    of: dict[str, list[Binding]] = {}
    for b in found:
        of.setdefault(b.resource.name, []).append(b)
    texts = [f"{name}: {few(_texts(mine))} on {ranks_of(mine[0].resource, _ranks(mine))}" for name, mine in of.items()]
    more = [f"... {len(texts)} in all"] if len(texts) > _SHOWN else []
    where = one if len(of) == 1 else several
    return Finding(
        code,
        f"{few(list(of))} listen{'s' * (len(of) == 1)} {where} and ask{'s' * (len(of) == 1)} nobody who it is",
        Level.WARNING if code == "RB302" else Level.NOTE,
        labels=tuple(_labels(plan, found)),
        facts={
            "resources": list(of),
            "sockets": [
                {"resource": name, "endpoints": _texts(mine)[:64], "ranks": _ranks(mine)} for name, mine in of.items()
            ],
        },
        details=(
            *texts[:_SHOWN],
            *more,
            "whoever reaches the host reaches them: to read what is published, to ask, to send what is deserialised",
        ),
        fix=_instead(plan, of),
    )


def _labels(plan: Plan, found: Sequence[Binding]) -> Iterator[Label]:
    """One for each address, up to some."""
    addresses = {id(b.address): b for b in found}
    for b in list(addresses.values())[:_SHOWN]:
        yield from plan.address_label(b.resource, b.address, "open to all")


def _instead(plan: Plan, of: Mapping[str, Sequence[Binding]]) -> str:
    """Loopback where everybody who dials is at home, else an address of the host that only its network sees."""
    home = [name for name, mine in of.items() if _dialled_at_home(plan, mine[0].resource)]
    away = [name for name in of if name not in home]
    lines = []
    if home:
        lines.append(
            f"bind {few(home)} to 127.0.0.1: all who dial {'it' if len(home) == 1 else 'them'} run on its host"
        )
    if away:
        private = _private(plan)
        example = f", such as {private}" if private else ""
        lines.append(
            f"bind {few(away)} to the host's address on a private network{example}; to 127.0.0.1 where all who dial "
            "run on the host"
        )
    return "\n".join(lines)


def _dialled_at_home(plan: Plan, resource: Resource) -> bool:
    dialled = [d for d in plan.dialled if d.resource is resource]
    return bool(dialled) and all(own_host(plan, d.endpoint) for d in dialled)


def _private(plan: Plan) -> str | None:
    """A private address that some host is said to have."""
    for addresses in plan.job.facts.addresses.values():
        for text in addresses:
            try:
                address = ip_address(text)
            except ValueError:
                continue
            if address.is_private and not address.is_loopback:
                return text
    return None


def _texts(found: Sequence[Binding]) -> list[str]:
    return list(dict.fromkeys(b.text for b in found))


def _ranks(found: Sequence[Binding]) -> list[int]:
    return sorted({b.rank for b in found})
