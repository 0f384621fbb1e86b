"""Addresses as libzmq spells them, and which of two binds get in each other's way (test_kernel asks the kernel)."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.endpoint import IPC_PATH_BYTES, MAX_PORT, Endpoint, normal_path, overlaps
from rankbind.errors import EndpointError

from .support.outcome import outcome

HOSTS = [
    *("*", "0.0.0.0", "127.0.0.1", "127.0.0.2", "10.1.1.1", "localhost", "lo", "eth0", "host.example"),
    *(
        "[::]",
        "[::1]",
        "[2001:db8::5]",
        "[::ffff:127.0.0.1]",
        "[::ffff:0.0.0.0]",
        "[fe80::1%eth0]",
        "::1",
        "0",
        "127.1",
    ),
]
PATHS = ["/run/kv.sock", "/run/./kv.sock", "/run//kv.sock", "kv.sock", "./kv.sock", "@kv.sock", "@/run/kv.sock", "*"]


@st.composite
def tcp_endpoints(draw: st.DrawFn) -> Endpoint:
    first = draw(st.sampled_from([0, 1, 5557, 5558, 5560, 65535, 65536, 70000]))
    last = first + draw(st.sampled_from([0, 0, 1, 4]))
    text = f"tcp://{draw(st.sampled_from(HOSTS))}:{first}" + (f"-{last}" if last != first else "")
    return Endpoint.parse(text, ipv6=draw(st.booleans()), v6only=draw(st.booleans()))


def endpoints() -> st.SearchStrategy[Endpoint]:
    others = st.sampled_from(
        [f"ipc://{path}" for path in PATHS] + ["inproc://a", "inproc://b", "inproc:///run/kv.sock"]
    )
    return tcp_endpoints() | others.map(Endpoint.parse)


def at(text: str, **options: bool) -> Endpoint:
    return Endpoint.parse(text, **options)


# ---- spelling


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("tcp://*:5557", {"host": "*", "first": 5557, "last": 5557}),
        ("tcp://0.0.0.0:0", {"host": "0.0.0.0", "first": 0, "last": 0}),
        ("tcp://127.0.0.1:*", {"host": "127.0.0.1", "first": 0, "last": 0}),
        ("tcp://[2001:db8::5]:1", {"host": "2001:db8::5", "first": 1, "last": 1}),
        ("tcp://::1:5557", {"host": "::1", "first": 5557, "last": 5557}),
        ("tcp://host.example:5557-5560", {"host": "host.example", "first": 5557, "last": 5560}),
        ("tcp://*:5557-5557", {"host": "*", "first": 5557, "last": 5557}),
        ("tcp://*:65540", {"host": "*", "first": 65540, "last": 65540}),
        ("tcp://*:-3", {"host": "*", "first": -3, "last": -3}),
        ("tcp://*:-3-5", {"host": "*", "first": -3, "last": 5}),
        ("ipc:///run/kv.sock", {"path": "/run/kv.sock"}),
        ("ipc://kv.sock", {"path": "kv.sock"}),
        ("ipc://@kv", {"path": "@kv"}),
        ("ipc://*", {"path": "*"}),
        ("ipc:///tmp/tcp://x:5", {"path": "/tmp/tcp://x:5"}),
        ("inproc://tcp:5", {"path": "tcp:5"}),
    ],
)
def test_what_libzmq_takes_is_read(text: str, fields: dict[str, Any]) -> None:
    assert at(text) == Endpoint(text.partition("://")[0], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "column", "width", "message"),
    [
        ("", 0, 1, "no transport"),
        ("5557", 0, 4, "no transport: write tcp://HOST:PORT"),
        ("tcp:/x:5", 0, 8, "no transport"),
        ("://x:5", 0, 1, "unknown transport ''"),
        ("ws://*:5557", 0, 2, "unknown transport 'ws'"),
        ("TCP://*:5557", 0, 3, "unknown transport 'TCP'"),
        ("tcp://", 6, 1, "has no port"),
        ("tcp://*", 6, 1, "has no port"),
        ("tcp://host.example", 6, 12, "has no port"),
        ("tcp://[::1]", 6, 5, "has no port"),
        ("tcp://:5557", 6, 1, "needs a host"),
        ("tcp://[]:5557", 6, 1, "needs a host"),
        ("tcp://[::1:5557", 6, 4, "unbalanced brackets"),
        ("tcp://::1]:5557", 6, 4, "unbalanced brackets"),
        ("tcp://*:", 8, 1, "port '' is not a number"),
        ("tcp://*:http", 8, 4, "port 'http' is not a number"),
        ("tcp://*:5557/", 8, 5, "not a number"),
        ("tcp://*: 5557", 8, 5, "not a number"),
        ("tcp://*:\u0665", 8, 1, "not a number"),
        ("tcp://*:-", 8, 1, "not a number"),
        ("tcp://*:5557-", 13, 1, "not a number"),
        ("tcp://*:5557-x", 13, 1, "port 'x' is not a number"),
        ("tcp://*:5560-5557", 8, 9, "ends before it begins"),
        ("tcp://* :5557", 7, 1, "cannot hold ' '"),
        ("tcp://a/b:5557", 7, 1, "cannot hold '/'"),
        ("tcp://eth0;10.0.0.1:5557", 10, 1, "SOURCE;DESTINATION"),
        ("ipc://", 6, 1, "needs a path"),
        ("ipc://@", 7, 1, "needs a name"),
        ("ipc:///a\0b", 8, 1, "NUL"),
        ("inproc://", 9, 1, "needs a name"),
    ],
)
def test_what_libzmq_refuses_is_pointed_at(text: str, column: int, width: int, message: str) -> None:
    with pytest.raises(EndpointError, match=message) as caught:
        at(text)
    assert (caught.value.column, caught.value.width) == (column, width)


@given(
    st.text(st.sampled_from("tcpi/:*[]0159-@. %;x\0\u00e9"), max_size=16).map("tcp://".__add__) | st.text(max_size=20)
)
def test_any_text_is_an_endpoint_or_an_error_inside_the_text(text: str) -> None:
    found = outcome(lambda: at(text), EndpointError)
    if isinstance(found, EndpointError):
        assert 0 <= found.column <= len(text)
        assert found.width >= 1
    else:
        assert at(str(found)) == found


@given(endpoints())
def test_it_is_written_as_it_is_read(endpoint: Endpoint) -> None:
    assert Endpoint.parse(str(endpoint), ipv6=endpoint.ipv6, v6only=endpoint.v6only) == endpoint


def test_a_number_too_long_to_be_a_port_is_still_past_the_last() -> None:
    assert at("tcp://*:" + "9" * 5000).first > MAX_PORT


# ---- what it means


def test_the_address_that_is_bound() -> None:
    assert at("tcp://*:1").address == IPv4Address("0.0.0.0")
    assert at("tcp://*:1", ipv6=True).address == IPv6Address("::")
    assert at("tcp://0.0.0.0:1", ipv6=True).address == at("tcp://0:1").address == IPv4Address("0.0.0.0")
    assert at("tcp://localhost:1").address == at("tcp://LocalHost:1", ipv6=True).address == IPv4Address("127.0.0.1")
    assert at("tcp://lo:1").address == at("tcp://127.1:1").address == IPv4Address("127.0.0.1")
    assert at("tcp://lo:1", ipv6=True).address == IPv6Address("::1")
    assert at("tcp://10.258:1").address == IPv4Address("10.0.1.2")
    assert at("tcp://10.1.258:1").address == IPv4Address("10.1.1.2")
    assert at("tcp://[::ffff:10.0.0.1]:1").address == IPv4Address("10.0.0.1")
    assert at("tcp://[fe80::1%eth0]:1").address == IPv6Address("fe80::1%eth0")
    for name in ("eth0", "host.example", "1.2.3.4.5", "300.1", "4294967296", "1..2", "127.0.0.01"):
        assert at(f"tcp://{name}:1").address == name


def test_wildcards_and_ports_that_the_kernel_picks() -> None:
    for host in ("*", "0.0.0.0", "[::]", "[::ffff:0.0.0.0]"):
        assert at(f"tcp://{host}:1").is_wildcard
    for host in ("127.0.0.1", "[::1]", "localhost", "eth0"):
        assert not at(f"tcp://{host}:1").is_wildcard
    assert not at("ipc://*").is_wildcard
    for text in ("tcp://*:0", "tcp://127.0.0.1:*", "ipc://*"):
        assert at(text).kernel_picks
    for text in ("tcp://*:1", "tcp://*:0-5", "ipc:///tmp/*", "inproc://*"):
        assert not at(text).kernel_picks


def test_an_ipv6_literal_needs_zmq_ipv6_but_mapped_ipv4_does_not() -> None:
    for text in ("tcp://[::]:1", "tcp://[::1]:1", "tcp://::1:1", "tcp://[fe80::1%eth0]:1"):
        assert at(text).needs_ipv6
        assert at(text, ipv6=True).needs_ipv6
    for text in ("tcp://*:1", "tcp://[::ffff:127.0.0.1]:1", "tcp://localhost:1", "ipc://a:b", "inproc://::1"):
        assert not at(text).needs_ipv6
    assert not at("tcp://*:1", ipv6=True).needs_ipv6


def test_the_limit_of_an_ipc_path_is_in_bytes_and_counts_the_at_sign() -> None:
    assert IPC_PATH_BYTES == 107
    for path in ("/" + "x" * 106, "@" + "x" * 106, "\u00e9" * 53, "/" + "\u00e9" * 53):
        assert at(f"ipc://{path}").path_bytes <= IPC_PATH_BYTES
    for path in ("/" + "x" * 107, "@" + "x" * 107, "\u00e9" * 54, "\U0001f600" * 27):
        assert at(f"ipc://{path}").path_bytes == IPC_PATH_BYTES + 1
    assert at("inproc://" + "x" * 200).path_bytes == 0
    # JSON can hold half a character; it is no path, but no reason to fall over either.
    assert at("ipc:///\ud800").path_bytes == 4


def test_one_file_has_one_name() -> None:
    for path in ("/run/kv.sock", "//run/kv.sock", "///run//kv.sock", "/run/./kv.sock", "/run/x/../kv.sock"):
        assert at(f"ipc://{path}").file == "/run/kv.sock"
    for path in ("kv.sock", "./kv.sock", "a/../kv.sock", "././kv.sock"):
        assert at(f"ipc://{path}").file == "kv.sock"
    for text in ("ipc://@kv", "ipc://*", "tcp://*:1", "inproc://kv"):
        assert at(text).file is None
    assert at("ipc://@kv").abstract
    assert not at("inproc://@kv").abstract
    assert normal_path("/") == "/"


# ---- overlaps


@given(endpoints(), endpoints(), st.booleans())
def test_it_does_not_matter_which_comes_first(a: Endpoint, b: Endpoint, same_process: bool) -> None:
    assert overlaps(a, b, same_process=same_process) == overlaps(b, a, same_process=same_process)


@given(endpoints())
def test_the_same_address_twice_overlaps_unless_the_kernel_picks_it(endpoint: Endpoint) -> None:
    expected = not endpoint.kernel_picks
    if endpoint.transport == "tcp":
        expected &= endpoint.first <= MAX_PORT and endpoint.last >= 1
    assert overlaps(endpoint, endpoint, same_process=True) == expected
    assert overlaps(endpoint, endpoint) == (expected and endpoint.transport != "inproc")


@given(tcp_endpoints(), tcp_endpoints())
def test_a_wildcard_takes_whatever_any_address_of_its_family_takes(wild: Endpoint, other: Endpoint) -> None:
    if not wild.is_wildcard:
        return
    concrete = ["127.0.0.1", "10.1.1.1"] if wild.address == IPv4Address("0.0.0.0") else ["::1", "2001:db8::5"]
    if wild.address == IPv6Address("::") and not wild.v6only:
        concrete += ["127.0.0.1", "::ffff:10.1.1.1"]
    for host in concrete:
        assert overlaps(wild, other) or not overlaps(replace(wild, host=host), other)


MATRIX = """
                        *   *6  0.0 .1  own .2  ::  ::1 map
