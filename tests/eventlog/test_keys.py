"""Keys and signatures against published vectors, and against whatever is a little wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.chain import Record
from eventlog.codec import Envelope, decode, encode, pack, unpack
from eventlog.events import CoordinatorTick, RunFinished
from eventlog.keys import Key, KeyInvalid, is_public, verifies
from eventlog.signatures import Anchor, AnchorInvalid, fault, seal

# docs.nats.io, "NKeys": the pair in the examples of a user's configuration
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
# RFC 8032, 7.1, test 2: secret key, message, signature
RFC_SECRET = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_a_seed_and_its_public_key_are_the_brokers() -> None:
    assert Key.of_seed(SEED).public == PUBLIC
    assert Key.of_seed(SEED).seed == SEED
    assert SEED not in repr(Key.of_seed(SEED))


def test_a_signature_is_that_of_rfc_8032() -> None:
    assert Key(RFC_SECRET).sign(b"\x72") == RFC_SIGNATURE
    assert verifies(Key(RFC_SECRET).public, b"\x72", RFC_SIGNATURE)


@given(st.integers(0, 57), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_a_wrong_letter_anywhere_is_no_key(at: int, letter: str) -> None:
    wrong = SEED[:at] + letter + SEED[at + 1 :]
    if wrong != SEED:
        with pytest.raises(KeyInvalid) as error:
            Key.of_seed(wrong)
        assert wrong not in str(error.value)
    public = PUBLIC[: at % 56] + letter + PUBLIC[at % 56 + 1 :]
    assert is_public(public) == (public == PUBLIC)


@given(st.text(max_size=80))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    assert not is_public(text)
    assert not verifies(text, b"", bytes(64))
    with pytest.raises(KeyInvalid):
        Key.of_seed(text)


DIGEST = "ab" * 32


def end(**changes: object) -> bytes:
    fields = {
        "outcome": "target",
        "version": 1,
        "tokens": 2,
        "num_returned": 0,
        "parameters_digest": DIGEST,
        "momentum_digest": DIGEST,
        "residual_digest": DIGEST,
        "through": 7,
        "log_digest": DIGEST,
        "reason": "it ended",
    }
    event = RunFinished.model_validate({**fields, **changes})
    envelope = Envelope("id", event.type, 1, "run", "coordinator", 3, 0.0, 1, "before")
    return encode(event, envelope)


def test_a_signature_covers_every_byte_of_an_event() -> None:
    key, payload = Key.generate(), end()
    signed = seal(payload, key)
    assert fault(signed, [Key.generate().public, key.public]) == ""
    assert (
        decode(Record(1, "coordinator", 0, signed))[1:3]
        == decode(Record(1, "coordinator", 0, payload))[1:3]
    ), "who knows nothing of signatures reads the same event"
    for name, value in unpack(payload).items():
        other = {**unpack(signed), name: [value, "other"]}
        assert "no key" in fault(pack(other), [key.public]), name
    assert "missing" in fault(payload, [key.public])
    assert "no key" in fault(signed, [])
    assert "no key" in fault(pack({**unpack(signed), "sig": "text"}), [key.public])
    assert "cannot be read" in fault(b"\xc1", [key.public])


def test_an_anchor_reads_as_it_was_written_and_not_when_it_was_changed() -> None:
    key = Key.generate()
    anchor = Anchor.of("run", Record(9, "coordinator", 0, seal(end(), key)), key.public)
    assert (anchor.through, anchor.log_digest) == (7, DIGEST)
    assert Anchor.parse(anchor.text()) == anchor
    assert Anchor.parse(f"run:7:{DIGEST}") == Anchor("run", 7, DIGEST)
    for field, value in (
        ("run", "other"),
        ("through", 8),
        ("log_digest", "cd" * 32),
        ("key", Key.generate().public),
        ("event", "AAAA"),
    ):
        with pytest.raises(AnchorInvalid):
            Anchor.parse(json.dumps({**json.loads(anchor.text()), field: value}))


@given(st.text(max_size=60))
def test_any_text_is_no_anchor_and_no_crash(text: str) -> None:
    with pytest.raises(AnchorInvalid):
        Anchor.parse(text.replace(":", ""))


def test_an_end_without_a_digest_holds_no_anchor() -> None:
    key = Key.generate()
    with pytest.raises(AnchorInvalid):
        Anchor.of("run", Record(9, "coordinator", 0, seal(end(through=None), key)), key.public)


def _event() -> bytes:
    ticked = CoordinatorTick(tick=1)
    return encode(ticked, Envelope("e", ticked.type, 1, "r", "coordinator", 1, 0.0))


def test_a_signed_event_of_mixed_keys_or_endless_nesting_is_judged_like_any_other() -> None:
    key = Key.of_seed(SEED)
    sound = unpack(_event())
    mixed = {**sound, b"id": 1, "more": {b"a": 1, "a": 2}}
    assert fault(seal(pack(mixed), key), [key.public]) == ""
    assert fault(pack(mixed | {"sig": b"s"}), [key.public])
    nested: object = 1
    for _ in range(400):
        nested = [nested]
    assert "cannot be read" in fault(pack({**sound, "x": nested, "sig": b"s"}), [key.public])
    for other in (b"\x91" * 900 + b"\xc0", pack(7), pack([1]), pack({"sig": b"s"})):
        assert "cannot be read" in fault(other, [key.public])


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "r:-5:" + "ab" * 32, "r:٣:" + "ab" * 32, "r:5:x"]
)
def test_what_is_no_anchor_is_refused_whatever_it_is(text: str) -> None:
    with pytest.raises(AnchorInvalid):
        Anchor.parse(text)
