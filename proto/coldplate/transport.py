"""Channel and server options that both ends of every gRPC connection must agree on."""

from typing import Final

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The largest message either end accepts or sends: a prompt of about sixteen million characters."""

DEFAULT_PORT: Final = 50051
DEFAULT_ADDRESS: Final = f"127.0.0.1:{DEFAULT_PORT}"

KEEPALIVE_INTERVAL_MS: Final = 30_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000
# Half of the fastest keepalive that stock clients use, so that none is sent away for "too many pings".
MIN_PING_INTERVAL_MS: Final = 5_000

Options = list[tuple[str, int | str]]

_MESSAGE_SIZES: Final[Options] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


def server_options() -> Options:
    """Options for a server: a taken port is an error, and pings through a silent minute are allowed."""
    return [
        *_MESSAGE_SIZES,
        ("grpc.so_reuseport", 0),
        # The effective name: min_recv_ping_interval_without_data_ms is ignored by a server.
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 2 * KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_options() -> Options:
    """Options for a channel: a dead peer is noticed within 40 s, even while a long prefill sends nothing."""
    return [
        *_MESSAGE_SIZES,
        ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
