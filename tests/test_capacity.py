"""Does the capacity calculator count what the paper counts, and what a rank's budgets allow?"""

from click.testing import CliRunner

from neocpu.cli.plan import human, plan
from neocpu.plan.cost.capacity import LADDER, model_bytes
from neocpu.tables.specs.specs import TableSpec

MODEL = "data/models/neo-f.toml"


def test_the_papers_ladder() -> None:
    tables = [TableSpec(f"t{i}", 46_875_000_000 // 25, 256, (f"f{i}",)) for i in range(25)]
    sizes = [model_bytes(tables, state, form) for form, _, state in LADDER]
    assert [(size.numbers + size.per_element) / 10**12 for size in sizes] == [96, 48, 24]
    assert [round(size.per_row / 10**12, 2) for size in sizes] == [0, 0.19, 0.19]


def test_the_preset_has_twelve_trillion_parameters_and_a_rank_holds_a_gigabyte_of_them() -> None:
    result = CliRunner().invoke(plan, [MODEL, "--capacity", "--ranks", "4"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "26 tables, 46,875,000,000 rows, 12,000,000,000,000 parameters"
    assert lines[3].split()[-2:] == ["96.00", "TB"]
    assert lines[6].split()[-2:] == ["24.19", "TB"]
    ranks = [line.split() for line in lines[9:13]]
    assert [r[0] for r in ranks] == list("0123")
    for _, hbm, _, ddr, unit, ssd, tera, rows in ranks:
        assert (hbm, unit, tera) == ("0", "MB", "TB")
        assert 900 < float(ddr) <= 1000
        assert float(ssd) > 5
        assert abs(int(rows.replace(",", "")) * (2 * 256 + 4) / 1e6 - float(ddr)) < 0.01


def test_a_plan_without_bytes_is_the_one_of_a_run() -> None:
    result = CliRunner().invoke(
        plan, ["data/models/tiny.toml", "--ranks", "3", "--set", "parallel.plan=row_wise"]
    )
    assert result.exit_code == 0
    assert result.output.count("row_wise") >= 26
    assert [human(n) for n in (0, 999, 1000, 48_187_500_000_000)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "48.19 TB",
    ]
