"""Adapters: what tilery needs from each array library, which stays unimported until the caller uses it."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from .dtypes import LONG_NAMES, SHORT_NAMES, library_of
from .errors import InvalidInput
from .geometry import contiguous_strides
from .problem import ITEM_BYTES, OUT_DTYPES


class ArrayView(NamedTuple):
    """What a launch needs to know of an array: no reference to it, and nothing that can change."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; may be 0 or negative."""
    dtype: str
    kind: str
    """``cuda`` or ``cpu``."""
    ordinal: int
    """Of the GPU in this process; -1 for ``cpu``."""
    writable: bool = True


def _short(name: str, role: str) -> str:
    if name not in SHORT_NAMES:
        result = role in ("c", "bias", "out", "result")
        fit = [long for long, short in SHORT_NAMES.items() if result or short in OUT_DTYPES]
        raise InvalidInput(f"{role} has dtype {name}, which no kernel reads: cast {role} to one of {', '.join(fit)}")
    return SHORT_NAMES[name]


def _element_strides(strides: tuple[int, ...], item: int, role: str) -> tuple[int, ...]:
    if any(stride % item for stride in strides):
        raise InvalidInput(f"{role} has strides of {strides} bytes, not whole elements of {item} bytes: pass a copy")
    return tuple(stride // item for stride in strides)


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _numpy_dtype(dtype: str) -> Any:
    if dtype != "bf16":
        return np.dtype(LONG_NAMES[dtype])
    try:
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        advice = "install it, or pass out_dtype='float32'"
        raise InvalidInput(f"a bfloat16 result in NumPy or CuPy needs the package ml_dtypes: {advice}") from None


class Adapter:
    """What tilery asks of one array library."""

    name = ""
    synchronous = False
    """Whether the result must be complete when the call returns, as the library does not know of our stream."""
    can_write = True

    def accepts(self, kind: type) -> str:
        """Why arrays of this type are refused; empty where they are taken."""
        raise NotImplementedError

    def view(self, array: Any, role: str) -> ArrayView:
        """Metadata of an array; ``role`` is its name in messages."""
        raise NotImplementedError

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """A new row-major array on the device of ``like``."""
        raise NotImplementedError

    def stream(self, ordinal: int) -> int:
        """Handle of the caller's current stream on that GPU."""
        return 0

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        """A CPU array as NumPy sees it, without a copy; bf16 as its bits in uint16."""
        raise NotImplementedError

    def written(self, array: Any) -> Any:
        """The caller's ``out``, now that its memory has been written behind the library's back."""
        return array

    def result(self, array: Any, like: Any) -> Any:
        """What to return for an array of `empty`, now that it has been written."""
        return array


class NumpyAdapter(Adapter):
    """numpy.ndarray; bfloat16 through ml_dtypes."""

    name = "numpy"

    def accepts(self, kind: type) -> str:
        if not issubclass(kind, np.ndarray):
            return "it is a scalar; pass an array"
        return "its mask would be lost; pass x.filled(0)" if issubclass(kind, np.ma.MaskedArray) else ""

    def view(self, array: Any, role: str) -> ArrayView:
        dtype = array.dtype
        short = _short(dtype.name, role)
        if not dtype.isnative:
            raise InvalidInput(f"{role} has bytes in foreign order ({dtype.str}): pass {role}.astype({dtype.name!r})")
        strides = _element_strides(array.strides, dtype.itemsize, role)
        return ArrayView(array.ctypes.data, array.shape, strides, short, "cpu", -1, array.flags.writeable)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, _numpy_dtype(dtype))

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return _bits(np.asarray(array))


