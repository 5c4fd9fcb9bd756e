"""A simulated device, to test training loops and drivers on machines without one.

`Loader(device=SimulatedDevice())` reads through it. It is stricter than a device: what a device
does wrong now and then it finds each time, as a `Misuse` with both places in the code. It takes
neither torch nor cupy, but for `SimulatedDevice(tensors=True)`.
"""

from penstock.client.testing.device import SimulatedDevice
from penstock.client.testing.device_arrays import DeviceArray
from penstock.client.testing.misuse import Misuse, Site
from penstock.client.testing.recording import RecordingPort
from penstock.client.testing.schedules import Eager, Lazy, Random, Schedule, Tape, every_schedule
from penstock.client.testing.simulator import Simulator

__all__ = [
    "DeviceArray",
    "Eager",
    "Lazy",
    "Misuse",
    "Random",
    "RecordingPort",
    "Schedule",
    "SimulatedDevice",
    "Simulator",
    "Site",
    "Tape",
    "every_schedule",
]
