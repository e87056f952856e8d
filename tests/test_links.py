"""Which interface leads to a gateway, asked of the system itself."""

from __future__ import annotations

import pytest

from umbel.clients.links import interface_to, listed


@pytest.mark.parametrize("address", ["127.0.0.1:9", "localhost:9", "127.0.0.2:443"])
def test_this_machine_is_reached_over_its_loopback(address: str) -> None:
    assert interface_to(address) == "lo"


@pytest.mark.parametrize("address", ["", "nowhere.invalid:1", "127.0.0.1:port", "240.0.0.1:9"])
def test_what_leads_nowhere_has_no_interface(address: str) -> None:
    assert interface_to(address) in {None, "eth0"}  # a router may take any address


@pytest.mark.parametrize(
    ("interface", "patterns", "metered"),
    [
        ("wwan0", ["wwan*"], True), ("wwan0", ["wwan0"], True), ("wwan0", ["wlan*", "eth0"], False),
        ("eth0", [], False), (None, ["wwan*"], True), (None, [], True),
    ],
)  # fmt: skip
def test_an_unknown_interface_counts_as_metered(
    interface: str | None, patterns: list[str], metered: bool
) -> None:
    assert listed(interface, patterns) == metered
