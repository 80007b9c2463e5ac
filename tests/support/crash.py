"""One fork server for tests that kill processes: what a child needs is imported once."""

import multiprocessing

# The list belongs to the whole process, so there is one for all tests.
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    [
        "kinfolk.data.prepare",
        "kinfolk.workflows.pretrain",
        "torch.utils.tensorboard",
        "torch._dynamo",
    ]
)
