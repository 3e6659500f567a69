"""Applies to every test: marks by folder, a look at what it leaves behind, and profiles for property tests."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

from tests.processes import run_processes, start_fork_server
from transports import shm
from transports.testing import Leaks

TESTS = Path(__file__).parent

settings.register_profile("ronde", deadline=None, max_examples=30)
settings.register_profile("ronde-ci", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("proof", deadline=None, max_examples=300)
settings.load_profile("ronde-ci" if os.environ.get("CI") else "ronde")

MARKS = {
    "netns": "cluster",
    "transports/launchers/test_real_launchers.py": "cluster",
    "collectives/membership/test_many_processes.py": "cluster",
    "engines": "engines",
    "frontends": "frameworks",
    "gpu": "long",
    "security": "long",
    "collectives/algorithms": "proof",
    "collectives/proof": "proof",
    "collectives/schedule": "proof",
}
"""The mark of all tests in a folder or file."""

NIGHTLY = (
    # chaos: processes and hosts that die or fall silent at many moments
    "chaos/test_campaign.py::test_a_short_soak",
    "chaos/test_campaign.py::test_a_case_can_be_repeated",
    "chaos/test_campaign.py::test_a_short_campaign[threads",
    "chaos/test_switched_off.py",
    "collectives/launch/hosts/test_agent_failures.py::test_ctrl_c_while_hosts_are_being_reached",
    "collectives/launch/hosts/test_agent_failures.py::test_how_many_hosts_are_reached_at_once",
    "collectives/launch/hosts/test_agent_failures.py::test_processes_left_behind_on_another_host_are_ended",
    "collectives/launch/hosts/test_agent_failures.py::test_ranks_outlast_a_silent_launcher",
    "collectives/launch/hosts/test_agent_failures.py::test_a_slow_reader_makes_ranks_wait",
    "collectives/launch/hosts/test_agent_failures.py::test_the_cause_is_found_when_the_host_with_the_store_dies",
    "collectives/launch/hosts/test_agents.py::test_ranks_behind_proxies_lose_one_and_go_on",
    "collectives/launch/processes/test_strays.py::test_l6_also_in_an_elastic_job",
    "collectives/launch/supervision/test_elastic.py::test_a_rank_is_killed_before_the_first_world_has_begun",
    "collectives/launch/supervision/test_elastic.py::test_a_host_that_is_missing_in_one_look_alone_comes_back",
    "collectives/launch/supervision/test_elastic.py::test_e8_a_rank_that_never_comes",
    "collectives/metering/test_events.py::test_killed_rank_leaves_a_readable_timeline",
    "collectives/observing/test_failures.py::test_the_records_stay_after_all_ranks_were_killed_fifty_times",
    "collectives/parameter_server/test_synchronizer.py::test_a_killed_process",
    "collectives/watchdog/test_watchdog.py::test_job_stopped_as_a_whole_continues",
    "collectives/watchdog/test_watchdog.py::test_ranks_that_end_one_after_the_other_are_not_lost",
    "frontends/test_keras_elastic.py::test_the_others_go_on_without_a_lost_rank",
    "frontends/test_torch_elastic.py::test_the_launcher_keeps_the_others_going",
    "frontends/test_torch_works.py::test_a_rank_that_is_needed_after_its_end_is_named",
    "frontends/test_torch_works.py::test_an_uncaught_exception_is_the_cause_on_the_other_ranks",
    "frontends/test_torch_works.py::test_messages_of_a_rank_that_has_ended_arrive",
    # training: examples, and convergence
    "collectives/compression/test_compression.py::test_training_reaches_the_loss_of_uncompressed_training",
    "frontends/test_jax_training.py::test_compressions_with_a_memory",
    "frontends/test_jax_training.py::test_the_example",
    "frontends/test_jax_training.py::test_the_page",
    "frontends/test_keras_examples.py",
    "frontends/test_keras_training.py::test_compressions_with_a_memory",
    "frontends/test_numpy_loops.py::test_the_example",
    "frontends/test_numpy_loops.py::test_the_page",
    "frontends/test_tensorflow_feedback.py::test_training_ends_where_it_does_without_compression",
    "frontends/test_tensorflow_training.py::test_examples",
    "frontends/test_tf_distribute.py::test_one_changed_line",
    "frontends/test_tf_distribute.py::test_fit_under_mirrored_strategy",
    "frontends/test_tf_distribute.py::test_the_example_of_the_page_runs",
    "frontends/test_torch_compression.py::test_training_ends_where_it_does_without_compression",
    "frontends/test_torch_examples.py",
    "frontends/test_torch_feedback.py::test_training_ends_where_it_does_without_compression",
    "frontends/test_torch_groups.py::test_compiled_fsdp2_trains_as_on_gloo",
    "test_examples.py::test_diloco_digits",
    "test_examples.py::test_elastic_digits",
    "test_examples.py::test_mpi",
    "test_examples.py::test_parameter_server_digits",
    "test_examples.py::test_train_digits[auto]",
    # pages of the documentation, but the first ones: README, docs/tutorial/one-process.md
    "collectives/compression/test_compression.py::test_the_documentation_works_as_shown",
    "face/test_site.py::test_the_site_builds_and_has_everything",
    "test_snippets.py::test_a_page[docs/compression",
    "test_snippets.py::test_a_page[docs/elastic",
    "test_snippets.py::test_a_page[docs/guides",
    "test_snippets.py::test_a_page[docs/index",
    "test_snippets.py::test_a_page[docs/local-sgd",
    "test_snippets.py::test_a_page[docs/m",
    "test_snippets.py::test_a_page[docs/observing",
    "test_snippets.py::test_a_page[docs/parameter-servers",
    "test_snippets.py::test_a_page[docs/s",
    "test_snippets.py::test_a_page[docs/tutorial/four-processes",
    "test_snippets.py::test_a_page_about_a_framework",
    "test_snippets.py::test_programs_of_a_page_run_on_other_numbers_of_ranks",
    "test_snippets.py::test_ranks_go_on_as_the_reliability_page_says",
    "test_snippets.py::test_the_page_of_messages",
    # the compiler: it takes ten seconds each time
    "collectives/jit/test_start.py",
    # proofs of large worlds
    "collectives/algorithms/test_algorithms.py::test_every_size_is_proved[17-64",
    "collectives/algorithms/test_algorithms.py::test_every_variant_is_proved[5-6",
    "collectives/proof/test_verify.py::test_no_step_of_four_ranks_can_be_left_out",
    # fuzzing, large data, dear programs
    "collectives/launch/calls/test_run.py::test_large_results",
    "collectives/launch/hosts/test_agents.py::test_large_output_arrives_completely_and_in_order",
    "command_line/test_run.py::test_large_output_arrives_completely_and_in_order",
    "collectives/operations/test_huge.py::test_more_than_two_to_the_31_elements",
    "collectives/test_communicator.py::test_thousands_of_mixed_collectives_leave_nothing_behind[auto",
    "collectives/test_communicator.py::test_thousands_of_mixed_collectives_leave_nothing_behind[shm",
    "command_line/top/test_top.py::test_once_tells_the_ranks_and_the_rank_that_makes_the_others_wait[16",
    "command_line/top/test_top.py::test_once_tells_the_ranks_and_the_rank_that_makes_the_others_wait[64",
    "frontends/test_any_parameters.py::test_any_gradients_equal_one_process",
    "frontends/test_jax_ops.py::test_200_steps_of_independent_operations",
    "frontends/test_jax_ops.py::test_every_operation_in_all_ways[3",
    "frontends/test_jax_training.py::test_training_is_that_of_one_process[3",
    "frontends/test_jax_ops.py::test_vmap",
    "frontends/test_tensorflow_training.py::test_no_deadlock_in_any_order",
    "frontends/test_torch_optimizer.py::test_four_ranks",
    "frontends/test_torch_optimizer.py::test_large_gradients_are_sent_from_where_they_are",
    "transports/test_tcp_striping.py::test_the_contract_is_kept_when_everything_is_spread",
    # transports of which others differ in little
    "security/test_tls_links.py::test_the_transport_keeps_its_promises_under_tls",
    "transports/test_auto.py::test_conformance_on_two_hosts",
    "transports/test_conformance.py::test_threads[3-auto",
    "transports/test_conformance.py::test_threads[3-faulty",
    "transports/test_conformance.py::test_threads[3-local",
    "transports/test_conformance.py::test_threads[5",
    # a command or a library on top of a job whose parts have tests of their own
    "collectives/launch/calls/test_run.py::test_notebook_shows_the_output_of_the_ranks",
    "collectives/launch/hosts/test_agents.py::test_a_world_over_agents_with_tls",
    "collectives/launch/hosts/test_agents.py::test_only_rank_0_reads_the_input_wherever_it_is",
    "collectives/launch/hosts/test_agents.py::test_the_store_on_another_host_knows_the_culprit",
    "collectives/launch/hosts/test_agents.py::test_time_limit",
    "collectives/launch/hosts/test_parts.py::test_newcomers_find_room_in_parts",
    "collectives/launch/job/test_allocation.py::test_the_doctor_in_an_allocation",
    "collectives/launch/processes/test_sandbox.py::test_p2_calls_that_are_refused_are_not_needed",
    "collectives/launch/supervision/test_nodes.py::test_a_world_over_nodes_with_tls",
    "collectives/launch/supervision/test_elastic.py::test_a_program_that_fails_on_all_ranks",
    "collectives/launch/supervision/test_elastic.py::test_a_newcomer_that_is_withdrawn_has_not_failed",
    "collectives/launch/test_programs_at_once.py::test_one_after_the_other",
    "collectives/negotiation/test_engine.py::test_many_ranks",
    "collectives/test_endings.py::test_the_end_of_a_process_of_multiprocessing_is_orderly_too",
    "collectives/test_fork.py::test_data_loader_of_torch",
    "collectives/test_fork.py::test_processes_of_the_standard_library",
    "collectives/test_fork.py::test_work_of_torch_in_flight",
    "collectives/test_sharing.py::test_forks_while_calls_run",
    "collectives/test_sharing.py::test_workers_of_a_data_loader",
    "command_line/doctor/test_cluster.py::test_every_rank_of_a_launcher_runs_it",
    "command_line/test_measuring.py::test_bench_by_every_rank_of_a_launcher",
    "command_line/test_measuring.py::test_bench_on_hosts",
    "command_line/test_bench.py::test_gloo_and_ronde_take_turns",
    "command_line/test_measuring.py::test_another_number_than_that_of_the_launcher",
    "command_line/test_measuring.py::test_tune_on_hosts",
    "command_line/top/test_figures.py::test_a_notebook_shows_the_job_and_ends_with_it",
    "command_line/top/test_page.py::test_the_page_in_a_browser",
    "command_line/top/test_top.py::test_a_line_of_json_for_each_look_until_the_job_is_over",
    "command_line/top/test_top.py::test_jobs_are_listed_and_one_of_several_is_named",
    "face/test_imports.py::test_modules_export_names_of_the_modules_that_they_stand_for[jax]",
    "face/test_imports.py::test_modules_export_names_of_the_modules_that_they_stand_for[keras]",
    "face/test_imports.py::test_modules_export_names_of_the_modules_that_they_stand_for[mxnet]",
    "face/test_imports.py::test_modules_export_names_of_the_modules_that_they_stand_for[tensorflow]",
    "face/test_imports.py::test_tensorflow_alone_does_not_load_keras_layers",
    "frontends/mpi/test_programs.py::test_executors_on_the_other_ranks",
    "frontends/mpi/test_programs.py::test_a_script_under_the_module",
    "frontends/test_jax_errors.py::test_one_thread_suffices",
    "frontends/test_jax_errors.py::test_importing_it_imports_no_other_framework",
    "frontends/test_jax_programs.py::test_programs_of_all_kinds_run_in_one_order",
    "frontends/test_keras_training.py::test_no_other_framework_is_imported",
    "frontends/test_keras_training.py::test_on_tcp_and_on_three_ranks",
    "frontends/test_numpy_loops.py::test_loosely_coupled_workers",
    "frontends/test_tensorflow_ops.py::test_imports_no_other_framework_and_names_its_extra",
    "frontends/test_tf_distribute.py::test_parameter_servers_by_tf_config",
    "frontends/test_torch_distributed.py::test_an_unmodified_script_under_its_launcher",
    "frontends/test_torch_imports.py::test_the_backend_brings_no_compiler_to_a_program_that_has_torch",
    "frontends/test_torch_libraries.py::test_a_script_that_fails_ends_all_ranks",
    "frontends/test_torch_libraries.py::test_a_script_runs_with_a_group_made_before",
    "platforms/test_installs.py::test_a_package_without_a_wheel_is_named",
    "platforms/test_installs.py::test_p4_nothing_is_compiled",
    "platforms/test_light.py::test_p4_torch_works_without_it",
    "platforms/test_light.py::test_p4_ronde_mpi_has_no_datatype_for_it",
    "platforms/test_litmus.py::test_litmus_in_machine_code",
    "platforms/test_litmus.py::test_litmus_sees_that_a_barrier_is_missing",
    "security/test_secret.py::test_two_jobs_have_two_secrets",
    "security/test_tls_links.py::test_run_from_python_under_tls",
    # clusters: launchers and frameworks of which others are tried
    "frontends/test_elastic_jobs.py::test_a_rank_comes_and_leaves[keras",
    "frontends/test_elastic_jobs.py::test_a_rank_comes_and_leaves[tensorflow",
    "frontends/test_elastic_jobs.py::test_torchrun_starts_all_ranks_again[1-",
    "netns/test_nesting.py::test_l4_launcher_in_launcher[mpich-srun",
    "netns/test_nesting.py::test_l4_launcher_in_launcher[srun-mpich",
    "netns/test_nesting.py::test_l4_launcher_in_launcher[srun-torchrun",
    "netns/test_nesting.py::test_l4_launcher_in_launcher[torchrun-srun",
    "netns/test_top.py::test_each_launcher[mpich",
    "netns/test_top.py::test_each_launcher[srun",
    "netns/test_top_links.py::test_a_host_that_is_far_away[trio",
    "netns/test_top_links.py::test_a_host_with_a_narrow_link[trio",
    "transports/launchers/test_real_launchers.py::test_frontend[jax-mpich",
    "transports/launchers/test_real_launchers.py::test_frontend[tensorflow-mpich",
    "transports/launchers/test_real_launchers.py::test_frontend[tensorflow-torchrun",
)
"""Beginnings of the names of tests that `make nightly` runs, not `make test` or `make cluster`."""

ONE_CASE = (
    "command_line/top/test_waits.py::test_a_rank_that_comes_late_is_named",
    "chaos/test_calls.py::test_all_results_are_right",
    "chaos/test_campaign.py::test_cases_that_failed_once",
    "collectives/elastic/test_oracle.py::test_the_parameters_are_those_of_one_process",
    "collectives/execution/test_message_tables.py",
    "collectives/execution/test_single_copy.py::test_both_ways_give_the_same",
    "collectives/execution/test_staging_slots.py::test_mixed_calls_get_their_own_data",
    "collectives/launch/calls/test_run.py::test_results_are_in_rank_order",
    "collectives/launch/calls/test_run.py::test_system_exit_of_a_rank_becomes_a_runtime_error",
    "collectives/launch/hosts",
    "collectives/launch/processes/test_strays.py",
    "collectives/launch/supervision/test_elastic.py",
    "collectives/launch/supervision/test_nodes.py::test_a_node_that_dies_ends_the_others",
    "collectives/membership/test_partition.py",
    "collectives/membership/test_regroup",
    "collectives/membership/test_shrink_processes.py",
    "collectives/membership/test_shrink.py::test_shrink_repeatedly_down_to_one_rank",
    "collectives/membership/test_standby.py",
    "collectives/negotiation/test_engine.py",
    "collectives/operations/test_messages.py::test_random_messages",
    "collectives/operations/test_progress.py",
    "collectives/operations/test_reentry.py::test_a_shutdown_in_a_signal_handler_ends_the_rank",
    "collectives/operations/test_reentry.py::test_c",
    "collectives/operations/test_small_memory.py",
    "collectives/simulation/test_vector.py::test_the_program_of_one_rank_stands_for_its_kind",
    "collectives/test_dropped.py::test_c5_dropped_splits_hold_no_descriptors",
    "collectives/test_endings.py",
    "collectives/test_fork.py",
    "collectives/test_sharing.py::test_shared_and_private_arrays_give_the_same_on_any_ranks",
    "collectives/watchdog/test_wait_chain.py::test_timeout_in_broadcast_names_the_late_rank_on_every_rank",
    "collectives/watchdog/test_watchdog.py::test_error_of_a_rank_that_ends_reaches_the_other_ranks",
    "collectives/watchdog/test_watchdog.py::test_ranks_of_a_silent_host_are_lost",
    "collectives/watchdog/test_watchdog.py::test_stopped_process_is_lost_on_every_rank",
    "command_line/test_bench.py::test_every_collective_is_timed_and_right",
    "command_line/test_cli.py::test_ctrl_c_ends_a_command_without_a_traceback",
    "command_line/test_run.py::test_a_signal_ends_the_whole_tree",
    "command_line/test_run.py::test_lines_with_the_time_in_front",
    "command_line/top/test_top.py::test_a_viewer_that_stops_or_dies_does_nothing_to_the_job",
    "command_line/top/test_waits.py::test_a_rank_that_comes_late_is_named[chain-tcp",
    "command_line/top/test_waits.py::test_a_rank_that_comes_late_is_named[late",
    "command_line/top/test_waits.py::test_a_rank_that_comes_late_is_named[messages",
    "command_line/top/test_waits.py::test_a_rank_that_comes_late_is_named[named-tcp",
    "command_line/top/test_waits.py::test_a_rank_that_comes_late_is_named[rooted",
    "frontends/mpi/test_recovery.py::test_ranks_go_on_without_one_that_was_killed",
    "frontends/test_jax",
    "frontends/test_keras",
    "frontends/test_mxnet.py",
    "frontends/test_numpy_loops.py",
    "frontends/test_tensorflow",
    "frontends/test_tf_distribute.py",
    "frontends/test_torch_compression.py",
    "frontends/test_torch_cuda.py",
    "frontends/test_torch_distributed.py",
    "frontends/test_torch_elastic.py",
    "frontends/test_torch_groups.py",
    "frontends/test_torch_ops.py",
    "frontends/test_torch_optimizer.py::test_a_parameter_of_one_rank_alone_is_named_on_every_rank",
    "frontends/test_torch_optimizer.py::test_t4_unfrozen_added_and_replaced_parameters",
    "frontends/test_torch_works.py",
    "gpu/test_gpu_arrays.py",
    "gpu/test_run_one_gpu.py",
    "platforms/test_containers.py::test_it_is_right",
    "platforms/test_light.py",
    "platforms/test_other_systems.py::test_it_is_right",
    "security/test_intruder.py::test_a_crowd",
    "security/test_intruder.py::test_a_port_scanner",
    "security/test_secret.py::test_a_job_never_shows_its_secret",
    "test_walks.py::test_the_page_shows_the_functions_of_a_call",
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher",
    "transports/test_any_source.py::test_auto_over_two_transports_keeps_the_contract",
    "transports/test_auto.py::test_conformance_of_a_link_of_a_third_party",
    "transports/test_conformance.py::test_processes",
)
"""Beginnings of the names of tests of which `make test` runs one case, and `make nightly` the others: jobs,
frameworks and launchers that take seconds each. The name of a test chooses its case: a file's tests differ in it."""

