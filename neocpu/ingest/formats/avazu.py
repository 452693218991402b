"""What does an Avazu click log look like?

CSV with a header: id, click, hour, and 21 categorical columns. Every column but `id` and `click` is
a category, hashed by its text (C14 = "15706" as well as site_id = "1fbe01fe"). The time YYMMDDHH
gives two categories, the hour of the day and the weekday. There are no dense columns.
"""

from neocpu.ingest.formats.schema import CategoryField, LabelField, Schema

# columns whose text is hashed
TEXT = (
    *(
        "C1",
        "banner_pos",
        "site_id",
        "site_domain",
        "site_category",
        "app_id",
        "app_domain",
        "app_category",
    ),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{i}" for i in range(14, 22)),
)


def avazu_schema(*, labelled: bool = True) -> Schema:
    """Avazu's columns by the names of its header.

    labelled : False for the published test file, which lacks `click`.
    """
    times = (CategoryField("hour", "hour", "hour"), CategoryField("hour", "weekday", "weekday"))
    return Schema(
        name="avazu",
        label=LabelField("click") if labelled else None,
        dense=(),
        categories=times + tuple(CategoryField(name, name, "text") for name in TEXT),
        delimiter=",",
        quote='"',
        header=True,
        hint="An Avazu log has id, click, hour, C1, banner_pos, site_id, …, C21"
        + (" (--no-label reads a file without click)" if labelled else ""),
        extra={
            "description": (
                "Avazu click log: 23 categories (64-bit text hashes; hour + 1; weekday 1 to 7)"
            )
        },
    )
