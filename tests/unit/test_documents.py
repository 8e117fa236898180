"""The readable documents: what goes in comes out exactly, and nothing else is taken for one."""

from __future__ import annotations

import base64
import gzip
import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.codec import document, integrity, readable
from stepkeep.codec.delta import Body
from stepkeep.codec.document import Document
from stepkeep.codec.readable import Layout
from stepkeep.errors import Corrupt, Unsupported
from stepkeep.model import Header, SessionInfo, Status, Trigger, TriggerKind

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
SESSION = SessionInfo(uid="u1", key="run/ä", created_us=1, updated_us=2, metadata={"a": [1]}, gaps=((1, 2),))
TIME_US = 1_764_426_622_123_456


def body(name: str, content: bytes, **fields: Any) -> Body:
    return Body(
        checkpoint="cp_1",
        name=name,
        codec=fields.pop("codec", "raw"),
        size=len(content),
        stored_size=len(content),
        digest=integrity.digest(content),
        data=content,
        **fields,
    )


def doc(state: bytes, *more: Body, encoding: str = "json", **fields: Any) -> Document:
    bodies = (body("state", state), *more)
    contents = {each.name: integrity.describe(each.data, encoding) for each in bodies}
    draft = Header(
        v=1,
        seq=0,
        id="cp_1",
        session="u1",
        branch="main",
        time_us=fields.pop("time_us", TIME_US),
        contents=contents,
        **fields,
    )
    raw = integrity.seal(draft, 3, (), ())
    return Document(raw=raw, header=integrity.open_header(raw), session=SESSION, bodies=bodies)


def shown(layout: Layout, one: Document) -> dict[str, Any]:
    """The document as any JSON reader sees it."""
    found: dict[str, Any] = json.loads(document.encode(layout, one))
    return found


CONTENTS = [
    b'{"query":"tides","results":[]}',
    b'"text with \\n and \\u2028"',
    b"5",
    b"null",
    b"",
    b"no json",
    b'{"a":1',
    b' {"a":1}',
    b'{"a":1} ',
    b'{"a":\n1}',
    b'1,"stepkeep":{"version":1}',
    b'1\n,"integrity":{}}\n',
    bytes(range(256)),
]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("content", CONTENTS)
def test_contents_come_back_exactly(layout: Layout, content: bytes) -> None:
    """Whatever a body holds, and whatever it claims to be; the document is JSON all the same."""
    one = doc(content, body("details", content), body("state", content, is_redundant=True, base="cp_0"))
    encoded = document.encode(layout, one)
    assert document.decode(layout, encoded) == one
    json.loads(encoded)


@given(
    st.binary(max_size=200), st.sampled_from(list(Layout)), st.sampled_from(["json", "json+tags", "other"])
)
def test_any_content_comes_back_exactly(content: bytes, layout: Layout, encoding: str) -> None:
    """Bytes of any kind under any encoding."""
    one = doc(content, encoding=encoding)
    assert document.decode(layout, document.encode(layout, one)) == one


@pytest.mark.parametrize("layout", Layout)
def test_a_state_is_one_line(layout: Layout) -> None:
    """The compact JSON value stands alone on its line, as it was saved."""
    lines = document.encode(layout, doc(CONTENTS[0])).splitlines()
    assert lines.count(CONTENTS[0]) == 1


