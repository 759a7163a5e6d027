"""Each source file has its test file, of the same name in the same room.

So a test is found without searching. What stands elsewhere stands in these lists.
"""

from __future__ import annotations

import pathlib

import pytest

TESTS = pathlib.Path(__file__).parent
PACKAGE = TESTS.parent / "amp"
SOURCES = {
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.glob("**/*.py")
    if path.name not in ("__init__.py", "__main__.py")
}
OWN = {path.relative_to(TESTS).as_posix() for path in TESTS.glob("**/test_*.py")}

# Where the laws of a file are tested that has no test file of its own, and why.
ELSEWHERE = {
    # Values and tables without a law but those of their one reader.
    "graph_rewrite/outcomes.py": "graph_rewrite/test_report.py",
    "graph_rewrite/plan.py": "graph_rewrite/assign/test_decide.py",
    "graph_rewrite/phases.py": "graph_rewrite/test_rewrite.py",
    "graph_rewrite/graph/values.py": "graph_rewrite/graph/test_serde.py",
    "graph_rewrite/graph/shapes.py": "graph_rewrite/graph/test_calls.py",
    "graph_rewrite/ops/batch_norm.py": "graph_rewrite/normalize/test_batch_norms.py",
    "graph_rewrite/ops/chains.py": "graph_rewrite/cost/test_epilogues.py",
    "graph_rewrite/ops/moves.py": "graph_rewrite/ops/test_op_table.py",
    "graph_rewrite/ops/products.py": "graph_rewrite/ops/test_op_table.py",
    "graph_rewrite/ops/row.py": "graph_rewrite/ops/test_op_table.py",
    "graph_rewrite/ops/structure.py": "graph_rewrite/ops/test_op_table.py",
    "graph_rewrite/candidates/float_paths.py": (
        "graph_rewrite/candidates/test_solutions.py"
    ),
    "graph_rewrite/candidates/hazards.py": (
        "graph_rewrite/candidates/test_eligibility.py"
    ),
    "graph_rewrite/normalize/wanted.py": "graph_rewrite/normalize/test_copies.py",
    "graph_rewrite/normalize/graph_sizes.py": "graph_rewrite/normalize/test_sizes.py",
    "graph_rewrite/normalize/written_norms.py": (
        "graph_rewrite/normalize/test_batch_norms.py"
    ),
    "graph_rewrite/normalize/size_questions.py": (
        "graph_rewrite/normalize/test_sizes.py"
    ),
    "integration/runtime/node_import.py": ("integration/sessions/test_twin_graph.py"),
    "integration/measuring/cases.py": "integration/measuring/test_calibration.py",
    "integration/sessions/plan_checks.py": "integration/sessions/test_run_checks.py",
    "integration/sessions/run_values.py": "integration/sessions/test_run_checks.py",
    "integration/observing/judge.py": "integration/observing/test_accuracy_check.py",
    "integration/observing/samples.py": "integration/observing/test_step_probes.py",
    "integration/observing/step_variants.py": (
        "integration/observing/test_step_probes.py"
    ),
    "integration/functions/started_function.py": (
        "integration/functions/test_first_step.py"
    ),
    "integration/functions/between_calls.py": (
        "integration/functions/test_later_plan.py"
    ),
    "integration/functions/function_checks.py": "integration/observing/test_checks.py",
    "integration/functions/function_twins.py": "integration/functions/test_twins.py",
    "integration/runtime/definitions.py": "graph_rewrite/graph/test_serde.py",
    "integration/runtime/function_call.py": "integration/functions/test_twins.py",
    "integration/functions/guarded_calls.py": "integration/functions/test_twins.py",
    "integration/runtime/clusters.py": (
        "integration/distributed/test_parameter_server_strategy.py"
    ),
    "integration/runtime/twin_making.py": "integration/functions/test_twins.py",
    "integration/observing/plan_nodes.py": (
        "integration/observing/test_accuracy_check.py"
    ),
    "integration/observing/value_copies.py": (
        "integration/observing/test_accuracy_check.py"
    ),
    "integration/as_written.py": "integration/measuring/test_stopwatch.py",
    "cli/command.py": "cli/test_cli.py",
    "cli/policy_flags.py": "cli/test_explain.py",
    "cli/progress_bar.py": "cli/test_tune.py",
    "cli/terminal.py": "cli/test_tune.py",
    "graph_rewrite/comparison/causes.py": "integration/comparing/test_compare.py",
    "graph_rewrite/comparison/suggestion.py": (
        "graph_rewrite/comparison/test_comparison.py"
    ),
    "graph_rewrite/comparison/wording.py": (
        "graph_rewrite/comparison/test_comparison.py"
    ),
    "cli/op_libraries.py": "integration/files/test_op_libraries.py",
    "integration/comparing/compare_files.py": "cli/test_compare.py",
    "integration/comparing/fitted_scale.py": "integration/comparing/test_compare.py",
    "graph_rewrite/comparison/pair.py": "graph_rewrite/comparison/test_observed.py",
    "integration/comparing/called_functions.py": (
        "integration/comparing/test_compare.py"
    ),
    "integration/comparing/kernels.py": "integration/comparing/test_compare.py",
    "integration/comparing/sides.py": "integration/comparing/test_compare.py",
    # One thing in two files: what it does is seen through the other.
    "loss_scaling/group.py": "loss_scaling/test_state.py",
    "graph_rewrite/candidates/walks.py": (
        "graph_rewrite/candidates/test_propagation.py"
    ),
    "graph_rewrite/candidates/running_sums.py": (
        "graph_rewrite/candidates/test_call_values.py"
    ),
    "integration/distributed/strategy_threads.py": (
        "integration/distributed/test_replicas.py"
    ),
    "integration/doctor/checkup.py": "cli/test_doctor.py",
    "integration/doctor/findings.py": "cli/test_doctor.py",
    "integration/measuring/tune_device.py": "cli/test_tune.py",
    "integration/sessions/session_starts.py": (
        "integration/sessions/test_session_hooks.py"
    ),
    "integration/sessions/graph_views.py": "integration/sessions/test_session_twins.py",
    "integration/sessions/planned_parts.py": "integration/sessions/test_run_twins.py",
    "integration/sessions/scaler_reads.py": (
        "integration/sessions/test_session_stalls.py"
    ),
    "integration/sessions/run_plans.py": "integration/sessions/test_run_twins.py",
    "integration/sessions/run_reports.py": "integration/sessions/test_run_twins.py",
    "integration/sessions/shown_casts.py": "integration/sessions/test_policy_view.py",
    "integration/training/conditional_updates.py": (
        "integration/training/test_optimizer_hooks.py"
    ),
    "integration/training/custom_gradients.py": "loss_scaling/test_eager_backward.py",
    "integration/training/gradient_hooks.py": "loss_scaling/test_gradients.py",
    "integration/training/gradient_sources.py": "loss_scaling/test_gradients.py",
    "integration/training/markers.py": "loss_scaling/test_gradients.py",
    "integration/training/agreement.py": "integration/distributed/test_replicas.py",
    "integration/training/replica_sums.py": "integration/distributed/test_replicas.py",
    "loss_scaling/finite_checks.py": "loss_scaling/test_gradients.py",
    "loss_scaling/entries.py": "loss_scaling/test_state.py",
    "loss_scaling/scale_text.py": "loss_scaling/test_scale.py",
    "loss_scaling/scaler.py": "loss_scaling/test_state.py",
}

