mod framing;
mod heartbeat;
mod live;
mod memory;
mod seeds;
