"""A memory engine that several services share, in one process or over a loopback socket."""
