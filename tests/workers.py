"""Which test runs on which worker, in what order, which tests are the inner loop, and which are
long covers of which a day runs a sample?

`pytest` without a path spreads the tests over one process more than there are cores, four at most:
many tests wait, and on two cores a third worker has the core meanwhile. A file stays on one worker,
and some files share one:

* Files that need the same kernels stand in a group, or two workers would compile them both. These
  groups come first, the longest at the head, so that all kernels are soon in the cache; beside the
  one that compiles what all runs need, files that need no kernels, and those that mostly wait.
* What else starts mpiexec follows, the longest at the head: by then the kernels are compiled, and
  while ranks wait for each other other workers have the cores.
* Files that stand alone are short and come last, so that all workers end at about the same time.

`pytest tests/test_x.py` runs in one process, where a debugger works; `-n 0` and `-n 4` decide
otherwise.
"""

import os
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from neocpu.core import cores

MOST_WORKERS = 4  # more would wait for the longest group, and compile the same kernels at once

# group -> files without "test_", or "file::test" for one test of a file. What stands in no group
# is one of its own; such files run last.
FIRST: dict[str, tuple[str, ...]] = {
    "without AVX-512": ("promise::test_one_digest_without_avx512",),
    "runs": (
        "checkpoint_chain",
        "training",
        "optimizer_extras",
        "examples",
        "checkpoint_quantized",
        "placement",
        "importance",
    ),
    # meanwhile, so that the kernels of every run are not compiled twice
    "no kernels": ("learned", "oracle_stochastic", "oracle_semantics", "oracle_flat", "house"),
    # jobs without kernels that stand still, hang, or are killed after seconds
    "waiting": ("standing_still", "launch", "comm", "doctor", "slurm"),
    "formats": ("narrow_homes", "narrow", "formats", "tiers"),
    "scores": ("scoring", "recommend"),
    "updates": ("spmd::test_on_threads", "tbe", "update", "sharded", "preflight"),
    "lookups": ("lookup", "codecs_rows", "codecs", "pooling", "cache", "course"),
    "benchmarks": ("benchmarks",),
    "toys": ("recipes",),
    "exports": ("export", "export_onnx", "imports", "serve"),
    "damage": ("checkpoint", "checkpoint_damage", "oracle_damage", "fuzz"),
}
MPI: dict[str, tuple[str, ...]] = {
    "bodies": ("spmd",),
    "promise": ("promise", "readme"),
    "hosts": ("hosts", "calibrate", "balance", "emulation"),
    "kills": ("resume", "parity_kills", "signals"),
}
# files that take long, some of them on the days of their long covers
SLOW: dict[str, tuple[str, ...]] = {
    "empty caches": ("warmup", "kernel_cache"),
    "pages": ("use_page", "page_commands", "doc_commands"),
    "lessons": ("lessons",),
    "guards": ("guards", "quality"),
}

# `pytest -m quick`: under a minute once kernels are compiled, and no mpiexec. Files that take less
# than two seconds of it; those of kernels, formats, plans, config, codecs and the oracle's truth.
QUICK_FILES = """
    blocks cache cache_fbgemm capacity codecs codecs_rows complaints config dense_reduction
    device elementary exchange floats gemm hashing hdf5 host_names house html_report interaction
    jagged jagged_layout linking lock lookup loss machine metrics model models narrow optimizers
    oracle_compare oracle_cover oracle_diagnose oracle_honest oracle_jagged_mirrors
    oracle_key_value oracle_maximum oracle_more oracle_nvfp4 oracle_presets oracle_runs
    oracle_scale oracle_semantics oracle_truth paths philox plan planner pooling presets
    progress ranking report rounding row_kernels rule_formulas rules seconds segments sharding state
    table_keys tbe threads tokenize touch trackers update vocabulary workers
"""
QUICK = frozenset(QUICK_FILES.split())

