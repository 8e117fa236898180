"""Bodies: keyframes, deltas, chains of them, and the decisions of the writer."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepkeep.codec import delta
from stepkeep.codec.compression import START_BYTES, compress, decompress, zstd
from stepkeep.codec.delta import (
    PREFIX,
    RAW,
    SPLICE,
    ZSTD,
    Edit,
    Encoded,
    apply_edits,
    decode,
    encode_delta,
    encode_keyframe,
    find_edits,
    group_limit,
    pack_edits,
    rebuild,
    starts_group,
    unpack,
)
from stepkeep.engine import chains
from stepkeep.errors import Corrupt, InvalidInput, StepkeepError, Unsupported
from tests.sampling import examples


class Link(NamedTuple):
    """A stored body of a chain."""

    codec: str
    data: bytes
    size: int


KIB = 1024
MIB = 1024 * KIB


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def conversation(steps: int) -> list[bytes]:
    """The states of an agent whose list of messages grows, with counters before and after it."""
    source = random.Random(1)
    words = ["".join(source.choices("abcdefghijklmnop", k=source.randint(2, 9))) for _ in range(500)]
    messages: list[dict[str, str]] = []
    states = []
    for step in range(steps):
        messages.append({"role": "assistant", "content": " ".join(source.choices(words, k=150))})
        states.append(json.dumps({"step": step, "messages": messages, "tokens": step * 977}).encode())
    return states


def link(encoded: Encoded, content: bytes) -> Link:
    return Link(encoded.codec, encoded.data, len(content))


def chain(
    contents: list[bytes], encode: Callable[[bytes, bytes], Encoded | None] = encode_delta
) -> list[Link]:
    """Each content based on the one before it, in the order `rebuild` takes: target first."""
    links = [link(encode_keyframe(contents[0]), contents[0])]
    for base, content in pairwise(contents):
        encoded = encode(content, base)
        assert encoded is not None
        links.append(link(encoded, content))
    return links[::-1]


def encode_prefix(content: bytes, base: bytes) -> Encoded:
    return Encoded(PREFIX, compress(content, prefix=base))


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A content and what a few random edits make of it; small alphabets give repetitive data."""
    alphabet = draw(st.sampled_from([b"a", b"ab", b'{"role":1},', bytes(range(256))]))
    source = random.Random(draw(st.integers(0, 2**32)))
    old = bytes(source.choices(alphabet, k=draw(st.integers(0, 3000))))
    new = bytearray(old)
    for _ in range(draw(st.integers(0, 12))):
        place = source.randint(0, len(new))
        cut = source.choice([0, 1, 5, 300, 2000])
        new[place : place + cut] = source.choices(alphabet, k=source.choice([0, 1, 7, 90, 700]))
    return old, bytes(new)


class TestKeyframe:
    @given(st.binary(max_size=2000))
    @example(b"")
    @example(b"x")
    @example(b"x" * 2000)
    def test_any_content_comes_back(self, content: bytes) -> None:
        """A keyframe stands alone and gives back exactly what was encoded."""
        encoded = encode_keyframe(content)
        assert decode(encoded.codec, encoded.data, size=len(content)) == content

    def test_what_does_not_shrink_is_stored_as_it_is(self) -> None:
        """A keyframe is never larger than its content."""
        content = noise(1000)
        assert encode_keyframe(content) == Encoded(RAW, content)
        assert encode_keyframe(b"") == Encoded(RAW, b"")

    def test_text_is_compressed(self) -> None:
        """Content that shrinks is stored as one zstd frame."""
        content = conversation(20)[-1]
        encoded = encode_keyframe(content)
        assert encoded.codec == ZSTD
        assert len(encoded.data) < len(content) / 2


