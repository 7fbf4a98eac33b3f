"""The peer of train_process_test: PyTorch's DistributedDataParallel (Gloo, two processes) takes 50 steps from the same
initial weights on the same batches, and prints the mean loss of each.

    ddp_parity.py INITIAL_WEIGHTS MNIST_FOLDER PORT
"""

import gzip
import sys

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F

STEPS = 50
BATCH = 48  # of both workers together
WORKERS = 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 5)
        self.fc1 = torch.nn.Linear(8 * 6 * 6, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv(x)), 4)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def load_mnist(folder):
    with gzip.open(f"{folder}/train-images-idx3-ubyte.gz") as file:
        images = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 1, 28, 28)
    with gzip.open(f"{folder}/train-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    return (images.float() / 255 - 0.1307) / 0.3081, labels


def work(rank, initial, folder, port):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    images, labels = load_mnist(folder)
    net = Net()
    with open(initial, "rb") as file, torch.no_grad():
        for parameter in net.parameters():
            values = torch.frombuffer(bytearray(file.read(4 * parameter.numel())), dtype=torch.float32)
            parameter.copy_(values.view_as(parameter))
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    mine = BATCH // WORKERS
    for step in range(STEPS):
        begin = (step * BATCH + rank * mine) % (len(labels) - mine)
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(images[begin:begin + mine]), labels[begin:begin + mine])
        loss.backward()
        optimizer.step()
        mean = loss.detach().double()
        torch.distributed.all_reduce(mean)
        if rank == 0:
            print(f"loss {step} {mean.item() / WORKERS:.9g}", flush=True)


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=sys.argv[1:], nprocs=WORKERS)
