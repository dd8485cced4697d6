"""zlib's functions, by ISA-L where that is installed.

    CRC-32 of 100 bytes      ISA-L takes a third to all of zlib's time, depending on the CPU
           of 1 KB, 1 MB     a half, a tenth
    inflate                  a half
    deflate JSON             a fifth, to about the same size

ISA-L has no wheels for some platforms, and a Spark worker that gets the sources by ``--py-files``
may not have it (docs/adr/0044).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    isa_l = zlib
else:
    try:
        from isal import isal_zlib as isa_l
    except ImportError:
        isa_l = zlib

crc32 = isa_l.crc32
decompressobj = isa_l.decompressobj
ZLIB_ERRORS: Final = (zlib.error, isa_l.error)

_ISA_L_LEVELS: Final = {1: 1, 2: 1, 3: 2, 4: 2, 5: 3}
"""ISA-L's level by zlib's level; zlib's higher levels compress better than any of ISA-L."""


def deflate(body: Buffer, level: int) -> bytes:
    """Return a body as a zlib stream (RFC 1950); ``level`` is zlib's, -1 to 9."""
    if isa_l is not zlib and level in _ISA_L_LEVELS:
        return isa_l.compress(body, _ISA_L_LEVELS[level])
    return zlib.compress(body, level)
