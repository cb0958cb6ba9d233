"""What lies beside a dump that this tool wrote: ``documents.jsonl``, one line a document, in the files' order.

    {"file": "rows_0-2000/data_0.ckpt", "name": "chats.jsonl:1", "domain": "code", "tokens": 812}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_bytes

DOCUMENTS = "documents.jsonl"


def domains_of(folders: Sequence[Path], files: Sequence[Path]) -> list[str]:
    """The domain of each file; ``all`` where the dump does not say."""
    known: dict[Path, str] = {}
    for folder in folders:
        listing = folder / DOCUMENTS
        if not listing.is_file():
            continue
        for number, line in enumerate(read_bytes(listing, limit=1 << 30).splitlines(), start=1):
            try:
                entry = json.loads(line)
                known[folder / str(entry["file"])] = str(entry["domain"])
            except (json.JSONDecodeError, KeyError, TypeError):
                raise Eagle3Error(f"line {number} is not a document", where=listing) from None
    return [known.get(file, "all") for file in files]
