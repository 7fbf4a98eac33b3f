#!/usr/bin/env python3
"""PyTorch's RPC over TensorPipe, as a subject of `muster bench ps`: a server that keeps the tensor that was pushed last.

    peer_ps_torch_rpc.py shm|tcp DIR RANK WORKERS SERVERS VARIABLES BYTES

shm is TensorPipe as it comes, which uses shared memory; tcp has nothing but sockets. All variables of a server are one tensor. The ranks
meet in the file DIR/store; the conversation with the driver and the numbers are those of ps_harness.h.
"""

import os
import sys
import time

import torch
import torch.distributed.rpc as rpc

GRADIENT_PERIOD = 3
SECONDS_TO_CONNECT = 60

parameters = None


def push(gradients):
    global parameters
    parameters = gradients


def pull():
    return parameters


def gradients_of(count, worker):
    return (torch.arange(count) + worker).remainder(GRADIENT_PERIOD).float()


def parts_of(tensor, parts):
    bounds = [len(tensor) * part // parts for part in range(parts + 1)]
    return [tensor[begin:end] for begin, end in zip(bounds, bounds[1:])]


class Worker:
    def __init__(self, rank, workers, servers, count):
        self.rank = rank
        self.all_gradients = [parts_of(gradients_of(count, worker), servers) for worker in range(workers)]
        self.servers = [f"server{server}" for server in range(servers)]
        self.prepare(1)

    # Tensors of their own: of a view the whole would be sent.
    def prepare(self, sign):
        self.gradients = [sign * part for part in self.all_gradients[self.rank]]

    def call_all(self, function, arguments):
        if len(self.servers) == 1:
            return [rpc.rpc_sync(self.servers[0], function, args=arguments[0])]
        calls = [rpc.rpc_async(server, function, args=args) for server, args in zip(self.servers, arguments)]
        return [call.wait() for call in calls]

    def step(self):
        self.call_all(push, [(part,) for part in self.gradients])
        self.pulled = self.call_all(pull, [()] * len(self.servers))

    # Pushes other numbers than before, once: each server has them, or what another worker has pushed since.
    def verify(self):
        self.prepare(-1)
        self.step()
        self.prepare(1)
        return all(self.is_of_a_worker(server) for server in range(len(self.servers)))

    def is_of_a_worker(self, server):
        for worker, parts in enumerate(self.all_gradients):
            if torch.equal(self.pulled[server], -parts[server]):
                return True
            if worker != self.rank and torch.equal(self.pulled[server], parts[server]):
                return True
        return False

    # In place, as a backward pass writes them; it is not timed.
    def rewrite(self):
        for part in self.gradients:
            part.mul_(1)

    def sample(self, batch):
        seconds = 0.0
        for _ in range(batch):
            self.rewrite()
            start = time.perf_counter()
            self.step()
            seconds += time.perf_counter() - start
        return seconds / batch * 1e6

    def answer(self, command):
        if command == "verify":
            return f"ok {int(self.verify())}"
        verb, warmup, samples, batch = command.split()
        if verb != "run":
            raise ValueError(f"not a command: {command}")
        self.sample(max(1, int(warmup)))
        return " ".join(["ok"] + [str(self.sample(int(batch))) for _ in range(int(samples))])


def connect(transport, directory, rank, workers, servers):
    ways = {} if transport == "shm" else {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{directory}/store",
        rpc_timeout=SECONDS_TO_CONNECT,
        num_worker_threads=max(2, workers),
        **ways,
    )
    name = f"worker{rank}" if rank < workers else f"server{rank - workers}"
    rpc.init_rpc(name, rank=rank, world_size=workers + servers, rpc_backend_options=options)


def main():
    transport, directory = sys.argv[1:3]
    rank, workers, servers, variables, size = map(int, sys.argv[3:])
    torch.set_num_threads(1)
    connect(transport, directory, rank, workers, servers)
    worker = Worker(rank, workers, servers, variables * size // 4) if rank < workers else None
    with open(f"{directory}/{rank}.in") as commands, open(f"{directory}/{rank}.out", "w", buffering=1) as answers:
        print(f"ready {os.getpid()}", file=answers)
        while command := commands.readline().strip():
            if command == "quit":
                break
            try:
                print(worker.answer(command) if worker else "ok", file=answers)
            except Exception as error:
                print("error", str(error).splitlines()[0] if str(error) else type(error).__name__, file=answers)
    # The farewell of RPC may wait for ranks that are gone.
    os._exit(0)


main()
