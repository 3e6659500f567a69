"""Applies to every test: marks by folder, a look at what it leaves behind, and profiles for property tests."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.processes import run_processes, start_fork_server
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
    # training examples
    "test_examples.py::test_elastic_digits",
    "test_examples.py::test_diloco_digits",
    "test_examples.py::test_parameter_server_digits",
    "test_examples.py::test_train_digits[auto]",
    "frontends/test_keras_examples.py::test_horovod_style_with_a_checkpoint",
    "frontends/test_keras_examples.py::test_jax",
    "frontends/test_keras_examples.py::test_sequence_to_sequence",
    "frontends/test_torch_examples.py::test_ddp[spawn]",
    "frontends/test_torch_examples.py::test_horovod_style_with_a_checkpoint",
    "frontends/test_torch_examples.py::test_horovod_style_in_bfloat16_under_torchrun",
    "frontends/test_torch_examples.py::test_a_pipeline_is_one_process",
    "frontends/test_tensorflow_training.py::test_examples[tensorflow_tape_digits.py]",
    "frontends/test_jax_training.py::test_the_example[",
    "frontends/test_torch_feedback.py::test_training_ends_where_it_does_without_compression[options1]",
    "frontends/test_torch_compression.py::test_training_ends_where_it_does_without_compression",
    "frontends/test_keras_training.py::test_compressions_with_a_memory[tensorflow]",
    "frontends/test_keras_training.py::test_compressions_with_a_memory[jax]",
    "frontends/test_tensorflow_training.py::test_examples[tensorflow_v1_hook_digits.py]",
    "frontends/test_numpy_loops.py::test_the_example[2-options0]",
    "frontends/test_jax_training.py::test_the_page",
    "frontends/test_tensorflow_feedback.py::test_training_ends_where_it_does_without_compression",
    "collectives/compression/test_compression.py::test_training_reaches_the_loss_of_uncompressed_training",
    "frontends/test_keras_elastic.py::test_the_others_go_on_without_a_lost_rank[tape]",
    "frontends/test_keras_elastic.py::test_the_others_go_on_without_a_lost_rank[torch]",
    # pages that measure or train
    "test_snippets.py::test_a_page[docs/guides/tuning.md]",
    "test_snippets.py::test_a_page[docs/simulate.md]",
    "test_snippets.py::test_a_page[docs/model-parallel.md]",
    "test_snippets.py::test_a_page[docs/tutorial/four-processes.md]",
    "test_snippets.py::test_a_page[docs/observing.md]",
    "test_snippets.py::test_a_page[docs/saving.md]",
    "test_snippets.py::test_a_page[docs/elastic.md]",
    "test_snippets.py::test_a_page_about_a_framework",
    "test_snippets.py::test_programs_of_a_page_run_on_other_numbers_of_ranks",
    # the compiler: it takes ten seconds each time
    "collectives/jit/test_start.py::test_p1_compiling_takes_70_seconds",
    "collectives/jit/test_start.py::test_p1_the_ranks_meet_though_compiling_takes_longer_than_that[shm]",
    "collectives/jit/test_start.py::test_p1_the_ranks_meet_though_compiling_takes_longer_than_that[tcp]",
    "collectives/jit/test_start.py::test_p1_some_ranks_have_the_code_and_others_do_not[tcp]",
    "collectives/jit/test_start.py::test_p1_communicators_that_are_made_later_have_the_code",
    "collectives/jit/test_start.py::test_l14_a_compiler_that_is_killed",
    "collectives/jit/test_start.py::test_l14_on_waits_before_the_ranks_meet",
    "collectives/jit/test_start.py::test_l14_a_home_that_cannot_be_written_or_is_new[/proc/none]",
    # fuzzing, chaos, large memory
    "frontends/test_any_parameters.py::test_any_gradients_equal_one_process[tensorflow",
    "frontends/test_any_parameters.py::test_any_gradients_equal_one_process[keras",
    "frontends/test_any_parameters.py::test_any_gradients_equal_one_process[mxnet-2",
    "frontends/test_jax_ops.py::test_200_steps_of_independent_operations",
    "collectives/operations/test_huge.py::test_more_than_two_to_the_31_elements",
    "chaos/test_campaign.py::test_a_short_soak",
    "chaos/test_campaign.py::test_a_short_campaign[threads",
    "collectives/test_communicator.py::test_thousands_of_mixed_collectives_leave_nothing_behind[auto",
    "collectives/test_communicator.py::test_thousands_of_mixed_collectives_leave_nothing_behind[shm",
    "collectives/test_communicator.py::test_thousands_of_mixed_collectives_leave_nothing_behind[tcp",
    # further cases of tests that stay
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher[ronde-",
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher[torchrun-torchrun]",
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher[torchrun-openmpi]",
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher[torchrun-mpich]",
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher[openmpi-torchrun]",
    "transports/launchers/test_nesting.py::test_l4_launcher_in_launcher[torchrun-ronde]",
    "frontends/test_tensorflow_training.py::test_no_deadlock_in_any_order[2-tcp]",
    "frontends/test_tensorflow_ops.py::test_every_operation_eager_and_in_functions[3-tcp]",
    "frontends/test_jax_ops.py::test_every_operation_in_all_ways[3-tcp-ffi]",
    "frontends/test_jax_ops.py::test_gradients[3-tcp-callback]",
    "frontends/test_jax_training.py::test_training_is_that_of_one_process[3-tcp-callback]",
    "frontends/test_torch_works.py::test_a_rank_that_has_done_its_part_is_not_lost_t3_ends_without_destroy[auto]",
    "frontends/test_torch_works.py::test_a_rank_that_has_done_its_part_is_not_lost_t3_ends_without_destroy[tcp]",
    "frontends/test_torch_works.py::test_messages_of_a_rank_that_has_ended_arrive[tcp]",
    "frontends/test_torch_distributed.py::test_an_unmodified_script_under_its_launcher[torchrun]",
    "frontends/test_tf_distribute.py::test_one_changed_line[1]",
    "frontends/test_keras_training.py::test_on_tcp_and_on_three_ranks[tensorflow-3-shm]",
    "collectives/watchdog/test_watchdog.py::test_error_of_a_rank_that_ends_reaches_the_other_ranks[with world",
    "collectives/test_endings.py::test_the_end_of_a_process_of_multiprocessing_is_orderly_too[fork",
    "collectives/operations/test_averages.py::test_c6_average_range_of_equal_numbers[on-shm-4]",
    "collectives/test_fork.py::test_data_loader_of_torch[shm]",
    "collectives/test_fork.py::test_work_of_torch_in_flight[tcp]",
    "collectives/launch/processes/test_sandbox.py::test_p2_calls_that_are_refused_are_not_needed[shm-EPERM]",
    "collectives/launch/processes/test_sandbox.py::test_p2_calls_that_are_refused_are_not_needed[shm-EINVAL]",
    "collectives/launch/processes/test_sandbox.py::test_p2_calls_that_are_refused_are_not_needed[tcp-ENOSYS]",
    "collectives/launch/processes/test_sandbox.py::test_p2_calls_that_are_refused_are_not_needed[tcp-EPERM]",
    "collectives/launch/processes/test_sandbox.py::test_p2_calls_that_are_refused_are_not_needed[tcp-EINVAL]",
    "collectives/launch/supervision/test_elastic.py::test_a_rank_is_killed_before_the_first_world_has_begun[3-",
    "collectives/launch/supervision/test_elastic.py::test_e5_e6_a_rank_that_exits_with_0_ends_the_program[3-",
    "collectives/launch/supervision/test_elastic.py::test_a_rank_is_killed_before_the_first_world_has_begun[2-start]",
    "collectives/launch/supervision/test_elastic.py::test_e5_e6_a_rank_that_exits_with_0_ends_the_program[1-exit l",
    "collectives/launch/supervision/test_elastic.py::test_e8_a_rank_that_never_comes_is_started_a_bounded_number_of_times",
    "collectives/watchdog/test_watchdog.py::test_ranks_that_end_one_after_the_other_are_not_lost[tcp-exit]",
    "collectives/watchdog/test_watchdog.py::test_error_of_a_rank_that_ends_reaches_the_other_ranks[os._exit",
    "collectives/test_endings.py::test_what_a_rank_has_sent_before_its_end_arrives[auto]",
    "collectives/test_endings.py::test_what_a_rank_has_sent_before_its_end_arrives[shm]",
    "collectives/test_fork.py::test_processes_of_the_standard_library[tcp]",
    "collectives/membership/test_shrink_processes.py::test_launcher_with_keep_going_waits_for_the_survivors[SIGSTOP-33",
    "transports/test_conformance.py::test_threads[faulty]",
    "transports/test_auto.py::test_conformance_on_two_hosts[local]",
    "security/test_tls_links.py::test_the_transport_keeps_its_promises_under_tls[options1]",
)
"""Beginnings of the names of tests that `make nightly` runs, not `make test`: those that take long, and have shorter
siblings that stay."""

LONG_RUN = 600
BUDGET = {
    "frontends": 900,
    "collectives/launch": 450,
    "collectives/operations": 300,
    "collectives/watchdog": 120,
    "collectives/jit": 120,
    "collectives": 150,
    "collectives/algorithms": 100,
    "collectives/execution": 100,
    "collectives/membership": 100,
    "transports": 130,
    ".": 200,
}
"""Seconds of tests, of all jobs together, by folder; 60 for others."""

FIRST = ("frontends", "chaos", "netns", "test_examples.py", "collectives/membership")
"""Folders whose files take longest. They start first, so that no worker is left alone with one of them in the end."""

STARTS = ("multiprocessing.Process", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")
"""The audit events of a process that starts. The first is the tests' own: multiprocessing has none."""

