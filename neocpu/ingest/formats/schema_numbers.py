"""Where does a schema hold its fitted numbers? In its tree, beside the columns that they are of."""

import copy
from collections.abc import Mapping
from typing import Any

from neocpu.core.types import Tree


def fill(tree: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """A schema's tree with the fitted numbers of another one, where it lacks some."""
    from neocpu.ingest.formats.table import table_schema

    table_schema(stored)  # it is what it should be
    table_schema(tree)
    numbers = {
        entry: {
            column: values
            for each in stored.get(entry, [])
            for column, values in each.get("fitted", {}).items()
        }
        for entry in ("dense", "category")
    }
    return with_numbers(tree, numbers)


def with_numbers(tree: Tree, fitted: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    """A tree whose entries hold the fitted numbers of their columns."""
    whole: dict[str, Any] = copy.deepcopy(dict(tree))
    for entry in whole.get("dense", []):
        if entry.get("transform") == "standard":
            _note(entry, fitted["dense"])
    for entry in whole.get("category", []):
        if entry.get("kind") == "bucket" and "edges" not in entry:
            _note(entry, fitted["category"])
    return whole


def _note(entry: dict[str, Any], fitted: Mapping[str, list[float]]) -> None:
    """Write the fitted numbers of an entry's columns into it, beside those it has."""
    new = {column: fitted[column] for column in entry["columns"] if column in fitted}
    entry["fitted"] = {**new, **entry.get("fitted", {})}
