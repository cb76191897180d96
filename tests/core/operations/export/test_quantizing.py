"""Rows in 8 and 4 bits: byte for byte those of PyTorch and FBGEMM, with and without the compiled kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from checkpoints import at
from edl_ckpt.core import Selection, Table, export_version, save_checkpoint
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.operations.export.content.quantizing import QUANTIZED, QuantizationErrors, quantized
from foreign import run_judge

COUNT = int(os.environ.get("EDL_CKPT_TEST_QUANTIZED_TABLES", "60"))


def tables(count: int) -> list[npt.NDArray[np.float32]]:
    """Return random tables: ordinary ones, constants, denormals, extremes, whole numbers with both zeros."""
    rng = np.random.default_rng(count)
    made = []
    for number in range(count):
        rows = rng.standard_normal((int(rng.integers(1, 40)), 2 * int(rng.integers(1, 40)))).astype(np.float32)
        kinds = (
            rows,
            np.full_like(rows, rows[0, 0]),
            rows * np.float32(1e-41),
            np.clip(rows, -3, 3) * np.float32(5e37),
            np.round(rows * 3),
            rows * np.float32(10) ** rng.integers(-30, 4, (len(rows), 1)).astype(np.float32),
        )
        made.append(np.ascontiguousarray(kinds[number % len(kinds)], np.float32))
    return made


def stored(rows: npt.NDArray[np.float32], form: str) -> tuple[npt.NDArray[np.uint8], QuantizationErrors]:
    """Return rows as they are stored, and their errors."""
    errors = QuantizationErrors()
    data = rows.view(np.uint8)
    return quantized("t", np.arange(len(rows)), data, DTYPES["float32"], QUANTIZED[form], errors), errors


@pytest.mark.parametrize("form", QUANTIZED)
def test_the_kernel_and_numpy_store_the_same_bytes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel and numpy store the same bytes."""
    if bulk.kernel is None:
        pytest.skip("there is no compiled kernel")
    for rows in (*tables(60), np.ones((3, 7), np.float32), np.empty((0, 4), np.float32)):
        if form != "int8-fbgemm" and np.abs(rows).max(initial=0) > 60000:
            continue
        fast, errors = stored(rows, form)
        with monkeypatch.context() as without:
            without.setattr(bulk, "kernel", None)
            slow, others = stored(rows, form)
        assert fast.tobytes() == slow.tobytes()
        assert errors.greatest == pytest.approx(others.greatest, rel=1e-6)
        assert errors.mean == pytest.approx(others.mean, rel=1e-5)


@pytest.mark.frameworks
def test_bytes_are_those_of_torch_and_fbgemm(tmp_path: Path) -> None:
    """Run with EDL_CKPT_TEST_QUANTIZED_TABLES=1000 and EDL_CKPT_TEST_TORCHREC_PYTHON, which has fbgemm_gpu."""
    made = tables(COUNT)
    np.savez(tmp_path / "rows.npz", *made)
    run_judge("EDL_CKPT_TEST_TORCHREC_PYTHON", "quantized.py", str(tmp_path / "rows.npz"), str(tmp_path / "judged.npz"))
    compared = 0
    with np.load(tmp_path / "judged.npz") as judged:
        for number, rows in enumerate(made):
            for form in QUANTIZED:
                try:
                    mine, _ = stored(rows, form)
                except UnsupportedError:
                    assert np.abs(rows).max() > 60000
                    continue
                assert mine.tobytes() == judged[f"{number} {form}"].tobytes(), (number, form)
                compared += 1
    assert compared > 2 * len(made)


def saved(place: Path, rows: npt.NDArray[Any]) -> Any:
    save_checkpoint(place / "run", 1, 2, variables={"w": np.ones(3)}, tables={"t": Table(np.arange(len(rows)), rows)})
    return at(place / "run", 1)


def test_an_export_has_the_stored_rows_and_says_how_far_they_are(tmp_path: Path) -> None:
    """An export has the stored rows and says how far they are."""
    rows = np.random.default_rng(1).standard_normal((500, 16)).astype(np.float32)
    version = saved(tmp_path, rows)
    result = export_version(version, tmp_path / "m.safetensors", selection=Selection(quantize="int8-fbgemm"))
    found = load_file(tmp_path / "m.safetensors")
    codes, scale, offset = found["t.vectors"][:, :16], *found["t.vectors"][:, 16:].copy().view("<f4").T
    far = np.abs(codes * scale[:, None] + offset[:, None] - rows)
    assert found["t.ids"].tolist() == list(range(500))
    (error,) = result.errors
    assert error.name == "t"
    assert error.greatest == pytest.approx(float(far.max()), rel=1e-5)
    assert error.mean == pytest.approx(float(far.mean()), rel=1e-4)
    assert not result.proved
    assert found["w"].dtype == np.float64


@pytest.mark.parametrize(("form", "value"), [("int8-fbgemm", np.nan), ("int8-f16", 1e8), ("int4-fbgemm", -np.inf)])
def test_rows_that_cannot_be_stored_are_refused_with_their_ids(tmp_path: Path, form: str, value: float) -> None:
    """Rows that cannot be stored are refused with their ids."""
    rows = np.ones((50, 4), np.float32)
    rows[[7, 30], 2] = value
    with pytest.raises(UnsupportedError, match=r"'t': .*: ids (7|30)"):
        export_version(saved(tmp_path, rows), tmp_path / "m.npz", selection=Selection(quantize=form))
    assert not (tmp_path / "m.npz").exists()


def test_quantized_rows_are_not_for_every_format(tmp_path: Path) -> None:
    """Quantized rows are not for every format."""
    version = saved(tmp_path, np.ones((5, 4), np.float32))
    with pytest.raises(UnsupportedError, match="no arrays of bytes"):
        export_version(version, tmp_path / "m.parquet", selection=Selection(quantize="int8-f16"))
    with pytest.raises(UsageError):
        Selection(quantize="int3")
    with pytest.raises(UsageError):
        Selection(quantize="int8-f16", dtype="float16")
