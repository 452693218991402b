"""Are machines read, checked, written and scaled as docs/zionex.md says?"""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError
from neocpu.plan.machines import machine_file
from neocpu.plan.machines.curves import Curve, rate_between, true_seconds
from neocpu.plan.machines.machine import (
    COLUMNS,
    EmbeddingRates,
    LinkPeak,
    Machine,
    MemoryPeak,
    MoveRates,
    ProductRates,
    TransferRates,
)
from neocpu.plan.machines.scaling import ALIASES, scaled

ROOT = Path(__file__).resolve().parent.parent
PRESETS = ("cpu-ps", "dgx-a100", "dgx-h100", "fat-tree", "zion", "zionex")
SMALL = """
name = "small"
[ddr]
capacity_bytes = 1_000
bandwidth_bytes_per_s = 1e9
[compute]
fp32_flops_per_s = 1e9
"""

positive = st.floats(1e-6, 1e15)
points = st.lists(st.tuples(positive, positive), min_size=1, max_size=8, unique_by=lambda p: p[0])


def curve_of(pairs: list[tuple[float, float]]) -> Curve:
    sizes, rates = zip(*sorted(pairs))
    return Curve(sizes, rates)


# ---- curves ----


@given(points)
def test_a_curve_goes_through_its_points_and_is_flat_beyond(pairs):
    curve = curve_of(pairs)
    for size, rate in zip(curve.sizes, curve.rates):
        assert curve.rate(size) == rate
    assert curve.rate(curve.sizes[0] / 10) == curve.rate(0.0) == curve.rates[0]
    assert curve.rate(curve.sizes[-1] * 10) == curve.rates[-1]


@given(points, st.lists(st.floats(0, 1e16), min_size=1, max_size=20))
def test_a_curve_stays_between_neighbours_and_is_monotone_there(pairs, sizes):
    curve = curve_of(pairs)
    for size in sizes:
        below = [rate for s, rate in zip(curve.sizes, curve.rates) if s <= size][-1:]
        above = [rate for s, rate in zip(curve.sizes, curve.rates) if s >= size][:1]
        neighbours = below + above
        assert min(neighbours) <= curve.rate(size) <= max(neighbours)
    rising = Curve(curve.sizes, tuple(sorted(curve.rates)))
    answers = [rising.rate(size) for size in sorted(sizes)]
    assert answers == sorted(answers)


@given(points, st.lists(st.floats(0, 1e16), min_size=1, max_size=20))
def test_many_sizes_are_answered_as_one_by_one(pairs, sizes):
    curve = curve_of(pairs)
    np.testing.assert_array_equal(curve.rate(np.array(sizes)), [curve.rate(size) for size in sizes])


def test_between_points_it_is_a_line_of_the_log_log_plot():
    curve = Curve((1.0, 100.0), (1.0, 10_000.0))
    assert curve.rate(10.0) == pytest.approx(100.0)
    assert curve.seconds(10.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("sizes", "rates"),
    [((), ()), ((1.0,), ()), ((1.0, 1.0), (1.0, 1.0)), ((2.0, 1.0), (1.0, 1.0)), ((0.0,), (1.0,))],
)
def test_points_that_make_no_curve_are_refused(sizes, rates):
    with pytest.raises(ValueError, match=r"curve|rates"):
        Curve(sizes, rates)


def test_rates_between_two_measured_parameters():
    curves = [(4.0, Curve((1.0,), (100.0,))), (1.0, Curve((1.0,), (1.0,)))]
    assert rate_between(curves, 1, 5) == 1
    assert rate_between(curves, 2, 5) == pytest.approx(10)
    assert rate_between(curves, 8, 5) == 100


@given(st.lists(st.floats(1e-9, 1e3), min_size=1))
def test_noise_is_taken_from_times_that_more_work_undercut(seconds):
    cleaned = true_seconds(seconds)
    assert list(cleaned) == sorted(cleaned)
    assert all(clean <= value for clean, value in zip(cleaned, seconds))
    assert cleaned[-1] == seconds[-1]


# ---- files ----


def test_the_presets_are_there():
    assert tuple(machine_file.preset_names()) == PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_name_and_by_path_and_survives_writing(name):
    machine = machine_file.load(name)
    assert machine.name == name and machine.origin
    assert machine_file.load(ROOT / "data" / "machines" / f"{name}.toml") == machine
    assert machine_file.loads(machine_file.text(machine)) == machine


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_of_a_preset_says_where_it_is_from(name):
    source = re.compile(
        r"# .*(abstract|notes|from memory|derived|chosen|TorchRec's planner|MLCommons)"
    )
    # a curve's numbers may have their source in the comment above the curve; 0 says: there is none
    curve_keys = {"smallest_side", "row_bytes", "message_bytes", "rows", "ranks", "flops_per_s"}
    curve_keys |= {"bytes_per_s"}
    lines = (ROOT / "data" / "machines" / f"{name}.toml").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        key = line.split(" = ")[0]
        if re.match(r"\w+ = [\d.]", line) and key not in curve_keys and " = 0" not in line:
            comments = "\n".join([lines[number - 2], line])
            assert source.search(comments), f"{name}.toml:{number}: {line}"