class TestSplice:
    @given(edited())
    def test_edits_of_edited_content_are_exact(self, pair: tuple[bytes, bytes]) -> None:
        """Edits found between a content and an edited one turn the first into the second, byte for byte."""
        old, new = pair
        edits = find_edits(old, new)
        assert edits is not None
        assert unpack(pack_edits(edits, b"")) == edits
        assert apply_edits(old, [(pack_edits(edits, old), len(new))]) == new

    @given(st.binary(max_size=300), st.binary(max_size=300))
    @example(b"", b"")
    @example(b"", b"x")
    @example(b"x", b"")
    def test_edits_of_any_two_contents_are_exact(self, old: bytes, new: bytes) -> None:
        """Two contents need not have anything in common."""
        edits = find_edits(old, new)
        assert edits is not None
        assert apply_edits(old, [(pack_edits(edits, old), len(new))]) == new

    @pytest.mark.parametrize(
        "size", [0, 1, 63, 64, 65, 127, 128, 191, 192, 193, 65535, 65536, 65537, 200_000]
    )
    def test_one_changed_byte_is_found_wherever_it_is(self, size: int) -> None:
        """The difference is found exactly, on every side of every stride of the comparison."""
        old = noise(size) + b"\0" + noise(200)
        new = noise(size) + b"\1" + noise(200)
        assert find_edits(old, new) == [Edit(size, 1, b"\1")]

    def test_what_is_put_into_a_large_content_is_stored_beside_its_beginning(self) -> None:
        """Words that came before are referred to: less is stored, by a compressor that is prepared or not."""
        steps = conversation(100)[-6:]
        alone = [len(compress(new[len(old) :])) for old, new in pairwise(steps)]
        for (old, new), most in zip(pairwise(steps), alone, strict=True):
            edits = [Edit(len(old), 0, new[len(old) :])] if new.startswith(old) else find_edits(old, new)
            assert edits is not None
            packed = pack_edits(edits, old)
            assert len(packed) < most
            assert apply_edits(old, [(packed, len(new))]) == new

    @pytest.mark.parametrize("cut", [0, 1, START_BYTES - 1, START_BYTES, START_BYTES + 1])
    def test_a_beginning_that_changes_within_a_chain(self, cut: int) -> None:
        """Each frame refers to the beginning of its own base, also where that grew, shrank or changed before."""
        text = b"".join(b"line %d of a text that goes on\n" % n for n in range(4000))
        contents = [
            text[:cut],
            text[: START_BYTES + 10],
            b"changed " + text[: START_BYTES + 100],
            b"changed " + text[: START_BYTES - 100],
            text[:40_000],
            text[:41_000] + text[:500],
        ]
        splices = []
        for old, new in pairwise(contents):
            edits = find_edits(old, new)
            assert edits is not None
            splices.append((pack_edits(edits, old), len(new)))
        for count in range(1, len(splices) + 1):
            assert apply_edits(contents[0], splices[:count]) == contents[count]

    def test_a_frame_that_refers_to_nothing_is_read_as_well(self) -> None:
        """As every frame was stored before, and as those are that go into a small content."""
        old = noise(START_BYTES)
        edits = [Edit(START_BYTES, 0, b"more")]
        assert decode(SPLICE, pack_edits(edits, b""), size=len(old) + 4, base=old) == old + b"more"

    def test_equal_contents_need_no_edit(self) -> None:
        """A state saved again costs a few bytes."""
        content = noise(100_000)
        assert find_edits(content, bytes(bytearray(content))) == []
        assert len(pack_edits([], b"")) < 16

    def test_a_step_of_a_conversation_is_a_few_small_edits(self) -> None:
        """A counter, the new message, a counter: only they are put in."""
        old, new = conversation(100)[-2:]
        edits = find_edits(old, new)
        assert edits is not None
        assert len(edits) <= 3
        assert sum(len(edit.put) for edit in edits) <= len(new) - len(old) + 32

    @pytest.mark.parametrize("size", [8, 40, 700, 9000])
    def test_comparison_finds_its_way_again(self, size: int) -> None:
        """After something was inserted, removed or replaced, what follows is kept."""
        changes = [(b"", noise(size, 1)), (noise(size, 1), b""), (noise(size, 1), noise(size // 2, 2))]
        for cut, put in changes:
            # A second difference at the end keeps the shared end from answering the question.
            old = noise(20_000, 3) + cut + noise(20_000, 4) + b"old"
            new = noise(20_000, 3) + put + noise(20_000, 4) + b"new"
            edits = find_edits(old, new)
            assert edits is not None
            assert sum(len(edit.put) for edit in edits) <= len(put) + 3

    def test_too_many_edits_are_given_up(self) -> None:
        """64 edits are a splice, 65 are not."""
        old = noise(70 * 1000)
        for changes, found in [(delta.MAX_EDITS, True), (delta.MAX_EDITS + 1, False)]:
            new = bytearray(old)
            for place in range(changes):
                new[500 + place * 1000] ^= 1
            assert (find_edits(old, bytes(new)) is not None) is found

    def test_too_much_to_put_in_is_given_up(self) -> None:
        """64 KiB put in are a splice, one byte more is not."""
        old = noise(1000)
        assert find_edits(old, old + noise(delta.MAX_PUT_BYTES, 1)) is not None
        assert find_edits(old, old + noise(delta.MAX_PUT_BYTES + 1, 1)) is None

    def test_the_largest_splice_can_be_read(self) -> None:
        """The reader's bound admits everything the writer may write."""
        huge = 2**62
        put = delta.MAX_PUT_BYTES // delta.MAX_EDITS
        edits = [Edit(huge, huge, noise(put, seed)) for seed in range(delta.MAX_EDITS)]
        assert unpack(pack_edits(edits, b"")) == edits

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"", id="no count"),
            pytest.param(b"\x01\x00", id="numbers missing"),
            pytest.param(b"\x01\x00\x00\x05abc", id="bytes missing"),
            pytest.param(b"\x00abc", id="bytes too many"),
            pytest.param(b"\x41" + b"\x00" * 195, id="65 edits"),
            pytest.param(b"\xff" * 50, id="endless number"),
            pytest.param(b"\x01\x09\x00\x00", id="keeps past the end"),
            pytest.param(b"\x01\x00\x09\x08abcdefgh", id="cuts past the end"),
            pytest.param(b"\x00", id="wrong size"),
        ],
    )
    def test_malformed_splices_are_refused(self, content: bytes) -> None:
        """A splice that makes no sense is corrupt; nothing is guessed."""
        with pytest.raises(Corrupt):
            decode(SPLICE, compress(content), size=7, base=b"01234567")


