"""Table of foreign formats and their options.

One entry for each, in the order in which messages list them. `registry` chooses among them.
"""

from __future__ import annotations

from tensorrepo.formats.exchange.arrays.idx import matches_idx, read_idx
from tensorrepo.formats.exchange.arrays.npy import (
    matches_npy,
    matches_npz,
    read_npy,
    read_npz,
    write_idx,
    write_npy,
    write_npz,
)
from tensorrepo.formats.exchange.base import (
    DAMAGED,
    Format,
    FormatOption,
    ObjectFormat,
    parse_damaged,
    parse_flag,
    parse_names,
)
from tensorrepo.formats.exchange.images.coco import matches_coco, read_coco
from tensorrepo.formats.exchange.images.folder import matches_images, read_images, write_images
from tensorrepo.formats.exchange.images.yolo import matches_yolo, read_yolo
from tensorrepo.formats.exchange.records.beton import SUFFIXES as BETON_SUFFIXES
from tensorrepo.formats.exchange.records.beton import matches_beton, read_beton
from tensorrepo.formats.exchange.records.lmdb import matches_lmdb, read_lmdb
from tensorrepo.formats.exchange.records.mds import matches_mds, read_mds
from tensorrepo.formats.exchange.records.mindrecord import SUFFIXES as MINDRECORD_SUFFIXES
from tensorrepo.formats.exchange.records.mindrecord import matches_mindrecord, read_mindrecord
from tensorrepo.formats.exchange.records.samples import parse_count
from tensorrepo.formats.exchange.records.tfrecord import SUFFIXES as TFRECORD_SUFFIXES
from tensorrepo.formats.exchange.records.tfrecord import (
    matches_tfrecord,
    parse_shapes,
    parse_types,
    read_tfrecord,
    write_tfrecord,
)
from tensorrepo.formats.exchange.records.webdataset import SUFFIXES as TAR_SUFFIXES
from tensorrepo.formats.exchange.records.webdataset import (
    matches_webdataset,
    read_webdataset,
    write_webdataset,
)
from tensorrepo.formats.exchange.tables.arrow import (
    ARROW_SUFFIXES,
    matches_arrow,
    matches_parquet,
    read_arrow,
    read_parquet,
)
from tensorrepo.formats.exchange.tables.arrow import SUFFIXES as PARQUET_SUFFIXES
from tensorrepo.formats.exchange.tables.csv import SUFFIXES as CSV_SUFFIXES
from tensorrepo.formats.exchange.tables.csv import matches_csv, read_csv
from tensorrepo.formats.exchange.tables.hdf5 import SUFFIXES as HDF5_SUFFIXES
from tensorrepo.formats.exchange.tables.hdf5 import matches_hdf5, read_hdf5
from tensorrepo.formats.exchange.tables.huggingface import (
    is_huggingface_object,
    matches_huggingface,
    read_huggingface,
    read_huggingface_object,
    write_huggingface,
)
from tensorrepo.formats.exchange.tables.jsonl import SUFFIXES as JSONL_SUFFIXES
from tensorrepo.formats.exchange.tables.jsonl import matches_jsonl, read_jsonl
from tensorrepo.formats.exchange.tables.lance import SUFFIXES as LANCE_SUFFIXES
from tensorrepo.formats.exchange.tables.lance import matches_lance, read_lance, write_lance
from tensorrepo.formats.exchange.tables.samples import is_torch_dataset, read_samples
from tensorrepo.formats.exchange.tables.writers import (
    write_arrow,
    write_csv,
    write_jsonl,
    write_parquet,
)

_COLUMNS = FormatOption("columns", "only these columns, in this order", parse_names)
_SPLIT = FormatOption("split", "only this split: train, test, ...")
_COMPRESS = FormatOption("compress", "compress the file", parse_flag)
_MISSING = FormatOption(
    "missing", "rows without a file, files without a row: raise or skip", parse_damaged
)
_SAMPLES = FormatOption("samples", "from how many samples types are inferred", parse_count)
_DELIMITER = FormatOption("delimiter", "between cells")

