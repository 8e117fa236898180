"""Every row of the threat table: a test of its own, or the tests elsewhere that stand for it.

A row that is tested elsewhere names those tests here, so that none can be removed or renamed unnoticed.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import signal
import sys
import time
from pathlib import Path

import pytest

import stepkeep
from stepkeep.codec import exact
from stepkeep.errors import StepkeepError
from stepkeep.storage import sqlite
from stepkeep.storage.sqlite import SqliteBackend

TESTS = Path(__file__).parent.parent
SOURCE = Path(stepkeep.__file__).parent

ELSEWHERE = {
    "code execution on load": [
        "unit/test_exact.py::test_tags_with_any_body_raise_only_our_errors",
        "unit/test_exact.py::test_malformed_bytes_are_corrupt",
    ],
    "path traversal by ids": [
        "unit/test_layouts.py::test_any_text_becomes_a_harmless_name",
        "unit/test_layouts.py::test_two_texts_never_share_a_name",
        "storage_files/test_bad_files.py::test_a_symbolic_link_is_not_followed",
    ],
    "SQL injection by filter keys": ["api/test_bad_input.py::test_odd_names_are_data"],
    "secrets readable by others": [
        "api/test_bad_input.py::test_files_are_readable_by_their_owner_only",
        "storage_files/test_store.py::test_files_are_for_their_owner_only",
        "unit/test_config.py::test_a_password_is_not_shown",
        "surfaces/test_secrets.py::test_no_password_of_a_url_is_printed",
    ],
    "HTTP: DNS rebinding, no auth, XSS, CSRF": [
        "surfaces/test_mcp_transports.py::test_http_lets_no_stranger_in",
    ],
    "restore overwrites work, zip-slip": [
        "workspace/test_restore.py::test_paths_outside_are_refused",
        "workspace/test_restore.py::test_no_setuid_bit_is_restored",
        "workspace/test_restore.py::test_a_private_directory_comes_back_private",
    ],
    "git run as a helper executes foreign code": [
        "workspace/test_capture.py::test_git_runs_nothing_a_repository_names",
    ],
    "who reads a backup": [
        "maintenance/test_backup.py::test_a_backup_equals_the_store",
        "maintenance/test_encrypted_backup.py::test_it_comes_back_with_its_key_only",
        "maintenance/test_encrypted_backup.py::test_nothing_in_clear_lies_at_the_destination",
        "maintenance/test_scheduled_backup.py::test_who_is_told_to_end_leaves_nothing_unfinished",
    ],
    "who kept a key of an encrypted store": [
        "encryption/test_rekey.py::test_everything_is_encrypted_anew_and_nothing_else_changes",
        "encryption/test_rekey.py::test_nothing_is_encrypted_with_the_old_key_any_more",
        "encryption/test_rekey.py::test_who_had_it_open_saves_with_the_new_key_and_reads_it",
    ],
    "the loss of what opens an encrypted store": [
        "encryption/test_rekey.py::test_one_damaged_copy_of_the_key_record_is_no_loss",
    ],
    "files beside an encrypted store": [
        "encryption/test_hooks.py::test_what_waits_in_the_spool_is_encrypted_and_comes_in",
        "encryption/test_hooks.py::test_the_log_of_hooks_does_not_say_what_was_to_be_saved",
    ],
    "a backup that is none": [
        "maintenance/test_object_backup.py::test_killed_after_every_request_it_is_a_backup_or_none",
        "maintenance/test_object_backup.py::test_a_network_that_cuts_connections_makes_no_half_backup",
        "maintenance/test_object_backup.py::test_two_writers_at_once_destroy_nothing",
        "maintenance/test_object_backup.py::test_who_was_overtaken_writes_no_backup_any_more",
        "maintenance/test_object_backup.py::test_a_service_without_conditional_writes_is_refused",
    ],
    "a backup that was changed": [
        "maintenance/test_object_backup.py::test_a_damaged_piece_is_told_before_anything_changes",
        "maintenance/test_encrypted_backup.py::test_a_damaged_one_is_refused",
        "maintenance/test_backup.py::test_a_damaged_backup_is_refused",
    ],
    "decompression bomb": [
        "unit/test_documents.py::test_compressed_bytes_never_grow_past_their_size",
        "unit/test_delta.py::test_a_decompression_bomb_is_refused",
        "fuzz/test_fuzz.py::test_changed_seeds",
    ],
    "JSON edges": [
        "unit/test_exact.py::test_traps_come_back_the_same",
        "unit/test_exact.py::test_what_would_not_come_back_is_refused_with_its_path",
        "unit/test_exact.py::test_no_depth_escapes_as_a_recursion_error",
        "surfaces/test_mcp_transports.py::test_a_key_that_occurs_twice_is_refused",
        "surfaces/test_import_files.py::test_a_key_that_occurs_twice_is_refused",
    ],
    "states that multiply": [
        "unit/test_sharing.py::test_what_doubles_on_each_level_is_refused_with_its_path",
        "unit/test_sharing.py::test_cycles_that_multiply_or_carry_much_are_found_at_once",
    ],
    "stale locks": ["runs/test_lease.py::test_a_save_with_a_stale_token_is_refused"],
    "fork, threads, asyncio": [
        "api/test_concurrency.py::test_forked_children_save_through_the_parents_store",
        "crash/test_contention.py::test_threads_forks_and_cancelled_tasks_at_once",
        "unit/test_incremental.py::test_no_interleaving_of_threads_is_remembered",
    ],
    "clock back, same-second ids": [
        "unit/test_retention.py::test_order_is_by_seq_and_never_by_clock",
        "unit/test_retention.py::test_a_time_in_the_future_counts_as_age_zero_and_is_warned_of",
        "storage_files/test_store.py::test_a_clock_that_stands_still_loses_nothing",
    ],
    "terminal escapes and bidi controls in stored text": [
        "surfaces/test_cli.py::test_stored_text_cannot_control_the_terminal",
        "unit/test_text.py::test_clean_escapes_what_a_terminal_would_obey",
    ],
    "a clone's configuration removes other projects' sessions": [
        "threats/test_hostile_project.py::test_a_clones_file_removes_nothing_of_others",
        "threats/test_hostile_project.py::test_a_limit_of_a_clone_cuts_no_session_of_others",
        "threats/test_hostile_project.py::test_cleaning_from_another_project_goes_by_the_days_of_the_sessions_own",
        "threats/test_hostile_project.py::test_a_session_carries_the_rules_it_was_made_under",
        "threats/test_hostile_project.py::test_no_key_of_a_clone_reaches_the_sessions_of_others",
    ],
    "a clone's configuration runs a command": [
        "threats/test_hostile_project.py::test_a_clone_chooses_no_command_for_workflows_of_others",
    ],
    "a clone's configuration sends data and passwords elsewhere": [
        "threats/test_hostile_project.py::test_a_clones_file_sends_nothing_to_a_strangers_server",
        "threats/test_hostile_project.py::test_no_spelling_leads_out_of_the_project",
        "threats/test_hostile_project.py::test_a_store_outside_the_project_needs_trust",
    ],
    "links that a clone brings": [
        "threats/test_hostile_project.py::test_no_link_beside_a_store_in_the_project_is_followed",
        "hooks/test_install.py::test_no_link_leads_out_of_a_project",
    ],
    "triggers and views in a foreign database": [
        "threats/test_hostile_store.py::test_a_trigger_of_a_stranger_is_refused_under_any_name",
        "threats/test_hostile_store.py::test_a_trigger_that_comes_later_does_not_act",
        "threats/test_hostile_store.py::test_a_view_in_the_place_of_a_table_is_not_read",
    ],
    "hostile values under a valid seal": [
        "threats/test_hostile_store.py::test_times_beyond_any_calendar_give_no_traceback",
        "threats/test_hostile_store.py::test_no_sealed_header_gives_a_traceback",
        "threats/test_hostile_store.py::test_no_sealed_state_gives_a_traceback",
    ],
    "small stores that exhaust memory": [
        "threats/test_hostile_store.py::test_a_small_store_does_not_exhaust_memory",
        "threats/test_hostile_store.py::test_what_would_be_refused_on_load_is_not_saved",
        "threats/test_hostile_store.py::test_a_header_with_many_bodies_is_not_loaded",
        "threats/test_hostile_store.py::test_values_with_chosen_hashes_are_refused",
        "threats/test_hostile_store.py::test_numbers_beyond_any_are_ranges",
    ],
    "a store that is deleted, replaced or cut while it is open": [
        "threats/test_hostile_store.py::test_a_store_that_is_cut_under_its_feet_takes_no_saves",
        "threats/test_hostile_store.py::test_a_store_that_is_cut_to_nothing_is_not_waited_for",
        "api/test_damage.py::test_a_store_whose_log_is_deleted_under_its_feet_takes_no_saves",
    ],
    "models that lose data": [
        "threats/test_models.py::test_what_a_model_would_lose_is_refused_with_its_path",
        "threats/test_models.py::test_every_saver_has_the_same_rule",
    ],
    "values misplaced in shell steps": [
        "workflow/test_quoting.py::test_places_where_no_value_can_stand",
        "workflow/test_quoting.py::test_arithmetic_is_not_advised_to_evaluate_a_variable",
    ],
    "a store that runs what it holds": [
        "workflow/test_resume.py::test_a_file_that_is_gone",
        "workflow/test_resume.py::test_a_folder_that_only_the_store_names",
    ],
    "HTTP: too many connections, halves of requests": [
        "threats/test_http_limits.py::test_idle_connections_leave_room_for_others",
        "threats/test_http_limits.py::test_a_head_that_does_not_come_is_not_waited_for",
        "threats/test_http_limits.py::test_a_body_that_does_not_come_is_not_waited_for",
    ],
    "hostile configuration, workflow and hook input": [
        "unit/test_config.py::test_hostile_files_are_refused",
        "workflow/test_reading.py::test_files_that_are_no_workflow",
        "hooks/test_bad_input.py::test_input_that_makes_no_sense_is_told_and_ignored",
    ],
}


@pytest.mark.parametrize("threat", ELSEWHERE)
def test_the_row_has_its_tests(threat: str) -> None:
    """The tests that stand for this row are there under their names."""
    for place in ELSEWHERE[threat]:
        file, name = place.split("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, place


# --- code execution on load ------------------------------------------------------------------------------------

FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def test_code_execution_on_load_no_module_can_run_stored_bytes() -> None:
    """No module of the package imports what turns bytes into code, or calls `eval` and its kin."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            assert not names & FORBIDDEN, f"{file}:{node.lineno}"  # type: ignore[attr-defined]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), f"{file}:{node.lineno}"


