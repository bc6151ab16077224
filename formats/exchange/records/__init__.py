"""Files of records: tar shards, TFRecord, MDS, LMDB, beton, MindRecord."""
