"""Draft-vocabulary files of every trainer and engine, in and out of one ``VocabMapping``."""

from eagle3_core.vocab.formats.readers import read_mapping
from eagle3_core.vocab.formats.writers import FORMATS, mapping_files, write_mapping

__all__ = ["FORMATS", "mapping_files", "read_mapping", "write_mapping"]
