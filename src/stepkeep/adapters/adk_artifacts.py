"""Artifacts of Google's Agent Development Kit: `StepkeepArtifactService`. It needs `pip install stepkeep[adk]`.

```python
runner = Runner(
    app_name="shop", agent=agent, session_service=service, artifact_service=StepkeepArtifactService(service.store)
)
```

An artifact is a session of the store, each of its versions a checkpoint. Its bytes are a blob beside the state: the
same bytes are stored once, whatever versions, sessions and users have them.
"""

from __future__ import annotations

from typing import Any, Final

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from stepkeep.adapters.session_head import HeadsOwner, key_of, message_of, part_of, settled, stored_value
from stepkeep.api import Header
from stepkeep.api.extension import Save
from stepkeep.errors import NotFound

FRAMEWORK: Final = "adk-artifact"
OF_USER: Final = "user:"
_MAX_REFERENCES: Final = 5


class StepkeepArtifactService(HeadsOwner, BaseArtifactService):  # type: ignore[misc]
    """Artifacts of ADK in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. Versions are given by
    the store: two that are saved at once get two numbers. All versions stay unless `retention` says otherwise; one that
    was pruned is not found any more, and its number is not given again.
    """

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save an artifact durably and return its version; the first is 0.

        Raises:
            InputValidationError: it is neither text, nor bytes, nor a file elsewhere.
        """
        key = _key(app_name, user_id, session_id, filename)
        part = ensure_part(artifact)
        if part.inline_data is None and part.text is None and part.file_data is None:
            raise InputValidationError("Not supported artifact type.")
        if artifact_util.is_artifact_ref(part):
            _followed(part, 1, app_name, user_id, session_id)
        state = {"part": part.model_dump(mode="json", exclude_none=True), "metadata": custom_metadata or {}}
        data = None
        if part.inline_data is not None:
            state["part"]["inline_data"].pop("data", None)
            data = part.inline_data.data or b""
        return await settled(self._save, key, app_name, stored_value(state), data)

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """A version of an artifact, the newest unless one is named; None if there is none.

        Raises:
            Corrupt: it is damaged. No other version is taken instead.
        """
        part = await settled(self._load, _key(app_name, user_id, session_id, filename), version)
        references = _MAX_REFERENCES
        while part is not None and artifact_util.is_artifact_ref(part):
            place = _followed(part, references, app_name, user_id, session_id)
            key = _key(place.app_name, place.user_id, place.session_id, place.filename)
            part = await settled(self._load, key, place.version)
            references -= 1
        return part

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """The names of the artifacts of a user, and of a session where one is named, sorted."""
        return await settled(self._names, app_name, user_id, {"", session_id or ""})

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Remove an artifact with all its versions."""
        await settled(self._heads.remove, _key(app_name, user_id, session_id, filename))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """The numbers of the versions that are stored, oldest first."""
        headers = await settled(self._heads.history, _key(app_name, user_id, session_id, filename))
        return [header.seq - 1 for header in headers]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """What is known of each version that is stored, oldest first."""
        key = _key(app_name, user_id, session_id, filename)
        headers = await settled(self._heads.history, key)
        return [await settled(self._described, key, header) for header in headers]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """What is known of a version, the newest unless one is named; None if there is none."""
        key = _key(app_name, user_id, session_id, filename)
        header = await settled(self._header, key, version)
        return None if header is None else await settled(self._described, key, header)

    # --- the same on a thread

    def _save(self, key: str, app: str, state: dict[str, Any], data: bytes | None) -> int:
        engine = self.store.engine
        blobs = () if data is None else (engine.make_blob(data),)
        named = frozenset(blob.digest for blob in blobs)
        if blobs:
            state["blob"] = blobs[0].digest
        message = message_of(str(state["part"].get("text", "")))
        uid = self._heads.opened(key, project=app).uid
        save = Save(session=uid, state=state, blobs=blobs, state_blobs=named, message=message)
        return engine.save(save).seq - 1

    def _load(self, key: str, version: int | None) -> types.Part | None:
        header = self._header(key, version)
        if header is None:
            return None
        state = self._state(header)
        part = types.Part.model_validate(state["part"])
        if part.inline_data is not None:
            part.inline_data.data = self.store.engine.load_blob(state["blob"], header.session)
        is_absent = part == types.Part() or artifact_util._is_rewind_tombstone(part)
        return None if is_absent else part

    def _header(self, key: str, version: int | None) -> Header | None:
        try:
            session = self.store.get(key)
            return session.header("latest" if version is None else f"seq:{version + 1}")
        except NotFound:
            return None

    def _state(self, header: Header) -> Any:
        return self.store.engine.load(header).value()

    def _described(self, key: str, header: Header) -> ArtifactVersion:
        app, user, session, filename = map(part_of, key.removeprefix(f"{FRAMEWORK}:").split("/"))
        state = self._state(header)
        part = types.Part.model_validate(state["part"])
        content = part.inline_data or (None if artifact_util.is_artifact_ref(part) else part.file_data)
        return ArtifactVersion(
            version=header.seq - 1,
            canonical_uri=artifact_util.get_artifact_uri(
                app, user, filename, header.seq - 1, session_id=session or None
            ),
            custom_metadata=state["metadata"],
            create_time=header.time_us / 1e6,
            mime_type="text/plain" if part.text is not None else content.mime_type if content else None,
        )

    def _names(self, app: str, user: str, sessions: set[str]) -> list[str]:
        prefix = f"{key_of(FRAMEWORK, app, user)}/"
        places = (info.key.removeprefix(prefix).split("/") for info in self._heads.sessions(prefix))
        return sorted(part_of(name) for session, name in places if part_of(session) in sessions)


def _key(app: str, user: str, session: str | None, filename: str) -> str:
    """The key of an artifact's session. One of a user is in no session."""
    if filename.startswith(OF_USER):
        return key_of(FRAMEWORK, app, user, "", filename)
    if not session:
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    return key_of(FRAMEWORK, app, user, session, filename)


def _followed(part: types.Part, references: int, app: str, user: str, session: str | None) -> Any:
    """Where a reference leads; `InputValidationError` where the caller may not read, or it leads on for ever."""
    return artifact_util.resolve_artifact_reference(
        file_uri=part.file_data.file_uri,
        app_name=app,
        user_id=user,
        session_id=session,
        remaining_depth=references,
    )
