"""From a name to a connection: each way to fail is told from the others, on real sockets."""

from __future__ import annotations

import errno
import socket
import threading
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from umbel.host import doctor_dial as dial
from umbel.host.doctor_dial import Proxy
from umbel.tests.doctor_stage import Stage, hang, proxying
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from umbel.host.doctor import Finding

BOUND = 0.3
"""Seconds, where nothing shall come."""
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")
HAS_V6 = socket.has_dualstack_ipv6()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the proxies of this machine."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def found(address: str, proxy: Proxy | None = None, **own: Any) -> list[Finding]:
    findings, line = dial.taken(dial.reached("front", address, proxy, **{"bound": BOUND, **own}))
    if line is not None:
        line.close()
    return findings


def unknown(*_: object, **__: object) -> list[tuple[Any, ...]]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def unanswered(*_: object, **__: object) -> list[tuple[Any, ...]]:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def both(port: int) -> Callable[..., list[tuple[Any, ...]]]:
    """Return what looks up a name with an address of each family."""
    stream = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    return lambda *_, **__: [
        (socket.AF_INET6, *stream, ("::1", port, 0, 0)),
        (socket.AF_INET, *stream, ("127.0.0.1", port)),
    ]


def one_family(stage: Stage) -> list[Finding]:
    port = stage.serve(hang)
    return found(f"fl.example.org:{port}", resolve=both(port))


def proxied(stage: Stage, answer: Callable[[socket.socket], None], **own: Any) -> list[Finding]:
    proxy = {"host": "127.0.0.1", "port": stage.serve(answer), "variable": "https_proxy",
             "scheme": "http", "secret": "", **own}  # fmt: skip
    return found(f"127.0.0.1:{stage.serve(hang)}", Proxy(**proxy))


def proxy_away(stage: Stage) -> list[Finding]:
    host, _, port = stage.bound().rpartition(":")
    return found("127.0.0.1:1", Proxy(host, int(port), "https_proxy", "http", "me:secret"))


CASES: dict[str, Callable[[Stage], list[Finding]]] = {
    "address.bad": lambda _: found("fl.example.org"),
    "name.unknown": lambda _: found("fl.example.org:443", resolve=unknown),
    "name.server": lambda _: found("fl.example.org:443", resolve=unanswered),
    "port.closed": lambda stage: found(stage.bound()),
    "port.filtered": lambda stage: found(stage.silent()),
    # A broadcast address: the kernel has no way for a connection there, whatever the network.
    "port.unreachable": lambda _: found("255.255.255.255:443"),
    "address.family": one_family,
    "proxy.used": lambda stage: proxied(stage, proxying("200 go on")),
    "proxy.kind": lambda stage: proxied(stage, hang, scheme="socks5"),
    "proxy.away": proxy_away,
    "proxy.refused": lambda stage: proxied(stage, proxying("403 Forbidden")),
    "proxy.uneven": lambda _: list(dial.uneven(Proxy("p", 1, "https_proxy", "http", ""), None)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, stage: Stage) -> None:
    if name == "address.family" and not HAS_V6:
        pytest.skip("this machine has no IPv6")
    finding = shown(name, CASES[name](stage))
    assert "secret" not in finding.line + finding.fix


def test_a_good_address_has_no_finding(stage: Stage) -> None:
    assert found(f"127.0.0.1:{stage.serve(hang)}") == []
    assert found(f"localhost:{stage.serve(hang)}", bound=5.0) == []


@pytest.mark.skipif(not HAS_V6, reason="this machine has no IPv6")
def test_ipv6_is_dialled(stage: Stage) -> None:
    assert found(f"[::1]:{stage.serve(hang, socket.AF_INET6)}") == []


def test_a_machine_without_ipv6_hears_nothing_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = stage.serve(hang)
    real = socket.socket

    def no_v6(family: int, *rest: int, **own: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return real(family, *rest, **own)

    monkeypatch.setattr(socket, "socket", no_v6)
    assert found(f"fl.example.org:{port}", resolve=both(port)) == []


def test_a_look_up_that_never_ends_is_left(stage: Stage) -> None:
    never = threading.Event()

    def wait(*_: object, **__: object) -> list[tuple[Any, ...]]:
        never.wait()
        return []

    finding = shown("name.server", found("fl.example.org:443", resolve=wait))
    assert "no answer in 0.3 s" in finding.line
    never.set()


def test_a_proxy_that_asks_who_one_is_is_told(stage: Stage) -> None:
    wanted = "Basic " + b64encode(b"me:pass word").decode()
    asking = proxying("200 go on", wanted)
    assert [one.id for one in proxied(stage, asking, secret="me:pass word")] == ["proxy.used"]  # noqa: S106
    denied = shown("proxy.refused", proxied(stage, asking))
    assert "407" in denied.line
    assert "user and password" in denied.fix


def test_bytes_pass_through_a_proxy(stage: Stage) -> None:
    target = stage.serve(lambda line: line.sendall(b"hello" + line.recv(9)))
    proxy = Proxy("127.0.0.1", stage.serve(proxying("200 go on")), "https_proxy", "http", "")
    _, line = dial.taken(dial.reached("front", f"127.0.0.1:{target}", proxy, bound=5.0))
    assert line is not None
    with line:
        line.sendall(b"it is me ")
        assert line.recv(5) == b"hello"


@pytest.mark.parametrize(
    ("variables", "node", "grpc"),
    [
        ({}, None, None),
        ({"https_proxy": "http://p:3128"}, "p:3128 (https_proxy)", "p:3128 (https_proxy)"),
        ({"HTTPS_PROXY": "http://p:3128"}, "p:3128 (https_proxy)", None),
        ({"ALL_PROXY": "p:3128"}, "p:3128 (all_proxy)", None),
        ({"http_proxy": "http://p:3128"}, None, "p:3128 (http_proxy)"),
        ({"grpc_proxy": "http://me:secret@p"}, None, "p:80 (grpc_proxy)"),
        ({"https_proxy": "http://p:3128", "no_proxy": "example.org"}, None, None),
        ({"https_proxy": "http://p:99999999"}, "?:0 (https_proxy)", "?:0 (https_proxy)"),
    ],
)
def test_which_proxy_a_variable_means(
    variables: dict[str, str], node: str | None, grpc: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = [None if one is None else str(one) for one in dial.proxies("fl.example.org")]
    assert said == [node, grpc]


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("fl.example.org:443", ("fl.example.org", 443)),
        ("[2001:db8::1]:443", ("2001:db8::1", 443)),
        ("2001:db8::1:443", None),
        ("fl.example.org:0", None),
        ("fl.example.org:65536", None),
        ("fl.example.org:٤٤", None),
        (":443", None),
        ("", None),
    ],
)
def test_an_address_is_host_and_port(address: str, place: tuple[str, int] | None) -> None:
    assert dial.split(address) == place