*                       X   X   X   X   X   X   X   .   X
*+6                     X   X   X   X   X   X   X   X   X
0.0.0.0                 X   X   X   X   X   X   X   .   X
127.0.0.1               X   X   X   X   .   .   X   .   X
192.0.2.2               X   X   X   .   X   .   X   .   .
127.0.0.2               X   X   X   .   .   X   X   .   .
[::]+6                  X   X   X   X   X   X   X   X   X
[::1]+6                 .   X   .   .   .   .   X   X   .
[::ffff:127.0.0.1]+6    X   X   X   X   .   .   X   .   X
"""


def test_the_matrix_that_was_measured() -> None:
    rows = [line.split() for line in MATRIX.strip().splitlines()[1:]]
    ends = [at(f"tcp://{row[0].removesuffix('+6')}:5557", ipv6=row[0].endswith("+6")) for row in rows]
    found = [["X" if overlaps(a, b) else "." for b in ends] for a in ends]
    assert found == [row[1:] for row in rows]


def test_a_v6_only_wildcard_leaves_ipv4_alone() -> None:
    v6only = at("tcp://[::]:1", ipv6=True, v6only=True)
    for host in ("*", "0.0.0.0", "127.0.0.1", "host.example", "[::ffff:127.0.0.1]"):
        assert not overlaps(v6only, at(f"tcp://{host}:1"))
    for host in ("[::]", "[::1]", "*"):
        assert overlaps(v6only, at(f"tcp://{host}:1", ipv6=True))


def test_ports_ranges_and_the_end_of_the_ports() -> None:
    assert overlaps(at("tcp://*:5557-5560"), at("tcp://*:5560"))
    assert overlaps(at("tcp://*:5557-5560"), at("tcp://127.0.0.1:5560-5570"))
    assert not overlaps(at("tcp://*:5557-5560"), at("tcp://*:5561-5570"))
    assert not overlaps(at("tcp://*:5557"), at("tcp://*:5558"))
    assert not overlaps(at("tcp://*:0"), at("tcp://*:0"))
    assert not overlaps(at("tcp://*:0-3"), at("tcp://*:0"))
    assert overlaps(at("tcp://*:65530-65540"), at("tcp://*:65535"))
    assert not overlaps(at("tcp://*:65530-65540"), at("tcp://*:65536"))
    assert not overlaps(at("tcp://*:70000"), at("tcp://*:70000"))
    assert not overlaps(at("tcp://*:-3"), at("tcp://*:-3"))


def test_names_that_are_not_resolved_collide_with_wildcards_and_themselves() -> None:
    assert overlaps(at("tcp://eth0:1"), at("tcp://eth0:1"))
    assert overlaps(at("tcp://eth0:1"), at("tcp://*:1"))
    assert not overlaps(at("tcp://eth0:1"), at("tcp://192.0.2.2:1"))


def test_ipc_paths_are_taken_over_and_abstract_names_are_refused() -> None:
    for a, b, expected in [
        ("ipc:///run/kv", "ipc:///run/./kv", True),
        ("ipc:///run/kv", "ipc://run/kv", False),
        ("ipc://kv", "ipc://./kv", True),
        ("ipc://@kv", "ipc://@kv", True),
        ("ipc://@kv", "ipc://@./kv", False),
        ("ipc://@kv", "ipc://kv", False),
        ("ipc://@kv", "ipc://./@kv", False),
        ("ipc://*", "ipc://*", False),
        ("ipc:///run/kv", "tcp://*:1", False),
        ("ipc://kv", "inproc://kv", False),
    ]:
        assert overlaps(at(a), at(b)) == expected, (a, b)


def test_inproc_names_collide_within_one_process_only() -> None:
    assert overlaps(at("inproc://kv"), at("inproc://kv"), same_process=True)
    assert not overlaps(at("inproc://kv"), at("inproc://kv"))
    assert not overlaps(at("inproc://kv"), at("inproc://kv_dp1"), same_process=True)


# ---- values


@given(endpoints())
def test_an_endpoint_is_a_value(endpoint: Endpoint) -> None:
    for other in (pickle.loads(pickle.dumps(endpoint)), copy.deepcopy(endpoint)):
        assert other == endpoint
        assert hash(other) == hash(endpoint)
    with pytest.raises(AttributeError):
        endpoint.host = "x"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del endpoint.host
