"""Where does a schema hold what was fitted? In its tree, beside the columns that it is of."""

import copy
from collections.abc import Mapping
from typing import Any

from neocpu.core.types import Tree


def fill(tree: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """A schema's tree with the fitted numbers and classes of another one, where it lacks some."""
    from neocpu.ingest.formats.table import table_schema

    table_schema(stored)  # it is what it should be
    table_schema(tree)
    numbers: dict[str, Mapping[str, list[Any]]] = {
        entry: {
            column: values
            for each in stored.get(entry, [])
            for column, values in each.get("fitted", {}).items()
        }
        for entry in ("dense", "category")
    }
    numbers["label"] = {
        entry["column"]: entry["classes"] for entry in _labels(stored) if "classes" in entry
    }
    return with_numbers(tree, numbers)


def with_numbers(tree: Tree, fitted: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, Any]:
    """A tree whose entries hold the fitted numbers, or classes, of their columns."""
    whole: dict[str, Any] = copy.deepcopy(dict(tree))
    for entry in _labels(whole):
        if entry.get("kind") == "class" and entry["column"] in fitted["label"]:
            entry.setdefault("classes", fitted["label"][entry["column"]])
    for entry in whole.get("dense", []):
        if entry.get("transform") == "standard":
            _note(entry, fitted["dense"])
    for entry in whole.get("category", []):
        if entry.get("kind") == "bucket" and "edges" not in entry:
            _note(entry, fitted["category"])
    return whole


def _labels(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of labels."""
    labels = tree.get("label", [])
    return [labels] if isinstance(labels, dict) else labels


def _note(entry: dict[str, Any], fitted: Mapping[str, list[float]]) -> None:
    """Write the fitted numbers of an entry's columns into it, beside those it has."""
    new = {column: fitted[column] for column in entry["columns"] if column in fitted}
    entry["fitted"] = {**new, **entry.get("fitted", {})}
