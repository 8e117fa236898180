"""LangGraph's own small classes as their fields, so that what they carry is stored like any other value.

Its serializer makes a list of a tuple inside an object. A `Send`, an `Interrupt` or a `Command` becomes a node instead:

    {"$serde": "fields", "class": "langgraph.types:Send", "value": {"node": "work", "arg": …}}

Only the classes named here are made from such a node.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send

from stepkeep.adapters.langgraph.extensions import MARK
from stepkeep.errors import SCHEMA_INVALID, Corrupt

_FIELDS: Final = "fields"

_KINDS: Final = (Send, Interrupt, Command, Overwrite, _DeltaSnapshot)
_CLASSES: Final[dict[str, type]] = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in _KINDS}
_DEFAULTS: Final[dict[type, dict[str, Any]]] = {
    kind: {
        name: each.default
        for name, each in inspect.signature(kind).parameters.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    for kind in _KINDS
}
"""What each class is made with, which is all it holds, so that a field of a later release is stored too."""


def has_fields(kind: type) -> bool:
    """Whether a class is one of those; a subclass may have more to it, and is none."""
    return kind in _DEFAULTS


def fields_of(value: object) -> dict[str, Any]:
    """What an object of such a class was made with, without what is empty by default: an older release may lack it."""
    found = {name: getattr(value, name) for name in _DEFAULTS[type(value)]}
    empty = {name: default for name, default in _DEFAULTS[type(value)].items() if default in (None, ())}
    return {name: field for name, field in found.items() if name not in empty or field is not empty[name]}


def node_of(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    return {MARK: _FIELDS, "class": f"{kind.__module__}:{kind.__qualname__}", "value": fields}


def is_node(node: dict[str, Any]) -> bool:
    """Whether a node is one of these; a serializer's own ones have bytes."""
    return node[MARK] == _FIELDS and "value" in node


def object_of(node: dict[str, Any], fields: dict[str, Any]) -> Any:
    """The object of a node, given its fields.

    Raises:
        Corrupt: the node names another class, or fields that it lacks.
    """
    try:
        return _CLASSES[node["class"]](**fields)
    except (KeyError, TypeError, ValueError) as exc:
        raise Corrupt(f"a stored object is not as it was written: {exc}", code=SCHEMA_INVALID) from exc
