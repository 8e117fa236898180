"""ADK keeps its artifacts in a store: versions are checkpoints, bytes are blobs."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.runners import Runner
from google.genai import types

import stepkeep
from stepkeep.adapters.adk import StepkeepSessionService
from stepkeep.adapters.adk_artifacts import StepkeepArtifactService
from stepkeep.errors import Corrupt, InvalidInput
from tests.interop.adapter_contract import AdapterContract
from tests.interop.conftest import Bodies
from tests.interop.offline.adk import Listener

PLACE = {"app_name": "shop", "user_id": "ada", "session_id": "s1"}
PICTURE = bytes(range(256)) * 4096  # 1 MB


class TestContract(AdapterContract):
    NAME = "adk_artifacts"


@pytest.fixture
def artifacts(url: str) -> Iterator[StepkeepArtifactService]:
    with StepkeepArtifactService(url) as artifacts:
        yield artifacts


def picture(data: bytes = PICTURE) -> types.Part:
    return types.Part.from_bytes(data=data, mime_type="image/png")


def save(service: StepkeepArtifactService, name: str, part: Any, **options: Any) -> int:
    return asyncio.run(service.save_artifact(**PLACE | {"filename": name, "artifact": part} | options))


def load(service: StepkeepArtifactService, name: str, **options: Any) -> types.Part | None:
    return asyncio.run(service.load_artifact(**PLACE | {"filename": name} | options))


def test_versions_come_back_as_they_were(artifacts: StepkeepArtifactService, url: str) -> None:
    """Bytes, texts and files elsewhere; those of the user are found from every session."""
    file = types.Part.from_uri(file_uri="gs://bucket/file", mime_type="image/png")
    given = [picture(), types.Part(text="hello"), file, picture(b"")]
    assert [save(artifacts, "a/b c%", part) for part in given] == [0, 1, 2, 3]
    save(artifacts, "user:me.txt", types.Part(text="Ada"), custom_metadata={"by": ("hand", 1)})
    with StepkeepArtifactService(url) as again:
        assert [load(again, "a/b c%", version=version) for version in range(4)] == given
        assert load(again, "a/b c%") == given[-1]
        assert load(again, "a/b c%", version=4) is load(again, "other") is None
        assert load(again, "user:me.txt", session_id="s2") == types.Part(text="Ada")
        names = asyncio.run(again.list_artifact_keys(**PLACE))
        assert names == ["a/b c%", "user:me.txt"]
        described = asyncio.run(again.get_artifact_version(**PLACE | {"filename": "user:me.txt"}))
        assert described is not None
        assert (described.version, described.mime_type) == (0, "text/plain")
        assert described.custom_metadata == {"by": ("hand", 1)}
        listed = asyncio.run(again.list_artifact_versions(**PLACE | {"filename": "a/b c%"}))
        assert [each.mime_type for each in listed] == ["image/png", "text/plain", "image/png", "image/png"]
        asyncio.run(again.delete_artifact(**PLACE | {"filename": "a/b c%"}))
        assert asyncio.run(again.list_versions(**PLACE | {"filename": "a/b c%"})) == []
        assert asyncio.run(again.list_artifact_keys(**PLACE)) == ["user:me.txt"]


def test_a_reference_leads_to_another_artifact(artifacts: StepkeepArtifactService) -> None:
    """By the address that a version has; nobody reads another's by one, and a circle ends."""
    save(artifacts, "first", types.Part(text="1"))
    version = asyncio.run(artifacts.get_artifact_version(**PLACE | {"filename": "first"}))
    assert version is not None
    reference = types.Part.from_uri(file_uri=version.canonical_uri, mime_type="text/plain")
    save(artifacts, "second", reference)
    assert load(artifacts, "second") == types.Part(text="1")
    with pytest.raises(InputValidationError, match="scope"):
        save(artifacts, "second", reference, user_id="bob")
    circle = types.Part.from_uri(
        file_uri=version.canonical_uri.replace("first", "circle"), mime_type="text/plain"
    )
    save(artifacts, "circle", circle)
    with pytest.raises(InputValidationError, match="recursion"):
        load(artifacts, "circle")


