"""Ed25519 keys, written as the broker writes them: one key lets a source in and signs its history.

The text form is NATS's nkey (base32 of prefix, 32 bytes and CRC-16; docs.nats.io, "NKeys"): a seed
begins with SU and stays secret, a public key begins with U. Ed25519 itself is RFC 8032's, made by
`cryptography`, which is loaded when the first key is used.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import secrets
import struct
from dataclasses import dataclass, field

from eventlog.errors import AtollError

PUBLIC_KEY = r"^U[A-Z2-7]{55}$"
_USER = 20 << 3  # prefix bytes of the format: five bits each, U and S in base32
_SEED = 18 << 3
_PUBLIC = re.compile(PUBLIC_KEY)


class KeyInvalid(AtollError):
    """A text is no key, or no seed of one."""


@dataclass(frozen=True, slots=True)
class Key:
    """One source's pair of keys. The seed is shown by nothing but `seed`."""

    _raw: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Key:
        """A new key from the system's randomness."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def of_seed(cls, seed: str) -> Key:
        """The key with this seed. Raises KeyInvalid, which does not repeat it."""
        data = _checked(seed.strip(), "a seed")
        if len(data) != 34 or (data[0] & 0xF8, (data[0] & 7) << 5 | data[1] >> 3) != (_SEED, _USER):
            raise KeyInvalid("it is no seed of a user's key, which begins with SU")
        return cls(data[2:])

    @property
    def seed(self) -> str:
        """The secret, as text."""
        return _text(bytes((_SEED | _USER >> 5, (_USER & 31) << 3)) + self._raw)

    @property
    def public(self) -> str:
        """The public key, as text."""
        return _public(self._raw)

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of an Ed25519 signature."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._raw).sign(data)


def verifies(public: str, data: bytes, signature: bytes) -> bool:
    """Whether the holder of the key `public` signed `data`; what is no key signed nothing."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(_raw_public(public)).verify(signature, data)
    except (InvalidSignature, KeyInvalid, ValueError):
        return False
    return True


def is_public(text: str) -> bool:
    """Whether it is a public key, checksum included."""
    try:
        return len(_raw_public(text)) == 32
    except KeyInvalid:
        return False


@functools.lru_cache(maxsize=64)
def _public(raw: bytes) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(raw).public_key()
    return _text(bytes((_USER,)) + key.public_bytes_raw())


def _raw_public(text: str) -> bytes:
    if not _PUBLIC.match(text):
        raise KeyInvalid(f"{text[:60]!r} is no public key, which is U and 55 letters or digits")
    data = _checked(text, "a public key")
    if data[0] != _USER:
        raise KeyInvalid(f"{text!r} is no public key of a user")
    return data[1:]


def _text(data: bytes) -> str:
    check = struct.pack("<H", binascii.crc_hqx(data, 0))
    return base64.b32encode(data + check).rstrip(b"=").decode()


def _checked(text: str, what: str) -> bytes:
    """The bytes of a key without their checksum. Raises KeyInvalid."""
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except (ValueError, binascii.Error) as error:
        raise KeyInvalid(f"it is not {what}: no base32") from error
    if base64.b32encode(data).rstrip(b"=").decode() != text:  # bits left over in the last letter
        raise KeyInvalid(f"it is not {what}: its last letter is wrong")
    if len(data) < 3 or struct.unpack("<H", data[-2:])[0] != binascii.crc_hqx(data[:-2], 0):
        raise KeyInvalid(f"it is not {what}: its checksum is wrong")
    return data[:-2]
