"""Text without what is nobody's business: passwords, keys, tokens."""

from __future__ import annotations

import re

HIDDEN = "***"
_WORDS = "pass(?:word|wd)? secret token(?!s) credential nkey seed api_?key access_?key webhook"
_NAMES = rf"[\w.-]*(?:{'|'.join(_WORDS.split())})"
_ASSIGNED = re.compile(
    rf"""(?i)(["']?\b{_NAMES}[\w.-]*["']?\s*[:=]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,;}}\]]+)"""
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE)
_SEED = re.compile(r"\bS[OUACNX][A-Z2-7]{56}\b")  # an nkey seed: prefix byte, base32, 58 characters
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_BLOCKS_REST = re.compile(r"\A.*?-----END [A-Z0-9 ]+-----", re.DOTALL)  # of a log's end


def redacted(text: str) -> str:
    """The text with everything hidden that looks like a secret; too much rather than too little."""
    text = _BLOCKS_REST.sub(HIDDEN, _BLOCK.sub(HIDDEN, text))
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    text = _SEED.sub(HIDDEN, text)
    text = _JWT.sub(HIDDEN, text)
    return _ASSIGNED.sub(rf"\1{HIDDEN}", text)
