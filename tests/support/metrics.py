"""Reading the Prometheus endpoint."""

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from support.processes import Stack


def scrape(stack: Stack) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and labels."""
    with urllib.request.urlopen(f"http://{stack.metrics_address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def total(stack: Stack, name: str, labels: Mapping[str, str] | None = None) -> float:
    """The sum of a metric over every label not given."""
    wanted = set((labels or {}).items())
    return sum(value for (found, has), value in scrape(stack).items() if found == name and wanted <= has)


def generated_tokens(stack: Stack) -> int:
    """Tokens that engines have made since the start."""
    return int(total(stack, "coldplate_generation_tokens_total"))
