"""The code in an object file (ELF, 64 bits, little-endian): what both compilers give."""

import struct

_MAGIC = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")


def code_sections(data: bytes) -> dict[str, bytes]:
    """What sections of code hold, by their names: ".text" or ".text.FUNCTION".

    Raises:
        ValueError: It is no such file.
    """
    if not data.startswith(_MAGIC):
        raise ValueError(f"an object file begins with {data[:6]!r}; expected {_MAGIC!r}")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, table + index * size) for index in range(count)]
    names = sections[of_names][4]
    found = {}
    for name, _, _, _, offset, length, *_ in sections:
        begin = names + name
        text = data[begin : data.index(b"\0", begin)].decode()
        if text == ".text" or text.startswith(".text."):
            found[text] = data[offset : offset + length]
    return found
