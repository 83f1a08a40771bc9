//! Open- and closed-loop load, latency from the intended send time.
