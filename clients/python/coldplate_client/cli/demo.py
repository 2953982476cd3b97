"""``coldplate demo``: what ``make demo`` runs."""

from coldplate_client.demo import run_demo


def demo() -> None:
    """Serve the demo model, chat with it, throttle it by hand, and leave nothing running."""
    run_demo()