# `pytest -m long`: covers that try many cases of one idea, and tests of seconds whose idea has a
# quicker one beside them. Without `-m`, a run of the whole suite takes a sample of each file's,
# drawn by date, so that every case comes round in so many days.
LONG = frozenset(
    (
        "arm",
        "balance",
        "bench::test_the_columns_of_a_log_have_their_roles",
        "benchmarks",
        "calibrate::test_a_quick_calibration_writes_a_machine_whose_rates_are_positive",
        "checkpoint_chain::test_changes_and_their_base_are_the_state",
        "checkpoint_chain::test_runs_with_changes_have_the_digests_of_runs_without",
        "checkpoint_damage::test_a_target_is_never_a_source",
        "checkpoint_damage::test_every_flipped_bit_is_found",
        "checkpoint_damage::test_what_no_run_writes_is_refused_with_a_word",
        "checkpoint_quantized::test_rows_are_within_half_a_step_and_the_last_file_is_exact",
        "course::test_a_mistake_that_students_make_is_told",
        "course::test_a_slip_is_named_and_no_other",
        "dataset::test_other_schemas_are_refused",
        "dnas::test_a_search_rolls_back",
        "dnas::test_readers_read_for_a_search",
        "dnas::test_the_pick_is_among_the_best_of_all_models",
        "doc_commands::test_the_commands_of_a_page_run",
        "emulation",
        "estimator::test_samples_have_weights",
        "examples",
        "explain::test_a_memory_that_a_machine_lacks_is_to_be_bought",
        "explain::test_what_does_not_fit_is_told_with_remedies",
        "export_onnx::test_other_models",
        "file_formats::test_init_sees_the_same_columns_in_each_form",
        "formats::test_training_equals_plain_arrays",
        "frequent::test_warm_caches_find_more_and_change_no_bit",
        "full_ranks::test_model_f_is_planned_where_it_fits",
        "full_ranks::test_what_fits_by_rows_fits_and_costs_no_more",
        "fuzz::test_a_reader_that_hangs_or_crashes_is_found_and_the_next_input_read",
        "fuzz::test_damaged_inputs_are_answered",
        "guards",
        "hand_plans::test_no_plan_by_hand_is_better",
        "hosts::test_links_carry_the_bytes_that_a_run_counts",
        "importance::test_the_column_that_labels_follow_from_is_the_most_important",
        "interactions::test_one_digest_on_any_ranks_pipeline_and_kernels",
        "keeping::test_what_the_folder_has_lost_comes_from_the_mirror",
        "kernel_cache::test_a_folder_that_cannot_be_made_is_said_once",
        "kernel_cache::test_a_foreign_folder_is_said_once_and_never_read",
        "kernel_cache::test_a_read_only_folder_is_used_as_far_as_it_goes",
        "kernel_cache::test_an_edited_callee_recompiles_what_uses_it_and_nothing_else",
        "kernel_cache::test_another_installation_finds_every_kernel",
        "kernel_cache::test_damaged_files_are_compiled_again",
        "kernel_cache::test_processes_that_compile_the_same_at_once_do_not_disturb_each_other",
        "kind_conformance::test_gradients_are_those_of_finite_differences",
        "kind_conformance::test_one_digest_on_any_plan_and_from_any_checkpoint",
        "learned::test_a_planner_is_never_worse_than_the_search_or_its_own_plan",
        "lessons::test_a_lesson_shows_what_it_says",
        "lessons::test_the_search_finds_a_key_by_its_whole_name",
        "models::test_tables_of_models_look_up_features_of_their_logs",
        "mutants::test_a_bug_that_the_test_sees_and_one_that_it_does_not",
        "mutants::test_bugs_in_functions_that_are_loaded_show_in_forks",
        "mutants::test_files_have_tests_that_belong_to_them",
        "mutants::test_lines_that_tests_run_are_recorded",
        "narrow_homes::test_a_cache_of_all_rows_trains_them_in_fp32_and_rounds_once",
        "narrow_homes::test_a_run_of_narrow_rows_goes_on_as_if_nothing_had_happened",
        "narrow_homes::test_checkpoints_of_changes_hold_what_whole_ones_hold",
        "narrow_homes::test_rows_that_find_no_line_are_staged_and_narrowed",
        "next_day::test_a_run_without_progress_ends_well_and_keeps_its_best",
        "next_day::test_tables_of_kinds_grow_where_rows_keep_their_places",
        "next_day::test_towers_and_narrow_rows_below_caches_go_on",
        "noise::test_the_command_tells_percentiles_and_progress",
        "oracle_attribution::test_an_option_of_which_few_values_fail_is_told",
        "oracle_attribution::test_sizes_of_errors_say_of_which_format_they_are",
        "oracle_attribution::test_wrong_rows_say_what_step_they_took",
        "oracle_cases::test_another_seed_asks_the_same_questions_with_other_numbers",
        "oracle_cases::test_our_twins_lie_within_the_bounds_and_these_are_as_recorded",
        "oracle_cases::test_rows_have_the_multiple_of_columns_that_was_asked_for",
        "oracle_drawn::test_draws_have_all_options_and_repeat",
        "oracle_evidence::test_mutations_are_named",
        "oracle_flat::test_both_forms_hold_the_same_suite",
        "oracle_flat::test_cmake_builds_the_example_and_ctest_runs_it",
        "oracle_flat::test_the_mistake_of_the_example_is_found_and_named",
        "oracle_flat::test_the_workflow_fails_a_wrong_kernel_and_keeps_the_report",
        "oracle_holes::test_the_bug_fails_and_a_right_answer_passes",
        "oracle_honest",
        "oracle_matrix::test_each_hyper_parameter_in_fp16_fails",
        "oracle_mirrors::test_mirrors_lie_within_their_presets_and_refuse_with_a_reason",
        "oracle_mutants::test_right_variants_pass",
        "oracle_reports::test_reports_on_wrong_kernels",
        "oracle_scaled::test_wrong_rows_are_wrong",
        "oracle_semantics::test_every_switch_shows_in_some_case",
        "oracle_stochastic::test_cases_that_differ_in_seed_or_step_have_other_random_numbers",
        "oracle_stochastic::test_our_own_bits_pass_and_every_effect_is_visible",
        "oracle_stochastic::test_wrong_kinds_are_caught_and_named_from_one_answer",
        "page_commands::test_the_commands_of_a_page_run_as_they_stand",
        "parity::test_a_newer_checkpoint_is_what_a_run_goes_on_from",
        "parity::test_a_run_goes_on_whoever_is_killed_whenever",
        "parity::test_files_take_the_room_that_was_asked_for_beforehand",
        "parity::test_two_lost_ranks_of_a_group_mean_the_checkpoint",
        "parity::test_what_others_left_is_not_taken",
        "parity_kills",
        "pipeline::test_all_kinds_reach_one_digest",
        "placement::test_simple_rivals_are_not_better",
        "plain::test_a_run_ends_with_the_same_digest",
        "plain::test_lookups",
        "plain::test_updates",
        "preflight::test_no_checkpoint_is_larger_than_foretold",
        "preflight::test_the_estimate_of_a_small_run_is_what_it_takes",
        "promise::test_one_digest_with_plain_kernels",
        "promise::test_one_digest_without_avx512",
        "quality",
        "readers::test_a_followed_folder_has_the_digest_of_its_files",
        "readers::test_the_split_of_a_slow_reader_is_read_by_another_too",
        "recipes::test_a_format_is_trained_saved_resumed_and_asked_of_the_oracle",
        "recipes::test_a_kind_trains_and_is_looked_at",
        "recipes::test_a_policy_decides_which_rows_stay_and_changes_no_bit",
        "recipes::test_a_scheme_changes_no_bit",
        "recipes::test_an_optimizer_leaves_its_tests_green",
        "recipes::test_an_optimizer_trains",
        "recorded::test_plans_for_machines",
        "recorded::test_simulated_steps",
        "resume::test_a_killed_run_goes_on_elsewhere_to_the_same_digest",
        "resume::test_a_killed_run_of_rows_narrower_than_their_caches_goes_on_as_if_untouched",
        "resume::test_resume_without_a_checkpoint_starts_anew_and_says_so",
        "resume::test_runs_killed_at_any_instant_end_as_if_untouched",
        "resume::test_sigterm_leaves_a_checkpoint_to_resume_from",
        "roles::test_a_log_of_numbers_only_learns_what_is_not_in_proportion",
        "search::test_the_solver_agrees",
        "simulation::test_the_smallest_machine",
        "slurm",
        "soundness::test_a_run_that_diverges_rolls_back_until_its_rates_serve",
        "standing_still::test_a_run_goes_on_by_itself_to_the_same_digest",
        "sweep::test_a_sweep_ranks_goes_on_and_outlives_failures",
        "tiers::test_rows_come_back_as_they_went",
        "tower_partition::test_sizes_are_kept",
        "traffic::test_a_thousand_tables_on_128_ranks",
        "training::test_optimizers_with_more_state_resume_on_any_ranks",
        "use_page",
        "warmup::test_a_kernel_that_was_deleted_is_missed",
        "warmup::test_an_edit_without_effect_costs_a_walk_that_compiles_nothing",
        "warmup::test_warm_is_warm_for_another_installation_too",
    )
)
PERIOD = 8  # of a case that names none
# the variable with the day whose sample is run; empty: all that is asked for
SAMPLED_DAY = "NEOCPU_SAMPLED_DAY"

