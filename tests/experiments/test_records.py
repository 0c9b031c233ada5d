import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dasgrad
from dasgrad.experiments import records
from dasgrad.experiments.records import (
    COLUMNS,
    Record,
    RecordError,
    RunConfig,
    current_versions,
    describe_machine,
    load_record,
    read_folder,
    read_record,
    write_record,
)

CONFIG = RunConfig("digits", "dasgrad", 0.3, 7, 40, 32, 10, 1, "cpu", {"betas": (0.9, 0.99), "floor": 0.1})


def make_record(config: RunConfig = CONFIG) -> Record:
    curves = {name: np.linspace(k, k + 1, 5) for k, name in enumerate(COLUMNS)}
    return Record(config, curves, current_versions(), describe_machine())


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written, path = make_record(), tmp_path / CONFIG.file_name
    write_record(path, written)
    read = read_record(path, CONFIG)
    assert read.config == CONFIG
    assert read.versions == written.versions
    assert read.machine == written.machine
    assert list(read.curves) == list(COLUMNS)
    for name in COLUMNS:
        np.testing.assert_array_equal(read.curves[name], written.curves[name])
    assert read.final("train_loss") == 2.0


def test_metadata_says_what_made_the_curves() -> None:
    record = make_record()
    assert record.versions["dasgrad"] == dasgrad.__version__
    assert set(record.versions) == {"dasgrad", "torch", "python"}
    assert record.machine["cpu"]
    assert record.machine["cores"] >= 1


@pytest.mark.parametrize(
    "field", ["experiment", "method", "lr", "seed", "num_steps", "batch_size", "refresh", "device", "case"]
)
def test_every_setting_gives_a_file_of_its_own(field: str) -> None:
    value = getattr(CONFIG, field)
    other = replace(CONFIG, **{field: value + "x" if isinstance(value, str) else value + 1})
    assert other.file_name != CONFIG.file_name
    assert replace(CONFIG, options={**CONFIG.options, "floor": 0.2}).file_name != CONFIG.file_name
    assert replace(CONFIG).file_name == CONFIG.file_name


def damage_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_text(path: Path) -> None:
    path.write_text("not parquet at all")


def damage_page(path: Path) -> None:
    column = pq.read_metadata(path).row_group(0).column(1)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 4] ^= 0x01  # a bit that rots on the disk
    path.write_bytes(bytes(content))


def foreign_parquet(path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), path)


def foreign_metadata(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({b"dasgrad": b"{"}), path)


def newer_schema(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({b"dasgrad": b'{"schema_version": 99}'}), path)


def other_config(path: Path) -> None:
    write_record(path, make_record(replace(CONFIG, seed=8)))


def older_library(path: Path) -> None:
    write_record(path, replace(make_record(), versions={**current_versions(), "dasgrad": "0.0.1"}))


def missing_column(path: Path) -> None:
    record = make_record()
    write_record(path, replace(record, curves={name: record.curves[name] for name in COLUMNS[:-1]}))


def no_rows(path: Path) -> None:
    write_record(path, replace(make_record(), curves={name: np.zeros(0) for name in COLUMNS}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_half, "not a readable Parquet file"),
        (damage_truncate, "not a readable Parquet file"),
        (damage_empty, "not a readable Parquet file"),
        (damage_text, "not a readable Parquet file"),
        (damage_page, "not a readable Parquet file"),
        (foreign_parquet, "not written by dasgrad"),
        (foreign_metadata, "not JSON"),
        (newer_schema, "schema version 99"),
        (other_config, "another configuration"),
        (older_library, "written with dasgrad 0.0.1"),
        (missing_column, "lacks the columns scored_examples"),
        (no_rows, "has no rows"),
    ],
)
def test_an_unusable_file_is_refused_by_name(tmp_path: Path, damage: object, reason: str) -> None:
    path = tmp_path / CONFIG.file_name
    write_record(path, make_record())
    assert callable(damage)
    damage(path)
    with pytest.raises(RecordError, match=reason) as caught:
        read_record(path, CONFIG)
    assert str(path) in str(caught.value)


def test_version_1_is_read_without_what_it_did_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.parquet"
    write_record(path, make_record())
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[records.METADATA_KEY])
    about["schema_version"] = 1
    del about["config"]["case"]
    pq.write_table(table.replace_schema_metadata({records.METADATA_KEY: json.dumps(about).encode()}), path)
    assert load_record(path).config.as_plain() == CONFIG.as_plain()
    monkeypatch.setattr(records, "READ_VERSIONS", (2,))
    with pytest.raises(RecordError, match=r"old\.parquet: has schema version 1, this library writes 2"):
        load_record(path)


def test_columns_of_an_experiments_own_are_kept(tmp_path: Path) -> None:
    record = make_record()
    record.curves["test_loss_rare"] = np.arange(5.0)
    write_record(tmp_path / "r", record)
    assert list(load_record(tmp_path / "r").curves) == [*COLUMNS, "test_loss_rare"]


def test_a_folder_gives_its_good_records_and_names_the_others(tmp_path: Path) -> None:
    for seed in range(3):
        config = replace(CONFIG, seed=seed)
        write_record(tmp_path / config.file_name, make_record(config))
    (tmp_path / "notes.txt").write_text("mine")
    damaged = tmp_path / replace(CONFIG, seed=1).file_name
    damage_half(damaged)
    found, unusable = read_folder(tmp_path)
    assert sorted(record.config.seed for record in found.values()) == [0, 2]
    assert list(unusable) == [damaged]
    assert "not a readable Parquet file" in unusable[damaged]


def test_no_file_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "none", CONFIG)


def test_schema_version_is_stored(tmp_path: Path) -> None:
    write_record(tmp_path / "r", make_record())
    metadata = pq.read_schema(tmp_path / "r").metadata[records.METADATA_KEY]
    assert f'"schema_version": {records.SCHEMA_VERSION}'.encode() in metadata


def test_no_flipped_bit_is_used_silently(tmp_path: Path) -> None:
    path, written = tmp_path / CONFIG.file_name, make_record()
    write_record(path, written)
    content = path.read_bytes()
    num_refused = 0
    for position in range(0, len(content), 17):
        damaged = bytearray(content)
        damaged[position] ^= 0x01
        path.write_bytes(damaged)
        try:
            read = read_record(path, CONFIG)
        except RecordError:
            num_refused += 1
        else:  # padding and statistics carry no value
            for name in COLUMNS:
                np.testing.assert_array_equal(read.curves[name], written.curves[name])
    assert num_refused > 50
