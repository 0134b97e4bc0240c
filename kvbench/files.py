"""Files that are written whole or not at all. Torch-free."""

from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file; what was there before stays as it is until all of it is on disk.

    Args:
        path: The file; its folder is made if it is missing. Of a link, what it names is written; a
            device or a pipe is written to.
        data: All that is to be in it.

    Raises:
        OSError: It can't be written; nothing is left of the attempt.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(data)
        if path.exists():
            new.chmod(path.stat().st_mode)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
