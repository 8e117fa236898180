"""State to bytes and back, exactly; pure.

Exact encoding with tags for what JSON lacks, incremental encoding, keyframes and deltas, digests and sealed headers,
and the readable documents of the file layouts. Nothing here reads or writes a file, or knows where bytes are kept.
"""
