"""Showing token bytes to people. Tokens are hostile: they hold tags, control characters and bidi marks."""

from __future__ import annotations

import unicodedata

_VISIBLE_SPACE = {" ": "\u2423", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LIMIT = 48


def show_token(token: bytes, *, limit: int = _LIMIT) -> str:
    """Printable text for any bytes: spaces visible, controls, marks and broken UTF-8 escaped, long ones cut.

    The result holds letters, digits, punctuation and symbols only, no bidi or
    zero-width character; it still must be escaped for HTML where it is put.
    """
    if not token:
        return "(empty)"
    text = token[: 4 * limit].decode("utf-8", errors="backslashreplace")
    shown = "".join(_show_character(ch) for ch in text[: limit + 1])
    if len(shown) > limit or len(token) > 4 * limit:
        return shown[:limit] + "\u2026"
    return shown


def _show_character(ch: str) -> str:
    if ch in _VISIBLE_SPACE:
        return _VISIBLE_SPACE[ch]
    # Combining marks attach to whatever stands before them; format and control characters act on it.
    if unicodedata.category(ch)[0] in "CZM":
        code = ord(ch)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return ch
