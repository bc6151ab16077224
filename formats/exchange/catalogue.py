"""Which foreign formats are there, and what do their options mean?

One entry for each, in the order in which messages list them. `registry` chooses among them.
"""

from __future__ import annotations

from tensorrepo.formats.exchange.base import (
    DAMAGED,
    Format,
    ObjectFormat,
    Option,
    parse_damaged,
    parse_flag,
    parse_names,
)
from tensorrepo.formats.exchange.imagery.coco import matches_coco, read_coco
from tensorrepo.formats.exchange.imagery.images import matches_images, read_images
from tensorrepo.formats.exchange.imagery.imagesout import write_images
from tensorrepo.formats.exchange.imagery.yolo import matches_yolo, read_yolo
from tensorrepo.formats.exchange.numeric.arraysout import write_idx, write_npy, write_npz
from tensorrepo.formats.exchange.numeric.idx import matches_idx, read_idx
from tensorrepo.formats.exchange.numeric.npy import matches_npy, matches_npz, read_npy, read_npz
from tensorrepo.formats.exchange.shards.beton import SUFFIXES as BETON_SUFFIXES
from tensorrepo.formats.exchange.shards.beton import matches_beton, read_beton
from tensorrepo.formats.exchange.shards.lmdb import matches_lmdb, read_lmdb
from tensorrepo.formats.exchange.shards.mds import matches_mds, read_mds
from tensorrepo.formats.exchange.shards.mindrecord import SUFFIXES as MINDRECORD_SUFFIXES
from tensorrepo.formats.exchange.shards.mindrecord import matches_mindrecord, read_mindrecord
from tensorrepo.formats.exchange.shards.records import parse_count
from tensorrepo.formats.exchange.shards.tfrecord import SUFFIXES as TFRECORD_SUFFIXES
from tensorrepo.formats.exchange.shards.tfrecord import (
    matches_tfrecord,
    parse_shapes,
    parse_types,
    read_tfrecord,
)
from tensorrepo.formats.exchange.shards.tfrecordout import write_tfrecord
from tensorrepo.formats.exchange.shards.webdataset import SUFFIXES as TAR_SUFFIXES
from tensorrepo.formats.exchange.shards.webdataset import matches_webdataset, read_webdataset
from tensorrepo.formats.exchange.shards.webdatasetout import write_webdataset
from tensorrepo.formats.exchange.tabular.arrow import SUFFIXES as ARROW_SUFFIXES
from tensorrepo.formats.exchange.tabular.arrow import matches_arrow, read_arrow
from tensorrepo.formats.exchange.tabular.csv import SUFFIXES as CSV_SUFFIXES
from tensorrepo.formats.exchange.tabular.csv import matches_csv, read_csv
from tensorrepo.formats.exchange.tabular.hdf5 import SUFFIXES as HDF5_SUFFIXES
from tensorrepo.formats.exchange.tabular.hdf5 import matches_hdf5, read_hdf5
from tensorrepo.formats.exchange.tabular.huggingface import (
    is_huggingface_object,
    matches_huggingface,
    read_huggingface,
    read_huggingface_object,
)
from tensorrepo.formats.exchange.tabular.huggingfaceout import write_huggingface
from tensorrepo.formats.exchange.tabular.jsonl import SUFFIXES as JSONL_SUFFIXES
from tensorrepo.formats.exchange.tabular.jsonl import matches_jsonl, read_jsonl
from tensorrepo.formats.exchange.tabular.lance import SUFFIXES as LANCE_SUFFIXES
from tensorrepo.formats.exchange.tabular.lance import matches_lance, read_lance, write_lance
from tensorrepo.formats.exchange.tabular.parquet import SUFFIXES as PARQUET_SUFFIXES
from tensorrepo.formats.exchange.tabular.parquet import matches_parquet, read_parquet
from tensorrepo.formats.exchange.tabular.tablesout import (
    write_arrow,
    write_csv,
    write_jsonl,
    write_parquet,
)
from tensorrepo.formats.exchange.tabular.torchdata import is_torch_dataset, read_samples

_COLUMNS = Option("columns", "only these columns, in this order", parse_names)
_SPLIT = Option("split", "only this split: train, test, ...")
_COMPRESS = Option("compress", "compress the file", parse_flag)
_MISSING = Option(
    "missing", "rows without a file, files without a row: raise or skip", parse_damaged
)
_SAMPLES = Option("samples", "from how many samples types are inferred", parse_count)
_DELIMITER = Option("delimiter", "between cells")

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
            Option("labels", "folder (the first one names the class), parent, none, or a table"),
            Option("file_column", "the column of that table that names the files"),
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
        (_SPLIT, Option("class_names", "what the numbers in column label mean", parse_names)),
        (Option("split", "begins the names of the files"), _COMPRESS),
    ),
    Format(
        "parquet",
        "Parquet file, or a folder of them",
        PARQUET_SUFFIXES,
        matches_parquet,
        read_parquet,
        write_parquet,
        (_COLUMNS,),
        (Option("compression", "zstd, snappy, gzip, lz4 or none"),),
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
        (Option("column", "name of the column"),),
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
            Option("header", "whether the first line names the columns", parse_flag),
            Option("encoding", "of the text: utf-8, latin-1, ..."),
            Option("null_values", "words that stand for a missing value", parse_names),
            Option("text_columns", 'columns kept as text: "007" is no number', parse_names),
            Option("required", "columns that have a value in every row; * for all", parse_names),
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
            Option("annotations", "the annotation files, joined by image", parse_names),
            Option("images", "the folder that the names of files are relative to"),
            Option("split", "only annotation files with this in their names: val2017"),
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
        read_options=(_SPLIT, Option("task", "detect or segment"), _MISSING, DAMAGED),
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
            Option("nullable", "columns that samples may lack", parse_names),
            _SAMPLES,
        ),
        (Option("shard_bytes", "where a folder's next shard begins", parse_count), _COMPRESS),
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
            Option("types", "what features are: caption:text,thumb:bytes", parse_types),
            Option("shapes", "of tensors, whose lists are flat: image:28x28x1", parse_shapes),
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
            Option("database", "of several in one file, this one"),
            Option("key", "what keys are: text or bytes"),
            Option("value", "what values are: bytes, text, image or datum"),
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
        (_COLUMNS, Option("version", "a version's number or tag, else the latest")),
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
            Option("names", "of the columns, for samples that are tuples", parse_names),
            Option("image_format", "of Pillow's pictures: png, webp, tiff or bmp"),
            DAMAGED,
        ),
    ),
)
