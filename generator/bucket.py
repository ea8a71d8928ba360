"""The rounding of a size in a table key: one function for the generator and the runtime."""


def bucket(size: int) -> int:
    """Round a size up to the next power of two; 0 stays 0.

    >>> [bucket(size) for size in (0, 1, 3, 64, 65)]
    [0, 1, 4, 64, 128]
    """
    if size < 0:
        raise ValueError(f"bucket of a negative size {size}")
    return 1 << (size - 1).bit_length() if size else 0