class TestPatch:
    @settings(max_examples=examples(50))
    @given(edited())
    def test_both_patch_codecs_are_exact(self, pair: tuple[bytes, bytes]) -> None:
        """Whatever was changed, both codecs give back the new content from the old one."""
        base, content = pair
        encoded = encode_delta(content, base)
        if encoded is None:
            assert len(base) < 8
            return
        for each in (encoded, encode_prefix(content, base)):
            assert decode(each.codec, each.data, size=len(content), base=base) == content

    def test_small_changes_are_spliced_and_large_ones_refer_to_the_base(self) -> None:
        """The codec is chosen by the change."""
        base = noise(300_000)
        small = encode_delta(base + b"more", base)
        moved = encode_delta(base[150_000:] + base[:150_000], base)
        assert small is not None
        assert moved is not None
        assert (small.codec, moved.codec) == (SPLICE, PREFIX)
        assert len(small.data) < 40
        assert len(moved.data) < 400

    @pytest.mark.parametrize("size", range(10))
    def test_a_base_under_eight_bytes_has_no_patch(self, size: int) -> None:
        """Nothing worth referring to: the writer makes a keyframe."""
        assert (encode_delta(b"content", b"b" * size) is None) is (size < 8)

    @pytest.mark.parametrize("size", range(8))
    def test_decoding_with_a_base_that_is_too_short_is_refused(self, size: int) -> None:
        """A base that cannot have been the one is corrupt, not an error of the library beneath."""
        with pytest.raises(Corrupt):
            decode(PREFIX, compress(b"content" * 9, prefix=b"12345678"), size=63, base=b"b" * size)

    @pytest.mark.parametrize("size", [8, 9, 1000, 1023, 1024, 1025, MIB, 20 * MIB])
    def test_the_window_spans_base_and_content(self, size: int) -> None:
        """Matches are found across the whole base, however far back they are."""
        base = noise(size)
        content = noise(100, 1) + base + noise(100, 2)
        data = compress(content, prefix=base)
        assert decode(PREFIX, data, size=len(content), base=base) == content
        assert len(data) < 300 + size // 1000

    @pytest.mark.parametrize(
        ("base_size", "size"), [(20 * MIB, 0), (20 * MIB, 1), (8, 3 * MIB), (3 * MIB, 100)]
    )
    def test_base_and_content_may_differ_widely_in_size(self, base_size: int, size: int) -> None:
        """A tiny content of a large base and the reverse both come back."""
        base, content = noise(base_size), noise(size, 1)
        assert decode(PREFIX, compress(content, prefix=base), size=size, base=base) == content


