"""How channels are opened: options, retries, TLS. Shared by the synchronous and the asynchronous client."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import grpc

from coldplate.transport import DEFAULT_ADDRESS, Options, client_options

# Only what fails before its first message is tried again, and only after the delay the service asks for where it does;
# a stream that has begun is never repeated. Nothing is hedged.
_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "5s",
                    "backoffMultiplier": 3,
                    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
                },
            }
        ]
    }
)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS towards the service. ``ca`` None trusts the system's authorities; ``cert`` and ``key`` prove who we are."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises ValueError when only one of ``cert`` and ``key`` is given, OSError when a file cannot be read."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key belong together, only one of them is given")
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes() if self.ca else None,
            private_key=self.key.read_bytes() if self.key else None,
            certificate_chain=self.cert.read_bytes() if self.cert else None,
        )


def default_target() -> str:
    """``$COLDPLATE_SERVER``, else 127.0.0.1:50051."""
    return os.environ.get("COLDPLATE_SERVER") or DEFAULT_ADDRESS


def channel_options(target: str, retries: bool) -> Options:
    options = client_options()
    if retries:
        options.append(("grpc.service_config", _SERVICE_CONFIG))
    options.append(("grpc.enable_retries", int(retries)))
    if _is_local(target):
        # A proxy from the environment would be asked for this very machine.
        options.append(("grpc.enable_http_proxy", 0))
    return options


def _is_local(target: str) -> bool:
    host = target.rpartition(":")[0].strip("[]")
    return target.startswith("unix:") or host in {"localhost", "::1"} or host.startswith("127.")
