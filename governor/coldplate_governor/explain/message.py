"""An account of a device as the message that status shows."""

from dataclasses import fields
from typing import Any

from google.protobuf.duration_pb2 import Duration

from coldplate.v1 import device_pb2
from coldplate_governor.explain.change import Change
from coldplate_governor.explain.trail import Account
from coldplate_governor.law import Terms

_RENAMED = {
    "target": "target_celsius",
    "filtered": "filtered_celsius",
    "error": "error_celsius",
    "rise_per_s": "rise_celsius_per_s",
}
_TERMS = tuple((item.name, _RENAMED.get(item.name, item.name)) for item in fields(Terms))
_NANOSECONDS = 1_000_000_000


class ExplanationWriter:
    """Makes messages of accounts. Most of it is as it was a second ago: each device has its own, brought up to date.

    A message that was given out changes with the next call for its device.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[device_pb2.Explanation, tuple[Change, ...]]] = {}

    def write(self, device: str, account: Account) -> device_pb2.Explanation:
        """What is None stays unset."""
        message, told = self._kept.get(device, (device_pb2.Explanation(), ()))
        decision, now_s = account.decision, account.at_s
        message.binding, message.rule = decision.binding, decision.rule
        _set(message.binding_for, now_s - account.binding_since_s)
        _set(message.mode_for, now_s - account.mode_since_s)
        _set(message.dwell_left, decision.dwell_left_s)
        message.terms.CopyFrom(_terms(decision.terms))
        message.rungs[:] = decision.rungs
        message.clears[:] = account.clears
        if account.changes is not told:
            del message.changes[:]
            message.changes.extend(_message_of(change) for change in account.changes)
        for change, shown in zip(account.changes, message.changes, strict=True):
            _set(shown.age, now_s - change.at_s)
        self._kept[device] = (message, account.changes)
        return message


def to_message(account: Account) -> device_pb2.Explanation:
    """One account alone."""
    return ExplanationWriter().write("", account)


def _set(message: Duration, seconds: float) -> None:
    message.seconds, message.nanos = divmod(max(0, round(seconds * _NANOSECONDS)), _NANOSECONDS)


def _terms(terms: Terms) -> device_pb2.ControlTerms:
    found = {field: value for name, field in _TERMS if (value := getattr(terms, name)) is not None}
    return device_pb2.ControlTerms(**found)


def _message_of(change: Change) -> device_pb2.GovernorChange:
    return device_pb2.GovernorChange(
        mode_from=change.mode_from,
        mode_to=change.mode_to,
        binding_from=change.binding_from,
        binding_to=change.binding_to,
        limits=[
            device_pb2.LimitChange(limit=step.name, old=_number(step.old), new=_number(step.new))
            for step in change.limits
        ],
        rungs_from=change.rungs_from,
        rungs_to=change.rungs_to,
        rule=change.rule,
        text=change.text,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
