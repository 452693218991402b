"""How do the numbers of a vector become inputs? Each is a field, as if it had a column.

"0.1 0.2 0.3" is cut into the columns x.0, x.1, x.2, which stand behind those of the log.
"""

import numpy as np

from neocpu.ingest.formats.fields import I32, Fault, Fields, Items, shown, split_items
from neocpu.ingest.formats.schema import CategoryField, DenseField, Schema


class Vectors:
    """The columns of vectors of a schema whose columns are known.

    columns : names of the log's columns and of those that vectors become.
    """

    def __init__(self, schema: Schema) -> None:
        self.columns = [*schema.columns]
        self._position = {name: i for i, name in enumerate(schema.columns)}
        self._dense = [number for number in schema.dense if number.width and not number.item]
        self._first: dict[str, int] = {}
        for number in self._dense:
            self._first[number.column] = len(self.columns)
            self.columns += [f"{number.column}.{item}" for item in range(number.width)]

    def position(self, number: DenseField) -> int:
        """The column that holds a dense number."""
        if not number.width:
            return self._position[number.column]
        return self._first[number.column] + number.item

    def split(self, fields: Fields) -> Fields:
        """Fields with a column for each number of a vector; those of empty vectors are empty.

        A row whose vector has another number of them has a fault, unless such texts are missing.
        """
        if not self._dense:
            return fields
        begin, end = [fields.begin], [fields.end]
        faults = [*fields.faults]
        for number in self._dense:
            position = self._position[number.column]
            items = fields.items.get(position)
            if items is None:
                cut = CategoryField(number.column, number.name, separator=number.separator)
                items = split_items(fields.text, fields.begin[position], fields.end[position], cut)
            begin.append(_columns(items, items.begin, number.width))
            end.append(_columns(items, items.end, number.width))
            if number.invalid == "error":
                faults += _faults(fields, number, items)
        return fields._replace(begin=np.concatenate(begin), end=np.concatenate(end), faults=faults)


def _columns(items: Items, borders: I32, width: int) -> I32:
    """Borders of items i32[items] as i32[width, rows]; 0 in rows that have others."""
    columns = np.zeros((width, items.lengths.size), np.int32)
    whole = items.lengths == width
    columns[:, whole] = borders[np.repeat(whole, items.lengths)].reshape(-1, width).T
    return columns


def _faults(fields: Fields, number: DenseField, items: Items) -> list[Fault]:
    """Faults of the rows that have another number of items, but none."""
    wrong = (items.lengths != number.width) & (items.lengths > 0)
    starts = np.cumsum(items.lengths) - items.lengths
    faults = []
    for line in np.flatnonzero(wrong).tolist():
        first = starts[line]
        last = first + items.lengths[line] - 1
        raw = fields.text[items.begin[first] : items.end[last]].tobytes()
        reason = f"has {items.lengths[line]} numbers, expected {number.width}"
        faults.append(Fault(line, number.column, shown(raw), reason))
    return faults
