#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel over Gloo, as a subject of `muster bench train`.

    peer_train_ddp.py DIR RANK RANKS MODEL OPTIMIZER BATCH best|default

`default` leaves DDP and zero_grad as they are. The workers meet in the file DIR/store; one worker alone has no DDP. The models and
the data are those of train/models.h, the conversation with the driver that of train_harness.h.
"""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
INPUTS = 8
LABELS = 101


def make_mlp(width):
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def convolution(channels_in, channels_out, size, stride):
    return nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.body = nn.Sequential(
            convolution(channels_in, channels_out, 3, stride), nn.BatchNorm2d(channels_out), nn.ReLU(),
            convolution(channels_out, channels_out, 3, 1), nn.BatchNorm2d(channels_out),
        )  # fmt: skip
        self.shortcut = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                convolution(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x):
        return torch.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def make_resnet(width):
    layers = [convolution(3, width, 3, 1), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in (1, 2, 4, 8):
        layers.append(BasicBlock(channels, width * stage, 1 if stage == 1 else 2))
        channels = width * stage
        layers.append(BasicBlock(channels, channels, 1))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)


MODELS = {
    "a": (lambda: make_mlp(1024), (784,)),
    "b": (make_cnn, (1, 28, 28)),
    "c": (lambda: make_mlp(4096), (784,)),
    "d": (lambda: make_resnet(32), (3, 32, 32)),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


class Worker:
    def __init__(self, directory, rank, ranks, best):
        self.directory = directory
        self.rank = rank
        self.ranks = ranks
        self.best = best

    def prepare(self, model, optimizer, batch):
        make, shape = MODELS[model]
        self.model = make()
        torch.manual_seed(self.rank + 1)
        self.inputs = [torch.randn(batch, *shape) for _ in range(INPUTS)]
        self.labels = [torch.randint(CLASSES, (batch,)) for _ in range(LABELS)]
        self.steps = 0
        if self.ranks > 1:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{self.directory}/store", rank=self.rank, world_size=self.ranks
            )
            # As in Muster, rank 0's statistics of BatchNorm go to all before each step: that is DDP's default.
            self.model = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=self.best)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    def step(self):
        start = time.perf_counter()
        if self.best:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.optimizer.zero_grad()
        inputs = self.inputs[self.steps % INPUTS]
        labels = self.labels[self.steps % LABELS]
        self.steps += 1
        self.loss = functional.cross_entropy(self.model(inputs), labels)
        self.loss.backward()
        computed = time.perf_counter()
        self.optimizer.step()
        self.compute += computed - start
        self.update += time.perf_counter() - computed

    def answer(self, command):
        verb, warmup, steps = command.split()
        if verb != "train":
            raise ValueError(f"not a command: {command}")
        self.begin_turn()
        for _ in range(int(warmup)):
            self.step()
        self.begin_turn()
        start = time.perf_counter()
        for _ in range(int(steps)):
            self.step()
        seconds = time.perf_counter() - start
        # With DDP the backward pass waits for the other workers: compute and wait can't be told apart.
        wait = " wait 0" if self.ranks == 1 else ""
        return f"ok {seconds} {self.loss.item()} compute {self.compute}{wait} update {self.update}"

    def begin_turn(self):
        self.compute = 0.0
        self.update = 0.0


def main():
    directory, rank, ranks, model, optimizer, batch, how = sys.argv[1:]
    worker = Worker(directory, int(rank), int(ranks), how == "best")
    worker.prepare(model, optimizer, int(batch))
    with open(f"{directory}/{rank}.in") as commands, open(f"{directory}/{rank}.out", "w", buffering=1) as answers:
        print(f"ready {os.getpid()}", file=answers)
        while command := commands.readline().strip():
            if command == "quit":
                break
            try:
                print(worker.answer(command), file=answers)
            except Exception as error:
                print("error", str(error).splitlines()[0] if str(error) else type(error).__name__, file=answers)
    # A process group's farewell may wait for workers that are gone.
    os._exit(0)


main()