FORMATS: tuple[Format, ...] = (
    Format(
        "images",
        "folder of image files, one folder for each class",
        (),
        matches_images,
        read_images,
        write_images,
        (
            _SPLIT,
            FormatOption(
                "labels", "folder (the first one names the class), parent, none, or a table"
            ),
            FormatOption("file_column", "the column of that table that names the files"),
            _MISSING,
            DAMAGED,
        ),
    ),
    Format(
        "idx",
        "IDX files as MNIST's, gzipped or not: a file, or a folder with one for each column",
        (".idx", ".idx.gz", "-ubyte", "-ubyte.gz"),
        matches_idx,
        read_idx,
        write_idx,
        (_SPLIT, FormatOption("class_names", "what the numbers in column label mean", parse_names)),
        (FormatOption("split", "begins the names of the files"), _COMPRESS),
    ),
    Format(
        "parquet",
        "Parquet file, or a folder of them",
        PARQUET_SUFFIXES,
        matches_parquet,
        read_parquet,
        write_parquet,
        (_COLUMNS,),
        (FormatOption("compression", "zstd, snappy, gzip, lz4 or none"),),
    ),
    Format(
        "arrow",
        "Arrow IPC (Feather) file or stream, or a folder of them",
        ARROW_SUFFIXES,
        matches_arrow,
        read_arrow,
        write_arrow,
        (_COLUMNS,),
    ),
    Format(
        "npz",
        "numpy arrays of equal length, a column each",
        (".npz",),
        matches_npz,
        read_npz,
        write_npz,
        (_COLUMNS,),
        (_COMPRESS,),
    ),
    Format(
        "npy",
        "one numpy array, its first dimension the rows",
        (".npy",),
        matches_npy,
        read_npy,
        write_npy,
        (FormatOption("column", "name of the column"),),
    ),
    Format(
        "csv",
        "comma-separated or otherwise delimited text, or a folder of such files",
        CSV_SUFFIXES,
        matches_csv,
        read_csv,
        write_csv,
        (
            _DELIMITER,
            FormatOption("header", "whether the first line names the columns", parse_flag),
            FormatOption("encoding", "of the text: utf-8, latin-1, ..."),
            FormatOption("null_values", "words that stand for a missing value", parse_names),
            FormatOption("text_columns", 'columns kept as text: "007" is no number', parse_names),
            FormatOption(
                "required", "columns that have a value in every row; * for all", parse_names
            ),
            _COLUMNS,
            DAMAGED,
        ),
        (_DELIMITER,),
    ),
    Format(
        "jsonl",
        "JSON lines, or a folder of such files",
        JSONL_SUFFIXES,
        matches_jsonl,
        read_jsonl,
        write_jsonl,
        (DAMAGED,),
    ),
    Format(
        "coco",
        "images with COCO annotations: boxes, segmentation, key points, captions",
        (),
        matches_coco,
        read_coco,
        read_options=(
            FormatOption("annotations", "the annotation files, joined by image", parse_names),
            FormatOption("images", "the folder that the names of files are relative to"),
            FormatOption("split", "only annotation files with this in their names: val2017"),
            _MISSING,
            DAMAGED,
        ),
        covers=("images",),
    ),
    Format(
        "yolo",
        "images with YOLO labels: a text file of boxes or outlines for each image",
        (),
        matches_yolo,
        read_yolo,
        read_options=(_SPLIT, FormatOption("task", "detect or segment"), _MISSING, DAMAGED),
        covers=("images",),
    ),
    Format(
        "webdataset",
        "WebDataset: tar archives of samples, gzipped or not, one or a folder of shards",
        TAR_SUFFIXES,
        matches_webdataset,
        read_webdataset,
        write_webdataset,
        (
            _COLUMNS,
            FormatOption("nullable", "columns that samples may lack", parse_names),
            _SAMPLES,
        ),
        (FormatOption("shard_bytes", "where a folder's next shard begins", parse_count), _COMPRESS),
    ),
    Format(
        "tfrecord",
        "TFRecord files of tf.train.Example, gzip, zlib or plain, one or a folder of them",
        TFRECORD_SUFFIXES,
        matches_tfrecord,
        read_tfrecord,
        write_tfrecord,
        (
            _COLUMNS,
            _SAMPLES,
            FormatOption("types", "what features are: caption:text,thumb:bytes", parse_types),
            FormatOption("shapes", "of tensors, whose lists are flat: image:28x28x1", parse_shapes),
        ),
        (_COMPRESS,),
    ),
    Format(
        "mds",
        "MDS, the shards of MosaicML's streaming: a folder with index.json",
        (),
        matches_mds,
        read_mds,
        read_options=(_COLUMNS, _SAMPLES),
    ),
    Format(
        "lmdb",
        "LMDB, its keys and values or Caffe's datums: data.mdb or its folder",
        (".mdb", ".lmdb"),
        matches_lmdb,
        read_lmdb,
        read_options=(
            FormatOption("database", "of several in one file, this one"),
            FormatOption("key", "what keys are: text or bytes"),
            FormatOption("value", "what values are: bytes, text, image or datum"),
            _SAMPLES,
        ),
    ),
    Format(
        "beton",
        "beton, FFCV's file of samples",
        BETON_SUFFIXES,
        matches_beton,
        read_beton,
        read_options=(_COLUMNS,),
    ),
    Format(
        "mindrecord",
        "MindRecord, MindSpore's files of samples",
        MINDRECORD_SUFFIXES,
        matches_mindrecord,
        read_mindrecord,
        read_options=(_COLUMNS, _SAMPLES),
    ),
    Format(
        "huggingface",
        "folder that save_to_disk of Hugging Face's datasets wrote",
        (),
        matches_huggingface,
        read_huggingface,
        write_huggingface,
        (_SPLIT, _COLUMNS),
        covers=("arrow",),
    ),
    Format(
        "lance",
        "Lance dataset (needs pylance)",
        LANCE_SUFFIXES,
        matches_lance,
        read_lance,
        write_lance,
        (_COLUMNS, FormatOption("version", "a version's number or tag, else the latest")),
    ),
    Format(
        "hdf5",
        "HDF5 file, its datasets of equal length the columns (needs h5py)",
        HDF5_SUFFIXES,
        matches_hdf5,
        read_hdf5,
        read_options=(_COLUMNS,),
    ),
)

OBJECTS: tuple[ObjectFormat, ...] = (
    ObjectFormat(
        "huggingface",
        "datasets of Hugging Face",
        is_huggingface_object,
        read_huggingface_object,
        (_COLUMNS,),
    ),
    ObjectFormat(
        "torch",
        "torch's datasets, and objects that give samples by number as they do",
        is_torch_dataset,
        read_samples,
        (
            FormatOption("names", "of the columns, for samples that are tuples", parse_names),
            FormatOption("image_format", "of Pillow's pictures: png, webp, tiff or bmp"),
            DAMAGED,
        ),
    ),
)