@pytest.mark.parametrize("layout", Layout)
def test_the_last_line_is_checked_by_hand(layout: Layout, tmp_path: Path) -> None:
    """`head -n -1 FILE | sha256sum` gives the checksum in the last line."""
    file = tmp_path / "x.json"
    file.write_bytes(document.encode(layout, doc(CONTENTS[0])))
    answer = subprocess.run(
        ["sh", "-c", f"head -n -1 {file} | sha256sum"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split()[0] == json.loads(file.read_text())["integrity"]["checksum"]


def test_a_large_state_is_compressed_in_the_workflow_envelope() -> None:
    """Above 1 MiB, and only there; `base64 -d | zcat` reads it."""
    content = b'{"text":"' + b"words " * 300_000 + b'"}'
    one = doc(content)
    found = shown(Layout.WORKFLOW, one)
    assert (found["compressed"], found["original_size"]) == (True, len(content))
    assert found["stored_size"] < len(content) // 10
    assert gzip.decompress(base64.b64decode(found["data"])) == content
    assert document.decode(Layout.WORKFLOW, document.encode(Layout.WORKFLOW, one)) == one
    assert shown(Layout.RUN, one)["state"] == json.loads(content)
    small = shown(Layout.WORKFLOW, doc(b'{"a":1}'))
    assert (small["compressed"], small["data"], small["stored_size"]) == (False, {"a": 1}, 7)


# --- fields ----------------------------------------------------------------------------------------------------


def test_the_run_document_has_the_fields_of_its_specification() -> None:
    """From the header, and from the details that were saved."""
    outcome = {"kind": "shell", "name": "make", "result": "PASS", "duration_ms": 5, "summary": "ok"}
    context = {
        "window_pressure": "low",
        "protected_artifacts": ["a"],
        "dropped_items": 2,
        "policy_profile": "p",
    }
    details = {
        "step_state": {"step_id": "s", "step_ordinal": 4, "step_status": "done"},
        "context_digest": context,
        "command_outcomes": [outcome],
    }
    trigger = Trigger(TriggerKind.ERROR, "tool_failed")
    one = doc(b"{}", body("details", json.dumps(details).encode()), status=Status.FAILED, trigger=trigger)
    found = shown(Layout.RUN, one)
    assert found["snapshot_id"] == "cp_1"
    assert found["created_at"] == "2025-11-29T14:30:22.123456Z"
    assert (found["run_id"], found["source"], found["status"]) == ("run/ä", "error_boundary", "failed")
    assert found["source_details"] == ["tool_failed"]
    assert found["step_state"] == details["step_state"]
    assert found["context_digest"] == context
    assert found["command_outcomes"] == [outcome]


@pytest.mark.parametrize(
    "details", [b"5", b'{"step_state":5,"command_outcomes":[1]}', b"{", b'{"context_digest":{}}']
)
def test_details_of_another_shape_are_not_shown(details: bytes) -> None:
    """They stay in the document as they are; a field nobody filled is left out."""
    found = shown(Layout.RUN, doc(b"{}", body("details", details)))
    assert not found.keys() & {"step_state", "context_digest"}
    assert found["command_outcomes"] == []
    assert shown(Layout.RUN, doc(b"{}", step=4))["step_state"] == {"step_ordinal": 4}


def test_the_phase_document_has_the_fields_of_its_specification() -> None:
    """From the header's metadata; `completed` from the session."""
    criterion = {"id": "c", "subject": "s", "status": "pending"}
    metadata = {"phase": "plan", "taskSummary": "t", "iscCriteria": [criterion], "left": 1}
    found = shown(Layout.PHASE, doc(b"{}", metadata=metadata))
    assert (found["id"], found["sessionId"], found["phase"], found["phaseNumber"]) == (
        "cp_1",
        "run/ä",
        "plan",
        3,
    )
    assert (found["taskSummary"], found["iscCriteria"], found["metadata"]) == ("t", [criterion], {"left": 1})
    assert (found["createdAt"], found["completed"]) == ("2025-11-29T14:30:22.123456Z", False)
    plain = shown(Layout.PHASE, doc(b"{}", message="what it is about"))
    assert (plain["phase"], plain["taskSummary"]) == ("checkpoint", "what it is about")
    assert "phaseNumber" not in plain


@pytest.mark.parametrize("layout", Layout)
def test_the_schemas_are_those_that_reading_checks(layout: Layout) -> None:
    """The published JSON Schema is the shape that a document is decoded with."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A Stepkeep checkpoint in the {layout} layout",
        **_with_clean_texts(msgspec.json.schema(readable.DOCUMENTS[layout])),
    }
    assert json.loads((SCHEMAS / f"{layout}.json").read_text()) == json.loads(json.dumps(schema))


def _with_clean_texts(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose descriptions do not depend on how a Python release indents docstrings."""
    return {
        name: _with_clean_texts(value)
        if isinstance(value, dict)
        else inspect.cleandoc(value)
        if name == "description"
        else value
        for name, value in schema.items()
    }


# --- what is refused -------------------------------------------------------------------------------------------


def resealed(data: bytes) -> bytes:
    """The document with a checksum that fits whatever was changed in it."""
    covered = data[: data.rindex(b',"integrity"')]
    return covered + document.integrity_line(integrity.digest(covered))


def refused(layout: Layout, data: bytes) -> str:
    with pytest.raises((Corrupt, Unsupported)) as refusal:
        document.decode(layout, data)
    return refusal.value.code


@pytest.mark.parametrize("layout", Layout)
def test_what_is_no_document_is_refused_with_its_reason(layout: Layout) -> None:
    """Each kind of bad bytes has its code."""
    good = document.encode(layout, doc(CONTENTS[0]))
    schema, mismatch = "checkpoint_schema_invalid", "checkpoint_integrity_mismatch"
    without = good[: good.rindex(b',"integrity"')] + b"}\n"
    assert refused(layout, b"") == schema
    assert refused(layout, b"\0" * len(good)) == schema
    assert refused(layout, b"not json at all\n") == schema
    assert refused(layout, good[:-40]) == schema
    assert refused(layout, good[: len(good) // 2]) == schema
    assert refused(layout, b'{"a":1}\n') == mismatch
    assert refused(layout, without) == mismatch
    assert refused(layout, good.replace(b"tides", b"tidee")) == mismatch
    assert refused(layout, resealed(good.replace(b'"status":"in_progress"', b'"status":"odd"'))) == schema
    assert (
        refused(layout, resealed(good.replace(b'"stepkeep":{"version":1', b'"stepkeep":{"version":2')))
        == "format_newer"
    )
    assert refused(layout, resealed(b'{"stepkeep":{"version":2,"new":true}\n,"integrity"')) == "format_newer"
    assert refused(layout, resealed(b'{"other":1\n,"integrity"')) == schema
    assert refused(layout, resealed(good.replace(b'"seq":3', b'"seq":4'))) == mismatch
    others = [other for other in Layout if other is not layout]
    assert {refused(other, good) for other in others} == {schema}


@pytest.mark.full
@pytest.mark.parametrize("layout", Layout)
def test_every_flipped_bit_and_every_cut_is_noticed(layout: Layout) -> None:
    """No byte of a document can change unseen."""
    good = document.encode(layout, doc(CONTENTS[0], body("details", b"{}")))
    for at in range(len(good)):
        for bit in range(8):
            changed = bytearray(good)
            changed[at] ^= 1 << bit
            refused(layout, bytes(changed))
        refused(layout, good[:at])


def test_compressed_bytes_never_grow_past_their_size() -> None:
    """A frame that claims little and holds much is refused without being unpacked."""
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(Corrupt):
        document.unzip(bomb, limit=1000)
    with pytest.raises(Corrupt):
        document.unzip(document.gzip(b"x")[:-1], limit=1000)
    with pytest.raises(Corrupt):
        document.unzip(document.gzip(b"x") + b"y", limit=1000)
    assert document.unzip(document.gzip(b"x" * 1000), limit=1000) == b"x" * 1000