class TestDecode:
    def test_an_unknown_codec_is_unsupported(self) -> None:
        """A codec of a later version is told apart from damage."""
        with pytest.raises(Unsupported):
            decode("later", b"", size=0)

    @pytest.mark.parametrize("codec", [PREFIX, SPLICE])
    def test_a_patch_needs_a_base(self, codec: str) -> None:
        """A delta without its base is corrupt."""
        with pytest.raises(Corrupt):
            decode(codec, compress(b"content"), size=7)

    @pytest.mark.parametrize("codec", [RAW, ZSTD, PREFIX, SPLICE])
    @pytest.mark.parametrize("size", [-1, 0, 1, 999, 1001])
    def test_a_size_that_is_not_the_recorded_one_is_refused(self, codec: str, size: int) -> None:
        """Neither fewer nor more bytes than recorded are ever returned."""
        base, content = noise(1000, 1), noise(1000, 2)
        edits = find_edits(base, content)
        assert edits is not None
        data = {
            RAW: content,
            ZSTD: compress(content),
            PREFIX: compress(content, prefix=base),
            SPLICE: pack_edits(edits, base),
        }[codec]
        assert decode(codec, data, size=1000, base=base) == content
        with pytest.raises(Corrupt):
            decode(codec, data, size=size, base=base)

    @pytest.mark.parametrize("codec", [RAW, ZSTD, PREFIX, SPLICE])
    def test_a_size_above_the_ceiling_is_refused_unread(self, codec: str) -> None:
        """The ceiling holds even when the record itself claims more, and can be raised."""
        with pytest.raises(Unsupported):
            decode(codec, b"", size=512 * MIB + 1, base=b"12345678")
        content = noise(1000)
        with pytest.raises(Unsupported):
            decode(RAW, content, size=1000, ceiling=999)
        assert decode(RAW, content, size=1000, ceiling=1000) == content

    @pytest.mark.parametrize("codec", [ZSTD, PREFIX, SPLICE])
    def test_a_decompression_bomb_is_refused(self, codec: str) -> None:
        """A gibibyte of zeros in a small frame costs no more memory than the recorded size."""
        bomb = zeros(1024 * MIB)
        assert len(bomb) < 200 * KIB
        tracemalloc.start()
        try:
            with pytest.raises(Corrupt):
                decode(codec, bomb, size=100 * KIB, base=b"12345678")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MIB

    def test_a_frame_that_claims_a_large_window_is_refused(self) -> None:
        """The window is memory too: a frame may ask for no more than the recorded size needs."""
        wide = zstd.ZstdCompressor(options={int(zstd.CompressionParameter.window_log): 27})
        frame = wide.compress(b"small") + wide.flush()
        assert zstd.decompress(frame) == b"small"
        with pytest.raises(Corrupt):
            decode(ZSTD, frame, size=5)

    @pytest.mark.parametrize("codec", [ZSTD, PREFIX, SPLICE])
    def test_a_frame_cut_short_or_followed_by_more_is_refused(self, codec: str) -> None:
        """The data is exactly one whole frame."""
        base, content = conversation(6)[-2:]
        data = stored(codec, content, base)
        for end in range(len(data)):
            with pytest.raises(Corrupt):
                decode(codec, data[:end], size=len(content), base=base)
        for more in (b"\0", data):
            with pytest.raises(Corrupt):
                decode(codec, data + more, size=len(content), base=base)

    @pytest.mark.parametrize("codec", [ZSTD, PREFIX, SPLICE])
    def test_a_changed_bit_never_escapes_as_another_error(self, codec: str) -> None:
        """Damage gives an error of this package, or bytes of the recorded size that the digest refuses."""
        base, content = conversation(3)[-2:]
        data = stored(codec, content, base)
        for place in range(len(data)):
            for bit in range(8):
                damaged = bytearray(data)
                damaged[place] ^= 1 << bit
                with suppress(StepkeepError):
                    assert len(decode(codec, bytes(damaged), size=len(content), base=base)) == len(content)

    @given(st.sampled_from([RAW, ZSTD, PREFIX, SPLICE]), st.binary(max_size=100), st.integers(-1, 200))
    def test_arbitrary_bytes_never_escape_as_another_error(self, codec: str, data: bytes, size: int) -> None:
        """Nothing stored can raise anything but an error of this package, packed or not."""
        for each in (data, compress(data)):
            with suppress(StepkeepError):
                assert len(decode(codec, each, size=size, base=b"0123456789")) == size

    def test_a_wrong_base_may_go_unnoticed(self) -> None:
        """Why the caller checks the digest of the content: a wrong base can decode to wrong bytes."""
        base, content = noise(1000), noise(1000) + b"!"
        encoded = encode_delta(content, base)
        assert encoded is not None
        wrong = decode(encoded.codec, encoded.data, size=len(content), base=noise(1000, 1))
        assert wrong != content


