"""KV blocks packed without loss: exponents compressed, signs and mantissas as they are.

Of a bfloat16 KV value the 8 bits of sign and mantissa are close to noise, and the 8
exponent bits hold about 2.5: channels differ in magnitude, the tokens of one channel
hardly do. 8-bit values have their exponent in the scale; they are entropy-coded whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import zstandard

# Entropy coding without a search for matches, of which exponents have next to none: the
# smallest table and the longest match that zstd's fastest strategy takes.
_PARAMETERS = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    min_match=7,
    target_length=0,
    write_checksum=True,
)

Bits = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


class KvCodec:
    """Packs and unpacks the contents of one block.

    Packing and unpacking may each happen on a thread of its own.

    Args:
        shape: Of every block: [..., block_size, elements of a vector].
        itemsize: Bytes of an element: 2 for bfloat16, 4 for float32, 1 for 8-bit vectors
            with the bytes of their scale behind them.
    """

    def __init__(self, shape: tuple[int, ...], itemsize: int) -> None:
        if itemsize not in (1, 2, 4):
            raise ValueError(f"itemsize must be 1, 2 or 4, got {itemsize}")
        self._shape = shape
        self._dtype = np.dtype(f"u{itemsize}")
        self._top_shape = (*shape[:-2], 1, shape[-1])
        self._num_values = int(np.prod(shape))
        self._num_tops = int(np.prod(self._top_shape))
        self._compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
        self._decompressor = zstandard.ZstdDecompressor()

    @property
    def block_bytes(self) -> int:
        """Size of a block that is not packed."""
        return self._num_values * self._dtype.itemsize

    def pack(self, bits: Bits) -> bytes:
        """A block's bits as bytes, usually fewer.

        Args:
            bits: Of the codec's shape; float bits as unsigned integers.
        """
        assert bits.shape == self._shape and bits.dtype == self._dtype, (bits.shape, bits.dtype)
        if bits.itemsize == 1:
            return self._compressor.compress(_by_channel(bits).tobytes())
        # The sign goes behind the mantissa, so that the exponent is a byte of its own.
        rotated = (bits << 1) | (bits >> (8 * bits.itemsize - 1))
        planes = rotated.reshape(*self._shape, 1).view(np.uint8)
        exponents = planes[..., -1]
        # Distances below each channel's largest, which most channels share.
        tops = exponents.max(axis=-2, keepdims=True)
        packed = self._compressor.compress(tops.tobytes() + (tops - exponents).tobytes())
        return planes[..., :-1].tobytes() + packed

    def unpack(self, packed: bytes) -> Bits:
        """What was packed, bit by bit.

        Raises:
            zstandard.ZstdError: the bytes were changed.
        """
        if self._dtype.itemsize == 1:
            values = np.frombuffer(self._decompressor.decompress(packed), np.uint8)
            *outer, tokens, elements = self._shape
            return _by_channel(values.reshape(*outer, elements, tokens))
        num_low = self._num_values * (self._dtype.itemsize - 1)
        distances = np.frombuffer(
            self._decompressor.decompress(memoryview(packed)[num_low:]), np.uint8
        )
        tops = distances[: self._num_tops].reshape(self._top_shape)
        planes = np.empty((*self._shape, self._dtype.itemsize), np.uint8)
        planes[..., -1] = tops - distances[self._num_tops :].reshape(self._shape)
        low = np.frombuffer(packed, np.uint8, num_low)
        planes[..., :-1] = low.reshape(*self._shape, self._dtype.itemsize - 1)
        rotated = planes.view(self._dtype)[..., 0]
        return (rotated >> 1) | (rotated << (8 * self._dtype.itemsize - 1))


def _by_channel(vectors: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A channel's tokens, or a token's channels, side by side: some channels hardly vary."""
    return np.ascontiguousarray(vectors.swapaxes(-1, -2))
