"""The frameworks that have an adapter or a recipe, and their own tests that run on it.

The tests of a framework are never copied here. Those in its sdist are fetched from the package index; of others the run
says where they are from, and skips them when they are not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "interop"

LOOKS_INSIDE = "reads or sets private fields of the vendor's store"
HIDES_DAMAGE = "plants a damaged row by SQL and wants it left out; here damage is an error"
SQLITE_INSIDE = "reaches for SQLite connections, tables or locks of the vendor's store"
MEMORY_ONLY = "wants what only the vendor's class in memory has beside the interface"
SEARCHES = "gives the vendor's class in memory a search strategy of its own"
EPHEMERAL = "wants the mark of a storage that forgets; this one does not"
NOTHING_TO_DO = "wants an error of the vendor's for adding nothing to a closed session; here nothing is done"
COUNTS_TURNS = (
    "counts turns of the event loop until the vendor's store answers; ours is on a thread: some pass"
)


@dataclass(frozen=True)
class Suite:
    """Tests of a framework: where they are from, and which of them cannot pass for which reason.

    `sdist` names a release on the package index, `repository` a checkout that has to be put into
    `build/interop/sources/NAME`. `tests` are paths in it. `expected` has for the end of a test's name why it fails.
    """

    tests: tuple[str, ...]
    sdist: str | None = None
    repository: str | None = None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Framework:
    """`name` is that of the extra and of the requirements; `module` is there where it is installed.

    `warnings` are those of its own that our tests forgive, as pytest's `-W` takes them.
    """

    name: str
    module: str
    suite: Suite | None = None
    has_adapter: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def tests(self) -> list[str]:
        """Our tests about it: the names of files that begin as it does, and as no other with a longer name."""
        begins = f"test_{self.name.replace('-', '_')}"
        others = [
            f"test_{each.name.replace('-', '_')}"
            for each in FRAMEWORKS
            if each.name != self.name and each.name.startswith(self.name)
        ]
        names = (path.name for path in sorted(Path(__file__).parent.glob(f"{begins}*.py")))
        return [name for name in names if not name.startswith(tuple(others))]

    @property
    def page(self) -> str:
        return f"use-{self.name}.md"

    @property
    def is_installed(self) -> bool:
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:  # the package around it
            return False


FRAMEWORKS = (
    Framework(
        "langgraph",
        "langgraph",
        Suite(
            sdist="langgraph==1.2.20",
            tests=("tests",),
            # Each test of a checkpointer runs once for each of LangGraph's savers on SQLite, ours in their place.
            arguments=("-p", "anyio", "-o", "addopts=", "-k", "sqlite"),
            environment={"NO_DOCKER": "true"},
        ),
    ),
    Framework(
        "claude",
        "claude_agent_sdk",
        Suite(
            sdist="claude-agent-sdk==0.2.182",
            tests=tuple(
                f"tests/test_{name}.py"
                for name in (
                    "session_helpers_store",
                    "session_store_conformance",
                    "session_store_anyio",
                    "session_resume",
                    "session_import",
                    "session_summary",
                    "transcript_mirror",
                )
            ),
            arguments=("-p", "anyio"),
            expected={
                "::test_load_concurrency_is_bounded": COUNTS_TURNS,
                "::test_gap_fill_bounded_concurrency": COUNTS_TURNS,
                "::test_cancelled_after_mkdtemp_cleans_temp_dir": COUNTS_TURNS,
                "::test_eager_flush_mode_appends_per_frame_before_result": COUNTS_TURNS,
                "::test_continue_picks_most_recent": LOOKS_INSIDE,
                "::test_continue_skips_sidechain_sessions": LOOKS_INSIDE,
                "::test_continue_tie_break_is_deterministic": LOOKS_INSIDE,
            },
        ),
    ),
    Framework(
        "openai-agents",
        "agents.memory",
        Suite(
            sdist="openai-agents==0.24.0",
            tests=(
                "tests/memory/test_session.py",
                "tests/memory/test_session_limit.py",
                "tests/memory/test_compaction_suffix.py",
                "tests/memory/test_compaction_model_visibility.py",
                "tests/memory/test_openai_responses_compaction_session.py",
                "tests/test_hitl_session_scenario.py",
            ),
            arguments=("-k", "not async-sqlite"),
            expected={
                "::test_sqlite_session_pop_item_skips_corrupt_most_recent": HIDES_DAMAGE,
                "::test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": HIDES_DAMAGE,
                "::test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": HIDES_DAMAGE,
                "::test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": HIDES_DAMAGE,
                "::test_sqlite_session_closed_rejects_empty_add_items": NOTHING_TO_DO,
                **dict.fromkeys(
                    (
                        "::test_sqlite_session_close_closes_worker_thread_connections",
                        "::test_sqlite_session_reaps_connections_from_exited_worker_threads",
                        "::test_sqlite_session_closes_retired_connections_before_the_next_allocation",
                        "::test_sqlite_session_keeps_connections_of_live_worker_threads",
                        "::test_sqlite_session_file_lock_is_shared_across_instances",
                        "::test_sqlite_session_failed_add_items_releases_write_lock",
                        "::test_sqlite_session_failed_clear_session_rolls_back",
                        "::test_sqlite_session_failed_pop_item_releases_write_lock",
                        "::test_sqlite_session_rollback_failure_evicts_connection",
                        "::test_sqlite_session_close_retries_quarantined_connection",
                        "::test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
                        "::test_suffix_transaction_rolls_back_failed_insert",
                        "::test_cancelled_suffix_transaction_settles_before_newer_append",
                        "::test_failed_encrypted_suffix_transaction_preserves_original_tokens",
                        "::test_settled_pop_failure_invalidates_response_chain",
                        "::test_settled_clear_failure_invalidates_response_chain",
                    ),
                    SQLITE_INSIDE,
                ),
            },
        ),
    ),
    Framework(
        "agent-framework",
        "agent_framework",
        Suite(
            repository="github.com/microsoft/agent-framework",
            tests=("python/packages/core/tests/workflow/test_checkpoint.py",),
            arguments=("-c", "python/packages/core/pyproject.toml", "--rootdir", "python/packages/core"),
            expected=dict.fromkeys(
                (
                    "::test_file_checkpoint_storage_save_and_load",
                    "::test_file_checkpoint_storage_delete",
                    "::test_file_checkpoint_storage_directory_creation",
                    "::test_file_checkpoint_storage_json_serialization",
                ),
                "looks for the vendor's JSON file",
            ),
        ),
    ),
    Framework(
        "adk",
        "google.adk",
        Suite(
            repository="github.com/google/adk-python (or a fork that has tests/unittests/sessions of 2.0 or later)",
            tests=(
                "tests/unittests/sessions/test_session_service.py",
                "tests/unittests/artifacts/test_artifact_service.py",
            ),
            arguments=("-k", "IN_MEMORY"),
            expected=dict.fromkeys(
                (
                    "::test_list_artifact_versions_and_get_artifact_version",
                    "::test_list_artifact_versions_with_user_prefix",
                ),
                "wants addresses of the vendor's memory, and its clock",
            ),
        ),
    ),
    Framework(
        "pydantic-ai", "pydantic_ai.conversation_store"
    ),  # it has no tests that a foreign store could run
    Framework("pydantic-ai-harness", "pydantic_ai_harness"),  # nor has this
    Framework(
        "strands",
        "strands",
        Suite(
            sdist="strands-agents==1.62.0",
            tests=(
                "tests/strands/storage/test_in_memory_storage.py",
                "tests/strands/storage/test_storage.py",
                "tests/strands/session/test_snapshot_session_manager.py",
            ),
            expected={
                "::test_clear": MEMORY_ONLY,
                "::test_namespace_clear_only_clears_prefix": MEMORY_ONLY,
                "::test_namespace_passes_scoped_instance_to_strategy": SEARCHES,
                "::test_write_indexes_with_search_strategy": SEARCHES,
                "::test_search_delegates_to_strategy": SEARCHES,
                "::test_save_includes_inline_stash_for_ephemeral_storage": EPHEMERAL,
                "::test_save_omits_stash_when_empty": EPHEMERAL,
                "::test_immutable_snapshot_includes_stash": EPHEMERAL,
                "::test_ephemeral_detection_survives_namespacing": EPHEMERAL,
            },
        ),
    ),
    Framework(
        "crewai",
        "crewai",
        Suite(
            sdist="crewai==1.15.30",
            tests=(
                "tests/test_flow_persistence.py",
                "tests/test_flow_persistence_factory.py",
                "tests/test_async_human_feedback.py",
                "tests/test_flow_resumability_regression.py",
            ),
            arguments=("-c", "pyproject.toml"),
            environment={"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"},
            expected=dict.fromkeys(
                (
                    "::test_persist_complex_types_structured_state",
                    "::test_persist_complex_types_dict_state",
                    "::test_save_pending_feedback_complex_types",
                ),
                "wants dates, ids and numbers back as texts; here they come back as they were",
            ),
        ),
        warnings=("ignore::ImportWarning",),
    ),
    Framework("other-frameworks", "haystack", has_adapter=False),  # recipes
)
