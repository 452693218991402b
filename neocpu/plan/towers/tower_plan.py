"""Which tables does each node hold, where every tower is to lie on one?

With T towers and H nodes, tower t lies on node t H // T; without towers the tables are dealt out to
the nodes, largest first. What a table's scheme leaves open inside its node is planned node by node.
"""

from collections.abc import Callable, Sequence

from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.plan import AUTO, Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.specs.specs import TableSpecs, bags

# scheme -> that inside a node
INSIDE = {
    AUTO: AUTO,
    "table_wise": "table_wise",
    "table_row_wise": "row_wise",
    "table_column_wise": "column_wise",
}
_GLOBAL = {"row_wise": "table_row_wise", "column_wise": "table_column_wise"}
# (numbers of tables, their schemes) -> plan of these tables for one node
NodePlanner = Callable[[Sequence[int], Sequence[str]], Plan]


def plan_by_nodes(
    tables: TableSpecs,
    schemes: Sequence[str],
    towers: Sequence[Sequence[int]],
    ranks: int,
    per_node: int,
    plan_node: NodePlanner,
) -> Plan:
    """Checked plan in which each tower's tables lie on one node.

    schemes : of each table. towers : keys of each, positions in a batch (none: no towers).
    plan_node : plans tables for `per_node` ranks of one node.

    Raises PlanError for schemes that need several nodes, fewer towers or tables than nodes, nodes
    of different sizes, and a table that serves towers of several nodes.
    """
    if ranks % per_node:
        raise PlanError(f"parallel.towers: {ranks} ranks are no whole nodes of {per_node} ranks")
    for table, scheme in zip(tables, schemes):
        if scheme not in INSIDE:
            raise PlanError(
                f"parallel.towers: table {table.name!r} is {scheme}, which does not keep it on one "
                f"node; choose from {', '.join(INSIDE)}"
            )
    count = ranks // per_node
    node_of = nodes_of_tables(tables, towers, count)
    shards: list[Shard] = []
    final_schemes = list(schemes)
    for node in range(count):
        numbers = [t for t, home in enumerate(node_of) if home == node]
        node_plan = _without_copies(numbers, [INSIDE[schemes[t]] for t in numbers], plan_node)
        for new, number in enumerate(numbers):
            final_schemes[number] = _GLOBAL.get(node_plan.schemes[new], node_plan.schemes[new])
            shards += [
                Shard(number, shard.rows, shard.cols, shard.rank + node * per_node)
                for shard in node_plan.of_table(new)
            ]
    return Plan(tuple(tables), tuple(final_schemes), tuple(sorted(shards)), ranks, per_node).check()


def _without_copies(numbers: Sequence[int], schemes: Sequence[str], plan_node: NodePlanner) -> Plan:
    """A node's plan in which no table is copied to all its ranks: other nodes would lack it."""
    node_plan = plan_node(numbers, schemes)
    # a node's planner may choose copies for other tables once these are refused
    while "data_parallel" in node_plan.schemes:
        schemes = [
            "table_wise" if chosen == "data_parallel" else scheme
            for scheme, chosen in zip(schemes, node_plan.schemes)
        ]
        node_plan = plan_node(numbers, schemes)
    return node_plan


def nodes_of_tables(tables: TableSpecs, towers: Sequence[Sequence[int]], nodes: int) -> list[int]:
    """Node of each table; arguments and errors as for `plan_by_nodes`."""
    if not towers:
        return _deal_out(tables, nodes)
    if len(towers) < nodes:
        raise PlanError(
            f"parallel.towers: {len(towers)} towers leave some of {nodes} nodes without any"
        )
    table_of_key = [key.table for key in bags(tables)]
    homes: list[set[int]] = [set() for _ in tables]
    for tower, keys in enumerate(towers):
        for key in keys:
            homes[table_of_key[key]].add(tower * nodes // len(towers))
    for table, home in zip(tables, homes):
        if len(home) > 1:
            raise PlanError(
                f"parallel.towers: table {table.name!r} serves towers of the nodes {sorted(home)}"
            )
    return [home.pop() for home in homes]


def _deal_out(tables: TableSpecs, nodes: int) -> list[int]:
    """Tables to nodes, most columns first, each to the node with fewest, then fewest rows."""
    if len(tables) < nodes:
        raise PlanError(f"parallel.towers: {len(tables)} tables leave some of {nodes} nodes empty")
    load = [(0, 0, 0)] * nodes
    node_of = [0] * len(tables)
    columns = [table.dim * len(table.features) for table in tables]
    for table in sorted(range(len(tables)), key=lambda t: (-columns[t], -tables[t].rows, t)):
        node = min(range(nodes), key=lambda node: load[node])
        node_of[table] = node
        vectors, rows, count = load[node]
        load[node] = (vectors + columns[table], rows + tables[table].rows, count + 1)
    return node_of
