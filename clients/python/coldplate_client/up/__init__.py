"""A whole Coldplate on one machine: server with its workers, governor and, where wanted, a simulated board."""

from coldplate_client.up.plan import StackPlan
from coldplate_client.up.stack import Stack, StackFailed

__all__ = ["Stack", "StackFailed", "StackPlan"]