class TestDecompress:
    @pytest.mark.parametrize(
        "size", [0, 1, 2, 1023, 1024, 32 * KIB, 32 * KIB + 1, 128 * KIB, MIB, 5 * MIB + 1]
    )
    def test_the_exact_limit_is_enough(self, size: int) -> None:
        """A frame of exactly the allowed size is accepted; with one byte less it is refused."""
        for content in (noise(size), b"x" * size):
            frame = compress(content)
            assert decompress(frame, limit=size) == content
            if size:
                with pytest.raises(Corrupt):
                    decompress(frame, limit=size - 1)

    def test_a_large_frame_is_decompressed_in_pieces(self) -> None:
        """A large content is the same, with a prefix too; a frame that is cut, has something behind it or is too long
        is refused."""
        base = bytes(range(256)) * 40_000
        content = base * 2 + b"the end"
        for prefix in (None, base):
            frame = compress(content, prefix=prefix)
            assert decompress(frame, limit=len(content), prefix=prefix) == content
            for wrong in (frame[:-1], frame + b"x", frame + frame, b""):
                with pytest.raises(Corrupt):
                    decompress(wrong, limit=len(content), prefix=prefix)
            with pytest.raises(Corrupt, match="more than the recorded"):
                decompress(frame, limit=len(content) - 1, prefix=prefix)