class TorchAdapter(Adapter):
    """torch.Tensor, on CUDA and CPU."""

    name = "torch"

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.dtypes = {short: getattr(self.torch, long) for short, long in LONG_NAMES.items()}
        self.shorts = {dtype: short for short, dtype in self.dtypes.items()}
        # Twenty times faster than current_stream(); private, and therefore with a fallback.
        self.raw_stream = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)

    def accepts(self, kind: type) -> str:
        plain = kind is self.torch.Tensor or kind is self.torch.nn.Parameter
        return "" if plain else "a subclass may hold more than its memory shows; pass x.as_subclass(torch.Tensor)"

    def view(self, array: Any, role: str) -> ArrayView:
        try:
            dtype, ptr = self.shorts[array.dtype], array.data_ptr()
            view = ArrayView(ptr, array.shape, array.stride(), dtype, "cuda", array.get_device())
        except (KeyError, RuntimeError) as error:
            raise self._refusal(array, role, str(error)) from None
        if not array.is_cuda:
            if not array.is_cpu:
                raise InvalidInput(f"{role} is on device {array.device}; tilery computes on cuda and cpu")
            view = view._replace(kind="cpu", ordinal=-1)
        if array.is_neg():
            raise InvalidInput(f"{role} is a view with its negation pending: pass {role}.resolve_neg()")
        if array.requires_grad and self.torch.is_grad_enabled():
            raise InvalidInput(
                f"{role} requires grad, and tilery computes forward only, so its gradient would be lost: "
                f"call inside torch.no_grad(), or pass {role}.detach()"
            )
        return view

    def _refusal(self, array: Any, role: str, reason: str) -> InvalidInput:
        if array.layout is not self.torch.strided:
            return InvalidInput(f"{role} has layout {array.layout}, and must be strided: pass {role}.to_dense()")
        if array.is_nested:
            return InvalidInput(f"{role} is a nested tensor; tilery takes one plain tensor a call")
        if array.is_quantized:
            return InvalidInput(f"{role} is quantised; pass its integers, {role}.int_repr(), and scale the result")
        name = str(array.dtype).removeprefix("torch.")
        _short(name, role)
        cause = reason.splitlines()[0]
        return InvalidInput(
            f"{role} has no memory to read, as in vmap or for fake tensors ({cause}): call tilery outside"
        )

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return self.torch.empty(shape, dtype=self.dtypes[dtype], device=like.device)

    def stream(self, ordinal: int) -> int:
        if self.raw_stream is not None:
            return int(self.raw_stream(ordinal))
        return int(self.torch.cuda.current_stream(ordinal).cuda_stream)

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        plain = array.detach()
        bits = plain.dtype is self.torch.bfloat16
        return np.asarray(plain.view(self.torch.int16).numpy().view(np.uint16) if bits else plain.numpy())

    def written(self, array: Any) -> Any:
        # Autograd finds a saved tensor that was overwritten by its version; only tensors of inference mode have none.
        if not array.is_inference():
            self.torch.autograd.graph.increment_version(array)
        return array


class CupyAdapter(Adapter):
    """cupy.ndarray."""

    name = "cupy"

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")

    def accepts(self, kind: type) -> str:
        return "" if issubclass(kind, self.cupy.ndarray) else "pass a cupy.ndarray"

    def view(self, array: Any, role: str) -> ArrayView:
        dtype = array.dtype
        short = _short(dtype.name, role)
        strides = _element_strides(array.strides, dtype.itemsize, role)
        return ArrayView(array.data.ptr, array.shape, strides, short, "cuda", array.device.id)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        with like.device:
            return self.cupy.empty(shape, _numpy_dtype(dtype))

    def stream(self, ordinal: int) -> int:
        with self.cupy.cuda.Device(ordinal):
            return int(self.cupy.cuda.get_current_stream().ptr)


class JaxAdapter(Adapter):
    """jax.Array: immutable, and on streams of JAX's own, so each call waits before and after."""

    name = "jax"
    synchronous = True
    can_write = False

    def __init__(self) -> None:
        self.jax: Any = importlib.import_module("jax")

    def accepts(self, kind: type) -> str:
        if issubclass(kind, self.jax.core.Tracer):
            return "it is a tracer of jit, grad or vmap, which holds no values: call tilery outside of it"
        return "" if issubclass(kind, self.jax.Array) else "pass a jax.Array"

    def view(self, array: Any, role: str) -> ArrayView:
        short = _short(array.dtype.name, role)
        if array.is_deleted():
            raise InvalidInput(f"{role} was deleted or donated by JAX: its memory is gone")
        devices = array.sharding.device_set
        if len(devices) != 1:
            raise InvalidInput(f"{role} is spread over {len(devices)} devices: pass one of its addressable_shards")
        (device,) = devices
        if device.platform not in ("gpu", "cuda", "cpu"):
            raise InvalidInput(f"{role} is on platform {device.platform}; tilery computes on cuda and cpu")
        on_gpu = device.platform != "cpu"
        array.block_until_ready()
        strides = self._strides(array)
        kind, ordinal = ("cuda", device.local_hardware_id) if on_gpu else ("cpu", -1)
        return ArrayView(array.unsafe_buffer_pointer(), array.shape, strides, short, kind, ordinal, writable=False)

    def _strides(self, array: Any) -> tuple[int, ...]:
        order = array.format.layout.major_to_minor
        step = contiguous_strides([array.shape[axis] for axis in order])
        return tuple(step[order.index(axis)] for axis in range(array.ndim))

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        (device,) = like.sharding.device_set
        if device.platform == "cpu":
            return NumpyAdapter().empty(like, shape, dtype)
        # The buffer of a new array that nobody else has seen: writing it breaks no promise of immutability.
        return self.jax.numpy.empty(shape, self.jax.numpy.dtype(LONG_NAMES[dtype]), device=device).block_until_ready()

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return _bits(np.asarray(array))

    def result(self, array: Any, like: Any) -> Any:
        (device,) = like.sharding.device_set
        return self.jax.device_put(array, device) if isinstance(array, np.ndarray) else array


