"""How does a plan of TorchRec become ours? By way of a description in JSON, without pickles.

Where TorchRec is installed, its plan is described and saved:

    json.dump(describe(sharding_plan), open("torchrec.json", "w"))

    {"format": "torchrec plan", "tables": {
        "t1": {"sharding_type": "row_wise", "compute_kernel": "fused", "ranks": [0, 1],
               "shards": [{"offsets": [0, 0], "sizes": [500, 64], "rank": 0}, ...]}}}

`describe` asks the plan for its attributes only, so neither TorchRec nor torch is imported here.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from neocpu.core.errors import ConfigError
from neocpu.plan.files import plan_file
from neocpu.plan.files.plan_file import PlanFile

FORMAT = "torchrec plan"
# Where TorchRec's kernels keep rows; "": wherever `memory.placement` says.
PLACEMENTS = {
    "": "",
    "fused": "",
    "fused_triton": "",
    "dense": "",
    "quant": "",
    "customized_kernel": "",
    "fused_uvm": "ddr",
    "quant_uvm": "ddr",
    "dram_virtual_table": "ddr",
    "fused_uvm_caching": "hbm_over_ddr",
    "quant_uvm_caching": "hbm_over_ddr",
    "key_value": "ddr_over_ssd",
    "ssd_virtual_table": "ddr_over_ssd",
    "dram_ssd_virtual_table": "ddr_over_ssd",
}


def describe(sharding_plan: Any) -> dict[str, object]:
    """A `torchrec.distributed.types.ShardingPlan` as JSON-able data.

    Tables of all sharded modules stand side by side; ConfigError where two have one name.
    """
    tables: dict[str, object] = {}
    for module, parameters in sharding_plan.plan.items():
        for name, sharding in parameters.items():
            if name in tables:
                raise ConfigError(f"table {name!r} is in {module!r} and in another module")
            spec = getattr(sharding.sharding_spec, "shards", None) or ()
            tables[name] = {
                "sharding_type": sharding.sharding_type,
                "compute_kernel": sharding.compute_kernel,
                # None where TorchRec leaves the ranks open
                "ranks": sharding.ranks and list(sharding.ranks),
                "shards": [
                    {
                        "offsets": list(shard.shard_offsets),
                        "sizes": list(shard.shard_sizes),
                        "rank": _rank_of(shard.placement),
                    }
                    for shard in spec
                ],
            }
    return {"format": FORMAT, "tables": tables}


def _rank_of(placement: object) -> int:
    """The rank of "rank:3/cuda:3"."""
    digits = re.match(r"rank:(\d+)/", str(placement))
    if digits is None:
        raise ConfigError(f"a shard is on {str(placement)!r}, which names no rank")
    return int(digits[1])


def loads(content: str, source: str, ranks: int, replica_groups: int = 1) -> PlanFile:
    """A plan file from what `describe` gave, for so many ranks; of several replica groups it
    describes one, as the plan that TorchRec's DMPCollection is given.

    Raises ConfigError where it is no such description, or its shards are none of ours.
    """
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{source}: not valid JSON: {why}") from error
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise ConfigError(
            f'{source}: this is no plan of TorchRec, which has "format": "{FORMAT}"; '
            "docs/planner.md says how to write one"
        )
    tables = []
    where = source
    try:
        for name, entry in tree["tables"].items():
            where = f"{source}: table {name!r}"
            tables.append(_entry(where, name, entry, ranks // replica_groups))
    except KeyError as error:
        raise ConfigError(f"{where}: this is no plan of TorchRec: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: this is no plan of TorchRec: {error}") from error
    ours = {
        "format": plan_file.FORMAT,
        "version": plan_file.VERSION,
        "made_for": {"planner": "torchrec"},
        "ranks": ranks,
        "replica_groups": replica_groups,
        "tables": tables,
    }
    # through the text of a plan file, so that its checks hold for TorchRec's plans as well
    return plan_file.loads(json.dumps(ours), source)


def _entry(key: str, name: str, entry: Mapping[str, Any], ranks: int) -> dict[str, object]:
    """A table as our files have it; key : what messages call it. ranks : of the plan."""
    scheme = entry["sharding_type"]
    kernel = entry.get("compute_kernel") or ""
    if kernel not in PLACEMENTS:
        known = ", ".join(filter(None, PLACEMENTS))
        raise ConfigError(f"{key}: compute kernel {kernel!r} is unknown (known: {known})")
    ours: dict[str, object] = {"name": name, "scheme": scheme}
    if PLACEMENTS[kernel]:
        ours["placement"] = PLACEMENTS[kernel]
    _refuse_other_ranks(key, entry, ranks)
    if scheme == "data_parallel":
        return ours
    rectangles = []
    for shard in entry["shards"]:
        (row, column) = shard["offsets"]
        (rows, columns) = shard["sizes"]
        # TorchRec keeps empty shards where a table has fewer rows than ranks
        if rows and columns:
            rectangles.append(
                {
                    "rank": shard["rank"],
                    "rows": [row, row + rows],
                    "columns": [column, column + columns],
                }
            )
    return ours | {"rectangles": rectangles}


def _refuse_other_ranks(key: str, entry: Mapping[str, Any], ranks: int) -> None:
    """Raise ConfigError for a table of a plan that was made for another number of ranks."""
    copied = entry["sharding_type"] == "data_parallel"
    # a plan of TorchRec's says how many ranks there are only by those of copies
    holders = entry.get("ranks") or () if copied else [s["rank"] for s in entry["shards"]]
    if holders and (max(holders) >= ranks or (copied and len(holders) != ranks)):
        raise ConfigError(
            f"{key}: it is on {len(set(holders))} rank(s), the last of which is {max(holders)}, "
            f"and the plan is asked for {ranks}; use --ranks of the job that it was made for"
        )
