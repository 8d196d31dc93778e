"""Files are whole, JSON is strict."""

import json
import math
from pathlib import Path

import pytest

from idn_torch.app.files import dump_json, write_bytes, write_json


def test_no_number_is_not_a_number() -> None:
    value = {"a": math.nan, "b": [1.5, math.inf, (-math.inf, None)], 3: {"c": True, "d": "NaN"}}
    assert json.loads(dump_json(value)) == {
        "a": None,
        "b": [1.5, None, [None, None]],
        "3": {"c": True, "d": "NaN"},
    }


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "file.json"
    write_json(file, {"x": 1})

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(file, b"half of something")
    assert json.loads(file.read_text()) == {"x": 1}
    assert list(file.parent.iterdir()) == [file]
