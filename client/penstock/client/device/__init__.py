"""A device that batches go to: one port of nine calls, what is built on it, and its drivers.

`port` has the calls, `copier` the order in which they are made, `driver` what a kind of device
gives beside them. `torch_driver` and `cupy_driver` are those of CUDA; `values.device_choice` takes
one, and `penstock.client.testing` has a simulated device. Nothing here imports torch or cupy before
a device is asked for.
"""
