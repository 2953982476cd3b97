"""Faults on purpose inside the engine core, for tests: the plans of ``devices/fault.py``, by vLLM's steps."""

import os
from typing import Any

FAULTS_VARIABLE = "COLDPLATE_VLLM_FAULTS"


class CoreFaults:
    """Performs what a plan holds for a step."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions

    @classmethod
    def from_environment(cls) -> "CoreFaults":
        """Of the plan that the worker has set, if it has."""
        plan = os.environ.get(FAULTS_VARIABLE)
        if not plan:
            return cls([])
        from coldplate_engine.devices.fault import parse_plan

        return cls(list(parse_plan(plan)))

    def perform(self, step: int) -> None:
        """``step`` counts from 1; raises whatever the plan wants raised."""
        for action in self._actions:
            if action.applies(step):
                action.perform()
