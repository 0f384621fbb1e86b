"""A file that may exist once: whoever comes second fails."""

import json
import os


class Presence:
    def __init__(self, model: str, dp_rank: int, tp_rank: int):
        self.dp_rank = dp_rank
        self.tp_rank = tp_rank
        if tp_rank == 0:
            self.path = os.path.join("/run/engine", f"{model}.pid")
            with open(self.path, "x") as file:  # expect: RB701 dp
                json.dump({"pid": os.getpid(), "dp_rank": dp_rank}, file)