def test_the_papers_machine_has_the_published_numbers():
    machine = machine_file.load("zionex")
    assert machine.ranks == 128
    assert 8 * machine.hbm.bandwidth_bytes_per_s == pytest.approx(12.4e12)
    assert machine.nodes * machine.ddr.capacity_bytes == 24_000_000_000_000
    nvlink_both_ways = 2 * machine.inside_node.bandwidth_bytes_per_s
    assert nvlink_both_ways / machine.between_nodes.bandwidth_bytes_per_s == 24
    assert machine.transfer_seconds("alltoallv", "between_nodes", 128, 256e6) == pytest.approx(
        256e6 / 7e9
    )


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
rates = st.floats(1e-3, 1e18)


@st.composite
def machines(draw):
    """Machines of any numbers that are allowed."""
    columns = draw(points)
    curve = curve_of(columns)
    pair = dict(zip(("sizes", "rates"), (curve.sizes, curve.rates)))
    return Machine(
        name=draw(texts.filter(bool)),
        origin=draw(texts),
        nodes=draw(st.integers(1, 4096)),
        ranks_per_node=draw(st.integers(1, 64)),
        hbm=MemoryPeak(draw(st.integers(1, 2**62)), draw(rates), draw(rates), 0.0, "node"),
        inside_node=LinkPeak(draw(rates), draw(rates)),
        between_nodes=LinkPeak(draw(rates), draw(rates)),
        compute=replace(Machine().compute, fp32_flops_per_s=draw(rates)),
        products=(ProductRates("tf32", "forward", 3, pair["sizes"], pair["rates"]),),
        embeddings=(EmbeddingRates("update", 7, 1, pair["sizes"], pair["rates"]),),
        transfers=(TransferRates("copy", "host_device", 1, pair["sizes"], pair["rates"]),),
        moves=(MoveRates("ddr", "write", 2, pair["sizes"], pair["rates"]),),
    )


