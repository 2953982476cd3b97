"""The scheduler class that vLLM is given by name; imported in the engine-core process only."""

import os
import signal

from vllm.utils.import_utils import resolve_obj_by_qualname

from coldplate.parent import end_with_parent
from coldplate_engine.vllm_worker.board import BASE_VARIABLE, BOARD_VARIABLE
from coldplate_engine.vllm_worker.governed import Governed

_WORKER = int(os.environ[BOARD_VARIABLE].split("/")[2])
if os.getppid() == _WORKER:
    end_with_parent(_WORKER, signal.SIGTERM)  # vLLM itself would stay behind a worker that was killed


class GovernedScheduler(Governed, resolve_obj_by_qualname(os.environ[BASE_VARIABLE])):  # type: ignore[misc]
    """The class that vLLM, or its platform plug-in, has chosen for this configuration, under our limits."""
