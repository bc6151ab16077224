"""What a new user does in the first hour, a friction that was found there in each file.

The frictions by their numbers, with the files that name them:

    F1   fsck
    F2   nightly_sync
    F3   round_trip
    F4   uncommitted_files
    F5   log_graph
    F7   base_is_lineage
    F8   plain_arrays
    F9   all_at_once arrow_types
    F10  python_data
    F11  paths_that_go_up
    F12  cloud_logins other_logins
    F14  absent_words disk_usage history
    F15  forms
    F16  names_people_type
    F17  models_in_torch
    F18  sql_prompt
    F19  cat sql_prompt
    F20  sql_prompt
    F21  bare_names_and_formats
    F22  history
    F23  bare_names_and_formats
    F24  cat
    F26  words
    F27  selection_lineage stream_words
    F28  stream_words
    F29  messy_csv
    F30  bare_names_and_formats
    F32  run_metrics
    F33  casts
    F34  words
    F35  add_paths bisect branches commit_as_git_does history in_the_way stash urls
    F36  more_formats
    F37  urls
    F38  progress_totals
    F39  words

Elsewhere: F6 formats/exchange/tables/test_partitions, F13 docs/test_guides, F25
tensorrepo/test_cli_json, F31 architecture/test_import_time. F21, F23 and F30 have no
file that names them.
"""