def test_what_is_no_artifact_is_refused_and_leaves_nothing(artifacts: StepkeepArtifactService) -> None:
    with pytest.raises(InputValidationError):
        save(artifacts, "x", types.Part())
    with pytest.raises(InputValidationError):
        save(artifacts, "x", types.Part(text="1"), session_id=None)
    with pytest.raises(InvalidInput):
        save(artifacts, "x", types.Part(text="1"), custom_metadata={"x": object()})
    assert list(artifacts.store.sessions()) == []


def test_the_same_bytes_are_stored_once(url: str) -> None:
    """Over versions, artifacts and users; what a version needs stays as long as it does."""
    with StepkeepArtifactService(url, retention={"keep_last": 1}) as artifacts:
        store = artifacts.store
        for user in ("ada", "bob"):
            for name in ("a.png", "b.png"):
                assert save(artifacts, name, picture(), user_id=user) == 0
        assert store.usage().blobs == 1
        save(artifacts, "a.png", picture(b"other"))
        session = store.get("adk-artifact:shop/ada/s1/a.png")
        session.restore("seq:1")
        save(artifacts, "b.png", types.Part(text="gone"))
        for name in ("a.png", "b.png"):
            asyncio.run(artifacts.delete_artifact(**PLACE | {"user_id": "bob", "filename": name}))
        store.prune()
        assert load(artifacts, "a.png") == picture()
        assert store.verify().is_intact
        asyncio.run(artifacts.delete_artifact(**PLACE | {"filename": "a.png"}))
        store.prune()
        assert store.usage().blobs == 0


def test_damage_is_an_error(artifacts: StepkeepArtifactService, url: str, bodies: Bodies) -> None:
    """Of the bytes and of what is known about them; no older version is taken instead."""
    save(artifacts, "a", types.Part(text="old"))
    save(artifacts, "a", picture())
    ((data,),) = bodies.run("SELECT data FROM {}.blobs")
    assert isinstance(data, bytes)
    bodies.run("UPDATE {}.blobs SET data = ?", bytes([data[0] ^ 1]) + data[1:])
    with StepkeepArtifactService(url) as again, pytest.raises(Corrupt):
        load(again, "a")
    newest = artifacts.store.get("adk-artifact:shop/ada/s1/a").header("newest")
    bodies.damage(newest.id, "state")
    with StepkeepArtifactService(url) as again, pytest.raises(Corrupt):
        asyncio.run(again.get_artifact_version(**PLACE | {"filename": "a"}))


def _save(url: str, text: str, told: Any) -> None:
    with StepkeepArtifactService(url) as artifacts:
        told.put([(save(artifacts, "a", types.Part(text=f"{text}{at}")), f"{text}{at}") for at in range(10)])


def test_processes_that_save_get_numbers_of_their_own(url: str) -> None:
    """No version is given twice, and each holds what its saver gave."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    writers = [context.Process(target=_save, args=(url, text, told)) for text in "ab"]
    for writer in writers:
        writer.start()
    given = dict(pair for _ in writers for pair in told.get())
    for writer in writers:
        writer.join()
    assert sorted(given) == list(range(20))
    with StepkeepArtifactService(url) as artifacts:
        for version, text in given.items():
            assert load(artifacts, "a", version=version) == types.Part(text=text)


def test_an_agent_keeps_artifacts_beside_its_session(url: str) -> None:
    """Through the runner: a callback saves one, the next process finds it."""

    async def note(callback_context: Any) -> None:
        await callback_context.save_artifact("note.txt", types.Part(text="from the callback"))

    async def run() -> None:
        with stepkeep.open(url) as store:
            service, artifacts = StepkeepSessionService(store), StepkeepArtifactService(store)
            await service.create_session(**PLACE)
            agent = LlmAgent(name="listener", model=Listener(), before_agent_callback=note)
            runner = Runner(app_name="shop", agent=agent, session_service=service, artifact_service=artifacts)
            message = types.Content(role="user", parts=[types.Part(text="hello")])
            async for _ in runner.run_async(user_id="ada", session_id="s1", new_message=message):
                pass

    asyncio.run(run())
    with StepkeepArtifactService(url) as artifacts:
        assert load(artifacts, "note.txt") == types.Part(text="from the callback")
        assert artifacts.store.verify().is_intact
