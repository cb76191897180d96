"""Names as bytes, by one rule for fingerprints, seals, orders and files: UTF-8, and any text has exactly one form.

A name may come from a directory entry or a pickle, and so may have half of a surrogate pair. It is encoded like any
other code point, which no valid text has. Formats that store valid Unicode only refuse such names when they are read
or written.
"""

from __future__ import annotations


def name_bytes(name: str) -> bytes:
    r"""Return a name as bytes: those of UTF-8 where it is valid Unicode, and others for each other text.

    >>> name_bytes("é"), name_bytes("a\ud800")
    (b'\xc3\xa9', b'a\xed\xa0\x80')
    """
    return name.encode("utf-8", "surrogatepass")


def is_unicode(text: str) -> bool:
    r"""Say whether a text is valid Unicode, which every format can store.

    >>> is_unicode("\U0001f600"), is_unicode("a\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
