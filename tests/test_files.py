"""Files that are written whole."""

import errno
import os
from pathlib import Path

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


def test_a_pipe_is_written_to_and_links_in_a_circle_are_replaced(tmp_path):
    end, begin = os.pipe()
    replace_file(Path(f"/dev/fd/{begin}"), b"one")
    os.close(begin)
    with os.fdopen(end, "rb") as pipe:
        assert pipe.read() == b"one"
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).symlink_to(tmp_path / other)
    replace_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"


def test_what_nothing_can_be_put_beside_is_written_in_place(tmp_path, monkeypatch):
    longest = tmp_path / ("a" * 253)
    replace_file(longest, b"one")
    assert longest.read_bytes() == b"one"

    def refused(_, target):
        raise PermissionError(errno.EACCES, "denied", str(target))

    monkeypatch.setattr(Path, "replace", refused)
    replace_file(tmp_path / "b", b"two")
    assert [path.name for path in tmp_path.iterdir() if path != longest] == ["b"]
    assert (tmp_path / "b").read_bytes() == b"two"
