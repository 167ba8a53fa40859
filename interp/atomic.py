"""Files that are whole or not there: written under a temporary name, then renamed into place; read with one error."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

from safetensors import SafetensorError

from interp.errors import FileError

_DAMAGE = (
    SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, RecursionError,
    RuntimeError,
)  # fmt: skip
"""What readers of JSON, safetensors and torch files raise over bytes that are not what they should be."""


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


@contextmanager
def one_error(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a bad file makes its readers raise into one `FileError`; `what` says what it should hold."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {what} at {path}: {error}; check the path and its permissions.") from error
    except UnpicklingError as error:
        raise FileError(f"{path} holds more than tensors, or is damaged; it is not opened: {error}") from error
    except _DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"{path} is damaged ({reason}); restore it from a copy, or make it anew.") from error
