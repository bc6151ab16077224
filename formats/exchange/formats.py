"""Table of foreign formats and their options.

One entry for each, in the order in which messages list them. `registry` chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.exchange.arrays import idx, npy
from tensorrepo.formats.exchange.base import (
    DAMAGED,
    Format,
    FormatOption,
    ObjectFormat,
    parse_damaged,
    parse_flag,
    parse_names,
)
from tensorrepo.formats.exchange.column_choice import EXCLUDE
from tensorrepo.formats.exchange.images import coco, folder, write_objects, yolo
from tensorrepo.formats.exchange.objects import columns, frames, rows
from tensorrepo.formats.exchange.records import (
    beton,
    class_folders,
    lmdb,
    mds,
    mindrecord,
    tfrecord,
    webdataset,
)
from tensorrepo.formats.exchange.records.samples import parse_count
from tensorrepo.formats.exchange.tables import arrow, csv, hdf5, huggingface, jsonl, lance, samples
from tensorrepo.formats.exchange.tables.writers import (
    write_arrow,
    write_csv,
    write_jsonl,
    write_parquet,
)

_JSON_COLUMNS = FormatOption(
    "json_columns", "columns kept as JSON, whatever the first records have; * for all", parse_names
)
_COLUMNS = FormatOption("columns", "only these columns, in this order", parse_names)
_SPLIT = FormatOption("split", "only this split: train, test, ...")
_COMPRESS = FormatOption("compress", "compress the file", parse_flag)
_MISSING = FormatOption(
    "missing", "rows without a file, files without a row: raise or skip", parse_damaged
)
_SHARD_SIZE = partial(byte_size, "shard_bytes", least=1)
_SAMPLES = FormatOption("samples", "from how many samples types are inferred", parse_count)
_DELIMITER = FormatOption("delimiter", "between cells")
_BOXES = FormatOption("boxes", "what boxes hold: pixels, as COCO's, or parts, as YOLO's")

# A row each: name and title, suffixes, what recognises, reads and writes it, options of both.
# fmt: off
FORMATS: tuple[Format, ...] = (
    Format(
        "images", "folder of image files, one folder for each class",
        (), folder.matches_images, folder.read_images, folder.write_images,
        (
            _SPLIT,
            FormatOption(
                "labels", "folder (the first one names the class), parent, none, or a table"
            ),
            FormatOption("file_column", "the column of that table that names the files"),
            _MISSING, DAMAGED,
        ),
    ),
    Format(
        "idx", "IDX files as MNIST's, gzipped or not: a file, or a folder with one for each column",
        (".idx", ".idx.gz", "-ubyte", "-ubyte.gz"), idx.matches_idx, idx.read_idx, npy.write_idx,
        (_SPLIT, FormatOption("class_names", "what the numbers in column label mean", parse_names)),
        (FormatOption("split", "begins the names of the files"), _COMPRESS),
    ),
    Format(
        "parquet", "Parquet file, or a folder of them",
        arrow.SUFFIXES, arrow.matches_parquet, arrow.read_parquet, write_parquet,
        (_COLUMNS, EXCLUDE), (FormatOption("compression", "zstd, snappy, gzip, lz4 or none"),),
        keeps_forms=True,
    ),
    Format(
        "arrow", "Arrow IPC (Feather) file or stream, or a folder of them",
        arrow.ARROW_SUFFIXES, arrow.matches_arrow, arrow.read_arrow, write_arrow,
        (_COLUMNS, EXCLUDE), keeps_forms=True,
    ),
    Format(
        "npz", "numpy arrays of equal length, a column each",
        (".npz",), npy.matches_npz, npy.read_npz, npy.write_npz, (_COLUMNS,), (_COMPRESS,),
    ),
    Format(
        "npy", "one numpy array, its first dimension the rows",
        (".npy",), npy.matches_npy, npy.read_npy, npy.write_npy,
        (FormatOption("column", "name of the column"),),
    ),
    Format(
        "csv", "comma-separated or otherwise delimited text, or a folder of such files",
        csv.SUFFIXES, csv.matches_csv, csv.read_csv, write_csv,
        (
            _DELIMITER,
            FormatOption("header", "whether the first line names the columns", parse_flag),
            FormatOption("encoding", "of the text: utf-8, latin-1, ..."),
            FormatOption("null_values", "words that stand for a missing value", parse_names),
            FormatOption("text_columns", 'columns kept as text: "007" is no number', parse_names),
            FormatOption(
                "required", "columns that have a value in every row; * for all", parse_names
            ),
            _COLUMNS, EXCLUDE, DAMAGED,
        ),
        (_DELIMITER,),
    ),
    Format(
        "jsonl", "JSON lines, or a folder of such files",
        jsonl.SUFFIXES, jsonl.matches_jsonl, jsonl.read_jsonl, write_jsonl,
        (_JSON_COLUMNS, DAMAGED),
    ),
    Format(
        "json", "JSON document that is a list of objects, or a folder of such files",
        jsonl.DOCUMENT_SUFFIXES, jsonl.matches_json, jsonl.read_json,
        read_options=(_JSON_COLUMNS, DAMAGED),
    ),
    Format(
        "text", "text file, a row a line, or a folder of them, a row a file",
        class_folders.TEXT_SUFFIXES, class_folders.matches_text, class_folders.read_text,
        read_options=(
            FormatOption("by", "what a row is: line or file"),
            _SPLIT,
            FormatOption("encoding", "of the text: utf-8, latin-1, ..."),
            DAMAGED,
        ),
    ),
    Format(
        "audio", "folder of sounds, kept as their bytes, one folder for each class",
        (), class_folders.matches_audio, class_folders.read_audio, read_options=(_SPLIT,),
    ),
    Format(
        "coco", "images with COCO annotations: boxes, segmentation, key points, captions",
        (), coco.matches_coco, coco.read_coco, write_objects.write_coco,
        (
            FormatOption("annotations", "the annotation files, joined by image", parse_names),
            FormatOption("images", "the folder that the names of files are relative to"),
            FormatOption("split", "only annotation files with this in their names: val2017"),
            _MISSING, DAMAGED,
        ),
        (_BOXES,), covers=("images",),
    ),
    Format(
        "yolo", "images with YOLO labels: a text file of boxes or outlines for each image",
        (), yolo.matches_yolo, yolo.read_yolo, write_objects.write_yolo,
        (_SPLIT, FormatOption("task", "detect or segment"), _MISSING, DAMAGED),
        (_BOXES,), covers=("images",),
    ),
    Format(
        "webdataset",
        "WebDataset: tar archives of samples, gzipped or not, one or a folder of shards",
        webdataset.SUFFIXES, webdataset.matches_webdataset,
        webdataset.read_webdataset, webdataset.write_webdataset,
        (
            _COLUMNS, _SAMPLES,
            FormatOption("nullable", "columns that samples may lack", parse_names),
        ),
        (FormatOption("shard_bytes", "size of a folder's shards, 1GB", _SHARD_SIZE), _COMPRESS),
    ),
    Format(
        "tfrecord",
        "TFRecord files of tf.train.Example, gzip, zlib or plain, one or a folder of them",
        tfrecord.SUFFIXES, tfrecord.matches_tfrecord,
        tfrecord.read_tfrecord, tfrecord.write_tfrecord,
        (
            _COLUMNS, EXCLUDE, _SAMPLES,
            FormatOption(
                "types", "what features are: caption:text,thumb:bytes", tfrecord.parse_types
            ),
            FormatOption(
                "shapes", "of tensors, whose lists are flat: image:28x28x1", tfrecord.parse_shapes
            ),
        ),
        (_COMPRESS,),
    ),
    Format(
        "mds", "MDS, the shards of MosaicML's streaming: a folder with index.json",
        (), mds.matches_mds, mds.read_mds, read_options=(_COLUMNS, EXCLUDE, _SAMPLES),
    ),
    Format(
        "lmdb", "LMDB, its keys and values or Caffe's datums: data.mdb or its folder",
        (".mdb", ".lmdb"), lmdb.matches_lmdb, lmdb.read_lmdb,
        read_options=(
            FormatOption("database", "of several in one file, this one"),
            FormatOption("key", "what keys are: text or bytes"),
            FormatOption("value", "what values are: bytes, text, image or datum"),
            _SAMPLES,
        ),
    ),
    Format(
        "beton", "beton, FFCV's file of samples",
        beton.SUFFIXES, beton.matches_beton, beton.read_beton, read_options=(_COLUMNS, EXCLUDE),
    ),
    Format(
        "mindrecord", "MindRecord, MindSpore's files of samples",
        mindrecord.SUFFIXES, mindrecord.matches_mindrecord, mindrecord.read_mindrecord,
        read_options=(_COLUMNS, EXCLUDE, _SAMPLES),
    ),
    Format(
        "huggingface", "folder that save_to_disk of Hugging Face's datasets wrote",
        (), huggingface.matches_huggingface,
        huggingface.read_huggingface, huggingface.write_huggingface,
        (_SPLIT, _COLUMNS, EXCLUDE), covers=("arrow",),
    ),
    Format(
        "lance", "Lance dataset (needs pylance)",
        lance.SUFFIXES, lance.matches_lance, lance.read_lance, lance.write_lance,
        (_COLUMNS, EXCLUDE, FormatOption("version", "a version's number or tag, else the latest")),
        keeps_forms=True,
    ),
    Format(
        "hdf5", "HDF5 file, its datasets of equal length the columns (needs h5py)",
        hdf5.SUFFIXES, hdf5.matches_hdf5, hdf5.read_hdf5, read_options=(_COLUMNS, EXCLUDE),
    ),
)
OBJECTS: tuple[ObjectFormat, ...] = (
    ObjectFormat(
        "huggingface", "a dataset of Hugging Face",
        huggingface.is_huggingface_object, huggingface.read_huggingface_object,
        (_COLUMNS, EXCLUDE),
    ),
    ObjectFormat(
        "frame", "a data frame, an Arrow table or reader",
        frames.is_frame, frames.read_frame, (_COLUMNS, EXCLUDE),
    ),
    ObjectFormat(
        "columns", "a mapping of columns",
        lambda given: isinstance(given, Mapping), columns.read_columns, (_COLUMNS, EXCLUDE),
    ),
    ObjectFormat(
        "torch", "a dataset of torch",
        samples.is_torch_dataset, samples.read_samples,
        (
            FormatOption("names", "of the columns, for samples that are tuples", parse_names),
            FormatOption("image_format", "of Pillow's pictures: png, webp, tiff or bmp"),
            DAMAGED, _COLUMNS, EXCLUDE,
        ),
    ),
    ObjectFormat(
        "rows", "an iterable of rows",
        rows.is_rows, rows.read_rows, (_COLUMNS, EXCLUDE, DAMAGED),
    ),
)
