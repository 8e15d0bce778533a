"""Views of text and bytes, as Polars writes them, of which Arrow cannot take rows.

string_view                  large_string
list<binary_view>            list<large_binary>
dictionary<string_view>      dictionary<large_string>
"""

from __future__ import annotations

from typing import Any

from ...base.extras import needs


def without_views(array: Any) -> Any:
    """The same values; where there were views, in memory of their own."""
    kind = _plain(array.type)
    return array if kind.equals(array.type) else array.cast(kind)


def _plain(kind: Any) -> Any:
    """The type without views; itself, if there are none in it."""
    pa = needs("pyarrow", "arrow", "an Arrow column")
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        inner = _plain(kind.value_type)
        same = inner.equals(kind.value_type)
        return kind if same else pa.dictionary(kind.index_type, inner, kind.ordered)
    if types.is_struct(kind):
        fields = [field.with_type(_plain(field.type)) for field in kind]
        same = all(one.type.equals(two.type) for one, two in zip(fields, kind, strict=True))
        return kind if same else pa.struct(fields)
    return _plain_list(kind)


def _plain_list(kind: Any) -> Any:
    pa = needs("pyarrow", "arrow", "an Arrow column")
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return kind
    field = kind.value_field
    inner = _plain(field.type)
    if inner.equals(field.type):
        return kind
    field = field.with_type(inner)
    if types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if types.is_large_list(kind) else pa.list_(field)
