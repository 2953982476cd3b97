"""Whom a call's work is counted for."""

from typing import Any

TENANT_KEY = "x-coldplate-tenant"
_MAX_TENANT_CHARACTERS = 128


def tenant_of(context: Any) -> str:
    """The label the caller gives, if it is one printable line; otherwise its address, without the port.

    A label proves nothing: it divides the service among callers who wish each other well. A caller that makes up labels
    takes more than its share.
    """
    for key, value in context.invocation_metadata() or ():
        if key == TENANT_KEY and isinstance(value, str) and 0 < len(value) <= _MAX_TENANT_CHARACTERS:
            if value.isprintable():
                return value
            break
    return peer_host(context.peer())


def peer_host(peer: str) -> str:
    """``ipv4:10.0.0.7`` of ``ipv4:10.0.0.7:53122``; the same for every caller of a Unix socket."""
    kind, _, address = peer.partition(":")
    return f"{kind}:{address.rpartition(':')[0]}" if kind in ("ipv4", "ipv6") else kind