class TestRebuild:
    @pytest.mark.parametrize("encode", [encode_delta, encode_prefix])
    def test_a_chain_gives_the_content_of_its_first_link(
        self, encode: Callable[[bytes, bytes], Encoded | None]
    ) -> None:
        """Every checkpoint of a chain comes back exactly, whichever codec its deltas use."""
        contents = conversation(30)
        links = chain(contents, encode)
        for place, content in enumerate(reversed(contents)):
            assert rebuild(links[place:]) == content

    @settings(max_examples=examples(50))
    @given(edited(), st.lists(edited(), max_size=8))
    def test_codecs_may_be_mixed(self, first: tuple[bytes, bytes], rest: list[tuple[bytes, bytes]]) -> None:
        """Splices after prefix deltas, the reverse, and keyframes between them."""
        contents = [first[0] + b"at least eight bytes", first[1] + b"another ending"]
        contents += [new + b"and one more" for pair in rest for new in pair]
        encoders = (encode_delta, encode_prefix, encode_delta, lambda content, base: encode_keyframe(content))
        links = [link(encode_keyframe(contents[0]), contents[0])]
        for place, (base, content) in enumerate(pairwise(contents)):
            encoded = encoders[place % len(encoders)](content, base)
            assert encoded is not None
            links.append(link(encoded, content))
        assert rebuild(links[::-1]) == contents[-1]

    def test_many_pieces_are_joined_on_the_way(self) -> None:
        """A long run of many edits each stays exact when its pieces are joined in between."""
        source = random.Random(4)
        contents = [noise(100_000)]
        for _ in range(40):
            content = bytearray(contents[-1])
            for _ in range(50):
                content[source.randrange(len(content))] ^= 0xFF
            contents.append(bytes(content))
        links = chain(contents)
        assert all(each.codec == SPLICE for each in links[:-1])
        assert rebuild(links) == contents[-1]

    def test_a_chain_without_its_keyframe_is_corrupt(self) -> None:
        """The last link must stand alone."""
        links = chain(conversation(5))
        with pytest.raises(Corrupt):
            rebuild(links[:-1])

    def test_every_link_must_have_its_recorded_size(self) -> None:
        """A wrong size anywhere on the way is found, also inside a run of splices."""
        links = chain(conversation(12))
        for place, each in enumerate(links):
            wrong = Link(each.codec, each.data, each.size + 1)
            with pytest.raises(Corrupt):
                rebuild([*links[:place], wrong, *links[place + 1 :]])

    def test_the_ceiling_holds_for_every_link(self) -> None:
        """No content on the way may be above the ceiling, not only the one wanted."""
        large, small = noise(5000), noise(100)
        links = chain([small, large, small])
        assert rebuild(links) == small
        with pytest.raises(Unsupported):
            rebuild(links, ceiling=4999)

    def test_no_links_is_a_mistake_of_the_caller(self) -> None:
        """There is nothing to rebuild."""
        with pytest.raises(InvalidInput):
            rebuild([])


