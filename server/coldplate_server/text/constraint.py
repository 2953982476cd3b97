"""Constraints checked at the door: malformed, unsatisfiable and absurd ones are refused by name before any work."""

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections import OrderedDict

from coldplate_server.errors import ChecksBusy, InvalidRequest, Violation
from coldplate_server.request import Constraint

MAX_CONSTRAINT_BYTES = 128 * 1024
_CHILDREN = 2
_MAX_WAITING = 64
_TIME_LIMIT_S = 0.9
_LEAST_TIME_S = 0.5  # for the compiling, when the process had to be started first
_START_LIMIT_S = 10.0
_REMEMBERED = 512
_BUSY_RETRY_S = 1.0


class ConstraintChecks:
    """Compiles each constraint in a child process, which is ended and replaced when it takes too long or too much.

    Children start when they are first needed. What was found out is remembered, so a constraint in use costs nothing.
    """

    def __init__(self, time_limit_s: float = _TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._children = [_Child() for _ in range(_CHILDREN)]
        self._idle: asyncio.Queue[_Child] = asyncio.Queue()
        for child in self._children:
            self._idle.put_nowait(child)
        self._waiting = 0
        self._known: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, constraint: Constraint, field: str) -> None:
        """Raises InvalidRequest naming ``field`` and what is wrong, ChecksBusy when too many wait for theirs."""
        problem = await self._problem_of(constraint)
        if problem is not None:
            raise InvalidRequest([Violation(field, problem)])

    async def close(self) -> None:
        """End the children."""
        for child in self._children:
            await child.end()

    async def _problem_of(self, constraint: Constraint) -> str | None:
        line = json.dumps({"kind": constraint.kind, "texts": constraint.texts}).encode()
        key = hashlib.sha256(line).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if self._waiting >= _MAX_WAITING:
            raise ChecksBusy(f"{self._waiting} constraints wait to be checked; try again", retry_after_s=_BUSY_RETRY_S)
        self._waiting += 1
        try:
            child = await self._idle.get()
        finally:
            self._waiting -= 1
        try:
            problem = await child.ask(line, self._time_limit_s)
        except TimeoutError:
            return f"takes longer than {self._time_limit_s:g} s to compile; make it simpler"
        finally:
            self._idle.put_nowait(child)
        self._known[key] = problem
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return problem


class _Child:
    """One process of ``constraint_child``, started again after each end."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, line: bytes, time_limit_s: float) -> str | None:
        """What is wrong with a constraint. Raises TimeoutError; the process does not outlive that.

        The limit counts from here, so that a refusal comes in time from a process that is only starting, too.
        """
        deadline = asyncio.get_running_loop().time() + time_limit_s
        try:
            process = self._process or await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            async with asyncio.timeout(max(_LEAST_TIME_S, deadline - asyncio.get_running_loop().time())):
                process.stdin.write(line + b"\n")
                answer = await process.stdout.readline()
        except BaseException:
            await self.end()
            raise
        if not answer:
            await self.end()
            return "takes more memory to compile than it may; make it simpler"
        problem: str | None = json.loads(answer)
        return problem

    async def _start(self) -> asyncio.subprocess.Process:
        pipe, module = asyncio.subprocess.PIPE, "coldplate_server.text.constraint_child"
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, str(os.getpid()),
            stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(_START_LIMIT_S):
            if not await process.stdout.readline():
                raise RuntimeError("the process that checks constraints does not start")
        return process

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
