#!/usr/bin/env python3
"""PyTorch's RPC over TensorPipe, as a subject of `muster bench session`: a task that adds one to the tensor that it gets.

    peer_session_torch_rpc.py DIR TASK TASKS BYTES

TensorPipe is as it comes, which uses shared memory. Task 0 is the client. The tasks meet in the file DIR/store; the conversation with the
driver is that of timed_harness.h.
"""

import os
import sys
import time

import torch
import torch.distributed.rpc as rpc

PAGE = 1024  # floats
SECONDS_TO_CONNECT = 60


def add_one(values):
    return values + 1


class Client:
    def __init__(self, count):
        self.values = torch.zeros(count)
        self.changes = 0
        self.sum = 0.0

    # In place, as an update does; it is not timed.
    def prepare(self):
        self.values.add_(1)
        self.changes += 1

    def run(self):
        self.sum = rpc.rpc_sync("task1", add_one, args=(self.values,))[::PAGE].sum(dtype=torch.double).item()

    def verify(self):
        return self.sum == len(self.values[::PAGE]) * (self.changes + 1)

    def sample(self, batch):
        seconds = 0.0
        for _ in range(batch):
            self.prepare()
            start = time.perf_counter()
            self.run()
            seconds += time.perf_counter() - start
        return seconds / max(1, batch) * 1e6

    def answer(self, command):
        if command == "verify":
            return f"ok {int(self.verify())}"
        verb, warmup, samples, batch = command.split()
        if verb != "run":
            raise ValueError(f"not a command: {command}")
        self.sample(int(warmup))
        return " ".join(["ok"] + [str(self.sample(int(batch))) for _ in range(int(samples))])


def main():
    directory = sys.argv[1]
    task, tasks, size = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{directory}/store", rpc_timeout=SECONDS_TO_CONNECT, num_worker_threads=2)
    rpc.init_rpc(f"task{task}", rank=task, world_size=tasks, rpc_backend_options=options)
    client = Client(size // 4) if task == 0 else None
    with open(f"{directory}/{task}.in") as commands, open(f"{directory}/{task}.out", "w", buffering=1) as answers:
        print(f"ready {os.getpid()}", file=answers)
        while command := commands.readline().strip():
            if command == "quit":
                break
            try:
                print(client.answer(command) if client else "ok", file=answers)
            except Exception as error:
                print("error", str(error).splitlines()[0] if str(error) else type(error).__name__, file=answers)
    # The farewell of RPC may wait for tasks that are gone.
    os._exit(0)


main()
