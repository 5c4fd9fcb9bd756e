"""What can be wrong with a device, as errors: the same sentences for every driver."""

from __future__ import annotations

import resource

from penstock.wire.errors import CannotPin, DeviceFailed, NoDevice, OutOfDeviceMemory


def cannot_pin(nbytes: int, reason: object) -> CannotPin:
    """Return the error for memory of the host that cannot be pinned."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = None if soft == resource.RLIM_INFINITY else soft
    allowed = "any number" if limit is None else f"{limit:,}"
    return CannotPin(
        f"{nbytes:,} bytes of this host's memory cannot be pinned for the device "
        f"({_line(reason)}); this process may lock {allowed} of them: raise the limit on "
        "locked memory (ulimit -l) or "
        'the memory of the container, or pass memory="plain", which copies without',
        nbytes=nbytes,
        limit_bytes=limit,
        reason=_line(reason),
    )


def too_little_to_pin(nbytes: int, most_bytes: int) -> CannotPin:
    """Return the error for a body that is longer than all that may be pinned."""
    return CannotPin(
        f"a batch of {nbytes:,} bytes does not fit in one piece of pinned memory, of which this "
        f"Loader may have {most_bytes:,} bytes: pass limits=Limits(pinned_bytes=) with "
        f"{8 * nbytes:,} or more, or "
        'memory="plain", which copies without',
        nbytes=nbytes,
        limit_bytes=most_bytes,
        reason="Limits.pinned_bytes",
    )


def out_of_memory(
    device: str, nbytes: int, free_bytes: int | None, total_bytes: int | None
) -> OutOfDeviceMemory:
    """Return the error for a body that does not fit on the device."""
    room = "" if free_bytes is None else f", which has {free_bytes:,} of {total_bytes:,} bytes free"
    return OutOfDeviceMemory(
        f"a batch takes {nbytes:,} bytes of {device}{room}: make batches smaller, keep fewer of "
        "them, or pass limits=Limits(device_batches=1); asking again copies it again",
        device=device,
        nbytes=nbytes,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def no_room_on_arrival(
    device: str, free_bytes: int | None, total_bytes: int | None
) -> OutOfDeviceMemory:
    """Return the error for what is done with a batch as it arrives, and does not fit."""
    room = "" if free_bytes is None else f", which has {free_bytes:,} of {total_bytes:,} bytes free"
    return OutOfDeviceMemory(
        f"what arrive= makes of a batch does not fit on {device}{room}: make batches smaller, keep "
        "fewer of them, or pass limits=Limits(device_batches=1); asking again copies it again",
        device=device,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def device_failed(device: str, call: str, reason: object) -> DeviceFailed:
    """Return the error for a call that a device did not take."""
    return DeviceFailed(
        f"{device} failed as it was asked to {call}: {_line(reason)}; it was reset, or what ran on "
        "it before has failed (CUDA_LAUNCH_BLOCKING=1 shows what): start this process again, CUDA "
        "accepts nothing more from it",
        device=device,
        call=call,
        reason=_line(reason),
    )


def no_such_index(device: str, count: int) -> NoDevice:
    """Return the error for an index that no device has."""
    shown = "none" if not count else "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
    reason = f"this process sees {shown}"
    return NoDevice(
        f"device={device!r}: {reason}; pass one of these, or look at CUDA_VISIBLE_DEVICES",
        field="device",
        device=device,
        reason=reason,
    )


def does_not_answer(device: str, reason: object) -> NoDevice:
    """Return the error for a device that is there and cannot be used."""
    found = _line(reason)
    return NoDevice(
        f"device={device!r} does not answer: {found}; {remedy(found)}",
        field="device",
        device=device,
        reason=found,
    )


def remedy(reason: str, otherwise: str = "look at nvidia-smi, or leave device= out") -> str:
    """Return what to do about a device that a library does not reach, by what the library says."""
    if "fork" in reason.lower() or "cudaErrorInitializationError" in reason:
        return "start this process by spawn, not by fork, or use no CUDA before the fork"
    return otherwise


def _line(reason: object) -> str:
    """Return the first line of what a library says: torch adds paragraphs of advice."""
    return (str(reason).strip() or type(reason).__name__).splitlines()[0].rstrip(".")
