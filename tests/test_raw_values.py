"""Does the file that stands alone read values as neocpu reads a log?"""

import sys
from pathlib import Path

import numpy as np
import pytest

from neocpu.ingest.formats.frames import as_frame, parse_frame
from neocpu.ingest.formats.schema import MISSING_INTEGER
from neocpu.ingest.formats.table import table_schema
from neocpu.kernels.twins.numbers.philox import feature_key
from neocpu.kernels.twins.rows import row_maps as twins
from neocpu.serve.exports import raw_values
from neocpu.serve.exports.card import DataFacts, feature_cards
from neocpu.serve.exports.raw_values import RawValues
from neocpu.tables.specs.specs import TableSpec
from tests.jobs import ran

SCHEMA = {
    "missing": ["NULL"],
    "dense": [
        {"columns": ["price"], "kind": "float", "transform": "log1p"},
        {"columns": ["age"], "kind": "float", "transform": "none"},
        {
            "columns": ["height"],
            "kind": "float",
            "transform": "standard",
            "fitted": {"height": [1.7, 0.2]},
        },
        {"columns": ["count"], "kind": "float", "transform": "log1p", "clip": [1, 5]},
        {
            "columns": ["weight"],
            "kind": "float",
            "transform": "standard",
            "fitted": {"weight": [60.0, 9.0]},
            "clip": [30, 90.5],
        },
    ],
    "category": [
        {"columns": ["site"]},
        {"columns": ["id"], "kind": "int"},
        {"columns": ["hash"], "kind": "hex", "digits": 8},
        {"columns": ["hour"], "kind": "hour"},
        {"columns": ["unix"], "kind": "date", "time": "unix"},
        {"columns": ["milli"], "kind": "month", "time": "unix_ms"},
        {"columns": ["iso"], "kind": "weekday", "time": "iso"},
        {"columns": ["own"], "kind": "day", "time": "%d/%m/%Y %H:%M"},
        {"columns": ["size"], "kind": "bucket", "buckets": 3, "fitted": {"size": [1.5, 4.0]}},
        {"columns": ["tags"], "separator": "|", "weight_separator": ":"},
    ],
}
COLUMNS = {
    "price": ["1.5", "-3", "", "NULL"],
    "age": ["7", "", "1e3", "-0.25"],
    "height": ["1.9", "", "1.5", "NULL"],
    "count": ["-3e38", "", "7", "2.5"],
    "weight": ["1e30", "", "-1", "61"],
    "site": ["", "größe", "NULL", "a b"],
    "id": ["-5", "0", "", "9223372036854775807"],
    "hash": ["68FD1e64", "0", "", "ffffffff"],
    "hour": ["14102105", "", "00022923", "99123100"],
    "unix": ["1413867600", "-1", "", "1.5"],
    "milli": ["1413867600123", "", "0", "951782400000"],
    "iso": ["2014-10-21", "", "2014-10-21T23:30:00-05:00", "2000-02-29T01:00:00Z"],
    "own": ["21/10/2014 05:30", "", "29/02/2000 23:59", "01/01/1970 00:00"],
    "size": ["1.5", "", "-2", "100"],
    "tags": ["a:2|b|:3", "", "c:x:0.5", "NULL"],
}


def test_codes_numbers_and_rows_are_neocpus() -> None:
    schema = table_schema(SCHEMA)
    parsed = parse_frame(as_frame(COLUMNS), schema)
    assert not parsed.faults
    tables = [TableSpec(each.name, 1000, 2, (each.name,)) for each in schema.categories]
    facts = DataFacts(schema.dense, {each.name: each for each in schema.categories})
    cards = feature_cards(tables, facts, 7)
    card = {
        "missing": schema.missing,
        "rows_by": "hash",
        "dense": [{**vars(column)} for column in schema.dense],
        "features": cards,
        "tables": [vars(table) for table in tables],
    }
    values = RawValues(card)
    assert np.array_equal(values.dense(COLUMNS), parsed.dense)
    for feature in cards:
        name = feature["name"]
        bags = values.bags(feature, COLUMNS)
        expected = parsed.features[name]
        assert np.array_equal(bags.codes, expected.codes), name
        if expected.lengths is None:
            assert (bags.lengths == 1).all()
        else:
            assert np.array_equal(bags.lengths, expected.lengths)
            assert np.array_equal(bags.weights, expected.weights)
        assert int(feature["hash_key"]) == int(feature_key(7, name))
    assert values.bags(cards[1], COLUMNS).codes[2] == np.uint64(MISSING_INTEGER)
    with pytest.raises(ValueError, match="kind 'odd' is unknown here"):
        values.codes(["x"], {"name": "f", "kind": "odd"})


