"""Files that are written whole."""

import os

import pytest

from kvbench.files import replace_file


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "new" / "file"
    replace_file(path, b"one")
    path.chmod(0o640)
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_of_a_link_what_it_names_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("file")
    replace_file(tmp_path / "link", b"one")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"one"


def test_what_is_no_file_is_not_replaced(tmp_path):
    replace_file(tmp_path / os.devnull, b"one")
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path, b"one")
    assert not (tmp_path / os.devnull).is_file()
