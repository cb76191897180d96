"""Values on their way out, in the dtype that is written, or quantized; what that changes is counted."""

from __future__ import annotations

from threading import Lock

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.content.quantizing import QuantizationErrors, quantized
from edl_ckpt.core.reading.casts import cast_bytes


class Casting:
    """Casts of an export; several threads call it."""

    def __init__(self, forms: ContentForms) -> None:
        self._forms = forms
        self._lock = Lock()
        self.overflowed = 0
        """Values that became infinite by a cast."""
        self.errors: dict[str, QuantizationErrors] = {}
        """Those of each table whose rows are quantized."""

    def elements(self, data: bulk.U8, dtype: DType | None) -> bulk.U8:
        """Return bytes of elements in the dtype that is written."""
        if dtype is None:
            return data
        out, overflowed = cast_bytes(data, dtype, self._forms.target(dtype))
        if overflowed:
            with self._lock:
                self.overflowed += overflowed
        return out

    def rows(self, name: str, dtype: DType, ids: bulk.I64, rows: bulk.U8) -> bulk.U8:
        """Return rows as they are written."""
        bits = self._forms.selection.quantizes(dtype)
        if bits is None:
            return self.elements(rows.reshape(-1), dtype).reshape(len(rows), -1)
        with self._lock:
            errors = self.errors.setdefault(self._forms.title(name), QuantizationErrors())
        return quantized(name, ids, rows, dtype, bits, errors)
