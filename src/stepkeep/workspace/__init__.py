"""Project files beside the state.

`scan` walks a tree under the rules of `ignore`, `capture` turns it into a `manifest` and blobs, `captured_files` reads
them back, `file_diff` compares and writes patches, `file_restore` brings files back through `staging`, and `git` asks
the repository. The checkpoint that holds the files is saved by the engine; nothing here changes a state.
"""
