"""A make-believe accelerator: tensors that claim to live on `cuda:0` while their data is on the CPU.

    python -m tests.makebelieve pytest tests/device        any module, on a machine without a GPU

    from tests.makebelieve.accelerator import Accelerator       # after the start: nothing here imports torch before

    with Accelerator() as device:
        model.to("cuda:0")
        ...
        print(device.tally.waits)

It refuses what CUDA refuses (tensors of two devices in one operation, `.numpy()`, waiting while a graph is captured),
counts what costs time there (waits of the host, launches, copies), and computes with the CPU's kernels, ours with Triton's
interpreter. What it can show and what not stands in docs/makebelieve.md.
"""
