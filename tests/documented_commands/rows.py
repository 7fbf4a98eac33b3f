"""What tests/documented_commands/test does with each command of the documents: a row a command.

Run(command, expect): the command is run in a shell, in a folder that looks like the source tree after a build, with the built
programs in PATH; its exit code and its output are held. A row of several lines runs them in one shell, one after the other;
lines with a prompt (h1$) run on that host, all at the same time. The hosts h0 to h3 are network namespaces, and can be reached
by these names. Lines with #SBATCH make the row a batch script, under an srun and a scontrol that set the variables of Slurm and
start tasks on h1, h2, ... (Slurm itself is not there).

    code         the exit code, 0 unless told
    program      what stands for the word `program`: hello_cluster unless told. "any flags" prints its flags and says hello
    replace      text of the command that only a reader can know -> what is run instead
    add          is put at the end of the command, as fewer rounds for a benchmark
    shell        the shell text that is run, where the command alone would not do; {command} is the command
    hosts        the shell text needs the hosts: `on h1 COMMAND` runs there, `wait_for_all` ends with the code of those behind &
    fakes        a folder of fakes/ that comes first in PATH; that of ssh reaches the hosts (SshLauncherTest has a real one)
    environment  variables

Elsewhere(command, test): the command takes long, or changes the machine. `test` is the name of a test that ctest runs, or a
script of the repository that has the command in it.
"""

import dataclasses


@dataclasses.dataclass
class Run:
    commands: str
    expect: list = dataclasses.field(default_factory=list)  # texts, and Numbers
    code: int = 0
    program: str = "hello_cluster"
    replace: dict = dataclasses.field(default_factory=dict)
    add: str = ""
    shell: str = "{command}"
    hosts: bool = False
    fakes: str = ""
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Elsewhere:
    commands: str
    test: str


@dataclasses.dataclass
class Number:
    """A pattern that the output must have, with a number in it that must lie between two bounds."""
    pattern: str
    least: float = float("-inf")
    most: float = float("inf")


# Programs reach more than these bounds: mnist 91 to 97 %, gan 79 to 90 % of the points, recommend a loss of 0.56 where tossing a
# coin gives 0.69.
MNIST = Number(r"accuracy ([\d.]+) % on 1000 test digits", least=85)
GAN = Number(r"([\d.]+) % of the generator's points are in a cloud", least=60)
RECOMMEND = Number(r"loss ([\d.]+); ", most=0.6)

# A command on the graph of an example.
SAVED_GRAPH = "muster run --workers 2 --ps 1 --strategy none -- in_graph_mnist --epochs 1 --save-graph model.pb && {command}"

HELLO = "hello from worker/0 (started by: "
SHORTEST = " --rounds 1 --progress off"


def timed(ranks, size):
    """A line of the table of `muster bench`, with Muster's time."""
    return Number(rf"\n +{ranks} +{size} +([\d.]+) ", least=0)