GROUPS = FIRST | MPI | SLOW
_PLACES = {name: place for place, name in enumerate([*GROUPS, None])}


def count() -> int:
    """How many workers this machine is good for; 0: none but this process."""
    available = len(cores.available())
    return min(available + 1, MOST_WORKERS) if available > 1 else 0


def group_of(file: str, test: str) -> str | None:
    """The group of a test, or None where its file stands alone."""
    for name in (f"{file}::{test}", file):
        for group, members in GROUPS.items():
            if name in members:
                return group
    return None


def name_of(nodeid: str) -> tuple[str, str]:
    """(file without "test_", test without its parameters) of a node id."""
    file, _, test = nodeid.partition("::")
    return Path(file).stem.removeprefix("test_"), test.partition("[")[0]


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups, in the order of the tests.

    xdist's own groups hang on a suffix of node ids that pytest 9.2 computes anew.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, test = name_of(nodeid)
        return group_of(file, test) or file


def today() -> str:
    """The number of this day, by which long covers are drawn."""
    return str(datetime.now(UTC).toordinal())


def dealt(names: Iterable[str], period: int = PERIOD) -> set[str]:
    """Of the cases of a long cover those that are run: each on one day of `period`, and on each day
    as many as on the others; all of them where no sample is run.
    """
    day = os.environ.get(SAMPLED_DAY, "")
    order = sorted(set(names), key=lambda name: (zlib.crc32(name.encode()), name))
    if not day or not order:
        return set(order)
    # covers of few cases begin on days of their own, and are spread over the period
    turn = (zlib.crc32(order[0].encode()) + int(day)) % period
    stride = max(period // len(order), 1)
    return {name for place, name in enumerate(order) if place * stride % period == turn}


def is_drawn(name: str, period: int = PERIOD) -> bool:
    """Is a case of a long cover run that shares its day with nothing but its name?"""
    return name in dealt([name], period)


def covered(values: Iterable[str], always: Collection[str]) -> list[Any]:
    """Parameters of a test over all values: those not in `always` are a long cover.

    A day draws the same values in every test, so that what they need is compiled for all of them.
    """
    return [
        value if value in always else pytest.param(value, marks=pytest.mark.long(value))
        for value in values
    ]


def left_out(items: list[pytest.Item]) -> set[str]:
    """Node ids of the cases of long covers that the day leaves out: those with a name by their
    name, the others of a file in equal numbers each day.
    """
    left = set()
    covers = defaultdict(set)
    for item in items:
        if marker := item.get_closest_marker("long"):
            period = marker.kwargs.get("period", PERIOD)
            if not marker.args:
                covers[name_of(item.nodeid)[0], period].add(item.nodeid)
            elif not is_drawn(*marker.args, period):
                left.add(item.nodeid)
    for (_, period), cases in covers.items():
        left |= cases - dealt(cases, period)
    return left


def mark(items: list[pytest.Item]) -> None:
    """Mark quick and long tests; a long test of a quick file is not quick."""
    for item in items:
        file, test = name_of(item.nodeid)
        if file in QUICK and f"{file}::{test}" not in LONG:
            item.add_marker(pytest.mark.quick)
        if LONG & {file, f"{file}::{test}"}:
            item.add_marker(pytest.mark.long)


def arrange(items: list[pytest.Item]) -> None:
    """Sort tests by groups; files that are named are run in the order in which they are."""
    items.sort(key=lambda item: _PLACES[group_of(*name_of(item.nodeid))])
