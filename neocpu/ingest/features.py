"""Which features has a log, as its config describes it? No data are read."""

from neocpu.ingest.settings import DataConfig


def feature_names(data: DataConfig) -> tuple[str, ...]:
    """Names of the categories of a log of `data.format`, in its order.

    Those of a table are in its schema; () where there is none. Raises ConfigError for a schema that
    is missing or wrong.
    """
    if data.format == "criteo":
        from neocpu.ingest.formats.criteo import criteo_schema

        schema = criteo_schema()
    elif data.format == "avazu":
        from neocpu.ingest.formats.avazu import avazu_schema

        schema = avazu_schema()
    elif data.schema_source is not None:
        from neocpu.ingest.formats.table import table_schema

        schema = table_schema(data.schema_source)
    else:
        return ()
    return tuple(field.name for field in schema.categories)