ROWS = [
    # Training.
    Run("mnist", [MNIST]),
    Run("muster run --workers 2 -- mnist", [MNIST]),
    Run("muster run --workers 2 --strategy ps-async -- mnist", [MNIST]),
    Run("muster run --workers 4 --ps 2 --strategy ps-sync -- mnist", [MNIST]),
    Run("muster run --workers 2 --precision bf16 -- mnist --epochs 5", [MNIST]),
    Run("mpirun -n 2 mnist", [MNIST]),
    Run("gan", [GAN]),
    Run("muster run --workers 2 -- gan", [GAN]),
    Run("muster run --workers 2 --strategy ps-async -- gan", [GAN]),
    Run("muster run --ps 2 --workers 2 --strategy ps-async -- recommend", [RECOMMEND]),

    # Graphs.
    Run("""MUSTER_SECRET=mine hello_session 0
           MUSTER_SECRET=mine hello_session 1""",
        ["hello: (muster::constant): /job:local/replica:0/task:1/device:cpu:0", "the squares of what task 1 has: 1 4 9 16 25"],
        shell="MUSTER_SECRET=mine hello_session 1 & MUSTER_SECRET=mine hello_session 0; code=$?; "
              "MUSTER_SECRET=mine muster server --stop grpc://localhost:2223 && wait && exit $code"),
    Elsewhere("MUSTER_SECRET=mine muster server --cluster 'ps=h1:2222;worker=h2:2222' --job ps --task 0",
              "SessionProcesses.AServerThatIsKilledInAStepIsNamedAndMayComeBack"),
    Elsewhere("MUSTER_SECRET=mine muster server --stop grpc://h1:2222",
              "SessionProcesses.AClientThatDiesLeavesNothingBehind"),
    Run("muster run --workers 2 --ps 1 --strategy none -- in_graph_mnist",
        [Number(r"epoch 5: loss [\d.]+, accuracy ([\d.]+) %", least=90)]),
    Run("muster run --workers 2 --ps 1 --strategy none -- between_graph_mnist",
        [Number(r"after 100[01] steps: accuracy ([\d.]+) %", least=90)]),
    Run("muster run --workers 2 --ps 1 --strategy none -- between_graph_mnist --sync",
        [Number(r"after 1000 steps: accuracy ([\d.]+) %", least=90)]),

    Run("muster run --workers 2 --strategy none -- pipeline",
        [Number(r"epoch 5: loss [\d.]+, accuracy ([\d.]+) %", least=94)]),
    Run("muster run --workers 3 --strategy none -- pipeline --stages 3",
        [Number(r"epoch 5: loss [\d.]+, accuracy ([\d.]+) %", least=94)]),
    Run("muster run --workers 2 --strategy none -- model_parallel",
        [Number(r"step 39: loss ([\d.]+)", most=0.4)]),
    Run("muster run --workers 2 --strategy none -- model_parallel --tasks 1", ["raise its memory limit"], code=1),

    # Looking at graphs.
    Run("muster run --workers 2 --ps 1 --strategy none -- in_graph_mnist --save-graph model.pb", ["(muster::group)"],
        add=" --epochs 1", shell="{command} && muster graph show model.pb"),
    Run("muster graph show model.pb", ["w1/update: (muster::update): /job:ps/task:0 <- mean:0, &w1\n"], shell=SAVED_GRAPH),
    Run("muster graph place model.pb --cluster 'ps=h1:2222;worker=h2:2222,h3:2222' --target train --batch 32",
        ["ps/0                 17       398 KiB           0 B\n", "From task to task: 1.6 MiB in 16 edges."], shell=SAVED_GRAPH),
    Run("muster graph show model.pb --svg --without-gradients -o model.svg", ["</svg>"],
        shell=SAVED_GRAPH + " && tail -n 1 model.svg"),
    Run("muster graph place model.pb --cluster 'ps=h1:2222;worker=h2:2222,h3:2222' --target train --svg -o placed.svg",
        ["</svg>"], shell=SAVED_GRAPH + " && tail -n 1 placed.svg"),
    Run("muster graph schedule --stages 3 --micro-batches 6 --schedule zero-bubble",
        [Number(r"bubble ([\d.]+) %", least=10.0, most=10.0), "micro-batches held at most: 3, 3, 3"]),
    Run("muster graph schedule --stages 4 --micro-batches 16 --forward 1 --backward 2",
        [Number(r"1f1b +57 +([\d.]+) %", least=15.7, most=15.9), Number(r"zero-bubble +51 +([\d.]+) %", most=8)]),
    Run("muster graph schedule --micro-batches 4 --times 1:2,1.5:3 --weight-share 0.4", ["zero-bubble, 2 stages, 4 micro-batches"]),

    # muster run.
    Run("muster run --help", ["--max-restarts", "h1$ muster run"]),
    Run("program", [HELLO + "none)"]),
    Run("program --help", ["--strategy", "--join-timeout"]),
    Run("muster run --workers 2 -- program", ["the cluster has 2 tasks"]),
    Run("muster run --workers 2 -- hello_cluster", ["the cluster has 2 tasks"]),
    Run("muster run --workers 2 --ps 1 --strategy none -- hello_cluster", ["the cluster has 3 tasks", "hello from ps/0"]),
    Run("muster run --workers 2 --strategy ps-sync -- program", ["the cluster has 3 tasks", "a server"]),
    Run("muster run --workers 4 --ps 2 --strategy ps-sync -- program --its --flags",
        ["flags: --its --flags", "the cluster has 6 tasks"], program="any flags"),
    Run("muster run --max-restarts", [HELLO], add=" 1 --workers 2 -- program"),
    Run("muster run ... | head", ["worker/0 | y", "nobody reads the output any more"], replace={"...": "-- yes"}, code=141),
    Run("""export MUSTER_SECRET=$(openssl rand -hex 16)
           h1$ muster run --workers 8 --nnodes 2 --node-rank 0 --coordinator h1:2222 -- program
           h2$ muster run --workers 8 --nnodes 2 --node-rank 1 --coordinator h1:2222 -- program""",
        ["the cluster has 8 tasks", "hello from worker/7"]),
    Run("""h1$ program --task worker/0 --cluster 'worker=h1:2222,h2:2222'
           h2$ program --task worker/1 --cluster 'worker=h1:2222,h2:2222'""",
        ["the cluster has 2 tasks", "hello from worker/1"]),
    Run("program --strategy ps-sync", [HELLO + "TF_CONFIG)", "the cluster has 3 tasks", "a server"], hosts=True, shell="""
        for task in h0:chief h1:worker h2:ps; do
          export TF_CONFIG='{{"cluster": {{"chief": ["h0:2222"], "worker": ["h1:2222"], "ps": ["h2:2222"]}}, '
          TF_CONFIG+="\\"task\\": {{\\"type\\": \\"${{task#*:}}\\", \\"index\\": 0}}}}"
          on "${{task%:*}}" "{command}" &
        done
        wait_for_all"""),

    Run("muster run --workers 2 --ps 1 --strategy ps-sync -- program", ["the cluster has 3 tasks", "a server"]),
    Run("muster run --workers 4 --log-dir logs --only worker/0 -- program", ["logs are kept in logs/", "worker/0 | hello"]),
    Run("muster run --workers 2 --log-level debug --timestamps -- program", [Number(r"\n\d\d:\d\d:(\d\d).\d{3} worker/1 ")]),
    Run("muster run --workers 2 --dry-run -- program", ["# worker/1 of 2 tasks, on any core\nenv "]),
    Run("muster run --workers 2 --strategy ps-sync --dry-run -- program", ["# ps/0 of 3 tasks", "MUSTER_STRATEGY=ps-sync"]),
    Run("muster run --workers 2 --stall-warning 2s --collective-timeout 30s -- program", ["the cluster has 2 tasks"]),
    Run("muster run --workers 2 --heartbeat-timeout 1h --collective-timeout 1h -- program", ["the cluster has 2 tasks"]),
    Run("muster run --workers 2 --slow worker/1:3x -- program", ["the cluster has 2 tasks"]),
    Run("""ulimit -c unlimited
           muster run --workers 2 -- program""", ["the cluster has 2 tasks"]),
    Run("muster COMMAND --help", ["--hostfile"], replace={"COMMAND": "run"}),
    Run("muster info", ["\nprocessor  ", "\nlauncher     none"]),
    Run("muster manual --format markdown", ["# Flags"]),

    # Debuggers. What a debugger says of the program depends on the machine: that it knows a stack is enough.
    Run("muster run --workers 2 -- bash -c 'if [ \"$RANK\" = 1 ]; then exec gdb -batch -ex run -ex \"thread apply all bt\" "
        "--args program; else exec program; fi'", ["exited normally", "the cluster has 2 tasks"]),
    Run("gdb -p 4711", ["#0"], replace={"4711": "$!"}, add=" -batch -ex bt", shell="sleep 100 & {command}; kill $!"),
    Run("gdb program core", ["#0"], replace={"program": "$(command -v sleep)"}, add=" -batch -ex bt",
        shell="sleep 100 & gcore -o made $! && mv made.$! core; kill $!; {command}"),
    Elsewhere("kill -QUIT 4711", "LauncherTest.QuitPrintsTheStacksOfAllTasksAndTheJobGoesOn"),
    Elsewhere("kill -QUIT", "LauncherTest.QuitPrintsTheStacksOfAllTasksAndTheJobGoesOn"),

    # Several hosts by ssh.
    Run("muster run --hosts h1,h2 --workers 8 -- program", ["the cluster has 8 tasks", "h2     | worker/7 | hello"],
        hosts=True, fakes="ssh", shell="on h1 '{command}'"),
    Run("muster run --hosts h1,h2 --workers 2 -- hello_cluster", ["the cluster has 2 tasks", "h2     | worker/1 | hello"],
        hosts=True, fakes="ssh", shell="on h1 '{command}'"),
    Run("muster run --hosts h1,h2 --workers 8 --bind numa -- program", ["bound to cores: worker/0 to "],
        hosts=True, fakes="ssh", shell="on h1 '{command}'"),
    Run("muster run --hosts h1,h2 --workers 8 --ssh \"ssh -p 2200\" -- program", ["the cluster has 8 tasks"],
        hosts=True, fakes="ssh", shell="on h1 '{command}'"),
    Run("muster run --hosts h1,h2 --workers 8 --env OMP_NUM_THREADS=2 --env LD_LIBRARY_PATH -- program",
        ["the cluster has 8 tasks"], hosts=True, fakes="ssh", shell="on h1 '{command}'",
        environment={"LD_LIBRARY_PATH": "/nowhere"}),
    Run("muster run --hostfile hosts.txt -- program", ["the cluster has 4 tasks"], hosts=True, fakes="ssh",
        shell="printf 'h1 slots=2\\nh2 slots=2\\n' >hosts.txt && on h1 '{command}'"),
    Run("ssh -o BatchMode=yes -o ServerAliveInterval=15", ["reached"], hosts=True, fakes="ssh", add=" h1 echo reached"),
    Run("ssh h2", ["reached"], hosts=True, fakes="ssh", add=" echo reached"),
    Run("""openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=job -keyout ca.key -out ca.pem
           openssl req -newkey rsa:2048 -nodes -subj /CN=task -keyout task.key -out task.csr
           openssl x509 -req -days 30 -in task.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out task.pem""",
        ["task.pem: OK"], shell="{command} && openssl verify -CAfile ca.pem task.pem"),

    # Other launchers.
    Run("mpirun -n 2 hello_cluster", [HELLO + "Open MPI)", "the cluster has 2 tasks"]),
    Run("mpirun -n 4 program", [HELLO + "Open MPI)", "the cluster has 4 tasks"]),
    Run("mpirun -x MUSTER_COORDINATOR=h1:2222 -x MUSTER_SECRET ...", ["the cluster has 2 tasks"],
        replace={"...": "-n 2 program"}, hosts=True, shell='on h1 "{command}"', environment={"MUSTER_SECRET": "s"}),
    # Debian 12 has PyTorch 1.13, which does not know these names of flags; the document says so.
    Run("torchrun --nproc-per-node 2 --no-python program", ["unrecognized arguments: --nproc-per-node"], code=2),
    Run("torchrun --nproc_per_node 2 --no_python -r 1 -t 1 program", [MNIST, "[default0]:"], program="mnist"),
    Run("""#SBATCH --nodes 2 --ntasks-per-node 4
           export MUSTER_SECRET=$(openssl rand -hex 16)
           srun program""",
        [HELLO + "Slurm)", "the cluster has 8 tasks"]),
    Run("""#SBATCH --nodes 2 --ntasks-per-node 1
           srun bash -c 'muster run --workers 8 --ps 2 --strategy ps-sync --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID """
        """--coordinator $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):2222 -- program'""",
        [HELLO + "Muster)", "the cluster has 10 tasks"]),
    Run("srun --no-kill --kill-on-bad-exit=0", [HELLO + "Slurm)", "the cluster has 2 tasks"], add=" program",
        shell="#SBATCH --nodes 1 --ntasks-per-node 2\n{command}"),

    # Benchmarks.
    Elsewhere("muster bench train", "bench.train"),
    Elsewhere("muster bench ps", "bench.ps"),
    Elsewhere("muster bench session", "bench.session"),
    Run("muster bench --explain", ["halving-doubling"]),
    Run("muster bench train --help", ["ddp-installed", "ResNet-18"]),
    Run("muster bench allreduce --workers 2", [timed(2, "64")], add=" --sizes 64 --peers openmpi --samples 1" + SHORTEST),
    # MPICH is installed by scripts/bootstrap bench only.
    Run("muster bench allreduce --workers 2,4 --sizes 8:256M --peers gloo,openmpi,mpich", [timed(2, "8"), timed(4, "8")],
        replace={"8:256M": "8", ",mpich": ""}, add=" --samples 1" + SHORTEST),
    Run("muster bench allreduce --transport tcp --workers 2,4 --sizes 64K:64M", [timed(2, "64K"), timed(4, "64K")],
        replace={"64K:64M": "64K"}, add=" --peers openmpi --samples 1" + SHORTEST),
    Run("muster bench train --models a,c --optimizers adam --floor --json train.json --plot train.svg", ["</svg>"],
        replace={"a,c": "a"}, add=" --peers loop --seconds 0.01" + SHORTEST, shell="{command} && tail -n 1 train.svg"),
    Run("muster bench train --strategies", ["ps-sync"],
        add=" allreduce,ps-sync --models a --optimizers adam --workers 2 --seconds 0.01" + SHORTEST),
    Run("bench/network", ["of the line rate"], hosts=True, add=" --hosts 2 --bytes 65536 --samples 1"),
    Run("bench/network --workers 4 --servers 1,2", ["pushed and pulled"], hosts=True,
        replace={"--workers 4": "--workers 2"}, add=" --bytes 65536 --samples 1"),

    # Building and testing.
    Run("scripts/demo", ["cmake --build --preset release --target muster mnist", MNIST], fakes="build"),
    Elsewhere("scripts/test", ".ci/run"),
    Run("scripts/test asan", ["cmake --build --preset asan", "ctest --preset asan"], fakes="build"),
    Run("scripts/test debug", ["cmake --build --preset debug", "ctest --preset debug"], fakes="build"),
    Run("scripts/test tsan", ["cmake --build --preset tsan", "ctest --preset tsan"], fakes="build"),
    Run("scripts/build release", ["cmake --build --preset release"], fakes="build"),
    Run("scripts/bootstrap", ["bootstrap: installing g++", "libtorch-dev", "bootstrap: done"], fakes="debian"),
    Run("scripts/bootstrap bench", ["bootstrap: installing g++", "mpich", "bootstrap: done"], fakes="debian"),
    Run("scripts/build PRESET [TARGET...]", ["cmake --build --preset release --target mnist"],
        replace={"PRESET": "release", "[TARGET...]": "mnist"}, fakes="build"),
    Run("scripts/build release muster-bench", ["cmake --build --preset release --target muster-bench"], fakes="build"),
    Run("cmake --preset release", ["cmake --preset release"], fakes="build"),
    Run("cmake --build --preset release", ["cmake --build --preset release"], fakes="build"),
    Run("cmake --preset release -DMUSTER_TEST_HOSTS=OFF", ["cmake --preset release"], fakes="build"),
    Elsewhere("cmake --install build/release --prefix ...", "package.find_package"),
    Elsewhere("cmake --install build/release --prefix ~/muster", "package.find_package"),
    Elsewhere("export PATH=~/muster/bin:$PATH", "package.find_package"),
    Elsewhere("cmake -G Ninja -S . -B build -DCMAKE_PREFIX_PATH=$HOME/muster", "package.find_package"),
    Elsewhere("cmake --build build", "package.find_package"),
    Elsewhere("build/circle", "package.find_package"),
    Elsewhere("muster run --workers 2 -- build/circle", "package.find_package"),
    Elsewhere("muster run --workers 2 --strategy ps-sync -- build/circle", "package.find_package"),
    Elsewhere("muster run --workers 2 -- build/resume", "package.find_package"),
    Elsewhere("muster run --workers 2 --strategy ps-sync -- build/resume", "package.find_package"),
    Elsewhere("build/resume", "package.find_package"),
    Run("ctest --preset release -R Launcher", ["LauncherFailuresTest"], add=" -N"),
    Run("build/release/bin/muster_trainer_test --gtest_filter='Trainer*'", ["Trainer"], add=" --gtest_list_tests"),
    Run("scripts/check-format --fix", ["int f();"],
        shell="git init -q . && echo 'int  f( );' >f.cc && {command} && cat f.cc"),
    Elsewhere("scripts/tidy", "scripts/test"),
    Elsewhere("scripts/check-threads", "scripts/test"),
    Elsewhere("scripts/check-layers", "scripts/test"),
    Elsewhere("scripts/check-api", "scripts/test"),
]
