"""Text without what is nobody's business: passwords, keys, tokens."""

from __future__ import annotations

import re

HIDDEN = "***"
_WORDS = (
    "pass(?:word|wd|phrase)? pwd secret token(?!s) credential nkey seed webhook cookie signature "
    "(?:api|access|private|signing|ssh|deploy)[_-]?key auth(?![a-z]) authorization"
)
# Of a name no more than names have: from each place of a long line it would be read to its end.
_NAMES = rf"[\w.-]{{0,40}}(?:{'|'.join(_WORDS.split())})[\w.-]{{0,40}}"
# A value in quotes, in quotes of a text that stands in quotes itself, or up to what ends a word.
_VALUE = r"""\\"(?:[^"\\\n]|\\[^"\n])*\\"|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s,;}\]]+"""
_SCHEME = re.compile(r"(?i)\b(authorization\W{1,6}\w+|bearer)(\s+)[\w+/=.~-]{6,}")
_ASSIGNED = re.compile(rf"""(?i)(\\?["']?\b{_NAMES}\\?["']?\s*[:=]\s*)({_VALUE})""")
_OPTION = re.compile(rf"(?i)(--?{_NAMES}[\"']?,?\s+)({_VALUE})")
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s@\"']+@", re.IGNORECASE)
# As services mark theirs, that they be found: of code and model hubs, chats, object stores.
_MARKED = re.compile(r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{16,}")
_SEED = re.compile(r"\bS[OUACNX][A-Z2-7]{56}\b")  # an nkey seed: prefix byte, base32, 58 characters
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_BLOCKS_REST = re.compile(r"\A.*?-----END [A-Z0-9 ]+-----", re.DOTALL)  # of a log's end


def redacted(text: str) -> str:
    """The text with everything hidden that looks like a secret; too much rather than too little."""
    text = _BLOCKS_REST.sub(HIDDEN, _BLOCK.sub(HIDDEN, text))
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    text = _SEED.sub(HIDDEN, text)
    text = _MARKED.sub(HIDDEN, _JWT.sub(HIDDEN, text))
    text = _SCHEME.sub(rf"\1\2{HIDDEN}", text)
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    return _ASSIGNED.sub(rf"\1{HIDDEN}", text)
