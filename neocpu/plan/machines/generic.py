"""For which machine does a planner plan that was told of none? For an ordinary one, chosen here.

Nothing of it is measured. Ranks are processes on CPUs; links are slower than memory, those between
nodes slower than those inside, and memories below slower again. Only the ratios matter to a plan.
"""

from neocpu.plan.machines.machine import ComputePeak, LinkPeak, Machine, MemoryPeak

_ALL = 1 << 50

GENERIC = Machine(
    name="generic",
    origin="chosen: an ordinary cluster of CPUs, for plans of runs that name no machine",
    hbm=MemoryPeak(capacity_bytes=_ALL, bandwidth_bytes_per_s=10e9),
    ddr=MemoryPeak(capacity_bytes=_ALL, bandwidth_bytes_per_s=5e9),
    ssd=MemoryPeak(capacity_bytes=_ALL, bandwidth_bytes_per_s=1e9, operations_per_s=2e5),
    host_device=LinkPeak(bandwidth_bytes_per_s=5e9),
    inside_node=LinkPeak(bandwidth_bytes_per_s=4e9, latency_s=5e-6),
    between_nodes=LinkPeak(bandwidth_bytes_per_s=1.25e9, latency_s=20e-6),
    compute=ComputePeak(fp32_flops_per_s=50e9),
)
