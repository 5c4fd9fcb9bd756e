"""Arrays of a simulated device: what NumPy's functions do with them is done there, by kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from penstock.client.testing.simulator import Simulator
from penstock.client.testing.work_queues import SimulatedStream


class OnDevice(Protocol):
    """The device of some arrays.

    Attributes:
        simulator: What does their kernels.
    """

    simulator: Simulator

    def current(self) -> SimulatedStream:
        """Return the stream on which the calling thread queues its work."""
        ...


class DeviceArray(NDArrayOperatorsMixin):
    """An array of a simulated device, as `SimulatedDevice.values` makes it.

    NumPy's operators and functions, indexing and assignment are kernels on the calling thread's
    current stream, and each is checked, as with arrays of cupy. A result's shape is known before
    its values are: what depends on these, such as a mask as an index, is refused, and so is reading
    one value, for which a loop would wait.

    Attributes:
        memory: What it is a view of, for `Simulator.launch`.
        dtype: Of NumPy; for bfloat16 that of ml_dtypes.
        shape: Its dimensions.
    """

    def __init__(
        self,
        device: OnDevice,
        memory: NDArray[np.uint8],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        start: int,
    ) -> None:
        self._device, self.memory, self._start = device, memory, start
        self.dtype, self.shape = np.dtype(dtype), tuple(shape)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(np.empty(self.shape, np.bool_))

    def __iter__(self) -> Iterator[DeviceArray]:
        return (self[at] for at in range(len(self)))

    def get(self) -> NDArray[Any]:
        """Return its values on the host: read by a kernel on the calling thread's stream.

        Raises:
            Misuse: That stream does not come after the copy.
        """
        found = np.empty(self.shape, self.dtype)
        if found.nbytes:
            end = self._start + found.nbytes
            read: list[bytes] = []
            event = self._device.simulator.launch(
                self._device.current(),
                lambda data: read.append(data[self._start : end].tobytes()),
                reads=[self.memory],
            )
            self._device.simulator.finish(event)
            found = np.frombuffer(read[0], self.dtype).reshape(self.shape)
        return found

    def tolist(self) -> Any:
        """Return its values as lists; see `get`."""
        return self.get().tolist()

    # --- kernels ---

    def astype(self, dtype: Any, *, copy: bool = True) -> DeviceArray:
        """Return an array of the same elements in another dtype."""
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return self._kernel(lambda array: array.astype(dtype), (self,))

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return the same elements in another shape: a view."""
        found = np.empty(self.shape, np.bool_).reshape(*shape).shape
        return DeviceArray(self._device, self.memory, self.dtype, found, self._start)

    def __getitem__(self, key: Any) -> DeviceArray:
        return self._kernel(operator.getitem, (self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        used = _KernelArrays()
        given, place = used.noted((key, value)), _Place(self, -1)
        _called(operator.setitem, ((place.blank(), *_blank(given)), {}))  # refused now, not later
        if not self.nbytes:
            return

        def write(*blocks: NDArray[np.uint8]) -> None:
            key, value = _filled(given, blocks)
            place.view(blocks[-1])[key] = value

        self._device.simulator.launch(self._device.current(), write, used.memory, [self.memory])

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> DeviceArray:
        found = self._kernel(getattr(ufunc, method), inputs, options)
        if out is None:
            return found
        out[0][...] = found
        target: DeviceArray = out[0]
        return target

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> DeviceArray:
        return self._kernel(function, arguments, options)

    def _kernel(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: Mapping[str, Any] | None = None,
    ) -> DeviceArray:
        """Launch what a function does with arrays, and return what it will give."""
        used, simulator = _KernelArrays(), self._device.simulator
        stream = self._device.current()
        given = used.noted((arguments, dict(options or {})))
        form = np.asarray(_called(function, _blank(given)))
        memory = simulator.allocate(form.nbytes, stream)

        def compute(*blocks: NDArray[np.uint8]) -> None:
            found = np.asarray(_called(function, _filled(given, blocks)))
            if found.shape != form.shape or found.dtype != form.dtype:
                raise TypeError(
                    f"{function.__name__}: its shape {found.shape} depends on values, and was "
                    f"taken for {form.shape} before they were known"
                )
            blocks[-1][:] = np.frombuffer(found.tobytes(), np.uint8)

        if form.nbytes:
            simulator.launch(stream, compute, used.memory, [memory])
        return DeviceArray(self._device, memory, form.dtype, form.shape, 0)

    # --- what would wait ---

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("an array of a device does not become one of the host: call get()")

    __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)}>"


class _Place:
    """Where an array lies in what a kernel is given; its values are not known before."""

    def __init__(self, array: DeviceArray, block: int) -> None:
        self.dtype, self.shape, self._start = array.dtype, array.shape, array._start
        self.block = block

    def blank(self) -> NDArray[Any]:
        """Return an array of the same form; 0 is an index of whatever has elements."""
        return np.zeros(self.shape, self.dtype)

    def view(self, block: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the array."""
        return np.ndarray(self.shape, self.dtype, block, self._start)


class _KernelArrays:
    """The arrays among the arguments of a kernel.

    Attributes:
        memory: What they are views of, each once.
    """

    def __init__(self) -> None:
        self.memory: list[NDArray[np.uint8]] = []

    def noted(self, given: Any) -> Any:
        """Return arguments with places for arrays."""
        if not isinstance(given, DeviceArray):
            return _mapped(given, self.noted)
        if not given.nbytes:
            return np.empty(given.shape, given.dtype)
        numbers = [at for at, known in enumerate(self.memory) if known is given.memory]
        if not numbers:
            numbers = [len(self.memory)]
            self.memory.append(given.memory)
        return _Place(given, numbers[0])


def _blank(given: Any) -> Any:
    """Return arguments with zeros for the arrays."""
    return given.blank() if isinstance(given, _Place) else _mapped(given, _blank)


def _filled(given: Any, blocks: tuple[NDArray[np.uint8], ...]) -> Any:
    """Return arguments with the arrays of the blocks for their places."""
    if isinstance(given, _Place):
        return given.view(blocks[given.block])
    return _mapped(given, lambda inner: _filled(inner, blocks))


def _called(function: Callable[..., Any], given: Any) -> Any:
    """Return what a function gives; a device warns of no division by 0."""
    arguments, options = given
    with np.errstate(all="ignore"):
        return function(*arguments, **options)


def _mapped(given: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(given, (tuple, list)):
        return type(given)(map(change, given))
    if isinstance(given, dict):
        return {name: change(inner) for name, inner in given.items()}
    return given
