"""What the training loop gets of a batch's bytes: arrays or tensors, on the host or on a device.

`value_decoder` says what makes them, and makes arrays; `torch_decoder` makes tensors, and
`device_decoder` brings bodies to a device. `decoder_choice` and `device_choice` take one of these.
`arrival` does what `Loader(arrive=)` asks for.
"""