THINNED = (
    "collectives/compression/test_compression.py",
    "collectives/execution/test_rows.py",
    "collectives/execution/test_tables.py",
    "collectives/execution/test_windows.py",
    "collectives/membership/test_shrink.py",
    "collectives/observing/test_failures.py",
    "collectives/observing/test_real_waits.py",
    "collectives/operations/test_averages.py",
    "collectives/operations/test_ends_of_messages.py",
    "collectives/operations/test_gathering.py",
    "collectives/operations/test_interrupts.py::test_an_interrupt_at_every_point",
    "collectives/operations/test_own_ops.py",
    "frontends/test_torch_optimizer.py",
)
"""Beginnings of the names of tests with several parameters, of whose grid `make test` runs so few cases that each value
of each parameter is in one, and `make nightly` the others."""

LONG_RUN = 600
BUDGET = {
    "frontends": 260,
    "frontends/mpi": 25,
    "collectives": 60,
    "collectives/execution": 50,
    "collectives/launch": 195,
    "collectives/membership": 50,
    "collectives/observing": 40,
    "collectives/operations": 90,
    "collectives/proof": 20,
    "collectives/watchdog": 40,
    "transports": 95,
    "transports/launchers": 20,
    "command_line": 145,
    "command_line/doctor": 35,
    "command_line/top": 75,
    "chaos": 20,
    "face": 25,
    "gpu": 50,
    "platforms": 65,
    "security": 70,
    ".": 55,
}
"""Seconds of tests, of all jobs together, by folder; SMALL for others."""

