"""The sources of a query's analyzed plan, in the order of the lines in Spark's offset log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JError

from airflow_streamstate.checkpoint.entries import offset_order
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.driver.attempt.ports import QuerySource
from airflow_streamstate.driver.spark.jvm import jvm_is_gone, scala_option, scala_text_map

RELATIONS = frozenset({"StreamingRelation", "StreamingRelationV2"})


class DriverDoor:
    """This driver's Spark for connectors. Implements ``connectors.source.SparkDoor``."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.jvm = session._jvm


def read_sources(jvm: Any, nodes: Iterable[tuple[str, Any]]) -> tuple[QuerySource, ...]:
    """The sources among the nodes of a plan; empty where Spark shows them in an unknown way.

    Args:
        nodes: class name and node, from the top down, left to right.
    """
    relations = [(kind, node) for kind, node in nodes if kind in RELATIONS]
    seen: list[Any] = []
    found = []
    try:
        for kind, node in relations:
            folder = next((number for number, other in enumerate(seen) if node.equals(other)), len(seen))
            if folder == len(seen):
                seen.append(node)
            planned = _of_v2(node) if kind == "StreamingRelationV2" else _of_v1(jvm, node)
            found.append(QuerySource(planned, folder, _name_of(node)))
    except (Py4JError, AttributeError, TypeError) as error:
        if jvm_is_gone(error):
            raise
        return ()
    if any(source.name for source in found):
        found.sort(key=lambda source: offset_order(source.name))
    return tuple(found)


def _name_of(node: Any) -> str:
    """The name that the script gave a source; "" for none, and on a Spark without names."""
    try:
        name = node.sourceIdentifyingName()
    except Py4JError as error:
        if jvm_is_gone(error):
            raise
        return ""  # no such method: an older Spark
    return str(name.name()) if name.getClass().getSimpleName() == "UserProvided" else ""


def _of_v2(node: Any) -> Source:
    identifier = scala_option(node.identifier())
    table = ""
    if identifier is not None:
        catalog = scala_option(node.catalog())
        parts = [str(catalog.name())] if catalog is not None else []
        table = ".".join((*parts, *(str(part) for part in identifier.namespace()), str(identifier.name())))
    options = node.extraOptions().asCaseSensitiveMap()
    return Source(str(node.sourceName()).lower(), _lower({str(name): str(options[name]) for name in options}), table)


def _of_v1(jvm: Any, node: Any) -> Source:
    data_source = node.dataSource()
    table = scala_option(data_source.catalogTable())
    return Source(
        str(data_source.className()).lower(),
        _lower(scala_text_map(jvm, data_source.options())),
        "" if table is None else str(table.identifier().unquotedString()),
    )


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