def test_code_execution_on_load_nothing_is_imported_by_name() -> None:
    """Stored text that names modules, classes and functions comes back as text, or is refused; nothing is loaded."""
    before = set(sys.modules)
    hostile = b'{"$type":"antigravity.fly","__reduce__":["os.system",["true"]],"lc":1,"id":["antigravity"]}'
    for encoding in (exact.JSON, exact.TAGGED):
        try:
            exact.decode(encoding, hostile)
        except StepkeepError:
            continue
    assert "antigravity" not in set(sys.modules) - before


def test_code_execution_on_load_every_module_is_looked_at() -> None:
    """The walk above sees the modules that can be imported."""
    modules = [module.name for module in pkgutil.walk_packages([str(SOURCE)], "stepkeep.")]
    assert len(modules) > 50
    assert importlib.util.find_spec("stepkeep.engine.engine") is not None


# --- SQL injection by filter keys ------------------------------------------------------------------------------


def test_sql_injection_by_filter_keys(tmp_path: Path) -> None:
    """Quotes and statements in every text that is looked for are looked for, and nothing else."""
    hostile = "x' OR 1=1; DROP TABLE checkpoints; --"
    with stepkeep.Store(SqliteBackend(tmp_path / "h.db")) as store:
        run = store.session("r", project=hostile, workflow=hostile)
        run.save({"n": 1}, tags=[hostile], external_id=hostile)
        store.session("other").save({"n": 2})
        assert [info.key for info in store.sessions(project=hostile)] == ["r"]
        assert list(store.sessions(project="' OR '1'='1")) == []
        assert [header.seq for header in store.checkpoints(tag=hostile)] == [1]
        assert store.verify().is_intact


# --- stale locks ----------------------------------------------------------------------------------------------


def test_stale_locks_go_with_their_process(tmp_path: Path) -> None:
    """Who is killed while it holds the lock of creation, or of writing, keeps nobody out."""
    path = tmp_path / "h.db"
    ready = tmp_path / "ready"
    child = os.fork()
    if child == 0:
        try:
            store = stepkeep.Store(SqliteBackend(path))
            with sqlite._creation.locked(path.parent):
                store.engine.backend._take_writer().run("BEGIN IMMEDIATE")  # type: ignore[attr-defined]
                ready.touch()
                time.sleep(600)
        finally:
            os._exit(1)
    while not ready.exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it held anything"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with stepkeep.Store(SqliteBackend(path, busy_seconds=1)) as store:
        assert store.session("r").save({"n": 1}).seq == 1


# --- network file systems --------------------------------------------------------------------------------------


def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write-ahead log is not safe there: the store is not made, and the message says what to do."""
    monkeypatch.setattr(sqlite, "file_system_type", lambda path: "nfs4")
    with pytest.raises(stepkeep.Unsupported) as refusal:
        SqliteBackend(tmp_path / "h.db")
    assert refusal.value.code == "network_file_system"
    assert not (tmp_path / "h.db").exists()