class InterchangeAdapter(Adapter):
    """Any object with __cuda_array_interface__ or __dlpack__: read in place, or written as ``out``; never allocated."""

    name = "interchange"
    synchronous = True

    def view(self, array: Any, role: str) -> ArrayView:
        return self.ordered_view(array, role, 0)

    def ordered_view(self, array: Any, role: str, stream: int) -> ArrayView:
        """As ``view``; what the producer has still to do comes before later work on ``stream``."""
        if _on_cpu(array):
            return ADAPTERS["numpy"]().view(self._numpy(array, role), role)
        from cuda.core.utils import StridedMemoryView

        try:
            memory = StridedMemoryView.from_any_interface(array, stream_ptr=stream or 1)  # 1: legacy default stream
        except (BufferError, RuntimeError, ValueError) as error:
            raise InvalidInput(f"{role} (a {type(array).__name__}) cannot be read: {error}") from error
        short = _short(getattr(memory.dtype, "name", "unknown"), role)
        strides = memory.strides or contiguous_strides(memory.shape)
        return ArrayView(memory.ptr, memory.shape, strides, short, "cuda", memory.device_id, not memory.readonly)

    def _numpy(self, array: Any, role: str) -> np.ndarray[Any, Any]:
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidInput(f"{role} (a {type(array).__name__}) cannot be read through DLPack: {error}") from error

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        raise InvalidInput(
            f"tilery cannot allocate a {type(like).__name__}: pass out=, or convert the inputs, "
            "e.g. with torch.from_dlpack, cupy.asarray or jax.numpy.from_dlpack"
        )

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return _bits(self._numpy(array, "an array"))


def _on_cpu(array: Any) -> bool:
    return hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) == 1  # kDLCPU


ADAPTERS: dict[str, type[Adapter]] = {
    "numpy": NumpyAdapter,
    "torch": TorchAdapter,
    "cupy": CupyAdapter,
    "jax": JaxAdapter,
    "jaxlib": JaxAdapter,
}
INTERCHANGE = InterchangeAdapter()
_adapters: dict[type[Adapter], Adapter] = {}
_by_type: dict[type, Adapter] = {}


def adapter_for(array: Any, role: str) -> Adapter:
    """The adapter of an array's library, from the type alone; ``role`` is the array's name in messages."""
    found = _by_type.get(type(array))
    return found if found is not None else _find_adapter(array, role)


def _find_adapter(array: Any, role: str) -> Adapter:
    kind = type(array)
    adapter = _library_adapter(kind)
    if adapter is None:
        if hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__"):
            return INTERCHANGE
        raise InvalidInput(
            f"{role} is a {kind.__name__}, not an array: pass a NumPy, PyTorch, CuPy or JAX array, "
            f"e.g. numpy.asarray({role}, 'float32')"
        )
    reason = adapter.accepts(kind)
    if reason:
        raise InvalidInput(f"{role} is a {kind.__module__}.{kind.__qualname__}: {reason}")
    return _by_type.setdefault(kind, adapter)


def _library_adapter(kind: type) -> Adapter | None:
    root = next((library_of(base) for base in kind.__mro__ if library_of(base) in ADAPTERS), None)
    if root is None:
        return None
    cls = ADAPTERS[root]
    if cls not in _adapters:
        _adapters[cls] = cls()
    return _adapters[cls]


def item_bytes(view: ArrayView) -> int:
    """Bytes of one element."""
    return ITEM_BYTES[view.dtype]
