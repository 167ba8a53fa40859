"""Files that are whole or not there: written under a temporary name, then renamed into place."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; what was written there becomes `path` when the block ends well.

    Whatever is raised inside (Ctrl-C too), `path` stays as it was and the temporary file is gone. Missing parent
    folders are made.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # what the user's umask says, whatever the writer thought
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