# Laws of more than one file: of a whole rewrite, of a kind of job, of the project.
WHOLE = {
    "graph_rewrite/test_hash_seeds.py",
    "graph_rewrite/ops/test_whitelist_page.py",
    "graph_rewrite/ops/test_op_names_in_algorithms.py",
    "graph_rewrite/test_cases.py",
    "graph_rewrite/test_frames_rewritten.py",
    "graph_rewrite/test_emulation.py",
    "graph_rewrite/test_gpu_kernels.py",
    "graph_rewrite/test_numerics.py",
    "graph_rewrite/test_properties.py",
    "graph_rewrite/test_model_plans.py",
    "cli/test_cli.py",
    "integration/distributed/test_parameter_server_strategy.py",
    "integration/distributed/test_sync_replicas.py",
    "integration/functions/test_locks.py",
    "numerics/test_native.py",
    "numerics/test_yardstick.py",
    "report_page/test_in_browser.py",
    "test_contributing.py",
    "test_demo.py",
    "test_docs.py",
    "test_layout.py",
    "test_makefile.py",
    "test_mirror.py",
    "test_packaging.py",
    "test_public_api.py",
}
BESIDE = ("benchmarks/", "convergence/", "models/")  # not of the package


def own_test(source: str) -> str:
    place, _, name = source.rpartition("/")
    return f"{place}/test_{name}" if place else f"test_{name}"


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_a_source_file_has_its_test_file_or_a_row_that_says_where(source: str) -> None:
    assert own_test(source) in OWN or ELSEWHERE.get(source) in OWN


def test_a_test_file_has_its_source_file() -> None:
    mirrored = {own_test(source) for source in SOURCES}
    ours = {test for test in OWN if not test.startswith(BESIDE)}
    assert ours - mirrored == WHOLE


def test_a_row_is_of_a_file_that_needs_one() -> None:
    assert {s for s in ELSEWHERE if own_test(s) not in OWN} == set(ELSEWHERE)
    assert set(ELSEWHERE) <= SOURCES
