"""Files that are written whole or not at all. Torch-free."""

import errno
import os
from pathlib import Path

_IN_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENAMETOOLONG}
"""Where nothing can be put beside a file, or in its place, it may be writable itself."""


def replace_file(path: Path, data: bytes) -> None:
    """Write a file; what was there before stays as it is until all of it is on disk.

    Args:
        path: The file; its folder is made if it is missing. Of a link, what it names is written. A
            device, a pipe, and a file in a folder that can't be written to, are written in place.
        data: All that is to be in it.

    Raises:
        OSError: It can't be written; nothing is left of the attempt.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if (path.exists() and not path.is_file()) or path.parts[:2] == ("/", "dev"):
        path.write_bytes(data)  # of /dev/stdout another file would take the place
        return
    path = Path(os.path.realpath(path))  # which is no error of links in a circle
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(data)
        if path.exists():
            new.chmod(path.stat().st_mode)
        new.replace(path)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            new.unlink(missing_ok=True)
        if error.errno not in _IN_PLACE:
            raise
        path.write_bytes(data)