def test_numbers_are_values_too() -> None:
    values = RawValues({"missing": []})
    feature = {"name": "C", "kind": "hex", "missing": 0}
    assert values.codes([255, "ff", None, float("nan")], feature).tolist() == [255, 255, 0, 0]


def test_it_needs_numpy_only(tmp_path: Path) -> None:
    source = Path(raw_values.__file__)
    (tmp_path / "raw_values.py").write_bytes(source.read_bytes())
    line = "import sys, raw_values; print(any(name.startswith('neocpu') for name in sys.modules))"
    done = ran([sys.executable, "-c", line], cwd=tmp_path, env={})
    assert done.stdout.strip() == "False", done.stderr


def test_fields_of_structs_have_the_names_that_json_gives_them():
    tree = {"category": [{"columns": ["user.id"], "kind": "int"}, {"columns": ["user.at.city"]}]}
    rows = {"user": [{"id": 7, "at": {"city": "Bern"}}, {"id": 8, "at": None}]}
    flat = {"user.id": [7, 8], "user.at.city": ["Bern", None]}
    parsed, expected = (parse_frame(as_frame(each), table_schema(tree)) for each in (rows, flat))
    for name in flat:
        assert (parsed.features[name].codes == expected.features[name].codes).all()


def test_features_whose_weights_count():
    weighted = {"plain": {}, "hashed": {"map": {"log_weights": False}}, "mapped": {"map": {}}}
    features = [
        {"name": f"{name} of {table}", "table": table, **entry}
        for name, entry in weighted.items()
        for table in ("weighted", "counted")
    ]
    tables = {"weighted": {"weighted": True}, "counted": {"weighted": False}}
    counting = raw_values.weighted_features({"features": features, "tables": tables})
    assert counting == {"plain of weighted", "mapped of weighted"}


def test_rows_and_weights_of_parts_are_those_of_the_twins() -> None:
    rows = np.array([0, 1, 5, 99, 123_456_789])
    card = {"first": 3, "divisor": 7, "modulus": 90, "key": str(2**63 + 5)}
    for number, rule in enumerate(("digit", "salted", "range")):
        expected = np.zeros(5, np.int64)
        twins.map_rows(rows, number, 7, np.uint64(90), 3, np.uint64(2**63 + 5), expected)
        assert raw_values.part_rows(rows, {"rule": rule, **card}).tolist() == expected.tolist()
    weights = np.array([2, 3, 4, 5, 6], np.float32)
    for log_weights in (False, True):
        expected = weights.copy() if log_weights else np.ones(5, np.float32)
        for signed in (False, True):
            options = card | {"log_weights": log_weights, "signed": signed}
            if signed:
                twins.sign_weights(rows, np.uint64(2**63 + 5), expected)
                assert len({*np.sign(expected).tolist()}) == 2
            assert raw_values.part_weights(rows, weights, options).tolist() == expected.tolist()


def test_rows_of_codes() -> None:
    words = {"words": np.array([50, 7, 2**63], np.uint64), "none": np.zeros(0, np.uint64)}
    codes = np.array([7, 2**63, 8, 50, 2**64 - 1], np.uint64)
    card = {"missing": [], "rows_by": "code", "tables": {"t": {"rows": 10}}}
    values = RawValues(card, words)
    for name, known, rows in (
        ("words", True, [2, 3, 0, 1, 0]),  # row 0 is that of values which are not known
        ("none", True, [0] * 5),
        ("numbers", False, [7, 8, 8, 0, 5]),
    ):
        feature = {"name": name, "vocabulary": known, "table": "t"}
        assert values.rows(codes, feature).tolist() == rows
