"""What is true while the job runs: claims, who holds them, and ports that cannot be raced.

The map of this package; each imports only from those before it:

    directory  where on a host the locks and records are
    lock       a lock that the kernel drops when its holder dies
    process    this process and others, such that a reused pid is not mistaken
    locks      who holds which lock, without touching any
    atomic     files that are written whole or not at all
    key        what is claimed
    record     who holds what, beside its lock
    hold       the two together
    diagnosis  what to tell one who is refused
    addresses  what the holder of a claim binds, held with it
    claim      exactly one holder on a host
    election   standing by until the holder is gone
    fence      refusing what a deposed owner still sends
    line       asking a torch.distributed Store without waiting for ever
    store      claims across hosts, in that store
    interface  the address of a network interface
    handover   a listening socket on its way to whoever serves on it
    listeners  who has a port or a path
    ports      a port that is held from the moment it is chosen
    allocator  ranges of ports, shared by all deployments of a host
    registry   all records of a host, and which of their holders live
    dial       what others should connect to
    metrics    the registry for Prometheus
"""
