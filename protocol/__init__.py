"""Floor 0: what both sides agreed on. Bytes, keys, masks, sums.

Pure: no I/O, clock, thread or global; numpy, cryptography and protobuf only.
"""
