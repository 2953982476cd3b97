"""Whom a call is counted for."""

from typing import Any

import pytest

from coldplate_server.rpc.tenant import TENANT_KEY, peer_host, tenant_of


class Context:
    def __init__(self, *metadata: tuple[str, Any], peer: str = "ipv4:10.0.0.7:53122") -> None:
        self._metadata, self._peer = metadata, peer

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:53122", "ipv4:10.0.0.7"),
        ("ipv6:%5B::1%5D:4000", "ipv6:%5B::1%5D"),
        ("unix:/run/x.sock", "unix"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_a_caller_without_a_label_is_its_address_without_the_port(peer: str, host: str) -> None:
    assert peer_host(peer) == host
    assert tenant_of(Context(("other", "x"), peer=peer)) == host


def test_a_label_is_taken_as_it_is() -> None:
    assert tenant_of(Context((TENANT_KEY, "Team é"))) == "Team é"


@pytest.mark.parametrize("label", ["", "x" * 129, "two\nlines", "\x00", b"bytes"])
def test_what_is_no_label_is_passed_over(label: Any) -> None:
    assert tenant_of(Context((TENANT_KEY, label))) == "ipv4:10.0.0.7"
