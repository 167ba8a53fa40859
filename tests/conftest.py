"""What every test runs under: shapes checked at every call of the package, one thread, untouched global randomness."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

sys.path.insert(0, str(Path(__file__).parent))  # so that tests say `import tiny`

_instrumented = install_import_hook("interp", "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)

# Imported by tests; a second copy, made by the collection of doctests, would register its own attention function.
collect_ignore = ["circuits.py", "context_examples.py", "dictionaries.py", "oracle.py", "tiny.py"]
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def same_randomness() -> Iterator[None]:
    """Each test starts from one seed; no test depends on another's draws."""
    torch.manual_seed(0)
    yield
