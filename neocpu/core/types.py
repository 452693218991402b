"""Which types stand for data from outside? JSON, TOML trees, and arrays of any element."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

# what `json.loads` may return
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
# an object of JSON that this program wrote: who reads it knows its keys
JsonObject: TypeAlias = Mapping[str, Any]
# sections and keys of a TOML file, before records check them
Tree: TypeAlias = Mapping[str, object]
# elements of any dtype: codes of a row format, columns of a file
Elements: TypeAlias = NDArray[Any]