@given(machines())
def test_what_is_written_is_read_back(machine):
    notes = {"hbm": "a note", "hbm.capacity_bytes": "another"}
    assert machine_file.loads(machine_file.text(machine, ["heading"], notes)) == machine


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("nodes = 0", "box.toml: nodes: 0 is too small; allowed: 1 to"),
        ('nodes = "two"', "box.toml: nodes: expected a whole number, got 'two'"),
        ("[hbn]\ncapacity_bytes = 1", "box.toml: hbn: no such key; did you mean hbm?"),
        ("[ssd]\ncapacity = 1", "ssd.capacity: no such key; did you mean ssd.capacity_bytes?"),
        ('[hbm]\nshared = "core"', "hbm.shared: 'core' is not allowed; choose one of rank, node"),
        ("[hbm]\ncapacity_bytes = 5", "hbm.bandwidth_bytes_per_s: 0, but a memory with capacity"),
        ("[hbm]\nlatency_s = -1.0", "hbm.latency_s: -1.0 must be a finite number, at least 0"),
        ("[rack]\noversubscription = 0.5", "rack.oversubscription: 0.5 is too small; at least 1"),
        ("ranks_per_node = 2", "inside_node.bandwidth_bytes_per_s: 0, but ranks_per_node is 2"),
        ("nodes = 2", "between_nodes.bandwidth_bytes_per_s: 0, but nodes is 2"),
        ("products = 3", "products: expected a list of tables"),
        (
            '[[moves]]\nmemory = "tape"',
            "moves[0].memory: 'tape' is not allowed; choose one of hbm, ddr, ssd",
        ),
        ("[[moves]]\nrecord_bytes = [1]", "moves[0].record_bytes: [1.0] with bytes_per_s []: 1 si"),
        (
            "[[moves]]\nrecord_bytes = [2, 1]\nbytes_per_s = [1, 1]",
            "sizes of a curve must be ascending",
        ),
        (
            "[[moves]]\nrecord_bytes = [1]\nbytes_per_s = [1]\n" * 2,
            "moves[1]: a curve for the same thing is above: memory ssd, operation read, ranks 1",
        ),
        ("x = [", "box.toml: not valid TOML"),
    ],
)
def test_an_error_names_file_key_value_and_what_is_allowed(addition, message):
    sections = addition.startswith("[")
    text = SMALL + addition if sections else f"{addition}\n{SMALL}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        machine_file.loads(text, "box.toml")


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ('name = "small"', "name: a machine needs a name"),
        ("capacity_bytes = 1_000", "hbm.capacity_bytes: 0, as is ddr.capacity_bytes"),
        ("fp32_flops_per_s = 1e9", "compute.fp32_flops_per_s: 0"),
    ],
)
def test_a_machine_needs_a_name_a_memory_and_arithmetic(lost, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        machine_file.loads(SMALL.replace(lost, ""))


def test_names_that_are_none_are_told(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no machine 'zionx'; choose one of cpu-ps, .*zionex"):
        machine_file.load("zionx")
    with pytest.raises(ConfigError, match="cannot read the machine: No such file"):
        machine_file.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        machine_file.load(tmp_path / "latin.toml")
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="`neocpu calibrate` measures this machine"):
        machine_file.load("this-machine")
    small = machine_file.loads(SMALL)
    machine_file.save(machine_file.this_machine_path(), machine_file.text(small))
    assert machine_file.load("this-machine") == small


# ---- rates ----


def test_without_curves_times_come_from_peaks():
    machine = machine_file.loads(
        SMALL
        + "[inside_node]\nbandwidth_bytes_per_s = 1e9\nlatency_s = 1e-3\n"
        + "[ssd]\ncapacity_bytes = 1\nbandwidth_bytes_per_s = 1e6\noperations_per_s = 10\n"
    )
    assert machine.product_seconds(10, 10, 10) == 2000 / 1e9
    assert machine.product_seconds(10, 10, 10, "fp8") == math.inf
    assert machine.transfer_seconds("alltoallv", "inside_node", 2, 1e9) == pytest.approx(1.001)
    assert machine.transfer_seconds("alltoallv", "between_nodes", 2, 1) == math.inf
    assert machine.transfer_seconds("alltoallv", "between_nodes", 2, 0) == 0
    assert machine.move_seconds("ssd", "read", 20, 10.0) == 2
    assert machine.move_seconds("ssd", "read", 20, 1e6) == 20
    assert machine.move_seconds("ssd", "read", 0, 1e6) == 0
    assert machine.embedding_bytes_per_s("lookup", 100, 64) == 1e9
    assert machine.embedding_bytes_per_s("update", 100, 64) == 5e8


def test_a_memory_of_the_node_is_shared_by_its_ranks():
    machine = machine_file.load("zionex")
    assert machine.share(320e9, machine.ddr) == 40e9
    assert machine.share(1e9, machine.hbm) == 1e9


def test_lookups_are_interpolated_over_rows_and_bytes_of_a_row():
    small = EmbeddingRates("lookup", 1_000, 1, (64.0, 256.0), (100.0, 400.0))
    large = EmbeddingRates("lookup", 100_000, 1, (64.0, 256.0), (1.0, 4.0))
    machine = Machine(embeddings=(large, small))
    assert machine.embedding_bytes_per_s("lookup", 1_000, 128) == pytest.approx(200)
    assert machine.embedding_bytes_per_s("lookup", 10_000, 128) == pytest.approx(20)
    assert machine.embedding_bytes_per_s("lookup", 10**9, 256) == 4


# ---- what if ----


def quantities() -> list[str]:
    machine = machine_file.load("fat-tree")
    names = []
    for spec in fields(machine):
        record = getattr(machine, spec.name)
        if hasattr(record, "__dataclass_fields__"):
            names += [f"{spec.name}.{part.name}" for part in fields(record)]
    return [name for name in names if not name.endswith(".shared")]


@pytest.mark.parametrize("key", quantities())
def test_every_quantity_can_be_scaled_by_its_full_and_its_short_name(key):
    machine = machine_file.load("fat-tree")
    part, _, name = key.partition(".")
    before = getattr(getattr(machine, part), name)
    changed = scaled(machine, key, 2)
    assert getattr(getattr(changed, part), name) == 2 * before
    short = re.sub(r"(_bytes_per_s|_per_s|_bytes|_s)$", "", key)
    assert scaled(machine, short, 2) == changed
    if before and not name.endswith("bytes"):
        assert scaled(changed, key, 0.5) == machine


@given(st.sampled_from([0.5, 2.0, 8.0]), st.floats(1, 1e12))
def test_scaled_links_go_as_latency_and_bandwidth_do(factor, size):
    latency, bandwidth = 1e-5, 1e9
    sizes = tuple(float(4**i) for i in range(1, 20))
    curve = tuple(s / (latency + s / bandwidth) for s in sizes)
    machine = Machine(
        between_nodes=LinkPeak(bandwidth, latency),
        transfers=(TransferRates("alltoallv", "between_nodes", 8, sizes, curve),),
    )
    faster = scaled(machine, "nic", factor)
    for s in sizes:
        got = faster.transfers[0].curve.rate(s * factor)
        assert got == pytest.approx(s * factor / (latency + s / bandwidth))
    slower = scaled(machine, "between_nodes.latency", factor)
    for s in sizes:
        got = slower.transfers[0].curve.rate(s * factor)
        assert got == pytest.approx(s / (latency + s / bandwidth))
    assert (faster.transfers[0].curve.rate(size) >= curve[0] * min(1, factor)) or factor > 1


def test_what_scales_with_what():
    machine = machine_file.load("zionex")
    size = 256e6
    seconds = machine.transfer_seconds("alltoallv", "between_nodes", 128, size)
    doubled = scaled(machine, "nic", 2)
    assert doubled.between_nodes.bandwidth_bytes_per_s == 50e9
    assert doubled.transfer_seconds("alltoallv", "between_nodes", 128, 2 * size) == pytest.approx(
        seconds
    )
    assert doubled.inside_node == machine.inside_node
    hbm = scaled(machine, "hbm.bandwidth", 2)
    rate = machine.embedding_bytes_per_s("lookup", 10**6, 512)
    assert hbm.embedding_bytes_per_s("lookup", 10**6, 512) == 2 * rate
    ddr = scaled(machine, "ddr.bandwidth", 2)
    assert ddr.embedding_bytes_per_s("lookup", 10**6, 512) == rate
    fp16 = scaled(machine, "compute.fp16_flops", 2)
    rates = machine.product_flops_per_s(512, 512, 512, "fp16")
    assert fp16.product_flops_per_s(512, 512, 512, "fp16") == 2 * rates
    assert fp16.product_flops_per_s(512, 512, 512, "fp32") == machine.product_flops_per_s(
        512, 512, 512, "fp32"
    )
    assert scaled(machine, "nodes", 0.5).ranks == 64
    assert set(ALIASES) == {"nic", "nvlink", "pcie"}


def test_moves_scale_as_operations_and_bandwidth_do():
    sizes = (1.0, 10.0, 100.0, 1000.0)
    rates = tuple(min(5.0 * size, 500.0) for size in sizes)
    ssd = MemoryPeak(1, 500.0, 5.0)
    machine = Machine(ssd=ssd, moves=(MoveRates("ssd", "read", 1, sizes, rates),))
    more = scaled(machine, "ssd.operations", 10)
    assert more.moves[0].curve.rate(10.0) == pytest.approx(500)
    both = scaled(more, "ssd.bandwidth", 10)
    for size in sizes:
        assert both.moves[0].curve.rate(size) == pytest.approx(min(50 * size, 5000))


@pytest.mark.parametrize(
    ("key", "factor", "message"),
    [
        ("gpu.bandwidth", 2, "no such quantity; the parts are hbm, ddr, ssd"),
        ("hbm.shared", 2, "hbm has no 'shared'; it has capacity, bandwidth, operations, latency"),
        ("hbm.bandwidth", 0, "the factor 0 must be a number above 0"),
        ("hbm.bandwidth", math.inf, "the factor inf must be a number above 0"),
        ("hbm.bandwidth", math.nan, "the factor nan must be a number above 0"),
        ("nodes", 0.01, "1.28 is not a whole number above 0"),
    ],
)
def test_what_cannot_be_scaled_is_told(key, factor, message):
    machine = machine_file.load("fat-tree")
    with pytest.raises(ConfigError, match=re.escape(message)):
        scaled(machine, key, factor)


def test_every_kind_of_curve_knows_its_columns():
    for kind, columns in COLUMNS.items():
        assert set(columns) <= {spec.name for spec in fields(kind)}


def test_collectives_grow_with_ranks_beyond_their_curves() -> None:
    machine = machine_file.load("zionex")
    link = machine.between_nodes
    size = 64e3

    def seconds(operation: str, ranks: int) -> float:
        return machine.transfer_seconds(operation, "between_nodes", ranks, size)

    measured = seconds("alltoallv", 128)
    assert measured == pytest.approx(size / 0.164e9)
    for ranks in (16, 512, 4096):
        grown = measured + (ranks - 128) * link.message_s
        assert seconds("alltoallv", ranks) == pytest.approx(grown)
    # never below what a call takes to start
    assert machine.transfer_seconds("alltoallv", "between_nodes", 2, 1.0) == link.latency_s
    doubled = 2 * 5 * link.message_s
    assert seconds("allreduce", 4096) == pytest.approx(seconds("allreduce", 128) + doubled)
    # with curves for two numbers of ranks, there is nothing to add between them
    wide = [replace(r, ranks=512, bytes_per_s=r.bytes_per_s) for r in machine.transfers]
    both = replace(machine, transfers=(*machine.transfers, *wide))
    assert both.transfer_seconds("alltoallv", "between_nodes", 300, size) == pytest.approx(measured)
    slower = scaled(machine, "between_nodes.latency", 2)
    assert slower.between_nodes.message_s == 2 * link.message_s