class TestGroups:
    def test_any_body_of_a_full_group_is_few_deltas_away(self) -> None:
        """Every 16th skips back to the 16th before: at most 78 deltas lead from the keyframe to one of 1,024."""
        limit = group_limit(None)
        content, positions, bases = noise(40_000), {}, {}
        _, line = chains.encode("state", None, chains.Base("cp", content), limit=limit, as_keyframe=False)
        for number in range(limit):
            new = chains.Base(f"cp_{number}", content + number.to_bytes(2, "big"))
            (body, *_), line = chains.encode("state", line, new, limit=limit, as_keyframe=number == 0)
            positions[number] = body.position
            bases[number] = None if body.base is None else int(body.base.removeprefix("cp_"))
        assert list(positions.values()) == list(range(limit))
        assert [bases[number] for number in range(1, 34)] == [*range(15), 0, *range(16, 31), 16, 32]

        def distance(number: int) -> int:
            base = bases[number]
            return 0 if base is None else 1 + distance(base)

        assert max(map(distance, bases)) == 78

    @pytest.mark.parametrize(
        ("keep_last", "keyframe_every", "limit"),
        [
            *((None, None, 1024), (9000, None, 1024), (2048, None, 1024), (255, None, 127), (50, None, 25)),
            *(
                (3, None, 1),
                (1, None, 1),
                (0, None, 1),
                (1000, 1, 1),
                (None, 500, 500),
                (2, 10, 10),
                (9, 0, 1),
            ),
        ],
    )
    def test_a_group_is_at_most_half_of_what_is_kept(
        self, keep_last: int | None, keyframe_every: int | None, limit: int
    ) -> None:
        """Half of the kept checkpoints, at most 1,024, unless the caller says how often."""
        assert group_limit(keep_last, keyframe_every) == limit

    @pytest.mark.parametrize(
        ("length", "deltas_bytes", "delta_bytes", "expected"),
        [
            pytest.param(0, 0, 1, True, id="no group yet"),
            pytest.param(1, 0, 500, False, id="half of the keyframe"),
            pytest.param(1, 0, 501, True, id="more than half of the keyframe"),
            pytest.param(5, 1900, 100, False, id="deltas twice the keyframe"),
            pytest.param(5, 1900, 101, True, id="deltas more than twice the keyframe"),
            pytest.param(9, 0, 1, False, id="room for one more"),
            pytest.param(10, 0, 1, True, id="group full"),
            pytest.param(5, 0, None, True, id="no delta could be made"),
        ],
    )
    def test_when_a_keyframe_starts_a_group(
        self, length: int, deltas_bytes: int, delta_bytes: int | None, expected: bool
    ) -> None:
        """A full group, deltas that outweigh their keyframe, and one large delta each end the group."""
        assert expected is starts_group(
            length=length,
            limit=10,
            keyframe_bytes=1000,
            deltas_bytes=deltas_bytes,
            delta=None if delta_bytes is None else Encoded(SPLICE, bytes(delta_bytes)),
            is_bridged=True,
            size=MIB,
            keyframe_size=MIB,
        )

    @pytest.mark.parametrize(
        ("keyframe_size", "size", "expected"),
        [
            pytest.param(MIB, MIB * 3 // 2, True, id="grown by half"),
            pytest.param(MIB, MIB * 3 // 2 - 1, False, id="grown by less"),
            pytest.param(MIB, MIB // 2, False, id="shrunk"),
            pytest.param(1000, MIB // 2 - 1, False, id="not large"),
            pytest.param(1000, MIB // 2, True, id="large by now"),
        ],
    )
    def test_a_large_content_that_grew_gets_a_keyframe(
        self, keyframe_size: int, size: int, expected: bool
    ) -> None:
        """Most of a large content is in one frame, however it grows."""
        assert expected is starts_group(
            length=5,
            limit=10,
            keyframe_bytes=1000,
            deltas_bytes=0,
            delta=Encoded(SPLICE, b"x"),
            is_bridged=True,
            size=size,
            keyframe_size=keyframe_size,
        )

    @pytest.mark.parametrize("codec", [SPLICE, PREFIX])
    @pytest.mark.parametrize("is_bridged", [True, False])
    def test_some_groups_are_smaller(self, codec: str, is_bridged: bool) -> None:
        """Those that hang on one record alone, and deltas that are applied to all of their base."""
        sizes: Any = {"keyframe_bytes": 1000, "deltas_bytes": 0, "delta": Encoded(codec, b"x")}
        sizes |= {"limit": 1024, "is_bridged": is_bridged, "size": 1000, "keyframe_size": 1000}
        assert not starts_group(length=127, **sizes)
        assert starts_group(length=128, **sizes) is not (codec == SPLICE and is_bridged)
        assert starts_group(length=1024, **sizes)


def stored(codec: str, content: bytes, base: bytes) -> bytes:
    edits = find_edits(base, content)
    assert edits is not None
    return {ZSTD: compress(content), PREFIX: compress(content, prefix=base), SPLICE: pack_edits(edits, base)}[
        codec
    ]


def zeros(size: int) -> bytes:
    """One frame of that many zeros, made without holding them."""
    compressor = zstd.ZstdCompressor(1)
    chunk = bytes(MIB)
    return b"".join([*(compressor.compress(chunk) for _ in range(size // MIB)), compressor.flush()])
