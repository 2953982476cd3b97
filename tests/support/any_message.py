"""Any message of a protobuf type, field by field: usual values, and the extremes of each field's type."""

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)

_INT32 = (0, 1, 2, 5, 300, -1, 2**31 - 1, -(2**31))
_INT64 = (*_INT32, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 0.5, 1.0, 2.0, 1e-45, 1e-30, 3.4e38, -1.0, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "x", "user", "assistant", "system", "tool", "{}", "�", "\x00", "<|im_start|>", "a" * 300, "中😀\n")
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_INT32: st.sampled_from(_INT32),
    FieldDescriptor.TYPE_INT64: st.sampled_from(_INT64),
    FieldDescriptor.TYPE_UINT64: st.sampled_from((0, 1, 2**63, 2**64 - 1)),
    FieldDescriptor.TYPE_FLOAT: st.sampled_from(_FLOATS),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from((*_FLOATS[:7], 5e-324, 1.7e308, *_FLOATS[8:])),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.one_of(st.sampled_from(_TEXTS), st.text(max_size=8)),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_ENUM: st.sampled_from((0, 1, 2, 3, 4, 99, -1, 2**31 - 1)),
}


def messages(kind: type[M], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[M]:
    """Messages of ``kind`` with any of their fields set; ``fixed`` fields are always set, from their own strategies."""

    @st.composite
    def build(draw: st.DrawFn) -> M:
        message = kind()
        _fill(draw, message, kind.DESCRIPTOR, skip=frozenset(fixed))
        for name, values in fixed.items():
            _set(message, name, draw(values))
        return message

    return build()


def _fill(draw: st.DrawFn, message: Any, descriptor: Any, skip: frozenset[str] = frozenset()) -> None:
    fields = [field for field in descriptor.fields if field.name not in skip]
    if not fields:
        return
    for field in draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda field: field.name)):
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            target.update(draw(st.dictionaries(_VALUES[key.type], _VALUES[value.type], max_size=3)))
        elif field.is_repeated and field.message_type is not None:
            for _ in range(draw(st.integers(1, 3))):
                _fill(draw, target.add(), field.message_type)
        elif field.is_repeated:
            target.extend(draw(st.lists(_VALUES[field.type], min_size=1, max_size=4)))
        elif field.message_type is not None:
            target.SetInParent()
            _fill(draw, target, field.message_type)
        else:
            setattr(message, field.name, draw(_VALUES[field.type]))


def _set(message: Any, name: str, value: Any) -> None:
    if isinstance(value, list):
        getattr(message, name).extend(value)
    elif isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    else:
        setattr(message, name, value)