SLOW_MARKS = ("processes", "frameworks", "cluster", "engines", "long", "nightly")
"""The marks of tests that `make check` leaves out."""

KEEPERS = {"worlds", "pool", "frameworks", "ray_cluster", "dask_client", "spark"}
"""Fixtures that keep what a test opens for the tests after it, and close it in the end."""


def belongs(path: Path, folder: str) -> bool:
    return path.is_relative_to(TESTS / folder)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a folder whose mark is deselected (-m "not frameworks"): importing its modules alone takes seconds."""
    parts = re.split(r"\s+and\s+", config.option.markexpr.strip())
    return any(f"not {mark}" in parts and belongs(collection_path, folder) for folder, mark in MARKS.items()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder, mark in MARKS.items():
            if belongs(item.path, folder):
                item.add_marker(mark)
        if item.nodeid.removeprefix("tests/").startswith(NIGHTLY):
            item.add_marker("nightly")
    items.sort(key=lambda item: not any(belongs(item.path, folder) for folder in FIRST))


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
            beyond = seconds - BUDGET.get(folder, 60)
            terminalreporter.write_line(f"{seconds:6.0f}{f'{beyond:+6.0f}' if beyond > 0 else '':6}  {folder}")


@pytest.fixture(autouse=True, scope="session")
def fork_server(request: pytest.FixtureRequest) -> None:
    """Starts the process that `run_processes` forks ranks from, before any test could be blamed for it."""
    modules = {item.module for item in request.session.items if isinstance(item, pytest.Function)}
    if any(getattr(module, "run_processes", None) is run_processes for module in modules):
        start_fork_server()


@pytest.fixture(autouse=True, scope="session")
def started() -> Iterator[list[str]]:
    """The processes that this one starts, but for the compiler's, which any test may be the first to need."""
    names: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS and "collectives.jit" not in str(arguments):
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
