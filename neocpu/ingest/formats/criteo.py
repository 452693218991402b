"""What does a Criteo click log look like?

Label, 13 integers, 26 hexadecimal categories, tab-separated, no header. Both published logs
(Display Advertising 2014, "Kaggle"; Terabyte) have this form. Missing values follow the DLRM
reference (facebookresearch/dlrm, data_utils.py): an empty integer is 0, an empty category is
code 0; negative integers become 0 in log1p(max(x, 0)). The category's code is its 32-bit value; its
row depends on the size of the table (`ingest.code_map`).
"""

from neocpu.ingest.formats.schema import CategoryField, DenseField, LabelField, Schema

DENSE = 13
CATEGORIES = 26


def criteo_schema(
    transform: str = "log1p", *, labelled: bool = True, header: bool = False
) -> Schema:
    """Criteo's columns: label, I1..I13, C1..C26.

    labelled : False for the published test file, which lacks the label. header : the first line of
    the log names the columns.
    """
    integers = tuple(f"I{i}" for i in range(1, DENSE + 1))
    categories = tuple(f"C{i}" for i in range(1, CATEGORIES + 1))
    return Schema(
        name="criteo",
        label=LabelField("label") if labelled else None,
        dense=tuple(DenseField(name, name, "int", transform) for name in integers),
        categories=tuple(CategoryField(name, name, "hex", 8) for name in categories),
        columns=("label",) * labelled + integers + categories,
        header=header,
        hint="a Criteo log has label, I1..I13, C1..C26"
        if labelled
        else "without a label, I1..I13, C1..C26 are left",
        extra={
            "description": (
                "Criteo click log: label, 13 integers, 26 categories (32-bit codes; missing: 0)"
            )
        },
    )
