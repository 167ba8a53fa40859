"""Files are whole or not there."""

import pytest

from interp.atomic import replacing


def test_a_block_that_ends_well_leaves_the_new_file_alone(tmp_path):
    path = tmp_path / "new" / "note.txt"
    with replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_whatever_is_raised_leaves_the_old_file_and_no_other(tmp_path, raised):
    path = tmp_path / "note.txt"
    path.write_text("old")
    with pytest.raises(raised), replacing(path) as temporary:
        temporary.write_text("half")
        raise raised
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain.txt").touch()
    with replacing(tmp_path / "note.txt") as temporary:
        temporary.write_text("x")
        temporary.chmod(0o600)
    assert (tmp_path / "note.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode
