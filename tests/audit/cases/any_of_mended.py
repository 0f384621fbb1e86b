# axes: sp_rank = sp
"""The ranks that are not wanted leave; one axis is not among the reasons."""

import uvicorn


def serve(app, args, tp_rank: int, sp_rank: int, pp_rank: int) -> None:
    if any(r != 0 for r in (tp_rank, sp_rank, pp_rank)):
        return
    app.state.label = f"{pp_rank}/{sp_rank}/{tp_rank}"
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning")
