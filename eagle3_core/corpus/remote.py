"""Inputs behind a URL (``s3://``, ``gs://``, ``hf://``, ...), through fsspec and the package that speaks the scheme.

A remote file is fetched whole into a temporary folder when its turn comes and
removed after, so that at most one a process lies on disk.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import reason


@dataclass(frozen=True)
class Remote:
    """One file behind a URL. ``str`` is the URL; ``name`` its last part."""

    url: str
    size: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.url.partition("://")[2]).name

    def __str__(self) -> str:
        return self.url


Source = Path | Remote
"""An input file, here or behind a URL."""


def is_url(text: str) -> bool:
    return "://" in text


def find_remote(url: str) -> list[Remote]:
    """Files of a remote file, folder or glob, in a stable order; none where nothing matches.

    Raises Eagle3Error where the scheme has no package here or the store cannot be read.
    """
    import fsspec

    scheme = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
        if system.isdir(path):
            found = system.find(path)
        elif system.exists(path):
            found = [path]
        else:
            found = [item for item in system.glob(path) if system.isfile(item)]
        return [Remote(f"{scheme}://{str(item).removeprefix(f'{scheme}://')}", int(system.size(item) or 0))
                for item in sorted(found)]
    except (ImportError, ValueError) as error:
        raise Eagle3Error("cannot be opened", where=url, found=reason(error),
                          fix=f"install the fsspec package for {scheme}://") from None
    except OSError as error:
        raise Eagle3Error("cannot be read", where=url, found=reason(error),
                          ) from None


def size_of(source: Source) -> int:
    """Bytes."""
    return source.size if isinstance(source, Remote) else source.stat().st_size


@contextlib.contextmanager
def opened(source: Source) -> Iterator[Path]:
    """A local path with the source's bytes, as long as the block runs. Raises Eagle3Error when it cannot be fetched."""
    if isinstance(source, Path):
        yield source
        return
    import fsspec

    with tempfile.TemporaryDirectory(prefix="eagle3-") as folder:
        local = Path(folder) / source.name
        try:
            system, path = fsspec.core.url_to_fs(source.url)
            system.get_file(path, str(local))
        except (OSError, ImportError, ValueError) as error:
            raise Eagle3Error("cannot be fetched", where=source, found=reason(error)) from None
        yield local
