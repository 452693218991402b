"""How many batches ahead do stages run for tables in slow memory?

Their rows are brought up before their turn, and the policy `lookahead` knows rows of batches
further away. Lookups of a batch must have arrived by then, so they travel one step earlier still.

    batch   0        1 … prefetch        … known        one more
            at work  rows on their way   lookups here   lookups on their way
"""

from collections.abc import Mapping

from neocpu.core.policies import POLICIES
from neocpu.core.stages import NONE_AHEAD
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train.config.settings import MemoryConfig


def ahead(prefetch: int, known: int) -> Mapping[str, int]:
    """Stages of `stages.STEP` and by how many batches they run ahead.

    prefetch : batches whose rows are brought up before their turn. known : batches whose lookups
    have arrived by then.
    """
    known = max(prefetch, known)
    if not known:
        return NONE_AHEAD
    # one more: lookups travel during the step before they must be there
    early = dict.fromkeys(("read", "copy", "input"), known + 1)
    return {**early, "index": known, "prefetch": prefetch}


def look_ahead(plan: MemoryPlan | None, memory: MemoryConfig) -> Mapping[str, int]:
    """As far ahead as the config says, where the plan puts tables in slow memory; else not."""
    if plan is None or plan.plain:
        return NONE_AHEAD
    # only a policy that evicts by next use gains from lookups of batches further away
    known = memory.lookahead if POLICIES[memory.policy].next_use else 0
    return ahead(memory.prefetch, known)
