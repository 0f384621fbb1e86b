"""The main process by local rank: one writer a node, on a file system that they share."""

import os


class Checkpointer:
    def __init__(self, checkpoint_dir: str):
        self.checkpoint_dir = checkpoint_dir
        self.is_main = int(os.environ.get("RANK", "0")) == 0

    def mark(self, iteration: int) -> None:
        if not self.is_main:
            return
        tracker = os.path.join(self.checkpoint_dir, "latest_checkpointed_iteration.txt")
        with open(tracker, "w") as file:
            file.write(str(iteration))
