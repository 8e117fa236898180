"""Events: a bounded log of what happened to a session."""

from __future__ import annotations

from stepkeep.storage.port import MAX_EVENTS, Backend, Event
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.records import START_US, new_session


class EventContract(Fixtures):
    def test_an_event_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field is kept, and the answer is what is stored."""
        data = {"who": "me", "nested": [1, None, {"x": 2.5}]}
        event = backend.record_event(uid, 'it\'s "happening"', data, time_us=START_US)
        assert event == Event(number=1, time_us=START_US, type='it\'s "happening"', data=data)
        assert backend.events(uid) == [event]

    def test_events_are_numbered_in_each_session(self, backend: Backend, uid: str) -> None:
        """Numbers grow in the order of recording, whatever the times."""
        other = backend.create_session(new_session()).uid
        numbers = [backend.record_event(uid, "t", {}, time_us=-number).number for number in range(3)]
        assert numbers == [1, 2, 3]
        assert backend.record_event(other, "t", {}, time_us=1).number == 1
        assert [event.number for event in backend.events(uid)] == numbers

    def test_events_are_read_on(self, backend: Backend, uid: str) -> None:
        """`after` and `limit` page through the log, oldest first."""
        for number in range(5):
            backend.record_event(uid, f"{number}", {}, time_us=number)
        assert [event.type for event in backend.events(uid, after=2)] == ["2", "3", "4"]
        assert [event.type for event in backend.events(uid, after=1, limit=2)] == ["1", "2"]
        assert backend.events(uid, after=5) == []
        assert backend.events(uid, limit=0) == []

    def test_the_log_keeps_the_newest(self, backend: Backend, uid: str) -> None:
        """Older ones go first, and numbers go on."""
        for number in range(MAX_EVENTS + 7):
            backend.record_event(uid, "t", {}, time_us=number)
        events = backend.events(uid)
        assert [event.number for event in events] == list(range(8, MAX_EVENTS + 8))

    def test_what_a_caller_holds_is_not_the_log(self, backend: Backend, uid: str) -> None:
        """Changing data that was given or received changes nothing that is stored."""
        data: dict[str, list[int]] = {"a": []}
        backend.record_event(uid, "t", data, time_us=1).data["a"].append(1)
        data["a"].append(2)
        backend.events(uid)[0].data["a"].append(3)
        assert backend.events(uid)[0].data == {"a": []}

    def test_events_do_not_touch_the_session(self, backend: Backend, uid: str) -> None:
        """Recording is not an update."""
        before = backend.session(uid)
        backend.record_event(uid, "t", {}, time_us=START_US * 2)
        assert backend.session(uid) == before