SMALL = 15

FIRST = ("frontends", "chaos", "netns", "test_examples.py", "collectives/membership")
"""Folders whose files take longest. They start first, so that no worker is left alone with one of them in the end."""

STARTS = ("multiprocessing.Process", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")
"""The audit events of a process that starts. The first is the tests' own: multiprocessing has none."""

SLOW_MARKS = ("processes", "frameworks", "cluster", "engines", "long", "nightly")
"""The marks of tests that `make check` leaves out."""

KEEPERS = {"worlds", "pool", "frameworks", "ray_cluster", "dask_client", "spark"}
"""Fixtures that keep what a test opens for the tests after it, and close it in the end."""


def belongs(path: Path, folder: str) -> bool:
    return folder in _places(path)


@cache
def _places(path: Path) -> set[str]:
    """The file and the folders that hold it, relative to TESTS."""
    if not path.is_relative_to(TESTS):
        return set()
    within = path.relative_to(TESTS)
    return {place.as_posix() for place in (within, *within.parents)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a folder whose mark is deselected (-m "not frameworks"): importing its modules alone takes seconds."""
    parts = re.split(r"\s+and\s+", config.option.markexpr.strip())
    return any(f"not {mark}" in parts and belongs(collection_path, folder) for folder, mark in MARKS.items()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder, mark in MARKS.items():
            if belongs(item.path, folder):
                item.add_marker(mark)
    if (reason := shm.usable()) is not None:
        for item in items:
            given = getattr(getattr(item, "callspec", None), "params", {}).values()
            names = [value[0] if isinstance(value, tuple) and value else value for value in given]
            if any(isinstance(name, str) and name == "shm" for name in names):
                item.add_marker(pytest.mark.skip(reason=reason))
    leave_to_nightly(items)
    items.sort(key=lambda item: not any(belongs(item.path, folder) for folder in FIRST))


def leave_to_nightly(items: list[pytest.Item]) -> None:
    """Marks the tests that `make nightly` runs, not `make test`: see NIGHTLY, ONE_CASE and THINNED."""
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if item.get_closest_marker("engines") or item.get_closest_marker("crowd"):  # their own marks choose
            continue
        if name.startswith(NIGHTLY):
            item.add_marker("nightly")
        elif name.startswith((*ONE_CASE, *THINNED)) and not item.get_closest_marker("skip"):
            grids.setdefault(name.partition("[")[0], []).append(item)
    for name, cases in grids.items():
        kept = [cases[crc32(name.encode()) % len(cases)]] if name.startswith(ONE_CASE) else every_value_once(cases)
        for item in cases:
            if item not in kept:
                item.add_marker("nightly")


def every_value_once(cases: list[pytest.Item]) -> list[pytest.Item]:
    """A few cases of a test that have all values of all its parameters."""
    values = {item: set(values_of(item)) for item in cases}
    kept: list[pytest.Item] = []
    missing = set().union(*values.values())
    while missing:
        kept.append(max(cases, key=lambda item: len(values[item] & missing)))
        missing -= values[kept[-1]]
    return kept or cases


def values_of(item: pytest.Item) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The parameters of a case, those given together as one, each with what tells its value from others."""
    callspec = getattr(item, "callspec", None)
    left = dict(callspec.params) if callspec is not None else {}
    for mark in item.iter_markers("parametrize"):
        together = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        yield together, tuple(id(left.pop(name.strip(), None)) for name in together.split(","))
    yield from ((name, (id(value),)) for name, value in left.items())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After many tests, the seconds that each folder has taken beside its budget: those of all jobs together."""
    spent: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                parts = Path(report.nodeid.partition("::")[0]).parts[1:-1]
                spent["/".join(parts[:2]) or "."] += report.duration
    if sum(spent.values()) > LONG_RUN:
        terminalreporter.section("seconds by folder, and those beyond the budget")
        for folder, seconds in spent.most_common():
            beyond = seconds - BUDGET.get(folder, SMALL)
            terminalreporter.write_line(f"{seconds:6.0f}{f'{beyond:+6.0f}' if beyond > 0 else '':6}  {folder}")


@pytest.fixture(autouse=True, scope="session")
def fork_server(request: pytest.FixtureRequest) -> None:
    """Starts the process that `run_processes` forks ranks from, before any test could be blamed for it."""
    modules = {item.module for item in request.session.items if isinstance(item, pytest.Function)}
    if any(getattr(module, "run_processes", None) is run_processes for module in modules):
        start_fork_server()


@pytest.fixture(autouse=True, scope="session")
def started() -> Iterator[list[str]]:
    """The processes that this one starts, but for those that any test may be the first to need: the compiler of the
    machine code, and the looks at the processor that NumPy 2.0 takes when `numpy.testing` is imported and
    `platform.platform` takes once."""
    names: list[str] = []
    starts = STARTS  # a hook is called until the end of the process, when its module has no names any more

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in starts and not any(word in str(arguments) for word in ("collectives.jit", "lscpu", "uname")):
            names.append(f"{event} {arguments[:1]}")

    def start(process: BaseProcess) -> None:
        sys.audit(STARTS[0], process.name)
        begin(process)

    sys.addaudithook(note)
    begin = BaseProcess.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseProcess, "start", start)
        yield names


@pytest.fixture(autouse=True)
def processes_are_marked(request: pytest.FixtureRequest, started: list[str]) -> Iterator[None]:
    """Fails a test that starts a process and has no mark that keeps it out of `make check`."""
    before = len(started)
    yield
    if started[before:] and not any(request.node.get_closest_marker(mark) for mark in SLOW_MARKS):
        pytest.fail(f"mark this test with `processes`: it starts {started[before:]}")


@pytest.fixture(autouse=True, scope="module")
def imports_are_put_aside() -> None:
    """Keeps the collection of garbage that follows each test short: it need not search what a module imports."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, descriptors, shared-memory files or processes."""
    if KEEPERS & set(request.fixturenames):
        yield
        return
    with Leaks():
        yield


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flight records of the test alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "run").mkdir()
