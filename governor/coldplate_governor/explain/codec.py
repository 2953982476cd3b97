"""Dataclasses to JSON values and back, bit for bit.

A number goes out by ``repr``, which Python reads back as the same number, and an int stays an int. A field that is its
default is left out. Reading goes by the annotations, so that a recording with other fields is noticed.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
_Reader = Callable[[Any, bool], Any]
_ACCEPTED: dict[Any, tuple[type, ...]] = {
    float: (float, int),
    int: (int,),
    str: (str,),
    bool: (bool,),
    types.NoneType: (types.NoneType,),
}


class CodecError(ValueError):
    """A value that is not of the type it should be; the text names the field and the value."""


def to_json(value: Any) -> Any:
    """Lists, dicts, strings, numbers, booleans and None for ``value``. Raises TypeError for what has no such form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return {
        name: to_json(item)
        for name, default in _defaults(typing.cast("Any", type(value)))
        if not _is_default(item := getattr(value, name), default)
    }


def from_json(kind: type[T], data: Any, *, lenient: bool = False) -> T:
    """The value of type ``kind`` that ``to_json`` wrote. Raises CodecError.

    ``lenient`` leaves out fields that ``kind`` does not have, for recordings of another version.
    """
    return typing.cast("T", _reader(typing.cast("Any", kind))(data, lenient))


@cache
def _defaults(kind: Hashable) -> tuple[tuple[str, Any], ...]:
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind} has no JSON form")
    return tuple((item.name, item.default) for item in dataclasses.fields(kind))


def _is_default(value: Any, default: Any) -> bool:
    """Equal in every bit: numbers with a point are always written, for 0.0 equals -0.0."""
    if value is None or isinstance(value, tuple):
        return not value and type(value) is type(default) and value == default
    return isinstance(value, bool | int | str) and type(value) is type(default) and value == default


@cache
def _reader(kind: Any) -> _Reader:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda data, lenient: data
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(typing.cast("type", kind))
    if origin in (typing.Union, types.UnionType):
        return _union_reader(kind, arguments)
    if origin is typing.Literal:
        return _plain_reader(kind, lambda data: any(data is one or data == one for one in arguments))
    if origin is tuple:
        return _tuple_reader(kind, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(kind, arguments[1])
    accepted = _ACCEPTED.get(kind)
    if accepted is None:
        raise TypeError(f"{kind} cannot be read from JSON")
    return _plain_reader(kind, lambda data: isinstance(data, accepted) and (kind is bool or not isinstance(data, bool)))


def _plain_reader(kind: Any, fits: Callable[[Any], bool]) -> _Reader:
    def read(data: Any, lenient: bool) -> Any:
        if not fits(data):
            raise CodecError(f"{_short(data)} is no {_name(kind)}")
        return data

    return read


def _union_reader(kind: Any, arguments: tuple[Any, ...]) -> _Reader:
    readers = [_reader(argument) for argument in arguments]

    def read(data: Any, lenient: bool) -> Any:
        problem: CodecError | None = None
        for reader in readers:
            try:
                return reader(data, lenient)
            except CodecError as error:
                # What a dataclass says of its field tells more than what the other choices say of the whole.
                problem = error if problem is None or isinstance(data, dict) else problem
        raise CodecError(str(problem) if isinstance(data, dict) else f"{_short(data)} is no {_name(kind)}")

    return read


def _tuple_reader(kind: Any, arguments: tuple[Any, ...]) -> _Reader:
    endless = len(arguments) == 2 and arguments[1] is Ellipsis
    readers = [_reader(argument) for argument in arguments if argument is not Ellipsis]

    def read(data: Any, lenient: bool) -> Any:
        if not isinstance(data, list) or not (endless or len(data) == len(readers)):
            raise CodecError(f"{_short(data)} is no {_name(kind)}")
        if endless:
            return tuple(readers[0](item, lenient) for item in data)
        return tuple(reader(item, lenient) for reader, item in zip(readers, data, strict=True))

    return read


def _mapping_reader(kind: Any, value: Any) -> _Reader:
    reader = _reader(value)

    def read(data: Any, lenient: bool) -> Any:
        if not isinstance(data, dict):
            raise CodecError(f"{_short(data)} is no {_name(kind)}")
        return {key: reader(item, lenient) for key, item in data.items()}

    return read


def _dataclass_reader(kind: type) -> _Reader:
    readers: dict[str, _Reader] = {}  # filled at the first use: a class may hold itself

    def read(data: Any, lenient: bool) -> Any:
        if not readers:
            hints = typing.get_type_hints(kind)
            readers.update({name: _reader(hints[name]) for name, _ in _defaults(kind)})
        if not isinstance(data, dict):
            raise CodecError(f"{_short(data)} is no {kind.__name__}")
        values = {}
        for name, item in data.items():
            if name in readers:
                values[name] = _field(kind, name, readers[name], item, lenient)
            elif not lenient:
                raise CodecError(f"{kind.__name__} has no field {name!r}")
        try:
            return kind(**values)
        except (TypeError, ValueError) as error:
            raise CodecError(f"{kind.__name__}: {error}") from error

    return read


def _field(kind: type, name: str, reader: _Reader, item: Any, lenient: bool) -> Any:
    try:
        return reader(item, lenient)
    except CodecError as error:
        raise CodecError(f"{kind.__name__}.{name}: {error}") from None


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:60] + "…"
