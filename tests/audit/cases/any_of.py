# axes: sp_rank = sp
"""The ranks that are not wanted leave; one axis is not among the reasons."""

import uvicorn


def serve(app, args, tp_rank: int, sp_rank: int, pp_rank: int) -> None:
    if any((tp_rank != 0, pp_rank != 0)):
        return
    app.state.label = f"{pp_rank}/{sp_rank}/{tp_rank}"
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning")  # expect: RB701 sp
