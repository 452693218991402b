"""Has every model that we ship a plan on every machine, or is it said what to buy?"""

import pytest
from click.testing import CliRunner

from neocpu.cli.plan import plan as command
from neocpu.core import presets
from neocpu.core.errors import PlanError

# Days in which all pairs come round: together they take minutes.
DAYS = 48


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        pytest.param(model, machine, marks=pytest.mark.long(period=DAYS))
        for model in presets.names(presets.MODELS)
        for machine in presets.names(presets.MACHINES)
    ],
)
def test_a_model_has_a_plan_on_a_machine_or_it_is_said_what_to_buy(
    model: str, machine: str
) -> None:
    outcome = CliRunner().invoke(command, [model, "--machine", machine])
    if outcome.exit_code:
        assert isinstance(outcome.exception, PlanError)
        assert outcome.output.startswith("it does not fit: ")
        assert ": fits, a step takes" in outcome.output
    else:
        assert outcome.output.splitlines()[1].startswith("a step takes")


@pytest.mark.long(period=7)
def test_model_f_is_cut_near_the_bound() -> None:
    """Its tables take all of the DDR: fillings must try blocks without caches first as well."""
    words = ["neo-f", "--machine", "zionex", "--ranks", "128", "--set", "memory.placement=auto"]
    line = CliRunner().invoke(command, words).output.splitlines()[1]
    assert line.startswith("a step takes 1.94 ms") and "within 13.0 %" in line
